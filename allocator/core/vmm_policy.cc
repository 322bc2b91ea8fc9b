#include "allocator/core/vmm_policy.h"

#include <algorithm>

#include "allocator/core/device_allocator.h"

namespace vramledger {
namespace {

constexpr size_t kArenasPerReservation = 32;
constexpr size_t kManyGranules = 1024;  // of which parts of a few granules are no matter
constexpr size_t kAllowance = 128;      // one part in so many
constexpr int kFitsLookedAt = 256;      // keeps a search short where very many blocks are free

bool Usable(const Block* block) {
  return block != nullptr && (block->state == BlockState::kFree || block->state == BlockState::kUnmapped);
}

}  // namespace

bool DeviceAllocator::UsesVmm(const Pool& pool) const {
  return vmm_ && UsesExpandable(pool);
}

size_t DeviceAllocator::VmmGranule() {
  size_t& granule = vmm_state_.granule;
  if (granule == 0) granule = std::max<size_t>(memory_.granularity(device_), size_t{2} << 20);
  return granule;
}

// Until much is live: whole granules apart from the rest, and of the rest the short-lived apart from what stays.
Pool& DeviceAllocator::VmmPool(size_t bytes, uint16_t kind) {
  if (vmm_state_.highest_live >= kManyGranules * VmmGranule()) return large_;
  if (bytes % VmmGranule() == 0) return whole_;
  return vmm_state_.lifetimes.Brief(kind) ? brief_ : large_;
}

// Which free block serves a request, of those from `smallest` on, the smallest that fits.
FreeSet::Cursor DeviceAllocator::VmmFit(const Request& request, FreeSet::Cursor smallest) const {
  if (request.pool->pool->small || request.bytes % vmm_state_.granule == 0) return smallest;
  const FreeSet& free = request.pool->free;
  FreeSet::Cursor lowest = smallest;
  FreeSet::Cursor next = free.Next(smallest);
  for (int looked_at = 0; looked_at < kFitsLookedAt && !next.at_end(); ++looked_at, next = free.Next(next)) {
    if (free.At(next)->address < free.At(lowest)->address) lowest = next;
  }
  return lowest;
}

// The statistics' peak can be reset, this one not.
void DeviceAllocator::NoteHighestLive() {
  const auto peak = static_cast<size_t>(counters_.Read(Metric::kActiveBytes)[kAllPools].peak);
  vmm_state_.highest_live = std::max(vmm_state_.highest_live, peak);
}

// What may be reserved before free granules are moved rather than new ones mapped. A request that fails in the end,
// which may be far larger than all that is ever live, raises it for no other.
size_t DeviceAllocator::VmmAllowance(size_t requested) {
  NoteHighestLive();
  const auto live = static_cast<size_t>(counters_.Current(Metric::kActiveBytes));
  const size_t highest = std::max(vmm_state_.highest_live, live + requested);
  return highest + highest / kAllowance;
}

DeviceAllocator::Supply DeviceAllocator::NewArena(StreamPool* pool, size_t least) {
  VmmState& v = vmm_state_;
  if (v.arena_bytes == 0) {
    DeviceMemoryInfo info;
    if (memory_.MemoryInfo(device_, &info) != DeviceResult::kOk) return Supply::kFailed;
    const size_t granule = VmmGranule();
    // A quarter more than there is memory, so that holes which cannot be filled do not end it.
    v.arena_bytes = (info.total_bytes + info.total_bytes / 4 + granule - 1) / granule * granule;
  }
  if (least > v.arena_bytes) return Supply::kOutOfMemory;
  if (v.reservations.empty() || v.reservations.back().used == v.reservations.back().bytes) {
    void* address = nullptr;
    const size_t bytes = v.arena_bytes * kArenasPerReservation;
    const DeviceResult result = memory_.ReserveAddress(device_, bytes, &address);
    if (result == DeviceResult::kNotSupported) {
      expandable_ = false;  // the native policy from now on
      lacks_vmm_ = true;
      return Supply::kFailed;
    }
    if (result != DeviceResult::kOk)
      return result == DeviceResult::kOutOfMemory ? Supply::kOutOfMemory : Supply::kFailed;
    v.reservations.push_back({reinterpret_cast<uintptr_t>(address), bytes, 0});
  }
  VmmState::Reservation& reservation = v.reservations.back();
  Block* block = blocks_.New();
  block->address = reservation.address + reservation.used;
  reservation.used += v.arena_bytes;
  block->bytes = v.arena_bytes;
  block->pool = pool;
  block->segment = NewSegment(block->address, v.arena_bytes, pool, v.granule);
  block->state = BlockState::kUnmapped;
  index_.Insert(block->address, block);
  pool->unmapped[block->address] = block;
  return Supply::kOk;
}

// Where the fewest granules have to be mapped for the request; of equals the lowest. Null if there is no room.
DeviceAllocator::VmmPlace DeviceAllocator::FindVmmPlace(const Request& request) const {
  VmmPlace best;
  const size_t granule = vmm_state_.granule;
  const auto consider = [&](Block* first) {
    size_t room = 0, unmapped = 0;
    for (const Block* b = first; room < request.bytes && Usable(b); b = b->next) {
      const size_t part = std::min(b->bytes, request.bytes - room);
      if (b->state == BlockState::kUnmapped) unmapped += (part + granule - 1) / granule * granule;
      room += part;
    }
    if (room < request.bytes) return;
    if (best.first == nullptr || unmapped < best.unmapped_bytes ||
        (unmapped == best.unmapped_bytes && first->address < best.first->address)) {
      best = VmmPlace{first, unmapped};
    }
  };
  for (const auto& [address, block] : request.pool->unmapped) {
    // What is free before it belongs to the place.
    consider(block->prev != nullptr && block->prev->state == BlockState::kFree ? block->prev : block);
  }
  return best;
}

// Unmaps whole free granules until `bytes` are gathered, those first that have been free the longest, but nothing
// between `keep` and `keep_end`. Returns what was gathered.
size_t DeviceAllocator::ReclaimGranules(size_t bytes, uintptr_t keep, uintptr_t keep_end) {
  if (captures_ > 0 || bytes == 0) return 0;
  const size_t granule = vmm_state_.granule;
  struct Candidate {
    Block* block;
    WholePages pages;
  };
  std::vector<Candidate> candidates;
  for (Pool* pool : shared_pools_) {
    for (const auto& stream : pool->streams) {
      FreeSet& free = stream->free;
      for (auto cursor = free.LowerBound(granule); !cursor.at_end(); cursor = free.Next(cursor)) {
        Block* block = free.At(cursor);
        if (!block->segment->expandable() || (block->address < keep_end && block->address + block->bytes > keep))
          continue;
        const WholePages pages(*block);
        if (pages.first < pages.last) candidates.push_back({block, pages});
      }
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.block->since < b.block->since; });
  size_t gathered = 0;
  for (const Candidate& c : candidates) {
    if (gathered >= bytes) break;
    const size_t wanted = (bytes - gathered + granule - 1) / granule * granule;
    const size_t part = std::min<size_t>(wanted, c.pages.last - c.pages.first);
    UnmapPart(c.block, c.pages.last - part, c.pages.last);
    gathered += part;
  }
  return gathered;
}

// A free block in an arena of another class of the request's stream.
Block* DeviceAllocator::TakeBlockOfOtherClass(const Request& request) {
  for (Pool* pool : shared_pools_) {
    Request other = request;
    other.pool = StreamPoolFor(*pool, request.pool->stream);
    if (Block* block = TakeFreeBlock(other)) return block;
  }
  return nullptr;
}

DeviceAllocator::Supply DeviceAllocator::SupplyVmmBlock(const Request& request, Block** out) {
  rejected_ = false;
  if (request.pool->pool->small) {
    // A part of a granule between large blocks, which nothing large can use.
    Request other = request;
    other.pool = StreamPoolFor(large_, request.pool->stream);
    const auto cursor = other.pool->free.LowerBound(request.bytes);
    if (!cursor.at_end() && other.pool->free.At(cursor)->bytes < vmm_state_.granule) {
      *out = TakeFreeBlock(other);
      return Supply::kOk;
    }
  }
  bool waited = false;
  for (;;) {
    if (waited) {  // frees that waited for other streams may have made room
      *out = TakeFreeBlock(request);
      if (*out != nullptr) return Supply::kOk;
    }
    VmmPlace place = FindVmmPlace(request);
    if (place.first == nullptr) {
      const Supply supply = NewArena(request.pool, request.bytes);
      if (supply != Supply::kOk) return supply;
      place = FindVmmPlace(request);
    }
    const uintptr_t keep = place.first->address;
    const uintptr_t keep_end = place.first->address + request.bytes;
    const size_t allowance = VmmAllowance(request.bytes);
    const size_t wanted = reserved_bytes() + place.unmapped_bytes;
    if (wanted > allowance && ReclaimGranules(wanted - allowance, keep, keep_end) < wanted - allowance) {
      // What is free now lies in parts of granules. One in the arena of another class may do.
      if ((*out = TakeBlockOfOtherClass(request)) != nullptr) return Supply::kOk;
    }

    limited_by_fraction_ = false;
    size_t missing = place.unmapped_bytes;
    if (has_limit_ && reserved_bytes() + place.unmapped_bytes > limit_bytes_) {
      limited_by_fraction_ = true;
      missing = reserved_bytes() + place.unmapped_bytes - limit_bytes_;
    } else {
      const Supply supply = MapPlace(request, place, out);
      if (supply != Supply::kOutOfMemory) return supply;
      DeviceMemoryInfo info;
      if (memory_.MemoryInfo(device_, &info) != DeviceResult::kOk) return Supply::kFailed;
      place = FindVmmPlace(request);  // a part may have been mapped
      missing = place.unmapped_bytes > info.free_bytes ? place.unmapped_bytes - info.free_bytes : vmm_state_.granule;
    }
    if (ReclaimGranules(missing, keep, keep_end) > 0) continue;
    if (waited || captures_ > 0) {
      // The allowance may be more than the device has, so that none of these was looked at before.
      *out = TakeBlockOfOtherClass(request);
      if (*out == nullptr && !private_pools_.empty()) *out = TakeLentBlock(request);
      return *out != nullptr ? Supply::kOk : Supply::kOutOfMemory;
    }
    waited = true;
    ++num_alloc_retries_;
    ReleaseCachedBlocks();
  }
}

DeviceAllocator::Supply DeviceAllocator::MapPlace(const Request& request, const VmmPlace& place, Block** out) {
  Block* block = place.first;
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

}  // namespace vramledger
