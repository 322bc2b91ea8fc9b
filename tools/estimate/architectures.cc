#include "tools/estimate/architectures.h"

#include <algorithm>
#include <utility>

#include "tools/estimate/megatron_layers.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

class Builder {
 public:
  Builder(const ModelConfig& model, const LayerSettings& settings, const Parallelism& parallel)
      : m_(model), s_(settings), p_(parallel), b_(settings) {}
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  ForwardGraph Run(const PartCounts& parts) {
    int32_t x = parts.embedding != 0 ? Embedding() : b_.Received({b_.norm_rows(), m_.hidden});
    Close(-1);
    for (uint64_t i = 0; i < parts.dense; ++i) x = Layer(x, i, false);
    for (uint64_t i = 0; i < parts.sparse; ++i) x = Layer(x, parts.dense + i, true);
    if (parts.decoder != 0) {
      if (m_.type == "t5") x = FinalNorm(x);
      encoded_ = x;
      encoded_length_ = b_.settings().sequence;
      if (s_.decoder_sequence != 0) b_.SetSequence(s_.decoder_sequence);
      bias_ = -1;
      x = Embedding();
      Close(-1);
      for (uint64_t i = 0; i < parts.decoder; ++i) x = DecoderLayer(x, i);
    }
    if (parts.head != 0) {
      Head(x);
    } else {
      Hold(x);
    }
    Close(-1);
    return {std::move(b_.list()), std::move(ranges_)};
  }

 private:
  bool Megatron() const { return s_.kernels != KernelSet::kPytorch; }
  void Hold(int32_t x) { b_.list().held.push_back(b_.list().tensors[static_cast<size_t>(x)].storage); }
  // Ends the range that began where the last one ended, with a range of its own for each attention core in it.
  void Close(int64_t layer) {
    const auto add = [&](size_t end, bool core) {
      if (end > begin_) ranges_.push_back({begin_, end, layer, core});
      begin_ = std::max(begin_, end);
    };
    for (; cores_seen_ < b_.cores().size(); ++cores_seen_) {
      add(b_.cores()[cores_seen_].first, false);
      add(b_.cores()[cores_seen_].second, true);
    }
    add(b_.list().operators.size(), false);
  }

  int32_t Lookup(uint64_t entries, uint64_t n) {
    const int32_t table = b_.Parameter({entries, m_.hidden});
    return b_.Apply("aten::embedding", {table, b_.Input({n}, "int64")}, {n, m_.hidden});
  }

  int32_t Embedding() {
    b_.EnterModule("embedding");
    if (m_.type == "vit") return Patches();
    const uint64_t n = b_.norm_rows();
    int32_t x = Lookup(std::max<uint64_t>(m_.vocabulary / s_.tensor, 1), n);
    if (m_.token_types != 0) x = b_.Add(x, Lookup(m_.token_types, n));
    if (m_.learned_positions) x = b_.Add(x, Lookup(std::max<uint64_t>(m_.positions, 1), n));
    if (m_.embedding_norm) x = b_.LayerNorm(x, m_.hidden);
    x = b_.Dropout(x, s_.dropout);
    return Megatron() ? b_.Cast(x, ComputeType(s_.precision)) : x;
  }

  int32_t Patches() {
    const uint64_t side = m_.image / m_.patch, tokens = side * side + 1;
    const std::string_view compute = ComputeType(s_.precision);
    const int32_t pixels = b_.Input({s_.batch, m_.channels, m_.image, m_.image}, ParameterType(s_.precision));
    const int32_t weight = b_.Cast(b_.Parameter({m_.hidden, m_.channels, m_.patch, m_.patch}), compute);
    const int32_t bias = b_.Cast(b_.Parameter({m_.hidden}), compute);
    int32_t x = b_.Apply("aten::convolution", {b_.Cast(pixels, compute), weight, bias},
                         {s_.batch, m_.hidden, side, side}, compute);
    x = b_.Apply("aten::cat", {b_.Parameter({m_.hidden}), x}, {s_.batch * tokens, m_.hidden});
    return b_.Dropout(b_.Add(x, b_.Parameter({tokens, m_.hidden})), s_.dropout);
  }

  std::string Path(std::string_view stack, uint64_t i) const { return Cat(stack, ".", i); }

  int32_t Norm(int32_t x) {
    if (!m_.rms_norm) return b_.LayerNorm(x, m_.hidden);
    const bool gemma = m_.type.starts_with("gemma");
    return b_.RmsNorm(x, m_.hidden, gemma ? RmsForm::kGemma : m_.type == "t5" ? RmsForm::kT5 : RmsForm::kLlama);
  }

  int32_t Layer(int32_t x, uint64_t index, bool sparse) {
    b_.EnterModule(Path("layer", index));
    if (Megatron()) {
      x = MegatronLayer(m_, p_, &b_, x, sparse, /*encoded=*/-1);
    } else if (m_.embedding_norm) {
      // Norms after the sums: BERT and its relatives.
      x = Norm(b_.Add(b_.Dropout(SelfAttention(x), s_.dropout), x));
      x = Norm(b_.Add(b_.Dropout(Mlp(x, m_.intermediate / s_.tensor), s_.dropout), x));
    } else {
      const bool both = m_.norms_per_layer >= 4;  // also after each block
      const int32_t normal = Norm(x);
      int32_t y = SelfAttention(normal);
      if (both) y = Norm(y);
      const int32_t middle = b_.Add(x, b_.Dropout(y, s_.dropout));
      const int32_t second = m_.norms_per_layer < 2 ? normal : Norm(m_.parallel_residual ? x : middle);
      y = sparse ? Experts(second) : Mlp(second, m_.intermediate / s_.tensor);
      if (both) y = Norm(y);
      x = b_.Add(middle, b_.Dropout(y, s_.dropout));
    }
    Close(layers_++);
    return x;
  }

  int32_t DecoderLayer(int32_t x, uint64_t index) {
    b_.EnterModule(Path("decoder", index));
    if (Megatron()) {
      x = MegatronLayer(m_, p_, &b_, x, false, encoded_);
    } else {
      x = b_.Add(x, b_.Dropout(SelfAttention(Norm(x)), s_.dropout));
      x = b_.Add(x, b_.Dropout(CrossAttention(Norm(x)), s_.dropout));
      x = b_.Add(x, b_.Dropout(Mlp(Norm(x), m_.intermediate / s_.tensor), s_.dropout));
    }
    Close(layers_++);
    return x;
  }

  uint64_t LocalHeads() const { return m_.heads / s_.tensor; }
  uint64_t LocalKeyHeads() const { return std::max<uint64_t>(1, m_.kv_heads / s_.tensor); }

  int32_t SelfAttention(int32_t x) {
    if (m_.kv_lora_rank != 0) return LatentAttention(x);
    const uint64_t q = LocalHeads() * m_.head_dim, kv = LocalKeyHeads() * m_.head_dim;
    int32_t query, key, value;
    if (m_.attention_module) {
      // It works with the sequence first, so the product reads a copy of the batch-first input, and its bias comes
      // after; q, k and v are then cut apart, each in one piece.
      const int32_t first = b_.Apply("aten::clone", {b_.LowPrecision(x)}, b_.ShapeOf(x));
      const int32_t bias = b_.LowPrecision(b_.Parameter({q + 2 * kv}));
      const int32_t product = b_.Linear(first, m_.hidden, q + 2 * kv, false);
      const int32_t sum = b_.Apply("aten::add.Tensor", {product, bias}, b_.ShapeOf(product));
      const int32_t all = b_.Apply("aten::clone", {sum}, b_.ShapeOf(sum));
      query = b_.list().View(all, {b_.rows(), q});
      key = b_.list().View(all, {b_.rows(), kv});
      value = b_.list().View(all, {b_.rows(), kv});
    } else if (m_.fused_qkv) {
      const int32_t all = b_.Linear(x, m_.hidden, q + 2 * kv, m_.qkv_bias);
      query = b_.list().View(all, {b_.rows(), q});
      key = b_.list().View(all, {b_.rows(), kv});
      value = b_.list().View(all, {b_.rows(), kv});
    } else {
      query = b_.Linear(x, m_.hidden, q, m_.qkv_bias);
      key = b_.Linear(x, m_.hidden, kv, m_.qkv_bias);
      value = b_.Linear(x, m_.hidden, kv, m_.qkv_bias);
    }
    if (m_.qk_norm) {
      query = b_.Norm(m_.rms_norm, query, m_.head_dim);
      key = b_.Norm(m_.rms_norm, key, m_.head_dim);
    }
    if (m_.rotary) query = b_.Rotary(query), key = b_.Rotary(key);
    int32_t out =
        b_.Attention(query, key, value, {LocalHeads(), LocalKeyHeads(), m_.head_dim, m_.head_dim}, Bias());
    // The 16-bit kernels lay their result out as they find q, sequence first.
    const bool as_query = s_.attention == AttentionKernel::kFlash || s_.attention == AttentionKernel::kCudnn;
    if (m_.attention_module && !as_query) out = b_.Apply("aten::clone", {out}, b_.ShapeOf(out));
    return b_.Linear(out, q, m_.hidden, m_.out_bias);
  }

  // T5 adds a learned bias of relative positions to the scores of its self-attentions.
  int32_t Bias() {
    if (m_.relative_buckets == 0 || m_.learned_positions) return -1;
    if (bias_ < 0) {
      const uint64_t n = b_.settings().sequence;
      // The bucket of each distance is computed, and kept for the table's gradient.
      const int32_t buckets = b_.Apply("aten::where", {}, {n, n}, "int64");
      const int32_t table = b_.Parameter({m_.relative_buckets, m_.heads});
      bias_ = b_.Apply("aten::embedding", {table, buckets}, {LocalHeads(), n, n});
    }
    return bias_;
  }

  int32_t CrossAttention(int32_t x) {
    const uint64_t q = LocalHeads() * m_.head_dim, kv = LocalKeyHeads() * m_.head_dim;
    const int32_t query = b_.Linear(x, m_.hidden, q, m_.qkv_bias);
    const int32_t key = b_.Linear(encoded_, m_.hidden, kv, m_.qkv_bias);
    const int32_t value = b_.Linear(encoded_, m_.hidden, kv, m_.qkv_bias);
    const int32_t out = b_.Attention(
        query, key, value,
        {LocalHeads(), LocalKeyHeads(), m_.head_dim, m_.head_dim, b_.settings().sequence, encoded_length_});
    return b_.Linear(out, q, m_.hidden, m_.out_bias);
  }

  int32_t LatentAttention(int32_t x) {
    const uint64_t heads = LocalHeads(), dim = m_.qk_nope_dim + m_.qk_rope_dim, n = b_.rows();
    int32_t query = x;
    uint64_t in = m_.hidden;
    if (m_.q_lora_rank != 0) {
      query = b_.Norm(true, b_.Linear(x, m_.hidden, m_.q_lora_rank, false), m_.q_lora_rank);
      in = m_.q_lora_rank;
    }
    query = b_.Linear(query, in, heads * dim, false);
    const int32_t packed = b_.Linear(x, m_.hidden, m_.kv_lora_rank + m_.qk_rope_dim, false);
    const int32_t latent = b_.Norm(true, b_.list().View(packed, {n, m_.kv_lora_rank}), m_.kv_lora_rank);
    const int32_t up = b_.Linear(latent, m_.kv_lora_rank, heads * (m_.qk_nope_dim + m_.v_dim), false);
    // Queries and keys are put together from a part without and one with positions.
    query = b_.Apply("aten::cat", {query}, {n, heads * dim});
    const int32_t key = b_.Apply("aten::cat", {up, packed}, {n, heads * dim});
    const int32_t value = b_.list().View(up, {n, heads * m_.v_dim});
    const int32_t out = b_.Attention(query, key, value, {heads, heads, dim, m_.v_dim});
    return b_.Linear(out, heads * m_.v_dim, m_.hidden, false);
  }

  int32_t Gated(int32_t gate, int32_t up) { return b_.Multiply(b_.Activation(gate, m_.activation), up); }

  int32_t Mlp(int32_t x, uint64_t width) {
    int32_t y;
    if (m_.gated && m_.fused_gate) {
      const int32_t both = b_.Linear(x, m_.hidden, 2 * width, m_.mlp_bias);
      const std::vector<uint64_t> half = {b_.Numel(both) / (2 * width), width};
      y = Gated(b_.list().View(both, half), b_.list().View(both, half));
    } else if (m_.gated) {
      const int32_t gate = b_.Linear(x, m_.hidden, width, m_.mlp_bias);
      y = Gated(gate, b_.Linear(x, m_.hidden, width, m_.mlp_bias));
    } else {
      y = b_.Activation(b_.Linear(x, m_.hidden, width, m_.mlp_bias), m_.activation);
      if (m_.type == "t5") y = b_.Dropout(y, s_.dropout);
    }
    return b_.Linear(y, width, m_.hidden, m_.mlp_bias);
  }

  // Tokens go to their experts in equal numbers, which is what a balancing loss aims at.
  int32_t Experts(int32_t x) {
    const uint64_t n = b_.rows(), width = m_.expert_intermediate / p_.expert_tensor_ranks();
    const uint64_t routed = n * std::max<uint64_t>(m_.experts_per_token, 1);
    const int32_t scores = b_.Cast(b_.Linear(x, m_.hidden, m_.experts, false), "float32");
    const int32_t shares = b_.Apply("aten::_softmax", {scores}, {n, m_.experts});
    const int32_t weights = b_.Apply("aten::topk", {shares}, {n, m_.experts_per_token});
    b_.AddIndices({n, m_.experts_per_token});
    const int32_t gathered = b_.Apply("aten::index", {x, b_.Input({routed}, "int64")}, {routed, m_.hidden});
    const uint64_t experts = std::max<uint64_t>(1, m_.experts / p_.expert);
    const int32_t gate = b_.Grouped(gathered, experts, m_.hidden, 2 * width);
    const std::vector<uint64_t> half = {routed, width};
    const int32_t y =
        b_.Grouped(Gated(b_.list().View(gate, half), b_.list().View(gate, half)), experts, width, m_.hidden);
    const int32_t scaled = b_.Multiply(y, b_.list().View(b_.Cast(weights, b_.TypeOf(y)), {routed, 1}));
    int32_t out = b_.Apply("aten::index_add", {scaled}, {n, m_.hidden});
    if (m_.shared_experts != 0) out = b_.Add(out, Mlp(x, m_.expert_intermediate * m_.shared_experts / s_.tensor));
    return out;
  }

  int32_t FinalNorm(int32_t x) {
    b_.EnterModule("final_norm");
    x = Megatron() ? MegatronNorm(&b_, x, m_.hidden) : Norm(x);
    return m_.type == "t5" ? b_.Dropout(x, s_.dropout) : x;
  }

  void Head(int32_t x) {
    if (m_.final_norm) x = FinalNorm(x);
    b_.EnterModule("head");
    if (Megatron()) {
      Hold(MegatronHead(m_, &b_, x));
      for (uint64_t i = 0; i < m_.mtp_layers; ++i) x = PredictFurther(x, i);
      return;
    }
    if (m_.masked_head) x = Norm(b_.Activation(b_.Linear(x, m_.hidden, m_.hidden, true), m_.activation));
    if (m_.has_logits) {
      int32_t logits = b_.Linear(x, m_.hidden, m_.vocabulary / s_.tensor, m_.masked_head);
      if (m_.logit_softcap) logits = b_.Softcap(logits);
      // transformers computes a causal model's loss in float32; an encoder's and T5's in the type of the logits.
      const bool upcast = !m_.masked_head && m_.type != "t5";
      Hold(logits);
      return Hold(b_.CrossEntropy(logits, upcast));
    }
    if (!m_.pooler && m_.labels == 0) return Hold(x);
    const int32_t first = b_.list().View(x, {s_.batch, m_.hidden});
    if (m_.pooler) {
      Hold(x);
      x = b_.Activation(b_.Linear(first, m_.hidden, m_.hidden, true), "tanh");
    }
    if (m_.labels == 0) return Hold(x);
    const int32_t logits = b_.Linear(m_.pooler ? x : first, m_.hidden, m_.labels, true);
    Hold(logits);
    Hold(b_.CrossEntropy(logits, false));
  }

  // One more layer that predicts the token after the next, with logits and a loss of its own.
  int32_t PredictFurther(int32_t x, uint64_t index) {
    b_.EnterModule(Path("mtp", index));
    const int32_t token = Lookup(std::max<uint64_t>(m_.vocabulary / s_.tensor, 1), b_.norm_rows());
    const int32_t pair = b_.Apply("aten::cat", {MegatronNorm(&b_, token, m_.hidden), MegatronNorm(&b_, x, m_.hidden)},
                                  {b_.norm_rows(), 2 * m_.hidden});
    x = b_.Linear(pair, 2 * m_.hidden, m_.hidden, false);
    x = MegatronLayer(m_, p_, &b_, x, m_.experts != 0, /*encoded=*/-1);
    x = MegatronNorm(&b_, x, m_.hidden);
    Hold(MegatronHead(m_, &b_, x));
    return x;
  }

  const ModelConfig& m_;
  const LayerSettings& s_;
  const Parallelism& p_;
  LayerBuilder b_;
  int32_t encoded_ = -1, bias_ = -1;
  uint64_t encoded_length_ = 0;
  size_t begin_ = 0, cores_seen_ = 0;
  int64_t layers_ = 0;
  std::vector<LayerRange> ranges_;
};

}  // namespace

ForwardGraph BuildForward(const ModelConfig& model, const PartCounts& parts, const LayerSettings& settings,
                          const Parallelism& parallel) {
  return Builder(model, settings, parallel).Run(parts);
}

}  // namespace vramledger
