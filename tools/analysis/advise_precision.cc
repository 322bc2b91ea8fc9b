#include "tools/analysis/advise_precision.h"

#include <algorithm>

#include "tools/analysis/format_text.h"
#include "tools/analysis/predictions.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

// Under autocast, norms and losses compute in 32 bits, products and what follows them in 16.
bool IsNorm(const std::string& kind) {
  return Contains(kind, "LayerNorm") || Contains(kind, "RMSNorm") || Contains(kind, "GroupNorm");
}
bool IsProduct(const std::string& kind) {
  return Contains(kind, "Linear") || Contains(kind, "Conv");
}

// Cards before compute capability 8.0 have no bfloat16 units.
bool HasBfloat16(const Metadata& metadata, int device) {
  std::string name = metadata.device(device).name + " " + JsonText(metadata.root(), "device_name") + " ";
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c == '-' ? ' ' : c;
  for (const char* old : {"t4 ", "v100 ", "p100 ", "p40 ", "p4 "}) {
    const size_t at = name.find(old);
    if (at != std::string::npos && (at == 0 || name[at - 1] == ' ')) return false;
  }
  return true;
}

}  // namespace

// The products that read a norm's output, each of which makes its own narrow copy: those that follow it under one
// parent.
void PrecisionModel::See(const std::string& path, const std::string& kind, uint64_t input_bytes,
                         const std::vector<uint64_t>& in) {
  kinds_[path] = kind;
  if (IsNorm(kind)) {
    norm_shape_ = in;
    reader_parent_.clear();
    return;
  }
  if (!IsProduct(kind)) {
    if (!Contains(kind, "ropout")) norm_shape_.clear();
    return;
  }
  const std::string parent = path.substr(0, path.rfind('.'));
  if (norm_shape_.empty() || in != norm_shape_ || (!reader_parent_.empty() && parent != reader_parent_)) {
    norm_shape_.clear();
    return;
  }
  reader_parent_ = parent;
  narrow_copies_ += input_bytes / 2;
}

PrecisionModel::Width PrecisionModel::WidthOf(const std::string& site, bool wide_stream) const {
  if (site.empty()) return Width::kWide;
  if (const auto it = kinds_.find(site); it != kinds_.end()) {
    const std::string& kind = it->second;
    // A product keeps its narrow copy of a norm's output in place of the output itself.
    if (IsNorm(kind)) return narrow_copies_ != 0 ? Width::kGone : Width::kWide;
    const bool wide =
        Contains(kind, "Softmax") || Contains(kind, "Loss") || Contains(kind, "Embedding") || Contains(kind, "ropout");
    return wide ? Width::kWide : Width::kNarrow;
  }
  if (Contains(site, "Loss")) return Width::kWide;
  // A module's own operators: attention is a product; sums belong to the stream between the blocks.
  const std::string last = site.substr(site.rfind('.') + 1);
  const bool attention =
      last == "self" || last == "attn" || last == "attention" || last == "self_attn" || last == "self_attention";
  return wide_stream && !attention ? Width::kWide : Width::kNarrow;
}

std::optional<Suggestion> PrecisionModel::Suggest(const Timeline& t, const Metadata& metadata,
                                                  const std::vector<BlockGroup>& activations) const {
  if (JsonBool(metadata.root(), "autocast") || activations.empty() || kinds_.empty()) return std::nullopt;
  uint64_t narrow_weights = 0;
  for (const auto& model : metadata.models()) {
    const auto parameters = model.find("parameters");
    if (parameters == model.end() || !parameters->is_array()) continue;
    for (const auto& p : *parameters) {
      if (JsonUint(p, "element_bytes", 4) != 4) return std::nullopt;  // not a 32-bit model
      const std::string name = Cat(JsonText(model, "name"), ".", JsonText(p, "name"));
      const auto it = kinds_.find(name.substr(0, name.rfind('.')));
      if (it != kinds_.end() && IsProduct(it->second)) narrow_weights += 2 * JsonUint(p, "numel");
    }
  }
  bool wide_stream = false;
  for (const auto& entry : kinds_) wide_stream |= IsNorm(entry.second);
  uint64_t halved = 0, wide = 0, gone = 0;
  for (const BlockGroup& g : activations) {
    const Width width = WidthOf(g.site, wide_stream);
    (width == Width::kNarrow ? halved : width == Width::kWide ? wide : gone) += g.bytes.rounded;
  }
  const uint64_t all = halved + wide + gone;
  if (halved == 0) return std::nullopt;
  Suggestion s;
  const bool bfloat16 = HasBfloat16(metadata, t.device);
  s.id = bfloat16 ? "AMP_BF16" : "AMP_FP16";
  s.settings = {{"autocast", bfloat16 ? "bfloat16" : "float16"}};
  const int64_t saving = static_cast<int64_t>(halved / 2 + gone) - static_cast<int64_t>(narrow_copies_);
  s.predicted_peak = PeakWithout(t, [&](Phase p, const Moment& m) -> int64_t {
    const bool inside = p == Phase::kForward || p == Phase::kBackward || p == Phase::kRecompute;
    const double share = static_cast<double>(m.categories[static_cast<size_t>(Category::kActivation)].rounded) /
                         static_cast<double>(all);
    return static_cast<int64_t>(static_cast<double>(saving) * std::min(1.0, share)) -
           (inside ? static_cast<int64_t>(narrow_weights) : 0);
  });
  s.method = Cat("activations of products and convolutions (", HumanBytes(halved),
                 ") halve, those of sums, losses and masks (", HumanBytes(wide),
                 ") stay; products keep narrow copies of norms' outputs (", HumanBytes(narrow_copies_), " for ",
                 HumanBytes(gone), ") and of the weights (", HumanBytes(narrow_weights), ")");
  s.price = bfloat16 ? "lower precision; faster on cards with bfloat16 units"
                     : "lower precision and range: it needs a gradient scaler; this card has no bfloat16 units";
  s.time_factor = 0.6;
  return s;
}

}  // namespace vramledger
