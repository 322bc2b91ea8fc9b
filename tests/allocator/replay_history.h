// Replays a recorded history (tests/data/replay/README.md) through the allocator core and compares every address.
#ifndef VRAMLEDGER_TESTS_ALLOCATOR_REPLAY_HISTORY_H_
#define VRAMLEDGER_TESTS_ALLOCATOR_REPLAY_HISTORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "allocator/core/allocator_settings.h"
#include "allocator/core/statistics.h"

namespace vramledger {

struct HistoryEvent {
  char kind = 0;
  uintptr_t address = 0;
  size_t bytes = 0;
  uintptr_t stream = 0;
};

struct ReplayOptions {
  AllocatorSettings settings;
  size_t capacity_bytes = size_t{80} << 30;
  size_t used_elsewhere_bytes = 0;
};

// What record_native.py writes beside a history: the options, and PyTorch's statistics at its end.
struct RecordedRun {
  ReplayOptions options;
  std::map<std::string, int64_t> statistics;
};

struct ReplayResult {
  size_t allocations = 0;
  size_t addresses_equal = 0;
  size_t segment_events = 0;
  size_t segment_events_equal = 0;
  size_t unknown_frees = 0;
  std::string first_difference;  // empty if none
  Statistics statistics;         // at the end
};

// Plain or gzip.
absl::StatusOr<std::vector<HistoryEvent>> ReadHistory(const std::string& path);

absl::StatusOr<RecordedRun> ReadRun(const std::string& path);

// The simulated device hands out the recorded segment addresses, in order. Its capacity decides where requests run out
// of memory, and how much address space an expandable segment takes.
ReplayResult ReplayHistory(const std::vector<HistoryEvent>& history, const ReplayOptions& options);

// One line for each statistic that differs from PyTorch's, or that PyTorch does not have.
std::vector<std::string> CompareStatistics(const RecordedRun& run, const Statistics& ours);

}  // namespace vramledger

#endif  // VRAMLEDGER_TESTS_ALLOCATOR_REPLAY_HISTORY_H_
