// The policy vmm: the native policy's sizes, streams and events, but memory that can move.
//
// - Address space is reserved once for the device and cut into arenas, one for each stream and class (up to 1 MiB;
//   above), each large enough for all of the device's memory. Address space costs nothing.
// - Memory is mapped into an arena by the granule (2 MiB) where a request needs it. A request takes a free block that
//   fits: the smallest, or, if it leaves a part of a granule over, the lowest of a number of them, so that such blocks
//   stay together at one end of the arena. If there is none, it is put where the fewest granules have to be mapped:
//   into a hole between blocks that was unmapped before, or behind a free block that is too short.
// - What nobody can use are parts of granules between blocks. While little is live (2 GiB), a few of them are more than
//   one per cent, so then blocks of whole granules have an arena of their own, where no parts come about, and so have
//   blocks that are known to be short-lived. Later these would cost more than they save: arenas that are busy in turn
//   take granules from each other in every step.
// - Whole free granules are a common good. They stay mapped while the reserved memory is within a small allowance (one
//   part in 128) above the highest sum of live blocks so far. Beyond that, and when the device or the memory fraction
//   gives no more, they are unmapped where they lie, in whichever arena, stream or size class, those that have been
//   free for the longest time first, before more is mapped elsewhere. A request fails only when the granules that are
//   free, or not yet taken, do not suffice.
// - A granule is unmapped only after the device has finished what was queued when it was free (DeviceMemory::Unmap
// waits),
//   and never during a graph capture.
// - Private pools (CUDA graphs, MemPool) have plain segments, as under native: a graph replays addresses and
//   its memory must not move. A device without virtual memory management has the native policy.
#ifndef VRAMLEDGER_ALLOCATOR_CORE_VMM_POLICY_H_
#define VRAMLEDGER_ALLOCATOR_CORE_VMM_POLICY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/core/block.h"

namespace vramledger {

// Learns how long requests live: by size and by what the caller says they are like (its phase). A block that is freed
// within a few dozen requests is brief, and the next request of its kind is put into an arena of its own, so that what
// is short-lived does not lie between what stays, where it would leave holes that are parts of granules.
class Lifetimes {
 public:
  // Requests so far.
  uint32_t clock() const { return clock_; }
  // The kind of the next request.
  uint16_t Next(size_t bytes, uint8_t likeness) {
    ++clock_;
    const uint64_t mixed = (bytes >> 9) * 0x9E3779B97F4A7C15u + likeness * 0x85EBCA77C2B2AE63u;
    return static_cast<uint16_t>(mixed >> (64 - kBits));
  }
  bool Brief(uint16_t kind) const { return !brief_.empty() && brief_[kind] != 0; }
  void Born(uint16_t kind, Block* block) const {
    block->kind = kind;
    block->since = clock_;
  }
  void Freed(const Block& block) {
    if (brief_.empty()) brief_.resize(size_t{1} << kBits);
    brief_[block.kind] = clock_ - block.since < kBriefRequests ? 1 : 0;
  }

 private:
  static constexpr int kBits = 14;
  static constexpr uint32_t kBriefRequests = 32;
  uint32_t clock_ = 0;
  std::vector<uint8_t> brief_;  // by kind; kinds may collide, which costs only a worse place
};

struct VmmState {
  struct Reservation {
    uintptr_t address = 0;
    size_t bytes = 0;
    size_t used = 0;  // by arenas
  };
  std::vector<Reservation> reservations;
  size_t granule = 0;
  size_t arena_bytes = 0;
  size_t highest_live = 0;
  Lifetimes lifetimes;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_CORE_VMM_POLICY_H_
