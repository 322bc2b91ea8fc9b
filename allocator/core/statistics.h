// Counters with the names and meanings that torch.cuda.memory_stats gives them.
#ifndef VRAMLEDGER_ALLOCATOR_CORE_STATISTICS_H_
#define VRAMLEDGER_ALLOCATOR_CORE_STATISTICS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "allocator/core/allocator_types.h"

namespace vramledger {

struct Stat {
  int64_t current = 0;
  int64_t peak = 0;
  int64_t allocated = 0;  // sum of all increases since the last ResetAccumulated
  int64_t freed = 0;      // sum of all decreases

  bool operator==(const Stat&) const = default;
};

enum StatPool : int { kAllPools = 0, kSmallPool = 1, kLargePool = 2 };
using StatByPool = std::array<Stat, 3>;

struct Statistics {
  StatByPool allocation;  // blocks in use, counted
  StatByPool segment;
  StatByPool active;          // in use or awaited by a stream
  StatByPool inactive_split;  // free pieces of segments that hold other blocks
  StatByPool allocated_bytes;
  StatByPool reserved_bytes;
  StatByPool active_bytes;
  StatByPool inactive_split_bytes;
  StatByPool requested_bytes;
  // Of each private pool that ever held a segment. Not among Flatten()'s keys: PyTorch has it from 2.13 on.
  std::vector<std::pair<PoolId, StatByPool>> reserved_bytes_by_private_pool;
  Stat oversize_allocations;  // of at least max_split_size
  Stat oversize_segments;
  int64_t num_alloc_retries = 0;
  int64_t num_ooms = 0;
  int64_t num_oom_rejections = 0;  // not among Flatten()'s keys: PyTorch has it from 2.12 on
  int64_t num_sync_all_streams = 0;
  int64_t num_device_alloc = 0;
  int64_t num_device_free = 0;
  int64_t max_split_size = -1;  // bytes, -1 = unlimited

  // Flat, with PyTorch's key names ("allocated_bytes.all.peak"), sorted by key.
  std::vector<std::pair<std::string, int64_t>> Flatten() const;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_CORE_STATISTICS_H_
