// Our allocator as PyTorch's own kind: a subclass of c10::cuda::CUDACachingAllocator::CUDAAllocator over the plug-in's
// core, so that everything PyTorch builds on its allocator (statistics, snapshots, graphs, memory pools ...) has an
// answer.
//
// Thread rule: every method from any thread. Throws c10::OutOfMemoryError (torch.OutOfMemoryError) when memory is out,
// c10::Error for wrong use. Frees throw nothing. Never destroyed.
#ifndef VRAMLEDGER_ALLOCATOR_TORCH_TORCH_ALLOCATOR_H_
#define VRAMLEDGER_ALLOCATOR_TORCH_TORCH_ALLOCATOR_H_

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "allocator/plugin/plugin.h"
#include "allocator/torch/torch_compat.h"
#include "allocator/torch/torch_events.h"

namespace vramledger {

class TorchAllocator final : public native::CUDAAllocator {
 public:
  // The one of the process, made at the first call.
  static TorchAllocator& Get();
  // Makes it PyTorch's current CUDA allocator, for torch.cuda and torch.accelerator. Throws c10::Error when CUDA is
  // already initialised.
  static void Install();

  // Allocation and free.
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, size_t bytes) const override;
  void* raw_alloc(size_t bytes) override;
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override;
  void raw_delete(void* address) override;
  using native::CUDAAllocator::recordStream;
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override;
  void* getBaseAllocation(void* address, size_t* bytes) override;
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t bytes, cudaStream_t stream,
                          bool peer_access) override;
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex peer) override;

  // Life cycle and settings.
  void init(int device_count) override;
  bool initialized() override { return true; }  // nobody may take its place any more
  void enable(bool value) override { enabled_ = value; }
  bool isEnabled() const override { return enabled_; }
  double getMemoryFraction(c10::DeviceIndex device) override;
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override;
  void emptyCache(c10::MempoolId_t pool) override;
  std::string name() override;

  // Statistics and pictures.
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  void cacheInfo(c10::DeviceIndex device, size_t* largest) override;
  std::vector<native::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex device) override;
  native::SnapshotInfo snapshot(c10::MempoolId_t pool, bool include_traces) override;

  // History and observers.
  bool isHistoryEnabled() override { return events_.history_enabled(); }
  void recordHistory(bool enabled, native::CreateContextFn recorder, size_t max_entries, native::RecordContext when,
                     bool clear, const std::vector<std::string>& skip_actions) override;
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& values) override;
  void pushCompileContext(std::string& text) override;
  void popCompileContext() override;
  void setUserMetadata(const std::string& text) override { TorchEvents::SetUserMetadata(text); }
  std::string getUserMetadata() override { return TorchEvents::UserMetadata(); }
  void attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) override;
  void attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) override;
  VRAMLEDGER_TORCH_2_12_OVERRIDES
  VRAMLEDGER_TORCH_2_13_OVERRIDES
  VRAMLEDGER_TORCH_2_14_OVERRIDES

  // Private pools: graphs and torch.cuda.MemPool.
  void beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  void releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  void createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                          std::shared_ptr<native::CUDAAllocator> source) override;
  void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool, bool use) override;
  void setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  bool checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override;
  std::shared_ptr<native::AllocatorState> getCheckpointState(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  native::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex device,
                                                 std::shared_ptr<native::AllocatorState> state) override;

  // Sharing with other processes.
  native::ShareableHandle shareIpcHandle(void* address) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;

 private:
  TorchAllocator();
  void* Take(size_t bytes, c10::DeviceIndex device, cudaStream_t stream);
  static void Delete(void* address);
  static void DeleteUncached(void* address);
  // The core, with `device` known to be one of its devices; throws otherwise.
  CachingAllocator& Core(c10::DeviceIndex device = 0);

  Plugin& plugin_;
  TorchEvents events_;
  std::atomic<bool> enabled_{true};
};

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_TORCH_TORCH_ALLOCATOR_H_
