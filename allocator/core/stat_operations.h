// Arithmetic on a single Stat, for the counters that are off the hot path.
#ifndef VRAMLEDGER_ALLOCATOR_CORE_STAT_OPERATIONS_H_
#define VRAMLEDGER_ALLOCATOR_CORE_STAT_OPERATIONS_H_

#include <algorithm>
#include <cstdint>

#include "allocator/core/statistics.h"

namespace vramledger {

inline void Increase(Stat& stat, int64_t by) {
  stat.current += by;
  stat.peak = std::max(stat.peak, stat.current);
  stat.allocated += by;
}

inline void Decrease(Stat& stat, int64_t by) {
  stat.current -= by;
  stat.freed += by;
}

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_CORE_STAT_OPERATIONS_H_
