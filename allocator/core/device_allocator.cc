// Taking and freeing blocks: the hot path.
#include "allocator/core/device_allocator.h"

#include <algorithm>
#include <bit>

#include "allocator/core/private_pool.h"
#include "allocator/core/stat_operations.h"

namespace vramledger {
namespace {

constexpr size_t kUnit = 512;  // every block is a multiple of it
constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kLargestSmall = kMiB;  // largest block of the small pool
constexpr size_t kSmallSegment = 2 * kMiB;
constexpr size_t kLargestPacked = 10 * kMiB;  // below it, large requests share segments
constexpr size_t kSegmentUnit = 2 * kMiB;     // from it on, segments are multiples of this

size_t RoundUp(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

DeviceAllocator::DeviceAllocator(DeviceMemory& memory, const AllocatorSettings& settings, AllocatorObserver* observer,
                                 int device)
    : memory_(memory),
      observer_(observer),
      device_(device),
      vmm_(settings.policy == AllocatorSettings::Policy::kVmm),
      settings_(settings),
      first_max_split_size_(settings.max_split_size),
      expandable_(settings.expandable_segments || vmm_) {}

DeviceAllocator::~DeviceAllocator() {
  for (const StreamEvents& stream : events_) {
    for (const auto& [event, block] : stream.queue) spare_events_.push_back(event);
  }
  for (const EventHandle event : spare_events_) memory_.DestroyEvent(device_, event);
  for (const auto& [address, segment] : segments_) {
    void* const start = reinterpret_cast<void*>(address);
    if (!segment->expandable()) {
      const PrivatePool* const owner = segment->pool->pool->owner;
      if (owner != nullptr && owner->source != nullptr) {
        owner->source->Free(start);
      } else {
        memory_.Free(device_, start);
      }
      continue;
    }
    for (const Block* b = index_.Find(address); b != nullptr; b = b->next) {
      if (b->state == BlockState::kUnmapped) continue;
      for (size_t at = RoundUp(b->address - address, segment->page_bytes); at < b->address - address + b->bytes;
           at += segment->page_bytes) {
        memory_.Unmap(device_, reinterpret_cast<void*>(address + at), segment->page_bytes);
      }
    }
    if (!vmm_) memory_.ReleaseAddress(device_, start, segment->bytes);
  }
  for (const VmmState::Reservation& r : vmm_state_.reservations) {
    memory_.ReleaseAddress(device_, reinterpret_cast<void*>(r.address), r.bytes);
  }
}

size_t DeviceAllocator::RoundSize(size_t bytes) const {
  if (bytes < kUnit) return kUnit;
  // Interval 0 holds everything below 2 MiB, the last everything from 32 GiB on.
  const int log = std::bit_width(bytes) - 1;
  const size_t interval = static_cast<size_t>(std::clamp(log - 20, 0, 15));
  const size_t divisions = settings_.roundup_power2_divisions[interval];
  if (divisions > 1 && bytes > kUnit * divisions) return RoundUp(bytes, std::bit_floor(bytes) / divisions);
  return RoundUp(bytes, kUnit);
}

size_t DeviceAllocator::SegmentSize(size_t rounded) const {
  if (rounded <= kLargestSmall) return kSmallSegment;
  if (rounded < kLargestPacked) return settings_.large_segment_size;
  return RoundUp(rounded, kSegmentUnit);
}

StreamPool* DeviceAllocator::StreamPoolFor(Pool& pool, StreamHandle stream) {
  auto it = pool.streams.begin();
  while (it != pool.streams.end() && (*it)->stream < stream) ++it;
  if (it != pool.streams.end() && (*it)->stream == stream) return it->get();
  return pool.streams.insert(it, std::make_unique<StreamPool>(&pool, stream, settings_.equal_size_order))->get();
}

AllocationResult DeviceAllocator::Allocate(StreamHandle stream, size_t bytes, const BlockTag& tag, uint8_t likeness,
                                           OutOfMemoryInfo* out_of_memory) {
  AllocationResult result;
  if (bytes == 0) return result;
  if (bytes > AllocatorSettings::kUnlimited / 2) bytes = AllocatorSettings::kUnlimited / 2;  // keeps sums from wrapping

  SmallMutexLock lock(mutex_);
  if (!opened_) Open();
  if (captures_ == 0 && (!events_.empty() || !deferred_.empty())) ProcessEvents();

  Request request;
  request.bytes = RoundSize(bytes);
  request.segment_bytes = SegmentSize(request.bytes);
  const uint16_t kind = vmm_ && expandable_ ? vmm_state_.lifetimes.Next(request.bytes, likeness) : uint16_t{0};
  request.pool = PoolOfRequest(request.bytes, stream, kind);

  Block* block = TakeFreeBlock(request);
  if (block == nullptr && !callbacks_.empty()) {
    const bool freed = RunFreeMemoryCallbacks();
    // They run without the lock: the pool that served the stream may be another one now, or gone.
    request.pool = PoolOfRequest(request.bytes, stream, kind);
    if (freed) block = TakeFreeBlock(request);
  }
  const bool supplied = block == nullptr;
  if (supplied) {
    const Supply supply = FindBlock(request, &block);
    if (supply != Supply::kOk) {
      result.status = supply == Supply::kFailed ? AllocationStatus::kDeviceError : AllocationStatus::kOutOfMemory;
      if (supply == Supply::kOutOfMemory) {
        if (!rejected_) ++num_ooms_;
        OutOfMemoryInfo info;
        FillOutOfMemory(request, bytes, &info);
        if (observer_ != nullptr) observer_->OnOutOfMemory(info);
        if (out_of_memory != nullptr) *out_of_memory = info;
      }
      return result;
    }
  }

  const bool was_split = block->is_split();
  Block* rest = ShouldSplit(*block, request.bytes) ? Split(block, request.bytes) : nullptr;
  Activate(block, bytes, tag, was_split, rest);
  if (vmm_) {
    vmm_state_.lifetimes.Born(kind, block);
    if (supplied) NoteHighestLive();
  }
  result.address = reinterpret_cast<void*>(block->address);
  result.block_bytes = block->bytes;
  return result;
}

StreamPool* DeviceAllocator::PoolOfRequest(size_t bytes, StreamHandle stream, uint16_t kind) {
  const bool small = bytes <= kLargestSmall;
  Pool* pool = routes_.empty() ? (small ? &small_ : &large_) : &PoolFor(small, stream);
  if (vmm_ && expandable_ && pool == &large_) pool = &VmmPool(bytes, kind);
  return StreamPoolFor(*pool, stream);
}

Block* DeviceAllocator::TakeFreeBlock(const Request& request) {
  FreeSet& free = request.pool->free;
  if (collects_garbage()) ++request.pool->pool->calls;
  FreeSet::Cursor cursor = free.LowerBound(request.bytes);
  if (cursor.at_end()) return nullptr;
  Block* block = free.At(cursor);

  if (block->segment->expandable()) {
    if (UsesVmm(*request.pool->pool)) {
      cursor = VmmFit(request, cursor);
      block = free.At(cursor);
      free.EraseAt(cursor);
      return block;
    }
    if (UsesExpandable(*request.pool->pool)) {
      // For best fit a block that can grow into unmapped space counts with what it can grow to, so a larger block that
      // cannot grow is the better fit.
      const auto potential = [](const Block* b) {
        return b->bytes + (b->next != nullptr && b->next->state == BlockState::kUnmapped ? b->next->bytes : 0);
      };
      for (FreeSet::Cursor next = free.Next(cursor); !next.at_end() && block->segment->expandable();
           next = free.Next(next)) {
        if (potential(free.At(next)) >= potential(block)) break;
        cursor = next;
        block = free.At(cursor);
      }
    } else {
      do {
        cursor = free.Next(cursor);
      } while (!cursor.at_end() && free.At(cursor)->segment->expandable());
      if (cursor.at_end()) return nullptr;
      block = free.At(cursor);
    }
  }

  // Unsplittable blocks are kept for large requests, and not for much smaller ones.
  const size_t limit = settings_.max_split_size;
  if (request.bytes < limit && block->bytes >= limit) return nullptr;
  if (request.bytes >= limit && block->bytes >= request.bytes + settings_.max_non_split_rounding) return nullptr;
  free.EraseAt(cursor);
  return block;
}

// The order in which PyTorch tries when no cached block fits.
DeviceAllocator::Supply DeviceAllocator::FindBlock(const Request& request, Block** block) {
  if (UsesVmm(*request.pool->pool)) {
    const Supply supply = SupplyVmmBlock(request, block);
    if (supply == Supply::kOk || expandable_) return supply;
  }
  if (collects_garbage()) CollectGarbage();
  Supply supply = SupplyBlock(request, false, block);
  if (supply != Supply::kOutOfMemory || rejected_) return supply;
  if (!private_pools_.empty()) {
    *block = TakeLentBlock(request);
    if (*block != nullptr) return Supply::kOk;
  }
  if (ReleaseAvailableBlocks(request)) {
    supply = SupplyBlock(request, false, block);
    if (supply != Supply::kOutOfMemory) return supply;
  }
  if (captures_ == 0) {
    ReleaseCachedBlocks();
    supply = SupplyBlock(request, true, block);
  }
  return supply;
}

bool DeviceAllocator::UsesExpandable(const Pool& pool) const {
  return expandable_ && (pool.owner == nullptr || (pool.owner->source == nullptr && !vmm_));
}

bool DeviceAllocator::RunFreeMemoryCallbacks() {
  // They may free blocks of ours.
  const auto callbacks = callbacks_;
  mutex_.Unlock();
  bool freed = false;
  for (const auto& [callback, context] : callbacks) freed = callback(context) || freed;
  mutex_.Lock();
  return freed;
}

bool DeviceAllocator::ShouldSplit(const Block& block, size_t bytes) const {
  const size_t rest = block.bytes - bytes;
  const Pool& pool = *block.pool->pool;
  if (pool.owner != nullptr && !pool.owner->splits) return false;
  if (pool.small || UsesExpandable(pool)) return rest >= kUnit;
  return bytes < settings_.max_split_size && rest > kLargestSmall;
}

Block* DeviceAllocator::Split(Block* block, size_t bytes) {
  Block* rest = blocks_.New();
  rest->address = block->address + bytes;
  rest->bytes = block->bytes - bytes;
  rest->pool = block->pool;
  rest->segment = block->segment;
  rest->prev = block;
  rest->next = block->next;
  // As in PyTorch, what is left over goes on as the block that was, and the part that is taken is the new one.
  rest->order = block->order;
  rest->requested_bytes = block->requested_bytes;
  block->order = next_block_order_++;
  if (rest->next != nullptr) rest->next->prev = rest;
  block->next = rest;
  block->bytes = bytes;
  index_.Insert(rest->address, rest);
  InsertFree(rest);
  return rest;
}

void DeviceAllocator::InsertFree(Block* block) {
  block->state = BlockState::kFree;
  block->since = vmm_state_.lifetimes.clock();
  block->pool_calls_when_freed = block->pool->pool->calls;
  block->pool->free.Insert(block);
}

void DeviceAllocator::Activate(Block* block, size_t requested, const BlockTag& tag, bool was_split, Block* rest) {
  const bool small = block->pool->pool->small;
  if (!block->segment->expandable()) {
    if (rest != nullptr && !was_split) {
      counters_.Increase(Metric::kInactiveSplit, small, 1);
      counters_.Increase(Metric::kInactiveSplitBytes, small, rest->bytes);
    } else if (rest != nullptr) {
      counters_.Decrease(Metric::kInactiveSplitBytes, small, block->bytes);
    } else if (was_split) {
      counters_.Decrease(Metric::kInactiveSplit, small, 1);
      counters_.Decrease(Metric::kInactiveSplitBytes, small, block->bytes);
    }
  }
  block->state = BlockState::kAllocated;
  block->requested_bytes = requested;
  block->tag = tag;
  counters_.Increase(Metric::kAllocation, small, 1);
  counters_.Increase(Metric::kAllocatedBytes, small, block->bytes);
  counters_.Increase(Metric::kActive, small, 1);
  counters_.Increase(Metric::kActiveBytes, small, block->bytes);
  counters_.Increase(Metric::kRequestedBytes, small, requested);
  if (block->bytes >= settings_.max_split_size) Increase(oversize_allocations_, 1);
  if (observer_ != nullptr) observer_->OnAlloc(ViewOf(*block), block->tag);
}

FreeStatus DeviceAllocator::Free(uintptr_t address) {
  SmallMutexLock lock(mutex_);
  Block* block = FindLive(address);
  if (block == nullptr) return ExplainBadFree(address);
  RequestFree(block);
  return FreeStatus::kOk;
}

void DeviceAllocator::RequestFree(Block* block) {
  const bool waits = block->used_by != nullptr && !block->used_by->empty();
  if (waits && observer_ != nullptr) observer_->OnFreeRequested(ViewOf(*block), block->tag);
  if (vmm_) vmm_state_.lifetimes.Freed(*block);
  const bool small = block->pool->pool->small;
  counters_.Decrease(Metric::kAllocation, small, 1);
  counters_.Decrease(Metric::kAllocatedBytes, small, block->bytes);
  if (block->bytes >= settings_.max_split_size) Decrease(oversize_allocations_, 1);
  if (!waits) {
    CompleteFree(block, false);
    return;
  }
  block->state = BlockState::kAwaitingFree;
  if (captures_ > 0) {
    deferred_.push_back(block);
  } else {
    InsertEvents(block, false);
  }
}

void DeviceAllocator::CompleteFree(Block* block, bool deferred) {
  if (observer_ != nullptr) observer_->OnFree(ViewOf(*block), block->tag, deferred);
  const bool small = block->pool->pool->small;
  counters_.Decrease(Metric::kActive, small, 1);
  counters_.Decrease(Metric::kActiveBytes, small, block->bytes);
  counters_.Decrease(Metric::kRequestedBytes, small, block->requested_bytes);

  const uint32_t order = block->order;  // outlives those of its neighbours, as does:
  const size_t requested = block->requested_bytes;
  int64_t splits = 0;
  int64_t split_bytes = 0;
  for (const bool left : {true, false}) {
    Block* neighbour = left ? block->prev : block->next;
    if (neighbour == nullptr || neighbour->state != BlockState::kFree) continue;
    neighbour->pool->free.Erase(neighbour);
    --splits;
    split_bytes -= static_cast<int64_t>(neighbour->bytes);
    block = left ? Join(neighbour, block) : Join(block, neighbour);
  }
  if (block->is_split()) {
    ++splits;
    split_bytes += static_cast<int64_t>(block->bytes);
  }
  block->tag = BlockTag();
  block->order = order;
  block->requested_bytes = requested;
  InsertFree(block);

  if (block->segment->expandable()) return;
  if (splits > 0) counters_.Increase(Metric::kInactiveSplit, small, static_cast<size_t>(splits));
  if (splits < 0) counters_.Decrease(Metric::kInactiveSplit, small, static_cast<size_t>(-splits));
  if (split_bytes > 0) counters_.Increase(Metric::kInactiveSplitBytes, small, static_cast<size_t>(split_bytes));
  if (split_bytes < 0) counters_.Decrease(Metric::kInactiveSplitBytes, small, static_cast<size_t>(-split_bytes));
}

Block* DeviceAllocator::Join(Block* left, Block* right) {
  left->bytes += right->bytes;
  left->next = right->next;
  if (left->next != nullptr) left->next->prev = left;
  index_.Erase(right->address);
  blocks_.Delete(right);
  return left;
}

FreeStatus DeviceAllocator::ExplainBadFree(uintptr_t address) {
  if (SegmentAt(address) == nullptr) {
    for (const auto& [start, bytes] : released_) {
      if (address - start < bytes) return FreeStatus::kDoubleFree;
    }
    return FreeStatus::kForeign;
  }
  const Block* block = index_.Find(SegmentAt(address)->address);
  while (address - block->address >= block->bytes) block = block->next;
  if (block->state == BlockState::kAllocated) return FreeStatus::kInsideBlock;
  return block->state == BlockState::kUnmapped ? FreeStatus::kForeign : FreeStatus::kDoubleFree;
}

}  // namespace vramledger
