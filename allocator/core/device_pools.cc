// Private pools: who uses them, what is routed to them, and when their memory goes back.
#include <algorithm>

#include "allocator/core/device_allocator.h"
#include "allocator/core/private_pool.h"

namespace vramledger {

PrivatePool* DeviceAllocator::FindPool(PoolId id) {
  const auto found = private_pools_.find(id);
  return found != private_pools_.end() ? found->second.get() : nullptr;
}

PoolStatus DeviceAllocator::SharePoolLocked(PoolId id, std::shared_ptr<SegmentSource> source) {
  if (id.is_default()) return PoolStatus::kUnknownPool;
  PrivatePool* pool = FindPool(id);
  if (pool == nullptr) {
    private_pools_.emplace(id, std::make_unique<PrivatePool>(id, std::move(source)));
    return PoolStatus::kOk;
  }
  if (pool->released()) return PoolStatus::kReleased;
  ++pool->use_count;
  return PoolStatus::kOk;
}

PoolStatus DeviceAllocator::SharePool(PoolId id, std::shared_ptr<SegmentSource> source) {
  SmallMutexLock lock(mutex_);
  return SharePoolLocked(id, std::move(source));
}

PoolStatus DeviceAllocator::BeginAllocateToPool(PoolId id, StreamFilter filter) {
  SmallMutexLock lock(mutex_);
  for (const PoolRoute& route : routes_) {
    if (route.pool->small.id == id) return PoolStatus::kAlreadyRouted;
  }
  const PoolStatus status = SharePoolLocked(id, nullptr);
  if (status != PoolStatus::kOk) return status;
  routes_.push_back(PoolRoute{FindPool(id), std::move(filter)});
  if (settings_.routes_are_captures) ++captures_;
  return PoolStatus::kOk;
}

PoolStatus DeviceAllocator::EndAllocateToPool(PoolId id) {
  SmallMutexLock lock(mutex_);
  const auto route =
      std::find_if(routes_.begin(), routes_.end(), [id](const PoolRoute& r) { return r.pool->small.id == id; });
  if (route == routes_.end()) return PoolStatus::kNotRouted;
  routes_.erase(route);
  if (settings_.routes_are_captures) --captures_;
  ReleaseCapturedUses();
  return PoolStatus::kOk;
}

PoolStatus DeviceAllocator::ReleasePool(PoolId id) {
  SmallMutexLock lock(mutex_);
  PrivatePool* pool = FindPool(id);
  if (pool == nullptr) return PoolStatus::kUnknownPool;
  if (pool->released()) return PoolStatus::kReleased;
  --pool->use_count;
  return PoolStatus::kOk;
}

int DeviceAllocator::PoolUseCount(PoolId id) {
  SmallMutexLock lock(mutex_);
  const PrivatePool* pool = FindPool(id);
  return pool != nullptr ? pool->use_count : -1;
}

PoolStatus DeviceAllocator::SetPoolUseWhenOut(PoolId id, bool use) {
  SmallMutexLock lock(mutex_);
  PrivatePool* pool = FindPool(id);
  if (pool == nullptr) return PoolStatus::kUnknownPool;
  pool->use_when_out = use;
  return PoolStatus::kOk;
}

PoolStatus DeviceAllocator::SetPoolNoSplit(PoolId id) {
  SmallMutexLock lock(mutex_);
  PrivatePool* pool = FindPool(id);
  if (pool == nullptr) return PoolStatus::kUnknownPool;
  pool->splits = false;
  return PoolStatus::kOk;
}

// The latest route that wants the request, else the default pool.
Pool& DeviceAllocator::PoolFor(bool small, StreamHandle stream) {
  for (auto route = routes_.rbegin(); route != routes_.rend(); ++route) {
    if (route->filter(stream)) return small ? route->pool->small : route->pool->large;
  }
  return small ? small_ : large_;
}

// A free block of a pool whose owner lends it when the device has no more. As in PyTorch, parts of expandable segments
// are not lent.
Block* DeviceAllocator::TakeLentBlock(const Request& request) {
  for (const auto& [id, pool] : private_pools_) {
    if (!pool->use_when_out || request.pool->pool->owner == pool.get() || UsesExpandable(pool->large)) continue;
    Request other = request;
    other.pool = StreamPoolFor(request.pool->pool->small ? pool->small : pool->large, request.pool->stream);
    if (Block* block = TakeFreeBlock(other)) return block;
  }
  return nullptr;
}

void DeviceAllocator::EmptyPool(PoolId id) {
  SmallMutexLock lock(mutex_);
  if (PrivatePool* pool = FindPool(id); pool != nullptr && pool->released()) {
    if (captures_ == 0) SynchronizeEvents(pool);
    ReleasePoolBlocks(pool);
  }
}

void DeviceAllocator::ReleaseReleasedPools() {
  std::vector<PrivatePool*> pools;
  for (const auto& [id, pool] : private_pools_) {
    if (pool->released()) pools.push_back(pool.get());
  }
  for (PrivatePool* pool : pools) ReleasePoolBlocks(pool);
}

// Gives the free segments of a released pool back; with the last of its segments the pool ends.
void DeviceAllocator::ReleasePoolBlocks(PrivatePool* pool) {
  ReleaseBlocks(pool->small);
  ReleaseBlocks(pool->large);
  const bool routed =
      std::any_of(routes_.begin(), routes_.end(), [pool](const PoolRoute& r) { return r.pool == pool; });
  if (pool->segments == 0 && !routed) private_pools_.erase(PoolId(pool->small.id));
}

void DeviceAllocator::ForEachPoolBlock(const PrivatePool& pool, absl::FunctionRef<void(Block*)> fn) {
  for (const auto& [address, segment] : segments_) {
    if (segment->pool->pool->owner != &pool) continue;
    for (Block* b = index_.Find(address); b != nullptr; b = b->next) fn(b);
  }
}

PoolStatus DeviceAllocator::LivePoolBlocks(PoolId id, std::vector<void*>* addresses) {
  SmallMutexLock lock(mutex_);
  const PrivatePool* pool = FindPool(id);
  if (pool == nullptr) return PoolStatus::kUnknownPool;
  ForEachPoolBlock(*pool, [addresses](Block* b) {
    if (b->state == BlockState::kAllocated) addresses->push_back(reinterpret_cast<void*>(b->address));
  });
  return PoolStatus::kOk;
}

PoolStatus DeviceAllocator::GetPoolState(PoolId id, PoolState* state) {
  SmallMutexLock lock(mutex_);
  const PrivatePool* pool = FindPool(id);
  if (pool == nullptr) return PoolStatus::kUnknownPool;
  if (pool->released()) return PoolStatus::kReleased;
  state->id = id;
  state->ranges.clear();
  ForEachPoolBlock(*pool, [state](Block* b) {
    if (b->state == BlockState::kUnmapped) return;
    if (b->prev == nullptr || b->prev->state == BlockState::kUnmapped) state->ranges.push_back({b->address, {}});
    state->ranges.back().blocks.push_back({b->bytes, b->state == BlockState::kAllocated});
  });
  return PoolStatus::kOk;
}

PoolStatus DeviceAllocator::SetPoolState(const PoolState& state, const BlockTag& tag, std::vector<void*>* freed,
                                         std::vector<void*>* allocated) {
  SmallMutexLock lock(mutex_);
  const PrivatePool* pool = FindPool(state.id);
  if (pool == nullptr) return PoolStatus::kUnknownPool;
  if (pool->released()) return PoolStatus::kReleased;
  std::vector<Block*> live;
  bool awaited = false;
  ForEachPoolBlock(*pool, [&](Block* b) {
    if (b->state == BlockState::kAllocated) live.push_back(b);
    awaited = awaited || b->state == BlockState::kAwaitingFree || (b->used_by != nullptr && !b->used_by->empty());
  });
  if (awaited) return PoolStatus::kBlockAwaited;
  for (Block* block : live) {
    freed->push_back(reinterpret_cast<void*>(block->address));
    RequestFree(block);
  }

  for (const PoolState::Range& range : state.ranges) {
    size_t bytes = 0;
    for (const PoolState::Block& b : range.blocks) bytes += b.bytes;
    Block* rest = index_.Find(range.address);
    if (rest == nullptr || rest->state != BlockState::kFree || rest->pool->pool->owner != pool || rest->bytes < bytes) {
      return PoolStatus::kChanged;
    }
    std::vector<Block*> holes;
    for (const PoolState::Block& b : range.blocks) {
      Block* block = rest;
      block->pool->free.Erase(block);
      const bool was_split = block->is_split();
      rest = block->bytes > b.bytes ? Split(block, b.bytes) : nullptr;
      Activate(block, b.bytes, tag, was_split, rest);
      if (b.allocated) {
        allocated->push_back(reinterpret_cast<void*>(block->address));
      } else {
        holes.push_back(block);
      }
    }
    for (Block* hole : holes) RequestFree(hole);
  }
  return PoolStatus::kOk;
}

}  // namespace vramledger
