#include "tools/estimate/memory_estimate.h"

#include <algorithm>
#include <cctype>

#include "tools/estimate/parameter_list.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

constexpr uint64_t kBlock = 512;
constexpr uint64_t kCublasWorkspace = 8519680;  // one for the forward's thread, one for the backward's

uint64_t Round(uint64_t bytes) {
  return (bytes + kBlock - 1) / kBlock * kBlock;
}

// Bytes of every tensor of `copies` sets of parameters, rounded tensor by tensor as an allocator does.
uint64_t RoundedParameters(const ModelConfig& m, uint64_t element_bytes) {
  uint64_t sum = 0;
  for (const ParameterGroup& g : ListParameters(m)) sum += Round(g.numel * element_bytes) * g.copies;
  return sum;
}

struct Saved {
  uint64_t low = 0, likely = 0, high = 0;
};

// What one layer's forward keeps for its backward, in units of one hidden state [batch, sequence, hidden], plus masks
// of one byte an element and attention matrices [batch, heads, sequence, sequence] where the attention is not fused.
Saved SavedOfTransformer(const ModelConfig& m, const EstimateSettings& s) {
  const double state = static_cast<double>(s.batch) * static_cast<double>(s.sequence) * static_cast<double>(m.hidden);
  const double e = static_cast<double>(s.element_bytes);
  const double wide = static_cast<double>(m.intermediate) / static_cast<double>(m.hidden);
  const double q = static_cast<double>(m.heads * m.head_dim) / static_cast<double>(m.hidden);
  double elements = 0;
  if (m.rms_norm) {
    // Two norms (input, normalised, output each), q, k and v at full width, the attention's output, four tensors in the
    // gated MLP.
    elements = 2 * 3 + 3 * q + q + (m.gated ? 4 : 2) * wide;
  } else {
    // The layer's input, q, k, v, attention's output, two norm inputs, one norm output, activation input and output.
    elements = 1 + 3 * q + q + 2 + 1 + 2 * wide;
  }
  const double composed = m.composed_activation ? 3 * wide : 0;
  const double masks = m.dropout > 0 ? 2 * state : 0;
  const double matrix =
      static_cast<double>(s.batch * m.heads) * static_cast<double>(s.sequence) * static_cast<double>(s.sequence);
  const double eager = matrix * (m.dropout > 0 ? 2 * e + 1 : e);
  const double layers = static_cast<double>(m.layers + m.decoder_layers);
  // Embedding output and its norm; the loss of a language model keeps logits and their log-softmax.
  double ends = 2 * state * e;
  if (m.type != "bert" && m.type != "vit")
    ends += 2 * static_cast<double>(s.batch * s.sequence) * static_cast<double>(m.vocabulary) * e;
  const double likely = layers * ((elements + composed) * state * e + masks) + ends;
  Saved out;
  out.likely = static_cast<uint64_t>(likely);
  out.low = static_cast<uint64_t>(layers * elements * state * e + ends);
  out.high = static_cast<uint64_t>(likely + layers * eager);
  return out;
}

}  // namespace

std::optional<OptimizerKind> OptimizerFromName(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (lower == "adam" || lower == "adamw" || lower == "nadam" || lower == "radam" || lower == "adamax")
    return OptimizerKind::kAdam;
  if (lower == "momentum" || lower == "rmsprop" || lower == "adagrad") return OptimizerKind::kMomentum;
  if (lower == "sgd") return OptimizerKind::kSgd;
  if (lower == "none") return OptimizerKind::kNone;
  return std::nullopt;
}

uint64_t StateCopies(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kAdam:
      return 2;
    case OptimizerKind::kMomentum:
      return 1;
    case OptimizerKind::kSgd:
    case OptimizerKind::kNone:
      break;
  }
  return 0;
}

uint64_t ConvolutionOutput(uint64_t in, uint64_t kernel, uint64_t stride, uint64_t pad) {
  if (stride == 0 || in + 2 * pad < kernel) return 0;
  return (in + 2 * pad - kernel) / stride + 1;
}

uint64_t TextbookTransformerActivations(uint64_t batch, uint64_t sequence, uint64_t hidden, uint64_t layers,
                                        uint64_t element_bytes) {
  return batch * sequence * hidden * layers * element_bytes;
}

MemoryEstimate EstimateMemory(const ModelConfig& m, const EstimateSettings& s) {
  MemoryEstimate out;
  out.parameters = CountParameters(m);
  out.assumptions = m.assumptions;
  const uint64_t bytes = out.parameters * s.element_bytes;
  const uint64_t states = StateCopies(s.optimizer);
  const bool trains = s.optimizer != OptimizerKind::kNone;
  out.textbook.parameter = bytes;
  out.textbook.gradient = trains ? bytes : 0;
  out.textbook.optimizer_state = states * bytes;
  out.textbook.buffer = 0;
  const bool transformer = m.type != "torchvision";
  out.analytic = out.textbook;
  out.analytic.buffer.reset();
  EstimateSettings used = s;
  if (m.type == "vit") used.sequence = (m.image / m.patch) * (m.image / m.patch) + 1;
  if (!transformer) {
    out.textbook.activation.reset();
    out.assumptions.push_back(
        "activations of a torchvision model need its layers, which a name alone does not give: run it once with "
        "`vramledger dryrun`");
    return out;
  }
  const uint64_t rounded = RoundedParameters(m, s.element_bytes);
  out.analytic.parameter = rounded;
  out.analytic.gradient = trains ? rounded : 0;
  out.analytic.optimizer_state = states * rounded;
  out.textbook.activation =
      TextbookTransformerActivations(used.batch, used.sequence, m.hidden, m.layers + m.decoder_layers, s.element_bytes);
  if (m.experts != 0 || m.kv_lora_rank != 0) {
    out.assumptions.push_back(
        "activations of routed experts and of latent attention are not yet accounted for: no analytic activation, no "
        "peak");
    return out;
  }
  const Saved saved = SavedOfTransformer(m, used);
  out.analytic.activation = saved.likely;
  const auto peak = [&](uint64_t activation) {
    // Either the backward begins (activations, no gradients yet) or the optimizer runs (gradients, and foreach's one
    // temporary for each parameter).
    const uint64_t fixed = rounded + states * rounded + 2 * kCublasWorkspace;
    const uint64_t step = trains ? rounded + (states != 0 ? rounded : 0) : 0;
    return fixed + std::max(activation, step);
  };
  if (trains) {
    out.peak = peak(saved.likely);
    out.low = peak(saved.low);
    out.high = peak(saved.high) + rounded / 8;
  }
  out.assumptions.push_back(
      "parameters, gradients and optimizer state all in the element size given; blocks rounded to 512 B tensor by "
      "tensor");
  out.assumptions.push_back(
      "gradients set to None before the forward; the peak is at the start of the backward or inside a foreach "
      "optimizer step");
  out.assumptions.push_back(
      "likely: fused attention (no [sequence x sequence] matrix kept); high: eager attention; low: without dropout "
      "masks");
  if (m.type != "bert" && m.type != "vit")
    out.assumptions.push_back("a language model's loss over all tokens: logits and their log-softmax are kept");
  if (m.type == "bert") out.assumptions.push_back("the base model with pooler, without a task's head");
  return out;
}

}  // namespace vramledger
