// The one instance behind the C functions that PyTorch and the Python package call. Made at the first call and never destroyed: frees
// arrive until the process is gone.
#ifndef VRAMLEDGER_ALLOCATOR_PLUGIN_PLUGIN_H_
#define VRAMLEDGER_ALLOCATOR_PLUGIN_PLUGIN_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "allocator/core/caching_allocator.h"
#include "allocator/plugin/caller_probe.h"
#include "allocator/plugin/cast_probe.h"
#include "allocator/plugin/category_ledger.h"
#include "allocator/plugin/recorder.h"
#include "allocator/plugin/stack_probe.h"
#include "tracer/cupti/outside_watch.h"
#include "tracer/cupti/phase_ranges.h"
#include "tracer/format/spin_lock.h"
#include "tracer/phase/phase_tracker.h"

namespace vramledger {

// What another way in (the LibTorch subclass, the observer) puts around the core.
class PluginAdapter {
 public:
  virtual ~PluginAdapter() = default;
  // The observer that the core is to tell in place of `recorder`, to which it must pass everything on. Called once, when the
  // devices are opened.
  virtual AllocatorObserver* Wrap(AllocatorObserver& recorder, int devices) = 0;
  // Last changes of the settings before the core is made. Called once, before Wrap.
  virtual void Adjust(AllocatorSettings&) {}
  // Memory has run out; called without locks, before the error is thrown.
  virtual void BeforeOutOfMemoryError(const OutOfMemoryInfo& info) = 0;
};

// Thread rule: every method from any thread. Only Allocate throws (see there).
class Plugin : public PhaseListener, public OutsideHost {
 public:
  static Plugin& Get();

  // Before the first use of anything else. `mode` is what the trace says of how it was made, a literal; `adapter` may be null
  // and must live as long as the process.
  void SetMode(const char* mode, PluginAdapter* adapter);

  // Before the first use of anything else: the policy, which wins over VRAMLEDGER_POLICY. False if it has another name than the
  // known ones.
  bool SetPolicy(std::string_view name);

  // Null for 0 bytes. Throws c10::OutOfMemoryError (torch.OutOfMemoryError) when memory is out after every retry, std::runtime_error
  // when the device cannot be used.
  void* Allocate(size_t bytes, int device, StreamHandle stream);
  // What a block that this thread takes now carries: phase, module, thread, who asks.
  BlockTag NewTag(size_t bytes);
  void Free(void* address, int device_hint) noexcept;
  void RecordStream(void* address, StreamHandle stream) noexcept;
  void EmptyCache() noexcept;
  bool SetMemoryFraction(double fraction, int device) noexcept;
  void* BaseAllocation(void* address, size_t* bytes) noexcept;

  // Starts the trace at `path` ("%p" = process id, "%r" = RANK, or 0). Empty error = done. At most one trace per process.
  // `when_used`: the file appears when the devices are opened, and never if they are not, however the process ends.
  std::string OpenTrace(const std::string& path, bool when_used = false);
  // Seals the trace; later events are not recorded. Idempotent.
  void CloseTrace();

  PhaseTracker& phases() { return phases_; }
  // Null until the devices could be opened; `error` then says why.
  CachingAllocator* core(std::string* error = nullptr);
  Recorder* recorder() { return recorder_.get(); }

  uint32_t Intern(std::string_view text);
  void EnterModule(uint32_t name, bool training);
  void ExitModule();
  // See PhaseTracker::BeginScope. A scope of the user's own name is recorded beside the phase, which stays.
  void BeginScope(Phase phase, uint32_t name);
  void EndScope();
  // Says what the storage at `address` holds. False if it is no live block of ours.
  bool Name(uintptr_t address, Role role, uint32_t name, uint64_t bytes);
  // An optimizer's step has ended.
  void StepDone(uint32_t optimizer);
  void Mark(std::string_view text, int device = 0);
  // Says a sentence on standard error; only the first twenty are said.
  void Complain(const std::string& sentence);
  // `name`, or one beside it where another process writes that.
  std::string FreeName(const std::string& name);
  // In a forked child: memory and ledger are the parent's.
  bool forked() const { return forked_.load(std::memory_order_relaxed); }
  void Metadata(std::string_view json);
  // JSON of what is in use now: {"devices":[{"device",...,"categories":{...}}],"phase","trace","lost_records"}.
  std::string StatisticsJson();
  void ResetPeaks(int device);
  void ResetAccumulated(int device);

  // Backward's allocations are told with the node that runs from now on. Null: no longer.
  void SetNodeReader(NodeReader reader) { phases_.signals().SetNodeReader(reader); }
  // From now on CUPTI may be used, since whoever says so calls YieldCupti() before a profiler starts.
  void WatchWithCupti();
  void YieldCupti();

  void OnPhaseChange(Phase previous, Phase now, uint32_t scope) override;

 private:
  Plugin();
  bool Initialize();
  TraceWriter* writer() const { return writer_.load(std::memory_order_acquire); }
  // The string id of a node's name ("AddmmBackward0"), by its type's.
  uint32_t NodeName(const char* type);
  std::string OutOfMemoryText(const OutOfMemoryInfo& info);
  // Records what each device in use says is in use. Without the core's locks. Takes a thousandth of the time at most; more often
  // only with `always`.
  void SampleDevices(bool always = false);
  // With trace_mutex_ or in Initialize(), once there are a trace and devices.
  void StartWatching();
  std::string ScopeName(uint32_t name);
  // A scope of the program's own, which is no phase.
  void RecordScope(uint32_t name, bool begins);

  int DeviceCount() override { return core_->device_count(); }
  bool DeviceInUse(int device) override { return memory_->HasContext(device); }
  std::string BusId(int device) override { return memory_->BusId(device); }
  uint64_t SegmentChanges() const override { return recorder_->segment_changes(); }
  Phase CurrentPhase() const override { return phases_.program_phase(); }

  const char* mode_ = "plugin";
  bool observes_ = false;
  std::optional<AllocatorSettings::Policy> policy_;  // none: the environment's
  PluginAdapter* adapter_ = nullptr;
  std::once_flag initialized_;
  std::string initialize_error_;
  std::unique_ptr<DeviceMemory> memory_;
  std::unique_ptr<CategoryLedger> ledger_;
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<CachingAllocator> core_;
  std::atomic<bool> ready_{false};
  PhaseTracker phases_;
  CallerProbe probe_;
  CastProbe casts_;
  StackProbe stacks_;
  std::mutex trace_mutex_;
  std::atomic<TraceWriter*> writer_{nullptr};  // set once, never given back
  bool trace_closed_ = false;
  SpinLock node_names_lock_;
  absl::flat_hash_map<const char*, uint32_t> node_names_;
  std::mutex watch_mutex_;  // guards the two below
  std::unique_ptr<OutsideWatch> outside_;
  bool cupti_wanted_ = false;
  std::atomic<int64_t> sample_due_ns_{0};
  PhaseRanges ranges_;
  std::mutex scope_names_mutex_;
  absl::flat_hash_map<uint32_t, std::string> scope_names_;  // only while ranges are on
  std::atomic<uint64_t> steps_{0};
  std::atomic<int> complaints_{0};
  std::atomic<bool> forked_{false};
};

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_PLUGIN_PLUGIN_H_
