#include "tools/analysis/model_facts.h"

#include "tools/analysis/layer_facts.h"
#include "tools/estimate/memory_estimate.h"
#include "tools/estimate/model_config.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

using nlohmann::json;

constexpr uint64_t kBlock = 512;

const json& List(const json& object, const char* key) {
  static const json kEmpty = json::array();
  if (!object.is_object()) return kEmpty;
  const auto it = object.find(key);
  return it != object.end() && it->is_array() ? *it : kEmpty;
}

void Sum(const json& tensors, TensorSum* all, TensorSum* trainable) {
  for (const json& t : tensors) {
    const uint64_t numel = JsonUint(t, "numel"), bytes = numel * JsonUint(t, "element_bytes", 4);
    for (TensorSum* sum : {all, JsonBool(t, "trainable", true) ? trainable : nullptr}) {
      if (sum == nullptr) continue;
      sum->numel += numel;
      sum->bytes += bytes;
      sum->rounded += (bytes + kBlock - 1) / kBlock * kBlock;
      ++sum->tensors;
    }
  }
}

void Add(const TensorSum& from, TensorSum* to) {
  to->numel += from.numel;
  to->bytes += from.bytes;
  to->rounded += from.rounded;
  to->tensors += from.tensors;
}

class Reader {
 public:
  explicit Reader(const Metadata& metadata) : metadata_(metadata) {}

  RunFacts Run() {
    for (const json& model : metadata_.models()) {
      ModelFacts m;
      m.name = JsonText(model, "name");
      m.kind = JsonText(model, "class");
      Sum(List(model, "parameters"), &m.parameters, &m.trainable);
      Sum(List(model, "buffers"), &m.buffers, nullptr);
      if (m.parameters.tensors == 0 && m.buffers.tensors == 0) continue;  // a loss, an activation
      Add(m.parameters, &out_.parameters);
      Add(m.trainable, &out_.trainable);
      Add(m.buffers, &out_.buffers);
      out_.models.push_back(std::move(m));
    }
    Optimizers();
    if (!Transformer()) Convolutions();
    return std::move(out_);
  }

 private:
  void Optimizers() {
    if (metadata_.optimizers().empty() || out_.parameters.numel == 0) return;
    const double element = static_cast<double>(out_.parameters.bytes) / static_cast<double>(out_.parameters.numel);
    const double rounding = out_.trainable.bytes == 0 ? 1
                                                      : static_cast<double>(out_.trainable.rounded) /
                                                            static_cast<double>(out_.trainable.bytes);
    uint64_t textbook = 0, analytic = 0;
    bool known = true;
    for (const json& o : metadata_.optimizers()) {
      const std::string kind = JsonText(o, "class");
      const auto bytes = static_cast<uint64_t>(element * static_cast<double>(JsonUint(o, "param_count")));
      std::optional<OptimizerKind> family = OptimizerFromName(kind);
      const auto momentum = o.find("momentum");
      if (family == OptimizerKind::kSgd && momentum != o.end() && momentum->is_number() && momentum->get<double>() != 0)
        family = OptimizerKind::kMomentum;
      const std::optional<uint64_t> copies = family ? StateCopies(*family) : std::nullopt;
      if (copies) {
        textbook += *copies * bytes;
        const std::string formula = Cat(*copies, " x parameters (", kind, ")");
        if (out_.state_formula.find(formula) == std::string::npos)
          out_.state_formula += (out_.state_formula.empty() ? "" : ", ") + formula;
      } else {
        known = false;
      }
      uint64_t full = 0;
      for (const json& key : List(o, "state_keys")) {
        if (key.is_string() && key.get<std::string>() != "step") ++full;
      }
      analytic += full * bytes;
      if (JsonBool(o, "fused") || JsonBool(o, "capturable")) analytic += 4 * JsonUint(o, "tensor_count");
    }
    if (known) out_.textbook_state = textbook;
    out_.analytic_state = analytic;
    out_.analytic_state_rounded = static_cast<uint64_t>(static_cast<double>(analytic) * rounding);
  }

  std::optional<uint64_t> Sequence() const {
    if (const auto n = metadata_.sequence_length()) return n;
    for (const json& model : metadata_.models()) {
      for (const json& layer : List(model, "layers")) {
        const std::vector<uint64_t> in = JsonUints(layer, "in_shape");
        if (JsonText(layer, "class") == "Embedding" && in.size() == 2) return in[1];
      }
    }
    return std::nullopt;
  }

  bool Transformer() {
    const auto it = metadata_.root().find("config");
    if (it == metadata_.root().end()) return false;
    const auto hidden = metadata_.config({"hidden_size", "n_embd", "d_model"});
    const auto layers = metadata_.config({"num_hidden_layers", "n_layer", "num_layers"});
    const auto batch = metadata_.batch_size();
    const auto sequence = Sequence();
    if (!hidden || !layers || !batch || !sequence) return false;
    const uint64_t element = out_.parameters.numel == 0 ? 4 : out_.parameters.bytes / out_.parameters.numel;
    out_.textbook_activation = TextbookTransformerActivations(*batch, *sequence, *hidden, *layers, element);
    out_.activation_formula = Cat("one hidden state a layer: ", *batch, " x ", *sequence, " x ", *hidden, " x ",
                                  *layers, " layers x ", element, " B");
    const absl::StatusOr<ModelConfig> model = ReadModelConfig(*it);
    if (JsonBool(metadata_.root(), "autocast")) {
      out_.analytic_note = "not computed under autocast";
    } else if (!model.ok()) {
      out_.analytic_note = Cat("not computed: the config ", std::string(model.status().message()));
    } else {
      EstimateSettings s;
      s.batch = *batch;
      s.sequence = *sequence;
      s.precision = element == 2 ? Precision::kBfloat16 : element == 8 ? Precision::kFloat64 : Precision::kFloat32;
      out_.analytic_activation = EstimateMemory(*model, s).analytic.activation;
      out_.analytic_note = "what each layer saves for its backward, with fused attention, without a task's head";
    }
    return true;
  }

  // Sum over the convolutions of out_h x out_w x channels x batch x element size.
  void Convolutions() {
    uint64_t sum = 0, layers = 0;
    for (const LayerFacts& layer : ReadLayers(metadata_)) {
      if (!layer.convolution) continue;
      if (!layer.as_formula) ++out_.convolution_mismatches;
      sum += layer.bytes;
      ++layers;
    }
    if (layers == 0) {
      out_.analytic_note = "not computed: the trace describes neither a transformer's config nor convolutions";
      return;
    }
    out_.textbook_activation = sum;
    out_.activation_formula =
        Cat("output of each of ", layers,
            " convolutions: ((in + 2 pad - kernel) / stride + 1)^2 x channels x batch x element size");
    out_.analytic_note = "not computed: the trace has no list of operators";
  }

  const Metadata& metadata_;
  RunFacts out_;
};

}  // namespace

RunFacts ReadRunFacts(const Metadata& metadata) {
  return Reader(metadata).Run();
}

}  // namespace vramledger
