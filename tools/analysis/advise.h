// Settings that would fit a card, each with its predicted peak, its price in time and how it was predicted.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_ADVISE_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_ADVISE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tools/analysis/ledger.h"
#include "tools/foreign/open_input.h"

namespace vramledger {

// A prediction beside what came out where it was tried.
struct Verified {
  uint64_t peak = 0, reserved = 0;
  std::string by;
};

struct Suggestion {
  std::string id;
  nlohmann::ordered_json settings;
  uint64_t predicted_peak = 0;                 // allocated
  std::optional<uint64_t> predicted_reserved;  // what the card must hold; nothing where no segments were recorded
  double time_factor = 1;                      // time for the same number of samples, this run = 1
  std::string method, price;
  bool fits = false;
  bool not_known = false;  // what is predicted fits, and is a lower bound only
  std::vector<std::string> modules;  // that the setting is about, when it is not about all
  std::optional<Verified> verified;
};

// A run that ended, or went on, after a request that was refused.
struct RanOut {
  uint64_t request = 0, step = 0;
  Phase phase = Phase::kUnknown;
  uint64_t peak_at_least = 0;
  uint64_t device_total = 0;
  uint64_t allowed = 0;  // of it, by the memory fraction
  bool whole_step = false;  // a step was finished before
  bool went_on = false;     // the program caught it and finished a step after it
};

struct Advice {
  Analysis analysis;
  uint64_t capacity = 0;
  double headroom_share = 0;
  uint64_t outside = 0;  // context and others, not available to blocks
  uint64_t usable = 0;   // for blocks: capacity less headroom less outside
  uint64_t baseline_peak = 0;
  std::optional<uint64_t> baseline_reserved;  // measured, without what the allocator can give back
  std::optional<RanOut> ran_out;
  bool baseline_fits = false;
  std::optional<uint64_t> batch;
  std::vector<Suggestion> suggestions;
  std::vector<std::string> cautions;  // before any setting is tried
  std::vector<std::string> notes;
};

struct AdviceQuestion {
  uint64_t capacity = 0;
  double headroom_share = 0.05;
  std::optional<int> device;
  uint64_t most_replayed = 4'000'000;  // events; a replay holds them all in memory
};

// `second`: the same script at another batch size.
absl::StatusOr<Advice> Advise(const EventInput& input, const EventInput* second, const AdviceQuestion& question);
nlohmann::ordered_json AdviceJson(const Advice& advice);
std::string AdviceText(const Advice& advice, bool color);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_ADVISE_H_
