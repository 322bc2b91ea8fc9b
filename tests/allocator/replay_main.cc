// replay_history HISTORY [RUN.json]: replays a recorded history and says how much of it comes out the same. RUN.json,
// as record_native.py writes it, has the settings, the device and the statistics to compare. Exit code 1 if anything
// differs.
#include <cstdio>
#include <string>

#include "tests/allocator/replay_history.h"
#include "tools/analysis/replay.h"

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: replay_history HISTORY [RUN.json]\n");
    return 2;
  }
  const auto run = argc == 3 ? vramledger::ReadRun(argv[2]) : vramledger::RecordedRun();
  const auto history = run.ok() ? vramledger::ReadHistory(argv[1], *run) : run.status();
  const auto report = history.ok() ? vramledger::Replay(*history, {}) : history.status();
  if (!report.ok()) {
    std::fprintf(stderr, "%s\n", report.status().ToString().c_str());
    return 3;
  }
  std::fputs(vramledger::ReplayText(*report).c_str(), stdout);
  bool same = report->first_difference.empty();
  if (!run->statistics.empty()) {
    const auto differences = vramledger::CompareStatistics(*run, report->statistics);
    for (const std::string& line : differences) std::printf("%s\n", line.c_str());
    std::printf("statistics: %zu of PyTorch's, %zu differences\n", run->statistics.size(), differences.size());
    same = same && differences.empty();
  }
  return same ? 0 : 1;
}
