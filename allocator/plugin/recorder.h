// Turns what the allocator core tells into trace records and category bytes.
#ifndef VRAMLEDGER_ALLOCATOR_PLUGIN_RECORDER_H_
#define VRAMLEDGER_ALLOCATOR_PLUGIN_RECORDER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "allocator/core/allocator_observer.h"
#include "allocator/plugin/category_ledger.h"
#include "tracer/format/spin_lock.h"
#include "tracer/format/trace_writer.h"

namespace vramledger {

// Thread rule: the observer's methods are called under the core's device lock; the rest from any thread.
class Recorder : public AllocatorObserver {
 public:
  Recorder(CategoryLedger& ledger, const PhaseTracker& phases, int devices)
      : ledger_(ledger), phases_(phases), devices_(static_cast<size_t>(devices)) {}

  // From now on events are written as well as counted. The writer must outlive the process's last event.
  void SetWriter(TraceWriter* writer) { writer_.store(writer, std::memory_order_release); }
  TraceWriter* writer() const { return writer_.load(std::memory_order_acquire); }

  void OnAlloc(const BlockView& block, BlockTag& tag) override;
  void OnFreeRequested(const BlockView& block, BlockTag& tag) override;
  void OnFree(const BlockView& block, BlockTag& tag, bool deferred) override;
  void OnSegmentAlloc(const SegmentView& segment) override { Segment(RecordKind::kSegmentAlloc, segment); }
  void OnSegmentFree(const SegmentView& segment) override { Segment(RecordKind::kSegmentFree, segment); }
  void OnSegmentMap(const SegmentView& part) override { Segment(RecordKind::kSegmentMap, part); }
  void OnSegmentUnmap(const SegmentView& part) override { Segment(RecordKind::kSegmentUnmap, part); }
  void OnOutOfMemory(const OutOfMemoryInfo& info) override;

  // A control record of the calling thread.
  void Control(RecordKind kind, uint32_t a, uint64_t b, uint64_t c, Phase phase, int device = 0, uint8_t flags = 0);
  // Asks for a counters record per device at its next event, where the sums are known to agree.
  void RequestCounters();
  uint32_t Intern(std::string_view text);
  // How often memory was taken from or given back to a device.
  uint64_t segment_changes() const { return segment_changes_.load(std::memory_order_acquire); }

 private:
  struct DeviceSums {
    uint64_t allocated = 0;
    uint64_t reserved = 0;
    std::atomic<bool> counters_due{false};
  };

  void Block(RecordKind kind, const BlockView& block, Phase phase, uint8_t flags, uint32_t module);
  void Segment(RecordKind kind, const SegmentView& segment);
  void WriteCountersIfDue(int device);
  uint16_t StreamNumber(StreamHandle stream);

  CategoryLedger& ledger_;
  const PhaseTracker& phases_;
  std::atomic<TraceWriter*> writer_{nullptr};
  std::vector<DeviceSums> devices_;
  std::atomic<uint64_t> segment_changes_{0};
  SpinLock streams_lock_;
  absl::flat_hash_map<StreamHandle, uint16_t> streams_;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_PLUGIN_RECORDER_H_
