// How large a block PyTorch's caching allocator gives to a request (c10/cuda/CUDACachingAllocator, 2.0 to 2.11).
#ifndef VRAMLEDGER_TOOLS_ESTIMATE_BLOCK_SIZE_H_
#define VRAMLEDGER_TOOLS_ESTIMATE_BLOCK_SIZE_H_

#include <cstdint>

namespace vramledger {

// Requests are rounded to multiples of 512 bytes.
inline constexpr uint64_t kAllocatorUnit = 512;

inline constexpr uint64_t RoundToUnit(uint64_t bytes) {
  return bytes == 0 ? 0 : (bytes + kAllocatorUnit - 1) / kAllocatorUnit * kAllocatorUnit;
}

// The block of a request that gets a segment of its own: segments are multiples of 2 MiB from 10 MiB on, and a rest of
// up to 1 MiB is not split off. A request served from a cached segment may get less than this, never less than
// RoundToUnit.
inline constexpr uint64_t FreshBlock(uint64_t bytes) {
  constexpr uint64_t kLeastOwn = uint64_t{10} << 20, kSegment = uint64_t{2} << 20, kLeastRest = uint64_t{1} << 20;
  const uint64_t rounded = RoundToUnit(bytes);
  if (rounded < kLeastOwn) return rounded;
  const uint64_t segment = (rounded + kSegment - 1) / kSegment * kSegment;
  return segment - rounded <= kLeastRest ? segment : rounded;
}

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ESTIMATE_BLOCK_SIZE_H_
