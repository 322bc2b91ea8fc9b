// Plain types that cross the border of the allocator core.
#ifndef VRAMLEDGER_ALLOCATOR_CORE_ALLOCATOR_TYPES_H_
#define VRAMLEDGER_ALLOCATOR_CORE_ALLOCATOR_TYPES_H_

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "allocator/core/device_memory.h"

namespace vramledger {

// Sixteen bytes that belong to the caller and travel with a live block (phase, category, module ...). The core stores
// and shows them and never looks inside.
struct BlockTag {
  std::array<uint64_t, 2> words{};
};

// Which pool memory belongs to: {0, 0} is the default one; others are private pools (PyTorch's MempoolId_t), whose memory
// serves nobody else.
struct PoolId {
  uint64_t first = 0;
  uint64_t second = 0;

  bool is_default() const { return first == 0 && second == 0; }
  bool operator==(const PoolId&) const = default;
  auto operator<=>(const PoolId&) const = default;
};

// One block as observers and iterations see it.
struct BlockView {
  int device = 0;
  StreamHandle stream = 0;  // the stream it was allocated on
  uintptr_t address = 0;
  size_t requested_bytes = 0;  // what the caller asked for; of a free block, what was asked for last, if anything
  size_t block_bytes = 0;      // what serves it
  uintptr_t segment_address = 0;
  size_t segment_bytes = 0;  // expandable segments: mapped and unmapped part together
  PoolId pool_id;
  bool small_pool = false;
};

// A segment (memory taken from the device in one piece), or the part of an expandable segment that is mapped or
// unmapped.
struct SegmentView {
  int device = 0;
  StreamHandle stream = 0;
  uintptr_t address = 0;
  size_t bytes = 0;
  PoolId pool_id;
  bool small_pool = false;
  bool expandable = false;
};

// A segment of a recorded state and the blocks in use in it, by offset from its start.
struct SegmentImage {
  struct Block {
    size_t offset = 0;
    size_t bytes = 0;
    size_t requested_bytes = 0;
  };
  size_t bytes = 0;
  StreamHandle stream = 0;
  bool small_pool = false;
  std::vector<Block> blocks;  // in order
};

enum class BlockState : uint8_t {
  kAllocated,     // in use
  kAwaitingFree,  // freed by the program, still awaited by another stream
  kFree,          // cached
  kUnmapped,      // address space of an expandable segment without memory behind it
};

enum class AllocationStatus : uint8_t {
  kOk,
  kOutOfMemory,
  kInvalidDevice,
  kDeviceError,  // the device failed for another reason than lack of memory; see DeviceMemory::last_error()
};

struct AllocationResult {
  void* address = nullptr;  // null for a request of 0 bytes, which is kOk
  size_t block_bytes = 0;
  AllocationStatus status = AllocationStatus::kOk;
};

// The state in which a request could not be served, taken before the lock is given back.
struct OutOfMemoryInfo {
  int device = 0;
  StreamHandle stream = 0;
  size_t requested_bytes = 0;
  size_t rounded_bytes = 0;  // the block that was looked for
  size_t segment_bytes = 0;  // what was asked of the device in the end
  size_t device_free_bytes = 0;
  size_t device_total_bytes = 0;
  size_t allowed_bytes = 0;                         // limit by memory fraction; 0 = no limit set
  size_t allocated_bytes = 0;                       // blocks in use
  size_t awaiting_free_bytes = 0;                   // freed, awaited by a stream
  size_t reserved_bytes = 0;                        // segments held
  size_t cached_bytes = 0;                          // free blocks in those segments, any stream
  size_t largest_free_block_bytes = 0;              // any stream, the request's pool (small or large)
  size_t largest_free_block_same_stream_bytes = 0;  // the hole that this request could have used
  bool limited_by_fraction = false;                 // the device was not asked: the limit was reached
  bool rejected = false;  // by the setting throw_on_cudamalloc_oom: nothing was tried
};

enum class FreeStatus : uint8_t {
  kOk,           // free, or waiting for streams
  kNull,         // null pointer: nothing to do
  kDoubleFree,   // the address lies in memory of ours that is already free (or was given back to the device)
  kInsideBlock,  // the address lies inside a block in use but is not its start
  kForeign,      // never ours
};

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_CORE_ALLOCATOR_TYPES_H_
