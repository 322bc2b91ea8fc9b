#include "allocator/core/counters.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace vramledger {

StatByPool Counters::Read(Metric metric) const {
  const size_t m = static_cast<size_t>(metric);
  StatByPool out;
  for (size_t pool = 0; pool < 2; ++pool) {
    const Level& level = pools_[pool][m];
    Stat& stat = out[pool + 1];
    stat.current = level.current;
    stat.peak = level.peak;
    stat.allocated = level.allocated;
    stat.freed = level.allocated - (level.current - level.current_at_reset);
  }
  out[kAllPools] = Stat{all_[m].current, all_[m].peak, out[kSmallPool].allocated + out[kLargePool].allocated,
                        out[kSmallPool].freed + out[kLargePool].freed};
  return out;
}

void Counters::ResetPeak() {
  for (Level& level : all_) level.peak = level.current;
  for (auto& pool : pools_) {
    for (Level& level : pool) level.peak = level.current;
  }
}

void Counters::ResetAccumulated() {
  for (auto& pool : pools_) {
    for (Level& level : pool) {
      level.allocated = 0;
      level.current_at_reset = level.current;
    }
  }
}

std::vector<std::pair<std::string, int64_t>> Statistics::Flatten() const {
  std::vector<std::pair<std::string, int64_t>> out;
  const auto add = [&out](const std::string& prefix, const Stat& stat) {
    out.emplace_back(prefix + ".allocated", stat.allocated);
    out.emplace_back(prefix + ".current", stat.current);
    out.emplace_back(prefix + ".freed", stat.freed);
    out.emplace_back(prefix + ".peak", stat.peak);
  };
  const auto add_pools = [&add](const std::string& name, const StatByPool& stats) {
    add(name + ".all", stats[kAllPools]);
    add(name + ".large_pool", stats[kLargePool]);
    add(name + ".small_pool", stats[kSmallPool]);
  };
  add_pools("active", active);
  add_pools("active_bytes", active_bytes);
  add_pools("allocated_bytes", allocated_bytes);
  add_pools("allocation", allocation);
  add_pools("inactive_split", inactive_split);
  add_pools("inactive_split_bytes", inactive_split_bytes);
  out.emplace_back("max_split_size", max_split_size);
  out.emplace_back("num_alloc_retries", num_alloc_retries);
  out.emplace_back("num_device_alloc", num_device_alloc);
  out.emplace_back("num_device_free", num_device_free);
  out.emplace_back("num_ooms", num_ooms);
  out.emplace_back("num_sync_all_streams", num_sync_all_streams);
  add("oversize_allocations", oversize_allocations);
  add("oversize_segments", oversize_segments);
  add_pools("requested_bytes", requested_bytes);
  add_pools("reserved_bytes", reserved_bytes);
  add_pools("segment", segment);
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace vramledger
