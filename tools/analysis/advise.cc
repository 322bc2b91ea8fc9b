#include "tools/analysis/advise.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "tools/analysis/batch_model.h"
#include "tools/analysis/format_text.h"
#include "tools/analysis/metadata.h"
#include "tools/analysis/timeline.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

size_t Index(Phase p) {
  return static_cast<size_t>(p);
}
size_t Index(Category c) {
  return static_cast<size_t>(c);
}

struct Layer {
  std::string kind;
  uint64_t input_bytes = 0;
};

// A block of a list of equal modules: "model.layer.3".
struct RepeatedBlock {
  uint64_t saved = 0;
  uint64_t input = 0;
};

std::string_view BlockPath(std::string_view path) {
  size_t begin = 0;
  while (begin < path.size()) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos) return path.substr(0, end);
    begin = end + 1;
  }
  return {};
}

class Adviser {
 public:
  Adviser(const EventInput& input, const EventInput* second, const AdviceQuestion& question)
      : input_(input), second_(second), question_(question) {}

  absl::StatusOr<Advice> Run() {
    absl::StatusOr<Analysis> analysis = Analyze(input_, question_.device, &hindsight_);
    if (!analysis.ok()) return analysis.status();
    out_.analysis = *std::move(analysis);
    const Metadata metadata(out_.analysis.source.metadata_json);
    const Timeline& t = timeline();
    out_.capacity = question_.capacity;
    out_.headroom_share = question_.headroom_share;
    out_.outside = t.device_sampled ? t.outside_peak_bytes : 0;
    if (!t.device_sampled)
      out_.notes.push_back("memory outside the allocator was not sampled and is not taken off the capacity");
    const auto allowed = static_cast<uint64_t>(static_cast<double>(out_.capacity) * (1 - out_.headroom_share));
    out_.usable = allowed > out_.outside ? allowed - out_.outside : 0;
    out_.baseline_peak = t.peak.total.rounded;
    out_.baseline_fits = out_.baseline_peak <= out_.usable;
    out_.batch = metadata.batch_size();
    ReadLayers(metadata);
    ReadActivations();
    if (absl::Status s = Batch(metadata); !s.ok()) return s;
    Checkpointing();
    MixedPrecision(metadata);
    OptimizerTemporaries();
    ZeroGrad();
    for (Suggestion& s : out_.suggestions) {
      s.fits = s.predicted_peak <= out_.usable;
      if (s.predicted_peak >= out_.baseline_peak && s.id != "LARGEST_BATCH" && s.id != "ACCUMULATION") {
        s.method += Cat("; does not lower this run's peak, which the ", PhaseName(timeline().peak.phase), " sets");
      }
    }
    // Those that fit first; the batch before the others, then by price in time.
    const auto rank = [](const Suggestion& s) {
      return std::make_tuple(!s.fits, s.id != "LARGEST_BATCH", s.time_factor);
    };
    std::stable_sort(out_.suggestions.begin(), out_.suggestions.end(),
                     [&](const Suggestion& a, const Suggestion& b) { return rank(a) < rank(b); });
    return std::move(out_);
  }

 private:
  const Timeline& timeline() const { return out_.analysis.timeline; }

  // The highest phase peak when `less(phase, moment)` bytes of it go away.
  template <typename Less>
  uint64_t PeakWithout(Less less) const {
    int64_t peak = 0;
    for (int p = 0; p < kPhaseCount; ++p) {
      const PhasePeak& phase = timeline().phase_peaks[static_cast<size_t>(p)];
      if (phase.seen)
        peak = std::max(peak,
                        static_cast<int64_t>(phase.moment.total.rounded) - less(static_cast<Phase>(p), phase.moment));
    }
    return static_cast<uint64_t>(peak);
  }

  void ReadLayers(const Metadata& metadata) {
    for (const auto& model : metadata.models()) {
      const auto layers = model.find("layers");
      if (layers == model.end() || !layers->is_array()) continue;
      for (const auto& layer : *layers) {
        Layer l;
        l.kind = JsonText(layer, "class");
        l.input_bytes = JsonUint(layer, "element_bytes", 4);
        std::vector<uint64_t> in;
        if (const auto shape = layer.find("in_shape"); shape != layer.end() && shape->is_array() && !shape->empty()) {
          for (const auto& n : *shape) in.push_back(n.is_number_unsigned() ? n.get<uint64_t>() : 0);
          for (const uint64_t n : in) l.input_bytes *= n;
        } else {
          l.input_bytes = 0;
        }
        const std::string path = Cat(JsonText(model, "name"), ".", JsonText(layer, "name"));
        const std::string block(BlockPath(path));
        // The first leaf of a block sees the block's input.
        if (!block.empty() && l.input_bytes != 0)
          blocks_[block].input = std::max(blocks_[block].input, blocks_[block].input == 0 ? l.input_bytes : 0);
        SeeForCopies(path, l, in);
        layers_[path] = std::move(l);
      }
    }
  }

  void ReadActivations() {
    const absl::StatusOr<std::unique_ptr<EventSource>> source = input_.NewSource();
    if (!source.ok()) return;
    const uint64_t sequence = timeline().category_peaks[Index(Category::kActivation)].sequence;
    activations_ = GroupsAt(**source, hindsight_, timeline().device, sequence, Category::kActivation);
    for (const BlockGroup& g : activations_) {
      activation_bytes_ += g.bytes.rounded;
      const std::string block(BlockPath(g.site));
      if (!block.empty()) blocks_[block].saved += g.bytes.rounded;
    }
  }

  absl::Status Batch(const Metadata& metadata) {
    if (!out_.batch) {
      if (second_ != nullptr)
        return absl::InvalidArgumentError("the trace does not say its batch size, so two traces cannot be compared");
      out_.notes.push_back("the trace does not say its batch size: no advice on the batch");
      return absl::OkStatus();
    }
    const uint64_t batch = *out_.batch;
    BatchModel model = BatchModel::FromOne(timeline(), batch);
    std::string method =
        "one trace: activations, inputs and the temporaries of forward and backward grow with the batch, the rest "
        "stays";
    if (second_ != nullptr) {
      const absl::StatusOr<Analysis> other = Analyze(*second_, question_.device);
      if (!other.ok()) return other.status();
      const std::optional<uint64_t> other_batch = Metadata(other->source.metadata_json).batch_size();
      if (!other_batch || *other_batch == batch)
        return absl::InvalidArgumentError("the second trace must be of another batch size");
      model = BatchModel::FromTwo(timeline(), batch, other->timeline, *other_batch);
      method = Cat("two traces, batch ", batch, " and ", *other_batch,
                   ": a straight line a + b x batch for the peak of each phase");
    }
    (void)metadata;
    if (const std::optional<uint64_t> largest = model.Largest(out_.usable)) {
      Suggestion s;
      s.id = "LARGEST_BATCH";
      s.settings = {{"batch_size", *largest}};
      s.predicted_peak = model.Peak(static_cast<double>(*largest));
      s.method = method;
      s.price =
          *largest >= batch ? "a step takes longer in proportion to its samples" : "more steps for the same samples";
      s.time_factor = 1;
      out_.suggestions.push_back(std::move(s));
    } else {
      out_.notes.push_back(model.Peak(1) > out_.usable
                               ? "not even one sample fits: what does not grow with the batch is already too much"
                               : "nothing in the trace grows with the batch");
    }
    for (uint64_t parts = 2; parts <= batch && !out_.baseline_fits; ++parts) {
      if (batch % parts != 0 || model.Peak(static_cast<double>(batch / parts)) > out_.usable) continue;
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

  void Checkpointing() {
    uint64_t saved = 0, inputs = 0, largest = 0, count = 0;
    for (const auto& [path, block] : blocks_) {
      if (block.saved == 0 || block.input == 0 || block.saved <= block.input) continue;
      saved += block.saved;
      inputs += block.input;
      largest = std::max(largest, block.saved);
      ++count;
    }
    if (count < 2 || saved <= inputs + largest) return;
    const auto less = static_cast<int64_t>(saved - inputs - largest);
    Suggestion s;
    s.id = "CHECKPOINTING";
    s.settings = {{"checkpoint_blocks", count}, {"use_reentrant", false}};
    s.predicted_peak = PeakWithout([&](Phase, const Moment& m) {
      // What a phase holds of the activations goes away in proportion.
      const double share = activation_bytes_ == 0
                               ? 0
                               : static_cast<double>(m.categories[Index(Category::kActivation)].rounded) /
                                     static_cast<double>(activation_bytes_);
      return static_cast<int64_t>(static_cast<double>(less) * std::min(1.0, share));
    });
    s.method =
        Cat("the ", HumanBytes(saved), " saved inside ", count, " repeated blocks are replaced by their inputs (",
            HumanBytes(inputs), ") and one block's recomputation (", HumanBytes(largest), ")");
    s.price = "one more forward of the blocks: about a third more compute";
    s.time_factor = 1.33;
    out_.suggestions.push_back(std::move(s));
  }

  // Under autocast, norms and losses compute in 32 bits, products and what follows them in 16.
  static bool IsNorm(const std::string& kind) {
    return Contains(kind, "LayerNorm") || Contains(kind, "RMSNorm") || Contains(kind, "GroupNorm");
  }
  static bool IsProduct(const std::string& kind) { return Contains(kind, "Linear") || Contains(kind, "Conv"); }

  enum class Width { kNarrow, kWide, kGone };
  Width WidthOf(const std::string& site, bool wide_stream) const {
    if (site.empty()) return Width::kWide;
    if (const auto it = layers_.find(site); it != layers_.end()) {
      const std::string& kind = it->second.kind;
      // A product keeps its narrow copy of a norm's output in place of the output itself.
      if (IsNorm(kind)) return narrow_copies_ != 0 ? Width::kGone : Width::kWide;
      const bool wide = Contains(kind, "Softmax") || Contains(kind, "Loss") || Contains(kind, "Embedding") ||
                        Contains(kind, "ropout");
      return wide ? Width::kWide : Width::kNarrow;
    }
    if (Contains(site, "Loss")) return Width::kWide;
    // A module's own operators: attention is a product; sums belong to the stream between the blocks.
    const std::string last = site.substr(site.rfind('.') + 1);
    const bool attention =
        last == "self" || last == "attn" || last == "attention" || last == "self_attn" || last == "self_attention";
    return wide_stream && !attention ? Width::kWide : Width::kNarrow;
  }

  void MixedPrecision(const Metadata& metadata) {
    if (JsonBool(metadata.root(), "autocast") || activations_.empty() || layers_.empty()) return;
    uint64_t narrow_weights = 0;
    for (const auto& model : metadata.models()) {
      const auto parameters = model.find("parameters");
      if (parameters == model.end() || !parameters->is_array()) continue;
      for (const auto& p : *parameters) {
        if (JsonUint(p, "element_bytes", 4) != 4) return;  // not a 32-bit model
        const std::string name = Cat(JsonText(model, "name"), ".", JsonText(p, "name"));
        const auto it = layers_.find(name.substr(0, name.rfind('.')));
        if (it != layers_.end() && IsProduct(it->second.kind)) narrow_weights += 2 * JsonUint(p, "numel");
      }
    }
    bool wide_stream = false;
    for (const auto& entry : layers_) wide_stream |= IsNorm(entry.second.kind);
    uint64_t halved = 0, wide = 0, gone = 0;
    for (const BlockGroup& g : activations_) {
      const Width width = WidthOf(g.site, wide_stream);
      (width == Width::kNarrow ? halved : width == Width::kWide ? wide : gone) += g.bytes.rounded;
    }
    if (halved == 0) return;
    Suggestion s;
    s.id = "AMP_BF16";
    s.settings = {{"autocast", "bfloat16"}};
    const int64_t saving = static_cast<int64_t>(halved / 2 + gone) - static_cast<int64_t>(narrow_copies_);
    s.predicted_peak = PeakWithout([&](Phase p, const Moment& m) -> int64_t {
      const bool inside = p == Phase::kForward || p == Phase::kBackward || p == Phase::kRecompute;
      const double share = activation_bytes_ == 0
                               ? 0
                               : static_cast<double>(m.categories[Index(Category::kActivation)].rounded) /
                                     static_cast<double>(activation_bytes_);
      return static_cast<int64_t>(static_cast<double>(saving) * std::min(1.0, share)) -
             (inside ? static_cast<int64_t>(narrow_weights) : 0);
    });
    s.method = Cat("activations of products and convolutions (", HumanBytes(halved),
                   ") halve, those of sums, losses and masks (", HumanBytes(wide),
                   ") stay; products keep narrow copies of norms' outputs (", HumanBytes(narrow_copies_), " for ",
                   HumanBytes(gone), ") and of the weights (", HumanBytes(narrow_weights), ")");
    s.price = "lower precision; faster on cards with bfloat16 units";
    s.time_factor = 0.6;
    out_.suggestions.push_back(std::move(s));
  }

  // The products that read a norm's output, each of which makes its own narrow copy: those that follow it under one
  // parent.
  void SeeForCopies(const std::string& path, const Layer& layer, const std::vector<uint64_t>& in) {
    if (IsNorm(layer.kind)) {
      norm_shape_ = in;
      reader_parent_.clear();
      return;
    }
    if (!IsProduct(layer.kind)) {
      if (!Contains(layer.kind, "ropout")) norm_shape_.clear();
      return;
    }
    const std::string parent = path.substr(0, path.rfind('.'));
    if (norm_shape_.empty() || in != norm_shape_ || (!reader_parent_.empty() && parent != reader_parent_)) {
      norm_shape_.clear();
      return;
    }
    reader_parent_ = parent;
    narrow_copies_ += layer.input_bytes / 2;
  }

  void OptimizerTemporaries() {
    const PhasePeak& step = timeline().phase_peaks[Index(Phase::kOptimizer)];
    if (!step.seen || timeline().peak.phase != Phase::kOptimizer) return;
    const uint64_t temporary =
        timeline().peak_by_birth_phase[Index(Phase::kOptimizer)][Index(Category::kTemporary)].rounded;
    if (temporary * 20 < timeline().peak.total.rounded) return;
    uint64_t largest = 0;
    for (const BlockGroup& g : timeline().peak_groups) {
      if (g.phase == Phase::kOptimizer && g.category == Category::kTemporary)
        largest = std::max(largest, g.requested_each);
    }
    const auto with = [&](uint64_t kept) {
      return PeakWithout([&](Phase p, const Moment&) {
        return p == Phase::kOptimizer ? static_cast<int64_t>(temporary - std::min(temporary, kept)) : int64_t{0};
      });
    };
    out_.suggestions.push_back({"OPTIMIZER_FUSED",
                                {{"fused", true}},
                                with(0),
                                1.0,
                                Cat("the step's temporaries (", HumanBytes(temporary), ") are not made"),
                                "none on CUDA",
                                false});
    out_.suggestions.push_back(
        {"OPTIMIZER_FOREACH_OFF",
         {{"foreach", false}},
         with(2 * largest),
         1.02,
         Cat("temporaries of one tensor at a time (two of ", HumanBytes(largest), ") in place of all"),
         "more small kernels in the step",
         false});
  }

  void ZeroGrad() {
    const uint64_t stale = timeline().peak_stale_gradients.rounded;
    if (timeline().peak.phase != Phase::kForward || stale * 20 < timeline().peak.total.rounded) return;
    out_.suggestions.push_back({"ZERO_GRAD_EARLY",
                                {{"zero_grad", "set_to_none, right after the step"}},
                                PeakWithout([&](Phase p, const Moment&) {
                                  return p == Phase::kForward ? static_cast<int64_t>(stale) : int64_t{0};
                                }),
                                1.0,
                                "the gradients of the step before are freed before the forward",
                                "none",
                                false});
  }

  const EventInput& input_;
  const EventInput* second_;
  const AdviceQuestion question_;
  Hindsight hindsight_;
  std::map<std::string, Layer> layers_;
  std::map<std::string, RepeatedBlock> blocks_;
  std::vector<BlockGroup> activations_;
  uint64_t activation_bytes_ = 0;
  uint64_t narrow_copies_ = 0;
  std::vector<uint64_t> norm_shape_;  // input of the norm whose output is being read
  std::string reader_parent_;
  Advice out_;
};

}  // namespace

absl::StatusOr<Advice> Advise(const EventInput& input, const EventInput* second, const AdviceQuestion& question) {
  return Adviser(input, second, question).Run();
}

}  // namespace vramledger
