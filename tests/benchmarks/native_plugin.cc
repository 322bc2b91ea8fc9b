// PyTorch's own allocator, reached through PyTorch's plug-in interface: what that interface alone costs a step. Loaded before
// the allocator is changed, as torch.cuda.memory.CUDAPluggableAllocator does it. Serves the current device.
#include <c10/cuda/CUDACachingAllocator.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
c10::cuda::CUDACachingAllocator::CUDAAllocator* const native = c10::cuda::CUDACachingAllocator::get();
}  // namespace

EXPORT void native_init(int devices) {
  native->init(devices);
}
EXPORT void* native_malloc(size_t bytes, int, cudaStream_t stream) {
  return native->raw_alloc_with_stream(bytes, stream);
}
EXPORT void native_free(void* address, size_t, int, cudaStream_t) {
  native->raw_delete(address);
}
