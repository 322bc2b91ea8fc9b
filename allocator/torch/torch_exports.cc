// C functions that only libvramledger_torch.so has, for the Python package.
#include <c10/util/Exception.h>

#include <cstdio>
#include <string>

#include "allocator/torch/torch_allocator.h"
#include "allocator/torch/torch_observe.h"

#define VRAMLEDGER_EXPORT extern "C" __attribute__((visibility("default")))

// The PyTorch that this library was built for: 211 is 2.11.
VRAMLEDGER_EXPORT int vramledger_torch_version() {
  return VRAMLEDGER_TORCH_VERSION;
}

namespace {

// Runs `work`; 0 = done, otherwise the length of the error, which is in `error`.
size_t Try(void (*work)(), char* error, size_t capacity) {
  std::string text;
  try {
    work();
  } catch (const c10::Error& failure) {
    text = failure.what_without_backtrace();
  } catch (const std::exception& failure) {
    text = failure.what();
  }
  if (capacity > 0) std::snprintf(error, capacity, "%s", text.c_str());
  return text.size();
}

}  // namespace

// Makes ours PyTorch's current CUDA allocator. 0 = done; otherwise the length of the error, which is in `error`.
VRAMLEDGER_EXPORT size_t vramledger_torch_install(char* error, size_t capacity) {
  return Try(&vramledger::TorchAllocator::Install, error, capacity);
}
// Begins to observe PyTorch's own allocator, once CUDA is initialised. Answers as vramledger_torch_install.
VRAMLEDGER_EXPORT size_t vramledger_observe_install(char* error, size_t capacity) {
  return Try(&vramledger::Observe, error, capacity);
}
