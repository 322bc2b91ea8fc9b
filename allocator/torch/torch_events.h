// What PyTorch's own interfaces want to know of the allocator's work: memory history
// (torch.cuda.memory._record_memory_history), trace trackers, the profiler's memory events and out-of-memory observers.
#ifndef VRAMLEDGER_ALLOCATOR_TORCH_TORCH_EVENTS_H_
#define VRAMLEDGER_ALLOCATOR_TORCH_TORCH_EVENTS_H_

#include <c10/cuda/CUDACachingAllocator.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "allocator/plugin/plugin.h"

namespace vramledger {

namespace native = c10::cuda::CUDACachingAllocator;

// Thread rule: the observer's methods are called under the core's lock of the device, the rest from any thread.
class TorchEvents final : public PluginAdapter, public AllocatorObserver {
 public:
  using Context = std::shared_ptr<c10::GatheredContext>;

  void Adjust(AllocatorSettings& settings) override;
  AllocatorObserver* Wrap(AllocatorObserver& recorder, int devices) override;
  void BeforeOutOfMemoryError(const OutOfMemoryInfo& info) override;

  // Gathers the caller's stack, if history wants it for events of this kind, for the events that this thread causes
  // while the scope lasts. To be opened without locks: Python's recorder takes the interpreter's lock.
  class ContextScope {
   public:
    ContextScope(TorchEvents& events, native::RecordContext level) {
      if (events.context_level_.load(std::memory_order_relaxed) >= static_cast<int>(level)) [[unlikely]]
        Open(events);
    }
    ~ContextScope() {
      if (context_ != nullptr) [[unlikely]]
        Close();
    }
    ContextScope(const ContextScope&) = delete;
    ContextScope& operator=(const ContextScope&) = delete;

   private:
    void Open(TorchEvents& events);
    void Close();
    Context context_;
    const Context* outer_ = nullptr;
  };

  // As the methods of CUDAAllocator of these names.
  void RecordHistory(bool enabled, native::CreateContextFn recorder, size_t max_entries, native::RecordContext when,
                     bool clear, const std::vector<std::string>& skip_actions);
  bool history_enabled() const { return history_.load(std::memory_order_relaxed); }
  // Adds an entry to the history that says something of a live block. Only for PyTorch 2.14 and newer.
  void Annotate(CachingAllocator& core, const void* address, const std::string& text);
  void RecordAnnotation(const std::vector<std::pair<std::string, std::string>>& values, int device);
  void AttachTracker(native::AllocatorTraceTracker tracker);
  void AttachOutOfMemoryObserver(native::OutOfMemoryObserver observer);
  // Of requests that the setting throw_on_cudamalloc_oom rejects.
  using RejectionObserver =
      std::function<void(int64_t device, size_t bytes, size_t reserved_bytes, size_t total_bytes)>;
  void AttachRejectionObserver(RejectionObserver observer);
  static void SetUserMetadata(const std::string& text);
  static std::string UserMetadata();
  static void PushCompileContext(const std::string& text);
  static void PopCompileContext();

  // The history of a device, oldest first, with times in microseconds since 1970.
  std::vector<native::TraceEntry> History(int device);
  std::vector<c10::CachingDeviceAllocator::AnnotationEntry> Annotations();
  // Stacks of live blocks and of segments by their first address; null where none was kept.
  Context ContextOf(int device, uintptr_t address);
  Context ContextOf(CachingAllocator& core, const void* address);
  Context SegmentContextOf(int device, uintptr_t address);
  void NoteSnapshot(int device, size_t active_bytes);

  void OnAlloc(const BlockView& block, BlockTag& tag) override;
  void OnFreeRequested(const BlockView& block, BlockTag& tag) override;
  void OnFree(const BlockView& block, BlockTag& tag, bool deferred) override;
  void OnSegmentAlloc(const SegmentView& segment) override;
  void OnSegmentFree(const SegmentView& segment) override;
  void OnSegmentMap(const SegmentView& part) override;
  void OnSegmentUnmap(const SegmentView& part) override;
  void OnOutOfMemory(const OutOfMemoryInfo& info) override;

 private:
  using Action = native::TraceEntry::Action;

  struct Device {
    size_t allocated = 0;  // guarded by the core's lock of the device, as is `reserved`
    size_t reserved = 0;
    bool keeps_contexts =
        false;         // guarded likewise: `blocks` or `segments` holds some, also once history was switched off
    std::mutex mutex;  // guards what follows
    std::vector<native::TraceEntry> ring;
    size_t oldest = 0;  // once the ring is full
    std::unordered_map<uintptr_t, Context> blocks;
    struct SegmentStack {
      Context context;
      size_t bytes;
    };
    std::unordered_map<uintptr_t, SegmentStack> segments;
  };

  Device& At(int device) { return *devices_[static_cast<size_t>(device)]; }
  void Segment(Action action, const SegmentView& segment);
  static void ForgetCutSegment(Device& device, const BlockView& block);
  void Note(Action action, Device& device, int index, uintptr_t address, size_t bytes, StreamHandle stream, PoolId pool,
            Context context, const std::string* metadata = nullptr);
  // The calling thread's, while a ContextScope lasts.
  static Context Current();
  void Report(const BlockView& block, bool taken);
  std::vector<std::unique_lock<std::mutex>> LockAll();

  AllocatorObserver* recorder_ = nullptr;
  std::vector<std::unique_ptr<Device>> devices_;
  std::atomic<bool> active_{false};  // anybody wants entries
  std::atomic<bool> history_{false};
  std::atomic<int> context_level_{-1};  // the RecordContext wanted; -1: not even that of live blocks
  std::atomic<native::CreateContextFn> context_recorder_{nullptr};
  // What follows is changed with settings_mutex_ and all devices' mutexes held, in this order, and read with any of
  // them.
  std::mutex settings_mutex_;
  size_t max_entries_ = 1;
  std::array<bool, 16> skipped_{};
  std::vector<native::AllocatorTraceTracker> trackers_;
  std::vector<native::OutOfMemoryObserver> out_of_memory_observers_;
  std::vector<RejectionObserver> rejection_observers_;
  std::vector<c10::CachingDeviceAllocator::AnnotationEntry> annotations_;
  c10::ApproximateClockToUnixTimeConverter clock_;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_TORCH_TORCH_EVENTS_H_
