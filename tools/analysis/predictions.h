// Predictions that verdicts and advice share, so that both say the same number.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_PREDICTIONS_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_PREDICTIONS_H_

#include <algorithm>
#include <cstdint>
#include <optional>

#include "tools/analysis/ledger.h"
#include "tools/analysis/metadata.h"

namespace vramledger {

// The highest of all phase peaks and failed requests when `less(phase, moment)` bytes of each go away.
template <typename Less>
uint64_t PeakWithout(const Timeline& t, Less less) {
  int64_t peak = 0;
  for (int p = 0; p < kPhaseCount; ++p) {
    const PhasePeak& phase = t.phase_peaks[static_cast<size_t>(p)];
    if (!phase.seen) continue;
    peak = std::max(peak, static_cast<int64_t>(phase.moment.total.rounded) - less(static_cast<Phase>(p), phase.moment));
  }
  for (const FailedRequest& f : t.failures) {
    peak = std::max(peak, static_cast<int64_t>(f.moment.total.rounded + f.request_bytes) - less(f.phase, f.moment));
  }
  return static_cast<uint64_t>(peak);
}

// By at least a hundredth: what changes less is no advice.
bool LowersPeak(const Timeline& t, uint64_t predicted_peak);

// What a run that ran out of memory would have held at least: its peak, or what it held and asked for in vain.
uint64_t PeakAtLeast(const Timeline& t);

// The optimizer's step without its temporaries.
struct OptimizerStep {
  uint64_t temporary = 0;  // of the step, at the peak
  uint64_t largest = 0;    // of one tensor
  // The run's peak under another setting; nothing where the run has that setting, or it would not lower the
  // peak (LowersPeak).
  std::optional<uint64_t> fused_peak, foreach_off_peak;
};
OptimizerStep PredictOptimizerStep(const Timeline& t, const Metadata& metadata);

// Reserved bytes for each allocated byte, as measured: at the peak and when most was reserved, without whole idle
// segments, which the allocator gives back before it lets a request fail. Nothing where no segments were recorded.
std::optional<double> ReservedRatio(const Timeline& t);

// Fragmentation grows with the blocks: a transformer recorded at batch 16 (ratio 1.058) needed 1.095 at batch 260, 3.5
// per cent more. Predictions of runs that nobody has recorded add this share.
inline constexpr double kFragmentationGrowth = 0.05;

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_PREDICTIONS_H_
