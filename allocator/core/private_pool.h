// Private pools: memory set apart for CUDA graphs and torch.cuda.MemPool. A block of a private pool serves only
// requests that are routed to the pool, and its segments go back to the device only after the pool was released by all
// who use it.
#ifndef VRAMLEDGER_ALLOCATOR_CORE_PRIVATE_POOL_H_
#define VRAMLEDGER_ALLOCATOR_CORE_PRIVATE_POOL_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "allocator/core/device_allocator.h"
#include "allocator/core/pool_types.h"

namespace vramledger {

struct PrivatePool {
  PrivatePool(PoolId pool_id, std::shared_ptr<SegmentSource> from)
      : small(true, pool_id, this), large(false, pool_id, this), source(std::move(from)) {}

  Pool small;
  Pool large;
  const std::shared_ptr<SegmentSource> source;  // null: the device
  int use_count = 1;
  int64_t segments = 0;       // it holds; a released pool ends with its last
  bool splits = true;         // a segment may serve more than one block at a time
  bool use_when_out = false;  // its free blocks may serve any request when the device has no more
  bool released() const { return use_count == 0; }
};

// One stretch of routing, between begin and end.
struct PoolRoute {
  PrivatePool* pool;
  StreamFilter filter;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_CORE_PRIVATE_POOL_H_
