// replay_history FILE [SETTINGS [CAPACITY_BYTES]]: prints how much of a recorded history comes out the same. Exit code 1 if not
// all of it.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/allocator/replay_history.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: replay_history FILE [SETTINGS [CAPACITY_BYTES]]\n");
    return 2;
  }
  const auto settings = vramledger::AllocatorSettings::Parse(argc > 2 ? argv[2] : "");
  const auto history = vramledger::ReadHistory(argv[1]);
  if (!settings.ok() || !history.ok()) {
    std::fprintf(stderr, "%s\n", (settings.ok() ? history.status() : settings.status()).ToString().c_str());
    return 3;
  }
  const size_t capacity = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : size_t{80} << 30;
  const vramledger::ReplayResult r = vramledger::ReplayHistory(*history, *settings, capacity);
  std::printf("allocations %zu, addresses equal %zu; segment events %zu, equal %zu; unknown frees %zu\n", r.allocations,
              r.addresses_equal, r.segment_events, r.segment_events_equal, r.unknown_frees);
  if (!r.first_difference.empty()) std::printf("first difference: %s\n", r.first_difference.c_str());
  return r.first_difference.empty() ? 0 : 1;
}
