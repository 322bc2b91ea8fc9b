#include "allocator/torch/torch_allocator.h"
namespace vramledger {
void TorchAllocator::emptyCache(c10::MempoolId_t) {
  plugin_.EmptyCache();
}
void TorchAllocator::beginAllocateToPool(c10::DeviceIndex, c10::MempoolId_t, std::function<bool(cudaStream_t)>) {
  TORCH_CHECK(false);
}
void TorchAllocator::endAllocateToPool(c10::DeviceIndex, c10::MempoolId_t) {
  TORCH_CHECK(false);
}
void TorchAllocator::releasePool(c10::DeviceIndex, c10::MempoolId_t) {
  TORCH_CHECK(false);
}
int TorchAllocator::getPoolUseCount(c10::DeviceIndex, c10::MempoolId_t) {
  TORCH_CHECK(false);
}
void TorchAllocator::createOrIncrefPool(c10::DeviceIndex, c10::MempoolId_t, std::shared_ptr<native::CUDAAllocator>) {
  TORCH_CHECK(false);
}
void TorchAllocator::setUseOnOOM(c10::DeviceIndex, c10::MempoolId_t, bool) {
  TORCH_CHECK(false);
}
void TorchAllocator::setNoSplit(c10::DeviceIndex, c10::MempoolId_t) {
  TORCH_CHECK(false);
}
bool TorchAllocator::checkPoolLiveAllocations(c10::DeviceIndex, c10::MempoolId_t, const std::unordered_set<void*>&) {
  TORCH_CHECK(false);
}
std::shared_ptr<native::AllocatorState> TorchAllocator::getCheckpointState(c10::DeviceIndex, c10::MempoolId_t) {
  TORCH_CHECK(false);
}
native::CheckpointDelta TorchAllocator::setCheckpointPoolState(c10::DeviceIndex,
                                                               std::shared_ptr<native::AllocatorState>) {
  TORCH_CHECK(false);
}
native::ShareableHandle TorchAllocator::shareIpcHandle(void*) {
  TORCH_CHECK(false);
}
std::shared_ptr<void> TorchAllocator::getIpcDevPtr(std::string) {
  TORCH_CHECK(false);
}
}  // namespace vramledger
