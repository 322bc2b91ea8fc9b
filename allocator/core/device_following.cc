// Following another allocator: the ledger is kept from what that one says it did, and the device is never asked.
#include "allocator/core/device_allocator.h"
#include "allocator/core/private_pool.h"
#include "allocator/core/stat_operations.h"

namespace vramledger {
namespace {

constexpr size_t kSmallPiece =
    size_t{2} << 20;  // no other segment, and no other part that is mapped at once, is as small

}  // namespace

void DeviceAllocator::BeginFollowing() {
  // Most devices may never be used, and MemoryInfo would make a context on each.
  DeviceMemoryInfo info;
  info.total_bytes = memory_.TotalBytes(device_);
  if (info.total_bytes == 0) memory_.MemoryInfo(device_, &info);
  SmallMutexLock lock(mutex_);
  follows_ = true;
  opened_ = true;
  followed_total_bytes_ = info.total_bytes;
}

StreamPool* DeviceAllocator::FollowedPool(const SegmentView& piece) {
  const bool small = piece.bytes == kSmallPiece;
  if (piece.pool_id.is_default()) return StreamPoolFor(small ? small_ : large_, piece.stream);
  auto& pool = private_pools_[piece.pool_id];
  if (pool == nullptr) pool = std::make_unique<PrivatePool>(piece.pool_id, nullptr);
  return StreamPoolFor(small ? pool->small : pool->large, piece.stream);
}

bool DeviceAllocator::FollowSegmentAlloc(const SegmentView& segment) {
  SmallMutexLock lock(mutex_);
  if (SegmentAt(segment.address) != nullptr) return false;
  StreamPool* pool = FollowedPool(segment);
  Block* block = blocks_.New();
  block->address = segment.address;
  block->bytes = segment.bytes;
  block->pool = pool;
  block->segment = NewSegment(segment.address, segment.bytes, pool, 0);
  block->order = next_block_order_++;
  index_.Insert(segment.address, block);
  InsertFree(block);
  counters_.Increase(Metric::kSegment, pool->pool->small, 1);
  CountReserved(*pool->pool, true, segment.bytes);
  if (segment.bytes >= settings_.max_split_size) Increase(oversize_segments_, 1);
  ++num_device_alloc_;
  if (observer_ != nullptr) observer_->OnSegmentAlloc(ViewOf(*block->segment));
  return true;
}

bool DeviceAllocator::FollowSegmentFree(uintptr_t address) {
  SmallMutexLock lock(mutex_);
  Block* block = index_.Find(address);
  if (block == nullptr || block->state != BlockState::kFree || block->is_split() || block->segment->expandable()) {
    return false;
  }
  ReleaseBlock(block);
  return true;
}

bool DeviceAllocator::FollowMap(const SegmentView& part) {
  SmallMutexLock lock(mutex_);
  Block* block = index_.Find(part.address);
  if (block == nullptr) {
    // The first part of a new expandable segment, which spans more than the whole device as PyTorch's do.
    if (SegmentAt(part.address) != nullptr) return false;
    StreamPool* pool = FollowedPool(part);
    const size_t page = pool->pool->small ? kSmallPiece : settings_.large_segment_size;
    block = blocks_.New();
    block->address = part.address;
    block->bytes = (followed_total_bytes_ + followed_total_bytes_ / 8 + page - 1) / page * page;
    block->pool = pool;
    block->segment = NewSegment(block->address, block->bytes, pool, page);
    block->state = BlockState::kUnmapped;
    index_.Insert(block->address, block);
    pool->unmapped[block->address] = block;
  }
  if (block->state != BlockState::kUnmapped || block->bytes < part.bytes) return false;
  return MapBlock(block, part.bytes, &block) == Supply::kOk;
}

bool DeviceAllocator::FollowUnmap(uintptr_t address) {
  SmallMutexLock lock(mutex_);
  Block* block = BlockHolding(address);
  if (block == nullptr || block->state != BlockState::kFree || !block->segment->expandable()) return false;
  UnmapBlock(block);
  return true;
}

Block* DeviceAllocator::BlockHolding(uintptr_t address) {
  if (Block* block = index_.Find(address)) return block;
  const Segment* segment = SegmentAt(address);
  if (segment == nullptr) return nullptr;
  Block* block = index_.Find(segment->address);
  while (address - block->address >= block->bytes) block = block->next;
  return block;
}

size_t DeviceAllocator::FollowAlloc(uintptr_t address, size_t bytes, const BlockTag& tag) {
  SmallMutexLock lock(mutex_);
  Block* block = BlockHolding(address);
  if (block == nullptr || block->state != BlockState::kFree) return 0;
  block->pool->free.Erase(block);
  bool was_split = block->is_split();
  if (address > block->address) {  // a recorded block with a hole before it
    Block* hole = block;
    if (!block->segment->expandable()) {  // both parts count as split off, until the second is taken
      counters_.Increase(Metric::kInactiveSplit, block->pool->pool->small, was_split ? 1 : 2);
      if (!was_split) counters_.Increase(Metric::kInactiveSplitBytes, block->pool->pool->small, block->bytes);
    }
    block = Split(hole, address - hole->address);
    block->pool->free.Erase(block);
    InsertFree(hole);
    was_split = true;
  }
  const size_t rounded = RoundSize(bytes);
  Block* rest = rounded < block->bytes && ShouldSplit(*block, rounded) ? Split(block, rounded) : nullptr;
  Activate(block, bytes, tag, was_split, rest);
  return block->bytes;
}

bool DeviceAllocator::FollowFreeRequested(uintptr_t address) {
  SmallMutexLock lock(mutex_);
  Block* block = FindLive(address);
  if (block == nullptr) return false;
  if (observer_ != nullptr) observer_->OnFreeRequested(ViewOf(*block), block->tag);
  const bool small = block->pool->pool->small;
  counters_.Decrease(Metric::kAllocation, small, 1);
  counters_.Decrease(Metric::kAllocatedBytes, small, block->bytes);
  if (block->bytes >= settings_.max_split_size) Decrease(oversize_allocations_, 1);
  block->state = BlockState::kAwaitingFree;
  return true;
}

bool DeviceAllocator::FollowFree(uintptr_t address) {
  SmallMutexLock lock(mutex_);
  Block* block = index_.Find(address);
  if (block == nullptr) return false;
  if (block->state == BlockState::kAwaitingFree) {
    CompleteFree(block, true);
    return true;
  }
  if (block->state != BlockState::kAllocated) return false;
  RequestFree(block);
  return true;
}

void DeviceAllocator::FollowOutOfMemory(StreamHandle stream, size_t bytes, size_t device_free_bytes) {
  SmallMutexLock lock(mutex_);
  ++num_ooms_;
  OutOfMemoryInfo info;
  info.device = device_;
  info.stream = stream;
  info.requested_bytes = info.rounded_bytes = info.segment_bytes = bytes;
  info.device_free_bytes = device_free_bytes;
  info.device_total_bytes = followed_total_bytes_;
  info.allocated_bytes = static_cast<size_t>(counters_.Current(Metric::kAllocatedBytes));
  info.reserved_bytes = reserved_bytes();
  if (observer_ != nullptr) observer_->OnOutOfMemory(info);
}

}  // namespace vramledger
