// The counters behind Statistics, laid out for the hot path: what can be derived when someone asks is not kept.
#ifndef VRAMLEDGER_ALLOCATOR_CORE_COUNTERS_H_
#define VRAMLEDGER_ALLOCATOR_CORE_COUNTERS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "allocator/core/statistics.h"

namespace vramledger {

enum class Metric : uint8_t {
  kAllocation,
  kAllocatedBytes,
  kActive,
  kActiveBytes,
  kRequestedBytes,
  kInactiveSplit,
  kInactiveSplitBytes,
  kSegment,
  kReservedBytes,
};
constexpr size_t kMetrics = 9;

class Counters {
 public:
  void Increase(Metric metric, bool small, size_t amount) {
    const size_t m = static_cast<size_t>(metric);
    const int64_t by = static_cast<int64_t>(amount);
    Level& all = all_[m];
    all.current += by;
    if (all.current > all.peak) [[unlikely]]
      all.peak = all.current;
    Level& pool = pools_[small ? 0 : 1][m];
    pool.current += by;
    if (pool.current > pool.peak) [[unlikely]]
      pool.peak = pool.current;
    pool.allocated += by;
  }
  void Decrease(Metric metric, bool small, size_t amount) {
    const size_t m = static_cast<size_t>(metric);
    all_[m].current -= static_cast<int64_t>(amount);
    pools_[small ? 0 : 1][m].current -= static_cast<int64_t>(amount);
  }
  int64_t Current(Metric metric) const { return all_[static_cast<size_t>(metric)].current; }

  // Of the three pools (all, small, large).
  StatByPool Read(Metric metric) const;
  void ResetPeak();
  void ResetAccumulated();

 private:
  struct Level {
    int64_t current = 0;
    int64_t peak = 0;
    int64_t allocated = 0;  // since the last ResetAccumulated; not kept in all_
    int64_t current_at_reset = 0;
  };

  std::array<Level, kMetrics> all_{};
  std::array<std::array<Level, kMetrics>, 2> pools_{};
};

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_CORE_COUNTERS_H_
