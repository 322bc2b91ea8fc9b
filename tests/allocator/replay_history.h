// Recorded histories (tests/data/replay/README.md) as input of the tool's replay, which compares every address.
#ifndef VRAMLEDGER_TESTS_ALLOCATOR_REPLAY_HISTORY_H_
#define VRAMLEDGER_TESTS_ALLOCATOR_REPLAY_HISTORY_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "allocator/core/statistics.h"
#include "tools/foreign/open_input.h"

namespace vramledger {

// What record_native.py writes beside a history: settings and device as a trace's metadata, and PyTorch's statistics at
// the end.
struct RecordedRun {
  std::string metadata_json = R"({"devices": [{"index": 0, "total_bytes": 85899345920}]})";
  std::map<std::string, int64_t> statistics;
};

absl::StatusOr<RecordedRun> ReadRun(const std::string& path);

// Plain or gzip. Streams are numbered in the order of their handles, which is the order in which the allocator goes
// through them.
absl::StatusOr<EventInput> ReadHistory(const std::string& path, const RecordedRun& run = {});

// One line for each statistic that differs from PyTorch's, or that PyTorch does not have.
std::vector<std::string> CompareStatistics(const RecordedRun& run, const Statistics& ours);

}  // namespace vramledger

#endif  // VRAMLEDGER_TESTS_ALLOCATOR_REPLAY_HISTORY_H_
