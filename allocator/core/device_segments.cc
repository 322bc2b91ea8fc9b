// Memory taken from the device and given back to it.
#include <algorithm>
#include <utility>

#include "allocator/core/device_allocator.h"
#include "allocator/core/private_pool.h"
#include "allocator/core/stat_operations.h"

namespace vramledger {
namespace {

constexpr size_t kLargestSegment = size_t{1} << 40;  // also what a FreeSet can hold
constexpr size_t kSmallPage = size_t{2} << 20;
constexpr size_t kRemembered = 64;  // released ranges kept to name late double frees

void* Pointer(uintptr_t address) {
  return reinterpret_cast<void*>(address);
}

}  // namespace

void DeviceAllocator::CountReserved(const Pool& pool, bool grows, size_t bytes) {
  if (grows) {
    counters_.Increase(Metric::kReservedBytes, pool.small, bytes);
  } else {
    counters_.Decrease(Metric::kReservedBytes, pool.small, bytes);
  }
  if (pool.owner == nullptr) return;
  StatByPool& own = private_reserved_[pool.id];
  for (const StatPool which : {kAllPools, pool.small ? kSmallPool : kLargePool}) {
    (grows ? Increase : Decrease)(own[which], static_cast<int64_t>(bytes));
  }
}

Segment* DeviceAllocator::NewSegment(uintptr_t address, size_t bytes, StreamPool* pool, size_t page_bytes) {
  auto segment = std::make_unique<Segment>();
  segment->address = address;
  segment->bytes = bytes;
  segment->pool = pool;
  segment->age = next_segment_age_++;
  segment->page_bytes = page_bytes;
  if (pool->pool->owner != nullptr) ++pool->pool->owner->segments;
  return (segments_[address] = std::move(segment)).get();
}

void DeviceAllocator::ForgetSegment(Segment* segment) {
  if (PrivatePool* owner = segment->pool->pool->owner; owner != nullptr) --owner->segments;
  released_.emplace_back(segment->address, segment->bytes);
  if (released_.size() > kRemembered) released_.pop_front();
  segments_.erase(segment->address);
}

DeviceAllocator::Supply DeviceAllocator::SupplyBlock(const Request& request, bool retry, Block** block) {
  if (retry) ++num_alloc_retries_;
  rejected_ = false;
  limited_by_fraction_ =
      has_limit_ && (request.segment_bytes > limit_bytes_ || reserved_bytes() > limit_bytes_ - request.segment_bytes);
  if (limited_by_fraction_) return Supply::kOutOfMemory;
  rejected_ = settings_.reject_over_fraction && ExceedsConfiguredLimit(request.segment_bytes);
  if (rejected_) {
    limited_by_fraction_ = true;
    ++num_oom_rejections_;
    return Supply::kOutOfMemory;
  }
  if (UsesExpandable(*request.pool->pool)) {
    const Supply supply = SupplyExpandableBlock(request, block);
    if (expandable_) return supply;
  }
  return AllocateSegment(request, block);
}

DeviceAllocator::Supply DeviceAllocator::AllocateSegment(const Request& request, Block** block) {
  const size_t bytes = request.segment_bytes;
  if (bytes > kLargestSegment) return Supply::kOutOfMemory;
  void* address = nullptr;
  const PrivatePool* const owner = request.pool->pool->owner;
  if (owner != nullptr && owner->source != nullptr) {
    address = owner->source->Allocate(bytes);
    if (address == nullptr) return Supply::kOutOfMemory;
  } else {
    const DeviceResult result = memory_.Allocate(device_, bytes, &address);
    if (result == DeviceResult::kOutOfMemory) return Supply::kOutOfMemory;
    if (result != DeviceResult::kOk) return Supply::kFailed;
  }

  const uintptr_t start = reinterpret_cast<uintptr_t>(address);
  std::erase_if(released_, [start, bytes](const auto& range) {
    return range.first < start + bytes && start < range.first + range.second;
  });
  Block* fresh = blocks_.New();
  fresh->address = start;
  fresh->bytes = bytes;
  fresh->pool = request.pool;
  fresh->segment = NewSegment(start, bytes, request.pool, 0);
  fresh->order = next_block_order_++;
  index_.Insert(start, fresh);
  const bool small = request.pool->pool->small;
  counters_.Increase(Metric::kSegment, small, 1);
  CountReserved(*request.pool->pool, true, bytes);
  if (bytes >= settings_.max_split_size) Increase(oversize_segments_, 1);
  ++num_device_alloc_;
  if (observer_ != nullptr) observer_->OnSegmentAlloc(ViewOf(*fresh->segment));
  *block = fresh;
  return Supply::kOk;
}

// With a split limit set: gives back the smallest unsplittable block that would serve the request, or else the largest
// ones until enough is gathered. True if it is worth asking the device again.
bool DeviceAllocator::ReleaseAvailableBlocks(const Request& request) {
  if (settings_.max_split_size == AllocatorSettings::kUnlimited) return false;
  FreeSet& free = request.pool->free;
  const size_t wanted = std::max(request.bytes, settings_.max_split_size);
  FreeSet::Cursor cursor = free.LowerBound(wanted);
  if (!cursor.at_end() && !free.At(cursor)->segment->expandable()) {
    ReleaseBlock(free.At(cursor));
    return true;
  }
  std::vector<Block*> victims;
  size_t gathered = 0;
  for (cursor = free.Previous(cursor); !cursor.at_end() && gathered < wanted; cursor = free.Previous(cursor)) {
    Block* block = free.At(cursor);
    if (block->bytes < settings_.max_split_size) break;
    if (block->segment->expandable()) continue;
    gathered += block->bytes;
    victims.push_back(block);
  }
  for (Block* block : victims) ReleaseBlock(block);
  return gathered >= wanted;
}

void DeviceAllocator::EmptyCache() {
  SmallMutexLock lock(mutex_);
  if (captures_ == 0) {
    ReleaseCachedBlocks();
  } else {
    ReleaseReleasedPools();
  }
}

void DeviceAllocator::ReleaseCachedBlocks() {
  SynchronizeEvents();
  for (Pool* pool : shared_pools_) ReleaseBlocks(*pool);
  if (!private_pools_.empty()) ReleaseReleasedPools();
}

void DeviceAllocator::ReleaseBlocks(Pool& pool) {
  std::vector<Block*> expandable;
  for (const auto& stream : pool.streams) {
    for (Block* block : stream->free.Blocks()) {
      if (block->segment->expandable()) {
        expandable.push_back(block);
      } else if (!block->is_split()) {
        ReleaseBlock(block);
      }
    }
  }
  for (Block* block : expandable) UnmapBlock(block);
}

void DeviceAllocator::ReleaseBlock(Block* block) {
  if (observer_ != nullptr) observer_->OnSegmentFree(ViewOf(*block->segment));
  const bool small = block->pool->pool->small;
  const PrivatePool* const owner = block->pool->pool->owner;
  if (owner != nullptr && owner->source != nullptr) {
    owner->source->Free(Pointer(block->address));
  } else if (!follows_) {
    memory_.Free(device_, Pointer(block->address));
  }
  ++num_device_free_;
  counters_.Decrease(Metric::kSegment, small, 1);
  CountReserved(*block->pool->pool, false, block->bytes);
  if (block->bytes >= settings_.max_split_size) Decrease(oversize_segments_, 1);
  block->pool->free.Erase(block);
  index_.Erase(block->address);
  ForgetSegment(block->segment);
  blocks_.Delete(block);
}

// Gives back whole free segments of the large pool that were not wanted for longer than the average, until the
// threshold holds or nothing is old enough.
void DeviceAllocator::CollectGarbage() {
  const size_t threshold =
      static_cast<size_t>(settings_.garbage_collection_threshold * static_cast<double>(limit_bytes_));
  if (reserved_bytes() <= threshold) return;
  const size_t target = reserved_bytes() - threshold;

  std::vector<Block*> whole;
  int64_t total_age = 0;
  const auto age = [this](const Block* block) { return large_.calls - block->pool_calls_when_freed; };
  for (const auto& stream : large_.streams) {
    for (Block* block : stream->free.Blocks()) {
      if (block->is_split()) continue;
      whole.push_back(block);
      total_age += age(block);
    }
  }
  size_t reclaimed = 0;
  int64_t remaining = static_cast<int64_t>(whole.size());
  for (bool freed = true; reclaimed < target && freed && remaining > 0;) {
    const double oldest_kept = static_cast<double>(total_age) / static_cast<double>(remaining);
    freed = false;
    for (Block*& block : whole) {
      if (block == nullptr || block->segment->expandable() || static_cast<double>(age(block)) < oldest_kept) continue;
      freed = true;
      reclaimed += block->bytes;
      total_age -= age(block);
      --remaining;
      ReleaseBlock(block);
      block = nullptr;
    }
  }
}

// Expandable segments: address space for the whole device is reserved once per stream and pool, and memory is mapped
// into it page by page where it is needed.

DeviceAllocator::Supply DeviceAllocator::SupplyExpandableBlock(const Request& request, Block** out) {
  Supply failure = Supply::kOutOfMemory;
  Block* block = FindExpandableBlock(request, &failure);
  if (block == nullptr) return failure;
  if (block->state == BlockState::kUnmapped) {
    const Supply supply = MapBlock(block, std::min(block->bytes, request.bytes), &block);
    if (supply != Supply::kOk) return supply;
  }
  while (block->bytes < request.bytes) {
    Block* next = block->next;
    const Supply supply = MapBlock(next, std::min(request.bytes - block->bytes, next->bytes), &block);
    if (supply != Supply::kOk) return supply;
  }
  block->pool->free.Erase(block);
  *out = block;
  return Supply::kOk;
}

// The lowest place of an expandable segment where free and unmapped blocks in a row make room for the request.
Block* DeviceAllocator::FindExpandableBlock(const Request& request, Supply* failure) {
  StreamPool* pool = request.pool;
  const auto usable = [](const Block* b) {
    return b != nullptr && (b->state == BlockState::kFree || b->state == BlockState::kUnmapped);
  };
  for (const auto& [address, unmapped] : pool->unmapped) {
    Block* first = usable(unmapped->prev) ? unmapped->prev : unmapped;
    size_t room = 0;
    for (const Block* b = first; room < request.bytes && usable(b); b = b->next) room += b->bytes;
    if (room >= request.bytes) return first;
  }

  DeviceMemoryInfo info;
  *failure = Supply::kFailed;
  if (memory_.MemoryInfo(device_, &info) != DeviceResult::kOk) return nullptr;
  const size_t page = pool->pool->small ? kSmallPage : settings_.large_segment_size;
  // An eighth more than there is memory, so that holes which cannot be filled do not end it.
  const size_t bytes = (info.total_bytes + info.total_bytes / 8 + page - 1) / page * page;
  if (bytes < request.bytes) {
    *failure = Supply::kOutOfMemory;
    return nullptr;
  }
  void* address = nullptr;
  const DeviceResult result = memory_.ReserveAddress(device_, bytes, &address);
  if (result == DeviceResult::kNotSupported) {  // plain segments from now on
    expandable_ = false;
    lacks_vmm_ = true;
  }
  if (result != DeviceResult::kOk) return nullptr;
  Block* block = blocks_.New();
  block->address = reinterpret_cast<uintptr_t>(address);
  block->bytes = bytes;
  block->pool = pool;
  block->segment = NewSegment(block->address, bytes, pool, page);
  block->state = BlockState::kUnmapped;
  block->order = next_block_order_++;
  index_.Insert(block->address, block);
  pool->unmapped[block->address] = block;
  return block;
}

// Maps the pages that hold the first `bytes` of an unmapped block. The block that results, joined with free neighbours,
// is free.
DeviceAllocator::Supply DeviceAllocator::MapBlock(Block* block, size_t bytes, Block** mapped) {
  const size_t page = block->segment->page_bytes;
  const size_t length = (bytes + page - 1) / page * page;
  for (size_t done = 0; done < length && !follows_; done += page) {
    const DeviceResult result = memory_.Map(device_, Pointer(block->address + done), page);
    if (result == DeviceResult::kOk) continue;
    for (size_t undo = 0; undo < done; undo += page) memory_.Unmap(device_, Pointer(block->address + undo), page);
    return result == DeviceResult::kOutOfMemory ? Supply::kOutOfMemory : Supply::kFailed;
  }
  StreamPool* pool = block->pool;
  pool->unmapped.erase(block->address);
  if (length < block->bytes) {
    Block* rest = blocks_.New();
    rest->address = block->address + length;
    rest->bytes = block->bytes - length;
    rest->pool = pool;
    rest->segment = block->segment;
    rest->state = BlockState::kUnmapped;
    rest->order = next_block_order_++;
    rest->prev = block;
    rest->next = block->next;
    if (rest->next != nullptr) rest->next->prev = rest;
    block->next = rest;
    block->bytes = length;
    index_.Insert(rest->address, rest);
    pool->unmapped[rest->address] = rest;
  }
  SegmentView part = ViewOf(*block->segment);
  part.address = block->address;
  part.bytes = length;
  const uint32_t order = block->order;  // outlives those of its neighbours, as does:
  const size_t requested = block->requested_bytes;
  if (block->prev != nullptr && block->prev->state == BlockState::kFree) {
    pool->free.Erase(block->prev);
    block = Join(block->prev, block);
  }
  if (block->next != nullptr && block->next->state == BlockState::kFree) {
    pool->free.Erase(block->next);
    block = Join(block, block->next);
  }
  block->order = order;
  block->requested_bytes = requested;
  InsertFree(block);
  CountReserved(*pool->pool, true, length);
  ++num_device_alloc_;
  if (observer_ != nullptr) observer_->OnSegmentMap(part);
  *mapped = block;
  return Supply::kOk;
}

// Unmaps the whole pages inside a free block.
void DeviceAllocator::UnmapBlock(Block* block) {
  const WholePages pages(*block);
  if (pages.first < pages.last) UnmapPart(block, pages.first, pages.last);
}

// Gives the address space back when nothing of the segment is mapped any more, except under the policy vmm.
void DeviceAllocator::UnmapPart(Block* block, uintptr_t first, uintptr_t last) {
  Segment* segment = block->segment;
  StreamPool* pool = block->pool;
  const size_t page = segment->page_bytes;
  SegmentView part = ViewOf(*segment);
  part.address = first;
  part.bytes = last - first;
  if (observer_ != nullptr) observer_->OnSegmentUnmap(part);
  for (uintptr_t at = first; at < last && !follows_; at += page) memory_.Unmap(device_, Pointer(at), page);

  pool->free.Erase(block);
  const auto cut = [this](Block* left, uintptr_t at) {  // splits off and returns what lies right of `at`
    Block* right = blocks_.New();
    right->address = at;
    right->bytes = left->address + left->bytes - at;
    right->pool = left->pool;
    right->segment = left->segment;
    right->prev = left;
    right->next = left->next;
    if (right->next != nullptr) right->next->prev = right;
    left->next = right;
    left->bytes = at - left->address;
    right->order = next_block_order_++;
    index_.Insert(at, right);
    return right;
  };
  if (first > block->address) {
    Block* before = block;
    block = cut(before, first);
    std::swap(before->order, block->order);  // the unmapped part goes on as the block that was
    std::swap(before->requested_bytes, block->requested_bytes);
    InsertFree(before);
  }
  if (last < block->address + block->bytes) InsertFree(cut(block, last));
  block->state = BlockState::kUnmapped;
  const uint32_t order = block->order;
  const size_t requested = block->requested_bytes;
  if (block->prev != nullptr && block->prev->state == BlockState::kUnmapped) {
    pool->unmapped.erase(block->prev->address);
    block = Join(block->prev, block);
  }
  if (block->next != nullptr && block->next->state == BlockState::kUnmapped) {
    pool->unmapped.erase(block->next->address);
    block = Join(block, block->next);
  }
  block->order = order;
  block->requested_bytes = requested;
  CountReserved(*pool->pool, false, part.bytes);
  ++num_device_free_;
  if (block->is_split() || vmm_) {
    pool->unmapped[block->address] = block;
    return;
  }
  if (!follows_) memory_.ReleaseAddress(device_, Pointer(segment->address), segment->bytes);
  index_.Erase(block->address);
  ForgetSegment(segment);
  blocks_.Delete(block);
}

}  // namespace vramledger
