#include "tools/analysis/advise.h"

#include <algorithm>
#include <tuple>

#include "tools/analysis/advise_cautions.h"
#include "tools/analysis/advise_checkpointing.h"
#include "tools/analysis/advise_expandable.h"
#include "tools/analysis/advise_precision.h"
#include "tools/analysis/batch_model.h"
#include "tools/analysis/format_text.h"
#include "tools/analysis/metadata.h"
#include "tools/analysis/predictions.h"
#include "tools/analysis/report.h"
#include "tools/analysis/timeline.h"
#include "tools/analysis/verdicts.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

constexpr uint64_t kFarFromRecorded = 10;  // times the largest batch: a choice, no measurement

size_t Index(Category c) {
  return static_cast<size_t>(c);
}

class Adviser {
 public:
  Adviser(const EventInput& input, const EventInput* second, const AdviceQuestion& question)
      : input_(input), second_(second), question_(question), expandable_(input, question.most_replayed) {}

  absl::StatusOr<Advice> Run() {
    absl::StatusOr<Analysis> analysis = Analyze(input_, question_.device, &hindsight_);
    if (!analysis.ok()) return analysis.status();
    out_.analysis = *std::move(analysis);
    const Metadata metadata(out_.analysis.source.metadata_json);
    const Timeline& t = timeline();
    if (t.allocations == 0)
      return absl::InvalidArgumentError(Cat(input_.path(), ": no allocation could be read, so there is nothing to advise on"));
    out_.capacity = question_.capacity;
    out_.headroom_share = question_.headroom_share;
    out_.outside = t.device_sampled ? t.outside_peak_bytes : 0;
    if (!t.device_sampled)
      out_.notes.push_back("memory outside the allocator was not sampled and is not taken off the capacity");
    const auto allowed = static_cast<uint64_t>(static_cast<double>(out_.capacity) * (1 - out_.headroom_share));
    out_.usable = room_ = allowed > out_.outside ? allowed - out_.outside : 0;
    out_.baseline_peak = t.peak.total.rounded;
    batch_varies_ = JsonBool(metadata.root(), "batch_size_varies");
    if (!batch_varies_) out_.batch = metadata.batch_size();
    if (absl::Status s = ReadSecond(metadata); !s.ok()) return s;
    ReadCautions();
    LeaveOutWhatWasGotOver(metadata);
    ReadReserved(metadata);
    ReadFailure(metadata);
    expandable_.Measure(out_, metadata);
    ReadLayers(metadata);
    ReadActivations();
    std::optional<Suggestion> alone = expandable_.Alone(out_, room_, out_.capacity - allowed);
    if (absl::Status s = Batch(alone.has_value() && alone->fits); !s.ok()) return s;
    if (alone) out_.suggestions.push_back(*std::move(alone));
    if (std::optional<Suggestion> checkpoints = checkpointing_.Suggest(timeline(), activations_))
      AddIfLower(*std::move(checkpoints));
    if (std::optional<Suggestion> narrow = precision_.Suggest(timeline(), metadata, activations_))
      AddIfLower(*std::move(narrow));
    OptimizerTemporaries(metadata);
    ZeroGrad();
    for (Suggestion& s : out_.suggestions) {
      if (s.id != "EXPANDABLE_SEGMENTS") {
        s.predicted_reserved = Reserved(s.predicted_peak);
        s.fits = s.predicted_reserved.value_or(s.predicted_peak) <= room_;
      }
      if (RanOutForGood() && !out_.ran_out->whole_step) {
        s.not_known = s.fits;
        s.fits = false;
        s.method += "; a lower bound, as the run ended before a whole step with the optimizer's states";
      }
    }
    // Those that fit first; the batch before the others, then by price in time.
    const auto rank = [](const Suggestion& s) {
      return std::make_tuple(!s.fits, !s.not_known, s.id != "LARGEST_BATCH", s.time_factor);
    };
    std::stable_sort(out_.suggestions.begin(), out_.suggestions.end(),
                     [&](const Suggestion& a, const Suggestion& b) { return rank(a) < rank(b); });
    return std::move(out_);
  }

 private:
  const Timeline& timeline() const { return out_.analysis.timeline; }

  void AddIfLower(Suggestion s) {
    if (LowersPeak(timeline(), s.predicted_peak)) out_.suggestions.push_back(std::move(s));
  }

  void ReadCautions() {
    out_.cautions = LeakCautions(out_.analysis);
    if (std::string lost = LossSentence(out_.analysis.source.health); !lost.empty()) out_.cautions.push_back(std::move(lost));
    if (RanOutForGood()) return;
    if (const std::optional<LaterStep> later = AfterTheOnlyStep(timeline())) {
      room_ -= std::min(room_, later->more_bytes);
      out_.cautions.push_back(later->caution);
    }
  }

  // ---- what the card must hold ----
  std::optional<uint64_t> Reserved(uint64_t allocated) const {
    if (!ratio_) return std::nullopt;
    return static_cast<uint64_t>(static_cast<double>(allocated) * *ratio_ * (1 + kFragmentationGrowth));
  }

  void ReadReserved(const Metadata& metadata) {
    const Timeline& t = timeline();
    ratio_ = ReservedRatio(t);
    if (ratio_) out_.baseline_reserved = static_cast<uint64_t>(static_cast<double>(t.peak.total.rounded) * *ratio_);
    out_.baseline_fits = out_.baseline_reserved.value_or(out_.baseline_peak) <= room_;
    if (other_) {
      if (const std::optional<double> second = ReservedRatio(other_->timeline))
        ratio_ = std::max(ratio_.value_or(1), *second);
    }
    if (!ratio_) {
      out_.notes.push_back("the trace records no segments: fragmentation is not in these predictions");
    } else if (!metadata.expandable_segments()) {
      out_.notes.push_back(Cat("reserved is predicted as allocated x ", Percent(*ratio_),
                               " (measured, without idle segments, which are given back before a request fails) and ",
                               Percent(kFragmentationGrowth), " for fragmentation to grow"));
    }
  }

  // ---- a run that ran out of memory ----
  static uint64_t DeviceTotal(const Timeline& t, const Metadata& metadata) {
    if (t.device_total_bytes != 0) return t.device_total_bytes;
    if (const uint64_t total = metadata.device(t.device).total_bytes; total != 0) return total;
    return t.failures.front().moment.reserved_bytes + t.failures.front().device_free_bytes;
  }

  bool RanOutForGood() const { return out_.ran_out && !out_.ran_out->went_on; }

  RanOut Describe(const FailedRequest& f, const Metadata& metadata) const {
    const Timeline& t = timeline();
    RanOut r;
    r.request = f.request_bytes;
    r.step = f.step;
    r.phase = f.phase;
    r.peak_at_least = PeakAtLeast(t);
    r.device_total = DeviceTotal(t, metadata);
    r.allowed = static_cast<uint64_t>(f.memory_fraction * static_cast<double>(r.device_total));
    // The first step of an optimizer with states ends with them; what a step needs beside them, the second one shows.
    const uint64_t steps =
        t.category_peaks[Index(Category::kOptimizerState)].categories[Index(Category::kOptimizerState)].rounded != 0
            ? 2
            : 1;
    r.whole_step = t.has_steps && t.steps.size() >= steps && t.steps[steps - 1].number < f.step;
    return r;
  }

  // Takes the failures away after which the program finished their step: it caught them, and what it asked for in vain
  // is no part of what it needs. The first of them.
  static std::optional<FailedRequest> TakeWhatWasGotOver(Analysis* analysis) {
    Timeline& t = analysis->timeline;
    if (t.failures_total > t.failures.size() || !t.has_steps || t.steps.empty()) return std::nullopt;
    std::optional<FailedRequest> first;
    std::erase_if(t.failures, [&](const FailedRequest& f) {
      if (f.step > t.steps.back().number) return false;
      if (!first) first = f;
      return true;
    });
    return first;
  }

  void LeaveOutWhatWasGotOver(const Metadata& metadata) {
    if (other_) TakeWhatWasGotOver(&*other_);
    const std::optional<FailedRequest> first = TakeWhatWasGotOver(&out_.analysis);
    if (!first || !timeline().failures.empty()) return;
    out_.ran_out = Describe(*first, metadata);
    out_.ran_out->went_on = true;
  }

  void ReadFailure(const Metadata& metadata) {
    const Timeline& t = timeline();
    if (const SourceHealth& health = out_.analysis.source.health; health.ended_early) {
      out_.notes.push_back(
          health.damage.empty()
              ? "the trace ends early (crash, kill, or still running): what came after may have needed more"
              : "the file is damaged: what came after may have needed more");
    }
    if (t.failures.empty()) return;
    const RanOut r = Describe(t.failures.front(), metadata);
    const uint64_t need = static_cast<uint64_t>(static_cast<double>(r.peak_at_least) * ratio_.value_or(1));
    // A lower bound of the peak shows no fit: without a whole step nothing is known to fit.
    if (out_.capacity <= r.allowed || need > out_.usable || !r.whole_step) out_.baseline_fits = false;
    out_.ran_out = r;
    if (r.allowed < r.device_total) {
      out_.cautions.push_back(Cat("The program had set a memory fraction: ", HumanBytes(r.request), " were refused by that limit of ", HumanBytes(r.allowed),
                                  ", not by the device's ", HumanBytes(r.device_total), ". What is said here of a capacity is without such a limit."));
    }
  }

  absl::Status ReadSecond(const Metadata& metadata) {
    if (second_ == nullptr) return absl::OkStatus();
    absl::StatusOr<Analysis> other = Analyze(*second_, question_.device);
    if (!other.ok()) return other.status();
    other_ = *std::move(other);
    const auto described = [](const Metadata& m) {
      std::string text;
      for (const ModelSize& model : m.model_sizes()) {
        if (model.parameters == 0) continue;
        text += Cat(text.empty() ? "" : ", ", model.class_name, " with ", model.parameters, " parameters");
      }
      return text;
    };
    const std::string one = described(metadata), two = described(Metadata(other_->source.metadata_json));
    if (one.empty() || two.empty() || one == two) return absl::OkStatus();
    return absl::InvalidArgumentError(
        Cat("the two traces are not of one script at two batch sizes: ", one, "; the second: ", two));
  }

  void ReadLayers(const Metadata& metadata) {
    for (const auto& model : metadata.models()) {
      const auto layers = model.find("layers");
      if (layers == model.end() || !layers->is_array()) continue;
      for (const auto& layer : *layers) {
        const std::vector<uint64_t> in = JsonUints(layer, "in_shape");
        uint64_t input_bytes = in.empty() ? 0 : JsonUint(layer, "element_bytes", 4);
        for (const uint64_t n : in) input_bytes *= n;
        const std::string path = Cat(JsonText(model, "name"), ".", JsonText(layer, "name"));
        checkpointing_.See(path, input_bytes);
        precision_.See(path, JsonText(layer, "class"), input_bytes, in);
      }
    }
  }

  void ReadActivations() {
    const absl::StatusOr<std::unique_ptr<EventSource>> source = input_.NewSource();
    if (!source.ok()) return;
    const uint64_t sequence = timeline().category_peaks[Index(Category::kActivation)].sequence;
    activations_ = GroupsAt(**source, hindsight_, timeline().device, {{sequence, Category::kActivation}})[0];
  }

  // `as_recorded`: the recorded batch fits with expandable segments.
  absl::Status Batch(bool as_recorded) {
    if (!out_.batch) {
      if (second_ != nullptr)
        return absl::InvalidArgumentError("the trace does not say its batch size, so two traces cannot be compared");
      out_.notes.push_back(
          batch_varies_ ? "batches of several sizes ran, and the peak belongs to one of them: no advice on the batch"
                        : "the trace does not say its batch size: no advice on the batch");
      return absl::OkStatus();
    }
    const uint64_t batch = *out_.batch;
    std::string method =
        "one trace: activations, inputs and the temporaries of forward and backward grow with the batch, the rest "
        "stays";
    const Timeline* from = &timeline();
    uint64_t from_batch = batch;
    std::optional<uint64_t> other_batch;
    if (other_) {
      other_batch = Metadata(other_->source.metadata_json).batch_size();
      if (!other_batch || *other_batch == batch)
        return absl::InvalidArgumentError("the second trace must be of another batch size");
    }
    bool two = other_.has_value();
    // What a run would have held after its failed request is unknown: no line through its peaks.
    if (two && (RanOutForGood() || !other_->timeline.failures.empty())) {
      two = false;
      if (RanOutForGood() && other_->timeline.failures.empty()) from = &other_->timeline, from_batch = *other_batch;
      out_.notes.push_back(Cat("one of the two runs ran out of memory, so the prediction is from the trace at batch ",
                               from_batch, " alone"));
    }
    if (!from->failures.empty() && !out_.ran_out->whole_step) {
      out_.notes.push_back(
          Cat("the run ended before a whole step with the optimizer's states, so what a step needs is not known: record a run at a "
              "smaller batch",
              batch >= 2 ? Cat(" (such as ", batch / 2, ")") : std::string(), " and ask again"));
      return absl::OkStatus();
    }
    const BatchModel model = two ? BatchModel::FromTwo(timeline(), batch, other_->timeline, *other_batch)
                                 : BatchModel::FromOne(*from, from_batch);
    if (two) {
      method = Cat("two traces, batch ", batch, " and ", *other_batch,
                   ": a straight line a + b x batch for the peak of each phase");
    }
    // A batch that has failed on a card at least as large is no advice.
    uint64_t below = ~uint64_t{0}, below_expandable = ~uint64_t{0};
    if (RanOutForGood() && out_.capacity <= out_.ran_out->allowed) {
      below = batch;
      // With expandable segments it has not where its requests, the failed ones too, fit in this very card.
      if (!as_recorded) below_expandable = batch;
    }
    if (other_ && !other_->timeline.failures.empty() &&
        out_.capacity <= DeviceTotal(other_->timeline, Metadata(other_->source.metadata_json)))
      below = std::min(below, *other_batch), below_expandable = std::min(below_expandable, *other_batch);
    const auto largest_for = [&](uint64_t allocated, uint64_t limit) -> std::optional<uint64_t> {
      std::optional<uint64_t> largest = model.Largest(allocated);
      if (largest && *largest >= limit) largest = limit - 1;
      return largest && *largest != 0 ? largest : std::nullopt;
    };
    const auto per_allocated = ratio_ ? *ratio_ * (1 + kFragmentationGrowth) : 1.0;
    const auto allocated_limit = static_cast<uint64_t>(static_cast<double>(room_) / per_allocated);
    const std::optional<uint64_t> largest = largest_for(allocated_limit, below);
    const auto price_of = [batch](uint64_t n) {
      return n >= batch ? "a step takes longer in proportion to its samples" : "more steps for the same samples";
    };
    // A moment that is low in what was recorded may grow faster than the one that was highest.
    const uint64_t ran = std::max(batch, other_batch.value_or(0));
    const auto far = [ran](uint64_t n) {
      return n / kFarFromRecorded <= ran ? std::string()
                                         : Cat("; ", n / ran, " times the largest batch that ran, where the peak may be at another moment and higher: "
                                               "record a run of a batch nearer to it before you rely on this");
    };
    if (largest && out_.baseline_fits && *largest < batch) {
      out_.notes.push_back(Cat("batch ", batch, " fits as it was recorded, and is the largest: a prediction keeps room for "
                               "fragmentation to grow, which is not left"));
    } else if (largest) {
      Suggestion s;
      s.id = "LARGEST_BATCH";
      s.settings = {{"batch_size", *largest}};
      s.predicted_peak = model.Peak(static_cast<double>(*largest));
      s.method = Cat(method, *largest + 1 == below ? Cat("; batch ", below, " failed on such a card") : far(*largest));
      s.price = price_of(*largest);
      out_.suggestions.push_back(std::move(s));
    } else {
      out_.notes.push_back(model.Peak(1) > allocated_limit
                               ? "not even one sample fits: what does not grow with the batch is already too much"
                               : "nothing in the trace grows with the batch");
    }
    const double per_expandable = expandable_.Ratio() * (1 + kFragmentationGrowth);
    const std::optional<uint64_t> expandable =
        largest_for(static_cast<uint64_t>(static_cast<double>(room_) / per_expandable), below_expandable);
    if (expandable_.possible() && expandable && *expandable > largest.value_or(0) && (!as_recorded || *expandable > batch)) {
      Suggestion s;
      s.id = "EXPANDABLE_SEGMENTS";
      s.settings = {{"PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"}, {"batch_size", *expandable}};
      s.predicted_peak = model.Peak(static_cast<double>(*expandable));
      s.predicted_reserved = static_cast<uint64_t>(static_cast<double>(s.predicted_peak) * per_expandable);
      s.fits = *s.predicted_reserved <= room_;
      s.method = Cat(method, far(*expandable), "; free pages serve any request: ", expandable_.Method());
      s.price = Cat(price_of(*expandable), "; needs driver support");
      out_.suggestions.push_back(std::move(s));
    }
    for (uint64_t parts = 2; parts <= batch && !out_.baseline_fits; ++parts) {
      if (batch % parts != 0 || model.Peak(static_cast<double>(batch / parts)) > allocated_limit) continue;
      Suggestion s;
      s.id = "ACCUMULATION";
      s.settings = {{"batch_size", batch / parts}, {"accumulation_steps", parts}};
      s.predicted_peak = model.Peak(static_cast<double>(batch / parts));
      s.method = method + "; gradients live through the accumulation as they do through the backward";
      s.price = "smaller kernels; the same result where no layer depends on the batch (batch norm does)";
      s.time_factor = 1.05;
      out_.suggestions.push_back(std::move(s));
      break;
    }
    return absl::OkStatus();
  }

  void OptimizerTemporaries(const Metadata& metadata) {
    const OptimizerStep step = PredictOptimizerStep(timeline(), metadata);
    if (step.temporary * 20 < timeline().peak.total.rounded) return;
    const auto add = [this](const char* id, nlohmann::ordered_json settings, uint64_t peak, double time,
                            std::string method, const char* price) {
      Suggestion s;
      s.id = id;
      s.settings = std::move(settings);
      s.predicted_peak = peak;
      s.time_factor = time;
      s.method = std::move(method);
      s.price = price;
      AddIfLower(std::move(s));
    };
    if (step.fused_peak)
      add("OPTIMIZER_FUSED", {{"fused", true}}, *step.fused_peak, 1.0,
          Cat("the step's temporaries (", HumanBytes(step.temporary), ") are not made"), "none on CUDA");
    if (step.foreach_off_peak)
      add("OPTIMIZER_FOREACH_OFF", {{"foreach", false}}, *step.foreach_off_peak, 1.02,
          Cat("temporaries of one tensor at a time (two of ", HumanBytes(step.largest), ") in place of all"),
          "more small kernels in the step");
  }

  void ZeroGrad() {
    const uint64_t stale = timeline().peak_stale_gradients.rounded;
    if (timeline().peak.phase != Phase::kForward || stale * 20 < timeline().peak.total.rounded) return;
    Suggestion s;
    s.id = "ZERO_GRAD_EARLY";
    s.settings = {{"zero_grad", "set_to_none, right after the step"}};
    s.predicted_peak = PeakWithout(timeline(), [&](Phase p, const Moment&) {
      return p == Phase::kForward ? static_cast<int64_t>(stale) : int64_t{0};
    });
    s.method = "the gradients of the step before are freed before the forward";
    s.price = "none";
    AddIfLower(std::move(s));
  }

  const EventInput& input_;
  const EventInput* second_;
  const AdviceQuestion question_;
  Hindsight hindsight_;
  std::optional<Analysis> other_;
  uint64_t room_ = 0;            // of the usable bytes, for what the recorded steps need
  std::optional<double> ratio_;  // reserved for each allocated byte; the worse of two traces
  ExpandableSegments expandable_;
  PrecisionModel precision_;
  CheckpointModel checkpointing_;
  std::vector<BlockGroup> activations_;
  Advice out_;
  bool batch_varies_ = false;
};

}  // namespace

absl::StatusOr<Advice> Advise(const EventInput& input, const EventInput* second, const AdviceQuestion& question) {
  return Adviser(input, second, question).Run();
}

}  // namespace vramledger
