#include "tools/analysis/verdicts.h"

#include <algorithm>

#include "tools/analysis/format_text.h"
#include "tools/analysis/leaks.h"
#include "tools/analysis/metadata.h"
#include "tools/analysis/predictions.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

// Below these a finding is not worth a reader's time.
constexpr double kFragmentationShare = 0.20;  // of the reserved peak, beyond what the allocated peak needs
constexpr uint64_t kFragmentationBytes = uint64_t{128} << 20;
constexpr double kPeakShare = 0.10;  // of the peak, for the parts that a PEAK_ verdict is about
constexpr double kStaleShare = 0.05;
constexpr double kLogitsShare = 0.25;
constexpr double kWorkspaceShare = 0.20;
// Free bytes in the cache below this share of a failed request would not have carried the run much further.
constexpr double kCouldHelpShare = 0.10;
constexpr uint64_t kLeakBytesPerStep = 2048;  // four blocks of the smallest size
constexpr double kFloorShare = 0.01;          // a floor that moves less than this is flat

double Share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string SiteOrUnknown(const std::string& site) {
  return site.empty() ? "an unnamed place" : site;
}

constexpr uint64_t kSegmentUnit = uint64_t{2} << 20;  // what a request may be rounded up to at the driver

class Judging {
 public:
  explicit Judging(const Analysis& a) : t_(a.timeline), metadata_(a.source.metadata_json) {
    capacity_ = metadata_.device(t_.device).total_bytes;
    if (t_.device_total_bytes != 0) capacity_ = t_.device_total_bytes;
  }

  std::vector<Verdict> Run() {
    Failures();
    if (std::optional<Verdict> outside = JudgeOutside(t_, capacity_)) Say(*std::move(outside));
    Leak();
    PeakOptimizer();
    StaleGradients();
    Logits();
    Workspace();
    if (t_.failures.empty()) FragmentationAtPeak();
    HighWater();
    if (metadata_.without_hooks() && !t_.has_names) {
      for (Verdict& v : out_) v.confidence = "low";
    }
    return std::move(out_);
  }

 private:
  void Say(Verdict v) { out_.push_back(std::move(v)); }

  // ---- a request failed ----
  void Failures() {
    if (t_.failures.empty()) return;
    const FailedRequest& f = t_.failures.front();
    const uint64_t cache =
        f.moment.reserved_bytes - std::min(f.moment.reserved_bytes, f.moment.total.rounded + f.moment.pending_bytes);
    if (capacity_ != 0 && f.request_bytes > capacity_) return BadSize(f);
    if (f.device_free_bytes >= f.request_bytes + kSegmentUnit) return LimitedBelowTheDevice(f, cache);
    // Free bytes that would have been enough: in the cache, at the driver, or awaited.
    if (f.fragmentation.known && cache + f.fragmentation.pending_bytes + f.device_free_bytes >= f.request_bytes &&
        Share(f.fragmentation.external(), f.request_bytes) >= kCouldHelpShare) {
      return FragmentationAtFailure(f);
    }
    Verdict v;
    v.id = "SHORTAGE";
    v.sentence =
        Cat("The device is too small: ", HumanBytes(f.request_bytes), " was asked for in ",
            PhaseAndStep(t_, f.phase, f.step), " with ", HumanBytes(f.moment.total.rounded), " held, only ",
            HumanBytes(cache), " free in the cache and ", HumanBytes(f.device_free_bytes), " free on the device.");
    v.evidence = FailureEvidence(f, cache);
    if (t_.has_phases && !RanAModel()) {
      v.suggestion =
          "No model has run yet, so batch and checkpointing change nothing: fewer or smaller tensors, a lower precision, sharding, or host memory "
          "for what is not needed yet.";
      v.price = "less precise numbers, or copies from the host";
    } else if (f.phase == Phase::kEval) {
      v.suggestion = "A smaller batch or sequence, a lower precision, or sharding; checkpointing saves nothing where no backward follows.";
      v.price = "fewer samples at a time, or less precise numbers";
    } else {
      v.suggestion =
          "A smaller batch or sequence, activation checkpointing, or sharding; `vramledger advise` predicts each.";
      v.price = "fewer samples a step, or about a third more compute with checkpointing";
    }
    v.confidence = "high";
    Say(std::move(v));
  }

  bool RanAModel() const {
    constexpr Phase kOfAModel[] = {Phase::kForward, Phase::kBackward, Phase::kEval};
    return std::any_of(std::begin(kOfAModel), std::end(kOfAModel), [&](Phase p) { return t_.phase_peaks[static_cast<size_t>(p)].seen; });
  }

  // The device had room for it, so the allocator was not allowed to ask.
  void LimitedBelowTheDevice(const FailedRequest& f, uint64_t cache) {
    Verdict v;
    v.id = "SHORTAGE";
    const bool told = f.memory_fraction < 1;
    const std::string limit = told ? Cat("The memory fraction (", Percent(f.memory_fraction), " of the device)") : "A limit below the device's memory";
    v.sentence = Cat(limit, " refused ", HumanBytes(f.request_bytes), " in ", PhaseAndStep(t_, f.phase, f.step), " with ",
                     HumanBytes(f.moment.total.rounded), " held: ", HumanBytes(f.device_free_bytes), " were free on the device.");
    v.evidence = FailureEvidence(f, cache);
    v.suggestion = "Raise what torch.cuda.set_per_process_memory_fraction or per_process_memory_fraction allows.";
    v.price = "less for others that share the device";
    v.confidence = told ? "high" : "medium";
    Say(std::move(v));
  }

  nlohmann::ordered_json FailureEvidence(const FailedRequest& f, uint64_t cache) const {
    nlohmann::ordered_json e = {{"request_bytes", f.request_bytes},          {"live_bytes", f.moment.total.rounded},
                                {"reserved_bytes", f.moment.reserved_bytes}, {"idle_cache_bytes", cache},
                                {"device_free_bytes", f.device_free_bytes},  {"failures", t_.failures_total}};
    if (capacity_ != 0) e["capacity_bytes"] = capacity_;
    if (f.memory_fraction < 1) e["memory_fraction"] = f.memory_fraction;
    return e;
  }

  void BadSize(const FailedRequest& f) {
    Verdict v;
    v.id = "BAD_SIZE";
    v.sentence = Cat("One request of ", HumanBytes(f.request_bytes), " is larger than the whole device (",
                     HumanBytes(capacity_), ").");
    v.evidence = FailureEvidence(f, 0);
    v.suggestion = "Look at the shapes of the operator that asked: an expanded operand or an overflow, not the batch.";
    v.price = "none";
    v.confidence = "high";
    Say(std::move(v));
  }

  void FragmentationAtFailure(const FailedRequest& f) {
    Verdict v = FragmentationVerdict(f.fragmentation);
    v.sentence = Cat("A request of ", HumanBytes(f.request_bytes), " failed in ", PhaseAndStep(t_, f.phase, f.step),
                     " although ", HumanBytes(f.fragmentation.external()), " were free in the cache and ",
                     HumanBytes(f.device_free_bytes), " on the device; ", v.sentence);
    v.evidence["request_bytes"] = f.request_bytes;
    v.evidence["live_bytes"] = f.moment.total.rounded;
    v.evidence["reserved_bytes"] = f.moment.reserved_bytes;
    v.evidence["device_free_bytes"] = f.device_free_bytes;
    v.confidence = "high";
    Say(std::move(v));
  }

  // ---- fragmentation ----
  // The largest of the four kinds.
  Verdict FragmentationVerdict(const Fragmentation& f) const {
    Verdict v;
    v.evidence = {{"pinned_bytes", f.pinned_bytes},
                  {"idle_bytes", f.idle_bytes},
                  {"stream_bytes", f.stream_bytes},
                  {"pending_bytes", f.pending_bytes},
                  {"largest_hole_bytes", f.largest_hole_bytes},
                  {"holes", f.holes}};
    const uint64_t most = std::max({f.pinned_bytes, f.idle_bytes, f.stream_bytes, f.pending_bytes});
    v.confidence = Share(most, f.external()) > 0.6 ? "high" : "medium";
    if (most == f.pinned_bytes) {
      v.id = "FRAG_PINNED";
      v.sentence = Cat(HumanBytes(f.pinned_bytes), " lie free in ", f.pinned_segments, " segments that ",
                       f.pinning_blocks, " live blocks (", HumanBytes(f.pinning_bytes), ") pin, the largest hole ",
                       HumanBytes(f.largest_hole_bytes), ".");
      v.evidence["pinning_blocks"] = f.pinning_blocks;
      v.evidence["pinning_bytes"] = f.pinning_bytes;
      if (!f.largest_pinned_site.empty()) v.evidence["pinning_site"] = f.largest_pinned_site;
      v.suggestion = metadata_.expandable_segments()
                         ? "Allocate what lives long first."
                         : "Allocate what lives long first, cap splitting (max_split_size_mb), or "
                           "expandable_segments:True.";
      v.price = metadata_.expandable_segments() ? "none" : "none in time; expandable segments need driver support";
    } else if (most == f.idle_bytes) {
      v.id = "FRAG_IDLE";
      v.sentence = Cat(HumanBytes(f.idle_bytes), " lie in ", f.idle_segments,
                       " idle segments, each too small for what was asked, the largest hole ",
                       HumanBytes(f.largest_hole_bytes), ".");
      v.evidence["idle_segments"] = f.idle_segments;
      v.suggestion = metadata_.expandable_segments()
                         ? "Run the longest batch first, or round or bucket sizes."
                         : "Run the longest batch first, round or bucket sizes, or expandable_segments:True.";
      v.price = "none in time";
    } else if (most == f.stream_bytes) {
      v.id = "FRAG_STREAM";
      v.sentence = Cat(HumanBytes(f.stream_bytes), " lie free on streams that ask for nothing any more.");
      v.suggestion = "Allocate on the stream that uses the memory, or reuse streams.";
      v.price = "none";
    } else {
      v.id = "FRAG_PENDING";
      v.sentence = Cat(HumanBytes(f.pending_bytes), " were freed by the program and still awaited by a stream.");
      v.suggestion = "Wait for the side stream earlier, avoid record_stream, or bound what is in flight.";
      v.price = "less overlap";
    }
    return v;
  }

  void FragmentationAtPeak() {
    const Fragmentation& f = t_.at_reserved_peak;
    const uint64_t reserved = t_.reserved_peak_bytes;
    if (!f.known || reserved <= t_.peak.total.rounded) return;
    // What the reserved peak holds beyond the most that was ever needed at once.
    const uint64_t waste = reserved - t_.peak.total.rounded;
    if (waste < kFragmentationBytes || Share(waste, reserved) < kFragmentationShare || f.external() == 0) return;
    Verdict v = FragmentationVerdict(f);
    if (t_.reserved_peak_phase != Phase::kUnknown) v.evidence["phase"] = PhaseName(t_.reserved_peak_phase);
    if (t_.reserved_peak_step != 0 && NamesSteps(t_)) v.evidence["step"] = t_.reserved_peak_step;
    v.sentence = Cat(HumanBytes(reserved), " are reserved", InPhaseAndStep(t_, t_.reserved_peak_phase, t_.reserved_peak_step), " for a peak of ", HumanBytes(t_.peak.total.rounded), ", so ",
                     Percent(Share(waste, reserved)), " were never needed at once: ", v.sentence);
    v.evidence["reserved_peak_bytes"] = reserved;
    v.evidence["allocated_peak_bytes"] = t_.peak.total.rounded;
    v.evidence["waste_share"] = Share(waste, reserved);
    Say(std::move(v));
  }

  // ---- growth ----
  bool FloorRises(uint64_t* growth_per_step) const {
    // Ends of steps, each with that of the same optimizer before it; the first two rounds see the optimizer state and the
    // first gradients appear.
    const auto round = static_cast<ptrdiff_t>(StepsOfARound(t_.steps));
    if (t_.steps.end() - t_.steps.begin() < 2 * round + 3) return false;
    const auto first = t_.steps.begin() + 2 * round;
    size_t rises = 0, falls = 0;
    for (auto it = first + round; it < t_.steps.end(); ++it) {
      const auto before = (it - round)->floor_bytes;
      if (it->floor_bytes > before) ++rises;
      if (it->floor_bytes < before) ++falls;
    }
    const uint64_t last = t_.steps.back().floor_bytes;
    if (last <= first->floor_bytes || rises < 2 * falls + 2) return false;
    *growth_per_step = (last - first->floor_bytes) / static_cast<uint64_t>(t_.steps.end() - first - 1);
    return *growth_per_step >= kLeakBytesPerStep / 4;
  }

  void Leak() {
    uint64_t growth = 0;
    if (t_.leaks.empty() || !FloorRises(&growth)) return;
    uint64_t bytes = 0, blocks = 0, per_step = 0, steps = 0;
    for (const LeakSuspect& s : t_.leaks) {
      bytes += s.bytes;
      blocks += s.blocks;
      per_step += s.bytes / std::max<uint64_t>(1, s.steps);
      steps = std::max(steps, s.steps);
    }
    if (per_step < kLeakBytesPerStep / 4) return;
    const LeakSuspect& worst = t_.leaks.front();
    Verdict v;
    v.id = "LEAK_STEADY";
    v.sentence = Cat("Every step leaves about ", HumanBytes(growth), " behind: ", HumanBytes(bytes), " in ", blocks,
                     " blocks of ", steps, " steps were never freed, ", HumanBytes(worst.bytes), " of them from ",
                     SiteOrUnknown(worst.site), " in ", PhaseName(worst.phase), ".");
    v.evidence = {{"growth_per_step_bytes", growth},
                  {"leaked_bytes", bytes},
                  {"leaked_blocks", blocks},
                  {"steps", steps},
                  {"site", worst.site},
                  {"phase", PhaseName(worst.phase)},
                  {"block_bytes", worst.requested_each}};
    v.suggestion =
        worst.phase == Phase::kBackward
            ? "Look for gradients or backward hooks that keep what they were given; create_graph=True keeps the graph."
            : "Look for a loss, metric, output or slice of one kept across steps: keep a copy on the CPU (.cpu(), "
              ".item()), not the tensor; .detach() and views keep the whole block.";
    v.price = "none";
    v.confidence = steps >= 8 ? "high" : "medium";
    Say(std::move(v));
  }

  void HighWater() {
    uint64_t growth = 0;
    if (t_.steps.size() < 6 || FloorRises(&growth)) return;
    const uint64_t low = t_.steps[2].floor_bytes, high = t_.steps.back().floor_bytes;
    if (Share(high > low ? high - low : low - high, std::max(low, high)) > kFloorShare) return;
    size_t rises = 0, last_rise = 0;
    for (size_t i = 3; i < t_.steps.size(); ++i) {
      if (t_.steps[i].reserved_bytes > t_.steps[i - 1].reserved_bytes) ++rises, last_rise = i;
    }
    const uint64_t grown =
        t_.steps.back().reserved_bytes - std::min(t_.steps.back().reserved_bytes, t_.steps[2].reserved_bytes);
    const bool stopped = last_rise + 2 < t_.steps.size();
    if (rises < 2 || !stopped || grown < kFragmentationBytes) return;
    Verdict v;
    v.id = "HIGHWATER";
    v.sentence = Cat("Not a leak: what is held at the end of a step stays at ", HumanBytes(high),
                     "; the reserved memory rose by ", HumanBytes(grown), " until step ", t_.steps[last_rise].number,
                     " and then stopped.");
    v.evidence = {{"floor_bytes", high},
                  {"reserved_growth_bytes", grown},
                  {"last_rise_step", t_.steps[last_rise].number},
                  {"rises", rises}};
    v.suggestion = "Nothing to mend; run the longest batch first to reach the mark at once.";
    v.price = "none";
    v.confidence = "high";
    Say(std::move(v));
  }

  // ---- what the peak is made of ----
  void PeakOptimizer() {
    const OptimizerStep step = PredictOptimizerStep(t_, metadata_);
    if (Share(step.temporary, t_.peak.total.rounded) < kPeakShare) return;
    const Moment* next = NextPeak(t_);
    Verdict v;
    v.id = "PEAK_OPTIM";
    v.sentence = Cat("The peak is inside the optimizer's step: ", HumanBytes(step.temporary),
                     " of it are temporaries of the step.");
    v.evidence = {{"temporary_bytes", step.temporary}, {"peak_bytes", t_.peak.total.rounded}};
    if (step.fused_peak) v.evidence["peak_without_bytes"] = *step.fused_peak;
    if (step.foreach_off_peak) v.evidence["peak_foreach_off_bytes"] = *step.foreach_off_peak;
    if (next != nullptr) {
      v.evidence["next_peak_bytes"] = next->total.rounded;
      v.evidence["next_peak_phase"] = PhaseName(next->phase);
    }
    const auto becomes = [&](const char* setting, uint64_t peak) {
      v.suggestion += Cat(v.suggestion.empty() ? "" : "; ", setting, ": the peak becomes about ", HumanBytes(peak),
                          next != nullptr && peak == next->total.rounded ? Cat(", then set by ", PhaseName(next->phase))
                                                                         : std::string());
      v.price += Cat(v.price.empty() ? "" : "; ", setting);
    };
    if (step.fused_peak) {
      becomes("fused=True", *step.fused_peak);
      v.price += ": none";
    }
    if (step.foreach_off_peak) {
      becomes("foreach=False", *step.foreach_off_peak);
      v.price += ": a slower step for many small tensors";
    }
    if (v.suggestion.empty() && next != nullptr && !LowersPeak(t_, next->total.rounded)) {
      v.suggestion = Cat("The optimizer's own settings do not lower the peak: ", PhaseName(next->phase), " comes to ",
                         HumanBytes(next->total.rounded), " too; look for what goes away in both");
      v.price = "none";
    } else if (v.suggestion.empty()) {
      v.suggestion =
          "The optimizer's own settings do not lower it: step in smaller groups of parameters, or take an "
          "optimizer that needs less";
      v.price = "another optimizer trains differently";
    }
    v.suggestion += ".";
    v.confidence = "high";
    Say(std::move(v));
  }

  void StaleGradients() {
    if (t_.peak.phase != Phase::kForward || !t_.has_steps) return;
    const uint64_t stale = t_.peak_stale_gradients.rounded;
    if (Share(stale, t_.peak.total.rounded) < kStaleShare) return;
    Verdict v;
    v.id = "PEAK_STALE_GRADS";
    v.sentence =
        Cat(HumanBytes(stale),
            " of gradients that the optimizer has already used are still held at the peak, in the forward of step ",
            t_.peak.step, ".");
    v.evidence = {{"stale_gradient_bytes", stale},
                  {"peak_bytes", t_.peak.total.rounded},
                  {"blocks", t_.peak_stale_gradients.count}};
    v.suggestion = "Call zero_grad(set_to_none=True) right after the step, before the forward.";
    v.price = "none";
    v.confidence = "high";
    Say(std::move(v));
  }

  bool IsLossSite(const std::string& site) const {
    for (const char* word : {"cross_entropy", "log_softmax", "CrossEntropyLoss", "LogSoftmax", "NllLoss"}) {
      if (Contains(site, word)) return true;
    }
    return false;
  }

  void Logits() {
    const std::optional<uint64_t> vocabulary = metadata_.config({"vocab_size"});
    uint64_t bytes = 0, largest = 0, count = 0;
    for (const BlockGroup& g : t_.peak_groups) {
      if (g.category == Category::kParameter || g.category == Category::kGradient ||
          g.category == Category::kOptimizerState || g.category == Category::kUnknown) {
        continue;
      }
      const bool by_size = vocabulary && *vocabulary >= 1000 && g.requested_each % *vocabulary == 0 &&
                           (g.requested_each / *vocabulary) % 2 == 0 && g.requested_each / *vocabulary >= 64;
      if ((!by_size && !IsLossSite(g.site)) || Share(g.requested_each, t_.peak.total.rounded) < 0.02) continue;
      bytes += g.bytes.rounded;
      count += g.bytes.count;
      largest = std::max(largest, g.requested_each);
    }
    if (Share(bytes, t_.peak.total.rounded) < kLogitsShare) return;
    Verdict v;
    v.id = "PEAK_LOGITS";
    v.sentence = Cat(count, " tensors of [tokens x vocabulary] make ", HumanBytes(bytes), " of the peak (",
                     Percent(Share(bytes, t_.peak.total.rounded)), "), the largest ", HumanBytes(largest), ".");
    v.evidence = {
        {"logits_bytes", bytes}, {"tensors", count}, {"largest_bytes", largest}, {"peak_bytes", t_.peak.total.rounded}};
    if (vocabulary) v.evidence["vocabulary"] = *vocabulary;
    v.suggestion = "Compute the loss in chunks of tokens, or with a fused linear cross entropy.";
    v.price = "chunks: a few per cent to four times the time of the loss alone";
    v.confidence = vocabulary ? "high" : "medium";
    Say(std::move(v));
  }

  void Workspace() {
    // Not what a library keeps to the end: that is no part of the peak that could go away.
    const Bytes& w = t_.peak_passing_workspace;
    if (Share(w.rounded, t_.peak.total.rounded) < kWorkspaceShare) return;
    Verdict v;
    v.id = "PEAK_WORKSPACE";
    v.sentence = Cat(HumanBytes(w.rounded), " of the peak are workspace of a library, alive only inside one operator.");
    v.evidence = {{"workspace_bytes", w.rounded}, {"blocks", w.count}, {"peak_bytes", t_.peak.total.rounded}};
    v.suggestion = metadata_.has_convolutions()
                       ? "Choose algorithms that need less: torch.backends.cudnn.benchmark=False."
                       : "Split the operator that takes it into smaller ones.";
    v.price = metadata_.has_convolutions() ? "slower convolutions" : "more kernels";
    v.confidence = "high";
    Say(std::move(v));
  }

  const Timeline& t_;
  Metadata metadata_;
  uint64_t capacity_ = 0;
  std::vector<Verdict> out_;
};

}  // namespace

const Moment* NextPeak(const Timeline& timeline) {
  const Moment* best = nullptr;
  for (int p = 0; p < kPhaseCount; ++p) {
    const PhasePeak& peak = timeline.phase_peaks[static_cast<size_t>(p)];
    if (!peak.seen || static_cast<Phase>(p) == timeline.peak.phase) continue;
    if (best == nullptr || peak.moment.total.rounded > best->total.rounded) best = &peak.moment;
  }
  return best;
}

std::vector<Verdict> Judge(const Analysis& analysis) {
  return Judging(analysis).Run();
}

}  // namespace vramledger
