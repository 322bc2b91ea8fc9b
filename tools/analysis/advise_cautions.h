// What a reader of advice is to know before any setting.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_ADVISE_CAUTIONS_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_ADVISE_CAUTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/analysis/ledger.h"

namespace vramledger {

// That the run leaks, where it does.
std::vector<std::string> LeakCautions(const Analysis& analysis);

// What a step after the only recorded one needs beyond the recorded peak: the optimizer's states come into being at the end
// of the first step, and are not in the peaks before. Nothing where that is no more.
struct LaterStep {
  uint64_t more_bytes = 0;
  std::string caution;
};
std::optional<LaterStep> AfterTheOnlyStep(const Timeline& timeline);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_ADVISE_CAUTIONS_H_
