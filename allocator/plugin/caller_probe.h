// Tells whether an allocation serves a tensor's storage or a CUDA library's own need (cuBLAS and cuDNN workspaces, CUB scratch).
#ifndef VRAMLEDGER_ALLOCATOR_PLUGIN_CALLER_PROBE_H_
#define VRAMLEDGER_ALLOCATOR_PLUGIN_CALLER_PROBE_H_

#include <cstddef>
#include <cstdint>

#include "allocator/plugin/function_range.h"

namespace vramledger {

// A tensor's storage is requested by at::detail (libtorch_cpu) or c10's StorageImpl (libc10); a workspace by code of libtorch_cuda that holds the
// allocator itself. So the library of the first frame above the allocator's own entry points decides. Walking the stack costs about a microsecond, hence
// the answer is remembered per thread by `context` and size: the same call site asks for the same sizes again each step.
//
// Thread rule: any thread; no locks. False when the libraries were not found.
class CallerProbe {
 public:
  // Looks the libraries' address ranges up; call once PyTorch is loaded.
  void Load();
  // How many frames of libtorch_cuda.so lie between the library that asks and us: two of PyTorch's pluggable allocator (the
  // default), none when PyTorch calls us directly.
  void SetFramesBetween(int frames) { frames_between_ = frames; }
  // `context`: whatever else identifies the call site cheaply (phase, module, size of the thread's previous allocation).
  bool AskedByLibrary(size_t bytes, uint64_t context) const;

 private:
  using Range = FunctionRange;
  bool WalkStack() const;

  int frames_between_ = 2;
  Range torch_cuda_;
  Range torch_cpu_;
  Range c10_;
  Range resize_;  // at::native::resize_bytes_cuda
};

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_PLUGIN_CALLER_PROBE_H_
