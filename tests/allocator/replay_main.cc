// replay_history HISTORY [RUN.json]: replays a recorded history and says how much of it comes out the same. RUN.json,
// as record_native.py writes it, has the settings, the device and the statistics to compare. Exit code 1 if anything
// differs.
#include <cstdio>
#include <string>

#include "tests/allocator/replay_history.h"

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: replay_history HISTORY [RUN.json]\n");
    return 2;
  }
  const auto history = vramledger::ReadHistory(argv[1]);
  const auto run = argc == 3 ? vramledger::ReadRun(argv[2]) : vramledger::RecordedRun();
  if (!history.ok() || !run.ok()) {
    std::fprintf(stderr, "%s\n", (history.ok() ? run.status() : history.status()).ToString().c_str());
    return 3;
  }
  const vramledger::ReplayResult r = vramledger::ReplayHistory(*history, run->options);
  std::printf("allocations %zu, addresses equal %zu; segment events %zu, equal %zu; unknown frees %zu\n", r.allocations,
              r.addresses_equal, r.segment_events, r.segment_events_equal, r.unknown_frees);
  if (!r.first_difference.empty()) std::printf("first difference: %s\n", r.first_difference.c_str());
  bool same = r.first_difference.empty();
  if (!run->statistics.empty()) {
    const auto differences = vramledger::CompareStatistics(*run, r.statistics);
    for (const std::string& line : differences) std::printf("%s\n", line.c_str());
    std::printf("statistics: %zu of PyTorch's, %zu differences\n", run->statistics.size(), differences.size());
    same = same && differences.empty();
  }
  return same ? 0 : 1;
}
