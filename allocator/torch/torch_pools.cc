// Private pools: what CUDA graphs, torch.cuda.MemPool and torch.compile's graph trees ask for.
#include <utility>

#include "allocator/core/private_pool.h"
#include "allocator/torch/torch_allocator.h"

namespace vramledger {
namespace {

PoolId Convert(c10::MempoolId_t id) {
  return {id.first, id.second};
}

void Check(PoolStatus status, const char* what) {
  TORCH_CHECK(status == PoolStatus::kOk, what, ": ", Describe(status));
}

// Segments of a pool that was made with another allocator.
class ForeignSource final : public SegmentSource {
 public:
  explicit ForeignSource(std::shared_ptr<native::CUDAAllocator> allocator) : allocator_(std::move(allocator)) {}
  void* Allocate(size_t bytes) override {
    try {
      return allocator_->raw_alloc(bytes);
    } catch (const std::exception&) {
      return nullptr;  // no memory; the caller's error tells more than this one
    }
  }
  void Free(void* address) override {
    try {
      allocator_->raw_delete(address);
    } catch (const std::exception& error) {
      TORCH_WARN("the allocator of a memory pool failed to free a segment: ", error.what());
    }
  }

 private:
  const std::shared_ptr<native::CUDAAllocator> allocator_;
};

struct RecordedPool final : native::AllocatorState {
  PoolState state;
};

}  // namespace

void TorchAllocator::emptyCache(c10::MempoolId_t pool) {
  const TorchEvents::ContextScope context(events_, native::RecordContext::ALL);
  CachingAllocator& core = Core();
  if (Convert(pool).is_default()) {
    core.EmptyCache();
    return;
  }
  for (int device = 0; device < core.device_count(); ++device) core.EmptyPool(device, Convert(pool));
}

void TorchAllocator::beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                                         std::function<bool(cudaStream_t)> filter) {
  const auto wants = [filter = std::move(filter)](StreamHandle stream) {
    return filter(reinterpret_cast<cudaStream_t>(stream));
  };
  Check(Core(device).BeginAllocateToPool(device, Convert(pool), wants), "beginAllocateToPool");
}

void TorchAllocator::endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) {
  Check(Core(device).EndAllocateToPool(device, Convert(pool)), "endAllocatePool");
}

void TorchAllocator::releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) {
  Check(Core(device).ReleasePool(device, Convert(pool)), "releasePool");
}

int TorchAllocator::getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) {
  const int count = Core(device).PoolUseCount(device, Convert(pool));
  TORCH_CHECK(count >= 0, "getPoolUseCount: there is no pool of this id");
  return count;
}

void TorchAllocator::createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                                        std::shared_ptr<native::CUDAAllocator> source) {
  // A pool that names ourselves means the device.
  std::shared_ptr<SegmentSource> from;
  if (source != nullptr && source.get() != this) from = std::make_shared<ForeignSource>(std::move(source));
  Check(Core(device).SharePool(device, Convert(pool), std::move(from)), "createOrIncrefPool");
}

// A pool may have been given back already when its Python object says this for the last time.
void TorchAllocator::setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool, bool use) {
  Core(device).SetPoolUseWhenOut(device, Convert(pool), use);
}

void TorchAllocator::setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool) {
  Core(device).SetPoolNoSplit(device, Convert(pool));
}

bool TorchAllocator::checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t pool,
                                              const std::unordered_set<void*>& expected) {
  std::vector<void*> live;
  Check(Core(device).LivePoolBlocks(device, Convert(pool), &live), "checkPoolLiveAllocations");
  if (live.size() != expected.size()) return false;
  for (void* address : live) {
    if (expected.count(address) == 0) return false;
  }
  return true;
}

std::shared_ptr<native::AllocatorState> TorchAllocator::getCheckpointState(c10::DeviceIndex device,
                                                                           c10::MempoolId_t pool) {
  auto recorded = std::make_shared<RecordedPool>();
  Check(Core(device).GetPoolState(device, Convert(pool), &recorded->state), "getCheckpointState");
  return recorded;
}

native::CheckpointDelta TorchAllocator::setCheckpointPoolState(c10::DeviceIndex device,
                                                               std::shared_ptr<native::AllocatorState> state) {
  const auto recorded = std::dynamic_pointer_cast<RecordedPool>(state);
  TORCH_CHECK(recorded != nullptr, "setCheckpointPoolState: the state was recorded by another allocator");
  const TorchEvents::ContextScope context(events_, native::RecordContext::STATE);
  native::CheckpointDelta delta;
  std::vector<void*> allocated;
  Check(Core(device).SetPoolState(device, recorded->state, plugin_.NewTag(0), &delta.ptrs_freed, &allocated),
        "setCheckpointPoolState");
  const c10::Device where(c10::DeviceType::CUDA, device);
  for (void* address : allocated) delta.dataptrs_allocd.emplace_back(address, address, &Delete, where);
  return delta;
}

}  // namespace vramledger
