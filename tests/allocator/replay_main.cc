// replay_history HISTORY [RUN.json]: replays a recorded history and says how much of it comes out the same. RUN.json, as record_native.py
// writes it, has the settings, the device and the statistics to compare. Exit code 1 if anything differs.
#include <cstdio>
#include <fstream>
#include <string>

#include "nlohmann/json.hpp"
#include "tests/allocator/replay_history.h"

namespace {

int Replay(const std::string& history_path, const nlohmann::json& run) {
  vramledger::ReplayOptions options;
  const std::string text = run.value("settings", "");
  const auto settings = vramledger::AllocatorSettings::Parse(text);
  const auto history = vramledger::ReadHistory(history_path);
  if (!settings.ok() || !history.ok()) {
    std::fprintf(stderr, "%s\n", (settings.ok() ? history.status() : settings.status()).ToString().c_str());
    return 3;
  }
  options.settings = *settings;
  options.capacity_bytes = run.value("capacity_bytes", options.capacity_bytes);
  options.used_elsewhere_bytes = run.value("used_elsewhere_bytes", options.used_elsewhere_bytes);
  const vramledger::ReplayResult r = vramledger::ReplayHistory(*history, options);
  std::printf("allocations %zu, addresses equal %zu; segment events %zu, equal %zu; unknown frees %zu\n", r.allocations,
              r.addresses_equal, r.segment_events, r.segment_events_equal, r.unknown_frees);
  if (!r.first_difference.empty()) std::printf("first difference: %s\n", r.first_difference.c_str());
  bool same = r.first_difference.empty();
  if (run.contains("statistics")) {
    size_t equal = 0;
    size_t compared = 0;
    for (const auto& [key, value] : r.statistics.Flatten()) {
      if (!run["statistics"].contains(key)) {
        std::printf("statistic %s: PyTorch has none\n", key.c_str());
        continue;
      }
      ++compared;
      const int64_t expected = run["statistics"][key].get<int64_t>();
      equal += expected == value;
      if (expected != value) {
        std::printf("statistic %s: PyTorch %lld, here %lld\n", key.c_str(), static_cast<long long>(expected),
                    static_cast<long long>(value));
      }
    }
    std::printf("statistics %zu of PyTorch's %zu compared, equal %zu\n", compared, run["statistics"].size(), equal);
    same = same && equal == compared;
  }
  return same ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: replay_history HISTORY [RUN.json]\n");
    return 2;
  }
  nlohmann::json run = nlohmann::json::object();
  if (argc == 3) {
    std::ifstream file(argv[2]);
    run = nlohmann::json::parse(file, nullptr, false);
    if (!run.is_object()) {
      std::fprintf(stderr, "%s is no JSON object\n", argv[2]);
      return 3;
    }
  }
  return Replay(argv[1], run);
}
