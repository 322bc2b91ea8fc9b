// Memory shared with other processes (torch.multiprocessing), in PyTorch's own way, so that the other process may use
// its allocator or ours.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <cstring>
#include <map>
#include <mutex>

#include "allocator/torch/torch_allocator.h"

namespace vramledger {
namespace {

// A handle is CUDA's 64 bytes; newer versions of PyTorch put two bytes in front, of which the second says the kind.
constexpr size_t kHandleBytes = sizeof(cudaIpcMemHandle_t);
constexpr char kWholeSegment = 'c';

constexpr const char* kNotShareable =
    "memory of expandable segments cannot be shared between processes by vramledger: leave expandable_segments unset, "
    "or "
    "use vramledger's mode observe, which leaves PyTorch's own allocator in place";

}  // namespace

native::ShareableHandle TorchAllocator::shareIpcHandle(void* address) {
  CachingAllocator& core = Core();
  size_t bytes = 0;
  void* const base = core.BaseAllocation(address, &bytes);
  TORCH_CHECK(base != nullptr, "invalid device pointer: ", core.DescribeAddress(address));
  TORCH_CHECK(!core.UsesExpandableSegments(c10::cuda::current_device()), kNotShareable);
  cudaIpcMemHandle_t handle;
  C10_CUDA_CHECK(cudaIpcGetMemHandle(&handle, base));
  return {static_cast<char*>(address) - static_cast<char*>(base),
          std::string(reinterpret_cast<const char*>(&handle), kHandleBytes)};
}

std::shared_ptr<void> TorchAllocator::getIpcDevPtr(std::string handle) {
  // CUDA opens a handle once per process; leaked, since tensors outlive static destructors.
  static auto* const mutex = new std::mutex();
  static auto* const open = new std::map<std::string, std::weak_ptr<void>>();
  if (handle.size() == kHandleBytes + 2) {
    TORCH_CHECK(handle[1] == kWholeSegment, kNotShareable);
    handle.erase(0, 2);
  }
  TORCH_CHECK(handle.size() == kHandleBytes, "a handle of shared memory has ", kHandleBytes, " bytes, this one has ",
              handle.size());
  const std::lock_guard<std::mutex> lock(*mutex);
  if (const auto found = open->find(handle); found != open->end()) {
    if (std::shared_ptr<void> known = found->second.lock()) return known;
  }
  cudaIpcMemHandle_t raw;
  std::memcpy(&raw, handle.data(), kHandleBytes);
  void* address = nullptr;
  C10_CUDA_CHECK(cudaIpcOpenMemHandle(&address, raw, cudaIpcMemLazyEnablePeerAccess));
  const c10::DeviceIndex device = c10::cuda::current_device();
  std::shared_ptr<void> shared(address, [device, handle](void* p) {
    const std::lock_guard<std::mutex> guard(*mutex);
    const c10::cuda::CUDAGuard on_device(device);
    C10_CUDA_CHECK_WARN(cudaIpcCloseMemHandle(p));
    // Another thread may have opened it anew.
    if (const auto found = open->find(handle); found != open->end() && found->second.expired()) open->erase(found);
  });
  (*open)[handle] = shared;
  return shared;
}

}  // namespace vramledger
