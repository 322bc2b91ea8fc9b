#include "tools/analysis/predictions.h"

namespace vramledger {
namespace {

size_t Index(Phase p) {
  return static_cast<size_t>(p);
}

}  // namespace

uint64_t PeakAtLeast(const Timeline& t) {
  uint64_t bytes = t.peak.total.rounded;
  for (const FailedRequest& f : t.failures) bytes = std::max(bytes, f.moment.total.rounded + f.request_bytes);
  return bytes;
}

bool LowersPeak(const Timeline& t, uint64_t predicted_peak) {
  return static_cast<double>(predicted_peak) <= 0.99 * static_cast<double>(PeakAtLeast(t));
}

OptimizerStep PredictOptimizerStep(const Timeline& t, const Metadata& metadata) {
  OptimizerStep out;
  if (t.peak.phase != Phase::kOptimizer) return out;
  out.temporary = t.peak_by_birth_phase[Index(Phase::kOptimizer)][static_cast<size_t>(Category::kTemporary)].rounded;
  for (const BlockGroup& g : t.peak_groups) {
    if (g.phase == Phase::kOptimizer && g.category == Category::kTemporary)
      out.largest = std::max(out.largest, g.requested_each);
  }
  const auto keeping = [&](uint64_t kept) -> std::optional<uint64_t> {
    const uint64_t gone = out.temporary - std::min(out.temporary, kept);
    const uint64_t peak = PeakWithout(
        t, [&](Phase p, const Moment&) { return p == Phase::kOptimizer ? static_cast<int64_t>(gone) : int64_t{0}; });
    return LowersPeak(t, peak) ? std::optional<uint64_t>(peak) : std::nullopt;
  };
  const bool fused = metadata.optimizers_have("fused", true);
  if (!fused) out.fused_peak = keeping(0);
  // Two temporaries of one tensor at a time.
  if (!fused && !metadata.optimizers_have("foreach", false)) out.foreach_off_peak = keeping(2 * out.largest);
  return out;
}

std::optional<double> ReservedRatio(const Timeline& t) {
  if (!t.at_peak.known || t.peak.total.rounded == 0 || t.peak.reserved_bytes < t.peak.total.rounded)
    return std::nullopt;
  const auto allocated = static_cast<double>(t.peak.total.rounded);
  double ratio = 1;
  const auto see = [&ratio](uint64_t reserved, const Fragmentation& f, double held) {
    if (held > 0) ratio = std::max(ratio, static_cast<double>(reserved - std::min(reserved, f.idle_bytes)) / held);
  };
  see(t.peak.reserved_bytes, t.at_peak, allocated);
  if (t.at_reserved_peak.known) see(t.reserved_peak_bytes, t.at_reserved_peak, allocated);
  for (const FailedRequest& f : t.failures) {
    see(f.moment.reserved_bytes + f.request_bytes, f.fragmentation,
        static_cast<double>(f.moment.total.rounded + f.request_bytes));
  }
  return ratio;
}

}  // namespace vramledger
