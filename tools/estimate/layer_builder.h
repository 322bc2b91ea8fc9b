// Builds the operators of a forward layer by layer: linear, norm, attention, MLP, in one precision, of one rank.
//
// What is built is what PyTorch's eager mode runs for the modules of Hugging Face's transformers, or, with
// KernelSet::kMegatron, what Megatron-LM's fused layers keep (arXiv:2205.05198, section 4, and its generalisations).
#ifndef VRAMLEDGER_TOOLS_ESTIMATE_LAYER_BUILDER_H_
#define VRAMLEDGER_TOOLS_ESTIMATE_LAYER_BUILDER_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tools/estimate/operators.h"

namespace vramledger {

// What runs the forward. With autocast the parameters are float32 and matrix products are computed in 16 bits.
enum class Precision { kFloat32, kFloat64, kBfloat16, kFloat16, kAutocastBfloat16, kAutocastFloat16 };
bool IsAutocast(Precision precision);
std::string_view ParameterType(Precision precision);  // "float32", ...
std::string_view ComputeType(Precision precision);
uint64_t ParameterBytes(Precision precision);

// eager: products, softmax and dropout as modules write them; math: PyTorch's composed form of
// scaled_dot_product_attention; the others are its fused kernels.
enum class AttentionKernel { kEager, kMath, kFlash, kMemoryEfficient, kCudnn };

// kMegatron: Megatron-LM's layers, made of its own functions; kTransformerEngine: the same on Transformer Engine.
enum class KernelSet { kPytorch, kMegatron, kTransformerEngine };

// Llama: computed in float32, the weight multiplied in the model's own type. Gemma: the weight in float32 too. T5: the
// mean square in float32, the rest in the model's own type.
enum class RmsForm { kLlama, kGemma, kT5 };

struct LayerSettings {
  uint64_t decoder_sequence = 0;       // 0: as sequence
  uint64_t batch = 1, sequence = 128;  // of one micro-batch on one rank: a context-parallel rank has its share
  uint64_t tensor = 1;                 // ranks that share each layer
  bool sequence_parallel = false;      // norms and dropout on a share of the sequence (arXiv:2205.05198, section 4.2)
  Precision precision = Precision::kFloat32;
  AttentionKernel attention = AttentionKernel::kMemoryEfficient;
  KernelSet kernels = KernelSet::kPytorch;
  double dropout = 0, attention_dropout = 0;
  bool softmax_float32 = true;     // eager attention asks for its softmax in float32
  bool attention_softcap = false;  // eager attention caps its scores by a tanh
};

class LayerBuilder {
 public:
  explicit LayerBuilder(const LayerSettings& settings) : s_(settings) {}

  OperatorList& list() { return list_; }
  const LayerSettings& settings() const { return s_; }
  // What follows is on so many tokens a sample.
  void SetSequence(uint64_t tokens) { s_.sequence = tokens; }
  void EnterModule(std::string path) { module_ = std::move(path); }

  uint64_t rows() const { return s_.batch * s_.sequence; }
  uint64_t norm_rows() const { return s_.sequence_parallel ? rows() / s_.tensor : rows(); }

  // What autocast gives a product: the low type where it is on; a parameter is copied once.
  int32_t LowPrecision(int32_t x);
  int32_t Parameter(std::initializer_list<uint64_t> shape);
  int32_t Input(std::vector<uint64_t> shape, std::string_view dtype);
  // A tensor that another rank sent: it needs a gradient and no operator of this rank made it.
  int32_t Received(std::vector<uint64_t> shape);
  const std::vector<uint64_t>& ShapeOf(int32_t tensor) const;
  uint64_t Numel(int32_t tensor) const;
  std::string_view TypeOf(int32_t tensor) const;

  int32_t Apply(std::string_view name, const std::vector<int32_t>& inputs, std::vector<uint64_t> shape,
                std::string_view dtype = "");
  // A fused function of which only what it saves is known; `saved` may name tensors that are not its inputs.
  int32_t Fused(std::string_view name, const std::vector<int32_t>& saved, int32_t input, std::vector<uint64_t> shape,
                std::string_view dtype = "");

  void AddIndices(std::vector<uint64_t> shape) { list_.AddOutput(std::move(shape), "int64"); }

  // [rows, in] -> [rows, out]; under autocast its own 16-bit copies of what is not 16 bits yet.
  int32_t Linear(int32_t x, uint64_t in, uint64_t out, bool bias);
  // Rows in `experts` groups, each with its own [in, out].
  int32_t Grouped(int32_t x, uint64_t experts, uint64_t in, uint64_t out);
  int32_t LayerNorm(int32_t x, uint64_t width);
  int32_t RmsNorm(int32_t x, uint64_t width, RmsForm form = RmsForm::kLlama);
  // cap x tanh(x / cap)
  int32_t Softcap(int32_t x);
  int32_t Norm(bool rms, int32_t x, uint64_t width) { return rms ? RmsNorm(x, width) : LayerNorm(x, width); }
  int32_t Dropout(int32_t x, double probability);
  int32_t Add(int32_t a, int32_t b);
  int32_t Multiply(int32_t a, int32_t b);
  // "relu", "gelu", "gelu_new", "silu", "relu2", ...
  int32_t Activation(int32_t x, std::string_view name);
  // q, k: [rows of queries or keys, heads x dim]; v may have another width a head. Returns [query rows, heads x v_dim].
  struct Heads {
    uint64_t heads, kv_heads, dim, v_dim;
    uint64_t queries = 0, keys = 0;  // lengths; 0: the builder's sequence
  };
  int32_t Attention(int32_t q, int32_t k, int32_t v, const Heads& heads, int32_t bias = -1);
  // Operators from BeginCore on are an attention's scores and products: what selective checkpointing computes again
  // (arXiv:2205.05198, section 5).
  void BeginCore() { core_begin_ = list_.operators.size(); }
  void EndCore() { cores_.emplace_back(core_begin_, list_.operators.size()); }
  const std::vector<std::pair<size_t, size_t>>& cores() const { return cores_; }
  int32_t Rotary(int32_t x);
  // Copies to another type where it is not that already.
  int32_t Cast(int32_t x, std::string_view dtype);
  // Mean cross entropy of [rows, classes] against labels.
  int32_t CrossEntropy(int32_t logits, bool upcast);

 private:
  int32_t EagerAttention(int32_t q, int32_t k, int32_t v, const Heads& heads, int32_t bias);
  int32_t FusedAttention(int32_t q, int32_t k, int32_t v, const Heads& heads, int32_t bias);

  LayerSettings s_;
  OperatorList list_;
  std::string module_ = "model";
  size_t core_begin_ = 0;
  std::vector<std::pair<size_t, size_t>> cores_;
  std::unordered_map<int32_t, int32_t> casts_;  // autocast's cache: parameter -> copy
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ESTIMATE_LAYER_BUILDER_H_
