// PyTorch 2.12: observers of requests that throw_on_cudamalloc_oom rejects, their count in the statistics, the stack of
// a live block by its address, and what graph_capture_record_stream_reuse does at the end of a capture.
#ifndef VRAMLEDGER_ALLOCATOR_TORCH_TORCH_COMPAT_2_12_H_
#define VRAMLEDGER_ALLOCATOR_TORCH_TORCH_COMPAT_2_12_H_

#if VRAMLEDGER_TORCH_VERSION >= 212
// In the class TorchAllocator.
#define VRAMLEDGER_TORCH_2_12_OVERRIDES                                                      \
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* address) override { \
    return events_.ContextOf(Core(), address);                                               \
  }                                                                                          \
  void attachOomRejectionObserver(native::OomRejectionObserver observer) override {          \
    events_.AttachRejectionObserver(std::move(observer));                                    \
  }
#define VRAMLEDGER_TORCH_2_12_STATISTICS(to, from) (to).num_oom_rejections = (from).num_oom_rejections
#define VRAMLEDGER_TORCH_2_12_SETTINGS(to)                     \
  (to).reject_over_fraction = Cuda::throw_on_cudamalloc_oom(); \
  (to).graph_capture_record_stream_reuse = Cuda::graph_capture_record_stream_reuse()
#else
#define VRAMLEDGER_TORCH_2_12_OVERRIDES
#define VRAMLEDGER_TORCH_2_12_SETTINGS(to) static_cast<void>(0)
#define VRAMLEDGER_TORCH_2_12_STATISTICS(to, from) static_cast<void>(0)
#endif

#endif  // VRAMLEDGER_ALLOCATOR_TORCH_TORCH_COMPAT_2_12_H_
