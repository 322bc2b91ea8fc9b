// A record decoded to plain integers, and the interface that every source of events (a trace file, an imported snapshot)
// implements. Analysis code sees only this.
#ifndef VRAMLEDGER_TRACER_FORMAT_EVENT_H_
#define VRAMLEDGER_TRACER_FORMAT_EVENT_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tracer/format/record.h"

namespace vramledger {

// The order of the fields leaves no gaps: many millions of these pass from the thread that decodes to the one that counts.
struct Event {
  RecordKind kind = RecordKind::kNone;
  Phase phase = Phase::kUnknown;
  uint8_t device = 0;
  uint8_t flags = 0;            // MemoryFlags for memory records; see FORMAT.md for control records
  uint16_t thread = 0;
  uint16_t stream = 0;          // of memory records
  uint64_t sequence = 0;        // position in the trace, from 0, gaps = losses
  uint64_t time_ns = 0;         // since the start of the trace
  // Memory records.
  uint32_t module = 0;          // string id, 0 = none; in backward that of the forward which made the node (phase/backward_modules.h)
  uint32_t stack = 0;           // string id of the stack that allocated, 0 = not recorded
  uint32_t node = 0;            // string id of the autograd node that runs ("AddmmBackward0"), 0 = none known
  // Control records, with `b` and `c`: meaning by kind, FORMAT.md §5.
  uint32_t a = 0;
  uint64_t address = 0;
  uint64_t requested_bytes = 0;
  uint64_t rounded_bytes = 0;   // block bytes; for segments their size
  uint64_t b = 0;
  uint64_t c = 0;
};

// What is known about a device from the trace's metadata.
struct DeviceInfo {
  int index = 0;
  std::string name;
  uint64_t total_bytes = 0;
};

// How far a source could be read and what is missing from it.
struct SourceHealth {
  bool ended_early = false;          // the writer never closed it (crash, kill) or its end is cut off
  std::string damage;                // one sentence with the offset when a part could not be read though it should be there
  uint64_t lost_records = 0;         // sum over causes
  std::vector<std::string> notes;    // one sentence each: losses, damage with offset, limits
};

// Fills in what events do not say themselves but the ones before them do. Shown every event once and in order.
using EventFollower = std::function<void(std::span<Event>)>;

// Thread rule: one thread.
class EventSource {
 public:
  virtual ~EventSource() = default;
  // The next event in order, good until the next call; nullptr at the end. A damaged place ends the stream after what is
  // readable; health() then says where. Text records are absorbed into String() and metadata.
  const Event* Next() {
    if (next_ == batch_.size()) {
      next_ = 0;
      batch_ = {};  // gone, also where the next one fails
      batch_ = NextBatch();
      if (batch_.empty()) return nullptr;
    }
    return &batch_[next_++];
  }
  // The text of a string id, good until the next call of Next(); empty for 0 and for ids not (yet) seen: at least those of the
  // events so far are.
  virtual std::string_view String(uint32_t id) const = 0;
  // JSON object text: versions, settings, devices, virtual device; "{}" if none. Complete only at the end of the stream.
  virtual const std::string& metadata_json() const = 0;
  virtual const SourceHealth& health() const = 0;
  // "trace", "snapshot", ...
  virtual std::string_view format() const = 0;

 protected:
  // The next events in order, as many as are convenient, good until the next call; none at the end and ever after.
  virtual std::span<const Event> NextBatch() = 0;

 private:
  std::span<const Event> batch_;
  size_t next_ = 0;  // in batch_
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TRACER_FORMAT_EVENT_H_
