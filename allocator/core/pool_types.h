// Plain types of private pools that cross the border of the allocator core.
#ifndef VRAMLEDGER_ALLOCATOR_CORE_POOL_TYPES_H_
#define VRAMLEDGER_ALLOCATOR_CORE_POOL_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "allocator/core/allocator_types.h"

namespace vramledger {

// Where a pool takes its segments from, if not from the device. Called under the core's lock: must not call the core.
class SegmentSource {
 public:
  virtual ~SegmentSource() = default;
  // Null when it has no memory. Must not throw.
  virtual void* Allocate(size_t bytes) = 0;
  virtual void Free(void* address) = 0;
};

// Says for each request of a device whether it is routed to the pool, by its stream (and, if the filter likes, by the
// calling thread). Called under the core's lock.
using StreamFilter = std::function<bool(StreamHandle stream)>;

enum class PoolStatus : uint8_t {
  kOk,
  kUnknownPool,
  kAlreadyRouted,  // requests are being routed to this pool already
  kNotRouted,
  kReleased,      // the pool waits for its last blocks; it cannot be taken into use again
  kBlockAwaited,  // a block of the pool is awaited by a stream
  kChanged,       // the pool no longer has the memory that a recorded state speaks of
};

// What an error says of it.
constexpr const char* Describe(PoolStatus status) {
  switch (status) {
    case PoolStatus::kOk:
      break;
    case PoolStatus::kUnknownPool:
      return "there is no pool of this id";
    case PoolStatus::kAlreadyRouted:
      return "already recording to mempool_id";
    case PoolStatus::kNotRouted:
      return "not currently recording to mempool_id";
    case PoolStatus::kReleased:
      return "the pool was released by all its users";
    case PoolStatus::kBlockAwaited:
      return "a block of the pool is still awaited by a stream";
    case PoolStatus::kChanged:
      return "the pool no longer holds the memory of the recorded state";
  }
  return "no error";
}

// The blocks of a private pool as they lay at one time.
struct PoolState {
  struct Block {
    size_t bytes;
    bool allocated;
  };
  // A segment, or a contiguous mapped part of an expandable one.
  struct Range {
    uintptr_t address;
    std::vector<Block> blocks;
  };
  PoolId id;
  std::vector<Range> ranges;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_CORE_POOL_TYPES_H_
