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

struct Suggestion {
  std::string id;
  nlohmann::ordered_json settings;
  uint64_t predicted_peak = 0;
  double time_factor = 1;  // time for the same number of samples, this run = 1
  std::string method, price;
  bool fits = false;
};

struct Advice {
  Analysis analysis;
  uint64_t capacity = 0;
  double headroom_share = 0;
  uint64_t outside = 0;  // context and others, not available to blocks
  uint64_t usable = 0;   // for blocks: capacity less headroom less outside
  uint64_t baseline_peak = 0;
  bool baseline_fits = false;
  std::optional<uint64_t> batch;
  std::vector<Suggestion> suggestions;
  std::vector<std::string> notes;
};

struct AdviceQuestion {
  uint64_t capacity = 0;
  double headroom_share = 0.05;
  std::optional<int> device;
};

// `second`: the same script at another batch size.
absl::StatusOr<Advice> Advise(const EventInput& input, const EventInput* second, const AdviceQuestion& question);
nlohmann::ordered_json AdviceJson(const Advice& advice);
std::string AdviceText(const Advice& advice, bool color);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_ADVISE_H_
