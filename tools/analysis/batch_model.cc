#include "tools/analysis/batch_model.h"

#include <algorithm>
#include <cmath>

namespace vramledger {
namespace {

uint64_t Requested(const Moment& m, Category c) {
  return m.categories[static_cast<size_t>(c)].requested;
}

// What blocks add to the requests varies from run to run and not with the batch.
double Slack(const Moment& m) {
  return static_cast<double>(m.total.rounded - m.total.requested);
}

bool GrowsTemporaries(Phase p) {
  return p == Phase::kForward || p == Phase::kBackward || p == Phase::kRecompute || p == Phase::kEval;
}

// What grows with the batch at one moment. Of the workspaces only those that a library keeps, which the optimizer's
// step still sees, have a size of their own.
uint64_t Growing(const Timeline& t, Phase p, const Moment& m) {
  uint64_t grows = Requested(m, Category::kActivation) + Requested(m, Category::kInput);
  if (!GrowsTemporaries(p)) return grows;
  grows += Requested(m, Category::kTemporary);
  if (const PhasePeak& step = t.phase_peaks[static_cast<size_t>(Phase::kOptimizer)]; step.seen) {
    const uint64_t now = Requested(m, Category::kWorkspace);
    grows += now - std::min(now, Requested(step.moment, Category::kWorkspace));
  }
  return grows;
}

}  // namespace

BatchModel BatchModel::FromTwo(const Timeline& a, uint64_t batch_a, const Timeline& b, uint64_t batch_b) {
  BatchModel model;
  for (size_t p = 0; p < kPhaseCount; ++p) {
    if (!a.phase_peaks[p].seen || !b.phase_peaks[p].seen) continue;
    const Moment &ma = a.phase_peaks[p].moment, &mb = b.phase_peaks[p].moment;
    const auto ya = static_cast<double>(ma.total.requested), yb = static_cast<double>(mb.total.requested);
    const double slope = std::max(0.0, (yb - ya) / (static_cast<double>(batch_b) - static_cast<double>(batch_a)));
    model.lines_[p] = {ya - slope * static_cast<double>(batch_a) + std::max(Slack(ma), Slack(mb)), slope};
  }
  return model;
}

BatchModel BatchModel::FromOne(const Timeline& t, uint64_t batch) {
  BatchModel model;
  for (size_t p = 0; p < kPhaseCount; ++p) {
    if (!t.phase_peaks[p].seen) continue;
    const Moment& m = t.phase_peaks[p].moment;
    const uint64_t grows = Growing(t, static_cast<Phase>(p), m);
    model.lines_[p] = {static_cast<double>(m.total.requested - grows) + Slack(m),
                       static_cast<double>(grows) / static_cast<double>(batch)};
  }
  for (const FailedRequest& f : t.failures) {
    const Moment& m = f.moment;
    const uint64_t grows = Growing(t, f.phase, m) + (GrowsTemporaries(f.phase) ? f.request_bytes : 0);
    const Line line = {static_cast<double>(m.total.requested + f.request_bytes - grows) + Slack(m),
                       static_cast<double>(grows) / static_cast<double>(batch)};
    Line& known = model.lines_[static_cast<size_t>(f.phase)];
    const auto at = [batch](const Line& l) { return l.fixed + l.per_sample * static_cast<double>(batch); };
    if (at(line) > at(known)) known = line;
  }
  return model;
}

uint64_t BatchModel::Peak(double batch) const {
  double peak = 0;
  for (const Line& line : lines_) peak = std::max(peak, line.fixed + line.per_sample * batch);
  return static_cast<uint64_t>(std::max(0.0, peak));
}

std::optional<uint64_t> BatchModel::Largest(uint64_t bytes) const {
  double largest = -1;
  const auto limit = static_cast<double>(bytes);
  for (const Line& line : lines_) {
    if (line.fixed > limit) return std::nullopt;
    if (line.per_sample <= 0) continue;
    const double batch = std::floor((limit - line.fixed) / line.per_sample);
    largest = largest < 0 ? batch : std::min(largest, batch);
  }
  if (largest < 1) return std::nullopt;
  return static_cast<uint64_t>(std::min(largest, 1e9));
}

}  // namespace vramledger
