#include "tools/analysis/advise_expandable.h"

#include "tools/analysis/format_text.h"
#include "tools/analysis/predictions.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

constexpr uint64_t kMoreThanAnyCard = uint64_t{512} << 30;
constexpr char kBy[] = "a replay of the recorded requests";

// What was served in the recording, and what failed there.
bool ServedAll(const absl::StatusOr<ReplayReport>& replay) {
  return replay.ok() && !replay->out_of_memory && replay->recorded_out_of_memory_served == replay->recorded_out_of_memory;
}

}  // namespace

absl::StatusOr<ReplayReport> ExpandableSegments::ReplayOn(int device, uint64_t capacity) const {
  ReplayQuestion question;
  question.policy = AllocatorSettings::Policy::kNative;
  question.settings.emplace().expandable_segments = true;
  question.capacity_bytes = capacity;
  question.used_elsewhere_bytes = 0;
  question.device = device;
  return Replay(input_, question);
}

void ExpandableSegments::Measure(const Advice& advice, const Metadata& metadata) {
  const Timeline& t = advice.analysis.timeline;
  possible_ = advice.baseline_reserved.has_value() && !metadata.expandable_segments();
  // A replay serves every request that failed. One that the program got over is no part of the baseline, nor is one beyond those kept.
  const bool all_in_baseline = t.failures.size() == t.failures_total;
  if (!possible_ || !all_in_baseline || t.events > most_replayed_) return;
  const absl::StatusOr<ReplayReport> replay = ReplayOn(t.device, kMoreThanAnyCard);
  if (!ServedAll(replay) || replay->peak_allocated_bytes == 0) return;
  baseline_ = PeakAtLeast(t);
  measured_ = Verified{replay->peak_allocated_bytes, replay->peak_reserved_bytes, kBy};
}

double ExpandableSegments::Ratio() const {
  return measured_ ? static_cast<double>(measured_->reserved) / static_cast<double>(baseline_) : 1.0;
}

std::string ExpandableSegments::Method() const {
  return measured_ ? Cat("reserved is allocated x ", Percent(Ratio()),
                         ", as a replay of the recorded requests with them gives, and ", Percent(kFragmentationGrowth),
                         " for fragmentation to grow")
                   : Cat("reserved is taken as allocated and ", Percent(kFragmentationGrowth),
                         " for fragmentation; not replayed");
}

std::optional<Suggestion> ExpandableSegments::Alone(const Advice& advice, uint64_t room, uint64_t headroom) const {
  // A replay takes no capacity for a device without limit.
  if (!measured_ || advice.baseline_fits || room == 0) return std::nullopt;
  Verified verified = *measured_;
  bool fits = true;
  if (verified.reserved > room) {
    // It may hold less where it must.
    const int device = advice.analysis.timeline.device;
    absl::StatusOr<ReplayReport> tight = ReplayOn(device, room);
    // A run that filled the card has shown that it can go without the headroom.
    if (!ServedAll(tight) && advice.ran_out) fits = false, tight = ReplayOn(device, room + headroom);
    if (!ServedAll(tight)) return std::nullopt;
    verified.reserved = tight->peak_reserved_bytes;
  }
  const size_t failed = advice.analysis.timeline.failures.size();
  Suggestion s;
  s.id = "EXPANDABLE_SEGMENTS";
  s.settings = {{"PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"}};
  s.predicted_peak = baseline_;
  s.predicted_reserved = verified.reserved;
  s.fits = fits;
  s.method = Cat("free pages serve any request; the recorded requests",
                 failed == 0   ? std::string()
                 : failed == 1 ? " and the one that failed"
                               : Cat(" and the ", failed, " that failed"),
                 ", replayed with them, fit",
                 fits ? "" : " in the capacity, but not with the headroom",
                 advice.ran_out ? "; what would have come after it is not in the trace" : "");
  s.price = "none in time; needs driver support";
  s.verified = std::move(verified);
  return s;
}

}  // namespace vramledger
