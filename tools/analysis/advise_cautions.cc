#include "tools/analysis/advise_cautions.h"

#include <algorithm>

#include "tools/analysis/format_text.h"
#include "tools/analysis/verdicts.h"
#include "tools/foreign/text.h"

namespace vramledger {

std::vector<std::string> LeakCautions(const Analysis& analysis) {
  std::vector<std::string> out;
  for (const Verdict& v : Judge(analysis)) {
    if (v.id == "LEAK_STEADY")
      out.push_back(Cat("LEAK_STEADY: ", v.sentence,
                        " No setting helps against a leak, it only puts the failure off: mend it first. ", v.suggestion));
  }
  return out;
}

std::optional<LaterStep> AfterTheOnlyStep(const Timeline& t) {
  if (!t.has_steps || t.steps.size() > 1) return std::nullopt;
  const auto state = static_cast<size_t>(Category::kOptimizerState);
  const uint64_t states = t.category_peaks[state].categories[state].rounded;
  uint64_t later_peak = 0;
  for (const Phase phase : {Phase::kForward, Phase::kRecompute, Phase::kBackward}) {
    const PhasePeak& peak = t.phase_peaks[static_cast<size_t>(phase)];
    if (!peak.seen) continue;
    const uint64_t there = std::min(states, peak.moment.categories[state].rounded);
    later_peak = std::max(later_peak, peak.moment.total.rounded + states - there);
  }
  if (later_peak <= t.peak.total.rounded) return std::nullopt;
  const uint64_t more = later_peak - t.peak.total.rounded;
  return LaterStep{more, Cat("Only one step was recorded, at whose end the optimizer's states (", HumanBytes(states),
                             ") came into being. A second step, which begins with them, would need ", HumanBytes(more),
                             " more than this one; so much is kept free where it is judged what fits.")};
}

}  // namespace vramledger
