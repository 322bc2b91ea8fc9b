#include "tools/estimate/megatron_layers.h"

#include <algorithm>

namespace vramledger {
namespace {

class Layer {
 public:
  Layer(const ModelConfig& m, const Parallelism& p, LayerBuilder* b) : m_(m), p_(p), b_(*b), s_(b->settings()) {}

  int32_t Run(int32_t x, bool sparse, int32_t encoded) {
    x = Residual(x, SelfAttention(Norm(x)));
    if (encoded >= 0) x = Residual(x, CrossAttention(Norm(x), encoded));
    return Residual(x, sparse ? Experts(Norm(x)) : Mlp(Norm(x), m_.intermediate / s_.tensor));
  }

 private:
  uint64_t Heads() const { return m_.heads / s_.tensor; }
  uint64_t KeyHeads() const { return std::max<uint64_t>(1, m_.kv_heads / s_.tensor); }
  int32_t Norm(int32_t x) { return MegatronNorm(&b_, x, m_.hidden); }
  // The fused bias, dropout and sum keep the mask alone.
  int32_t Residual(int32_t x, int32_t y) { return b_.Add(x, b_.Dropout(y, s_.dropout)); }

  // Its input is kept as it came (a share of the sequence, where that is divided) and gathered again in the backward.
  int32_t Column(int32_t x, uint64_t in, uint64_t out, uint64_t rows) {
    const int32_t weight = b_.Parameter({out, in});
    const int32_t flat = b_.list().View(x, {b_.Numel(x) / in, in});
    return b_.Apply("aten::mm", {flat, b_.list().View(weight, {in, out})}, {rows, out});
  }
  int32_t Row(int32_t x, uint64_t in) {
    const int32_t weight = b_.Parameter({m_.hidden, in});
    return b_.Apply("aten::mm", {x, b_.list().View(weight, {in, m_.hidden})}, {b_.norm_rows(), m_.hidden});
  }

  int32_t Core(int32_t q, int32_t k, int32_t v, uint64_t dim, uint64_t v_dim, uint64_t kv_heads, uint64_t queries,
               uint64_t keys) {
    const std::vector<uint64_t> out_shape = {s_.batch * queries, Heads() * v_dim};
    if (s_.attention != AttentionKernel::kEager)
      return b_.Attention(q, k, v, {Heads(), kv_heads, dim, v_dim, queries, keys});
    const std::vector<uint64_t> matrix = {s_.batch * Heads(), queries, keys};
    b_.BeginCore();
    const int32_t scores = b_.Fused("ScaledScores", {q, k}, q, matrix);
    const int32_t weights = b_.Apply("aten::_softmax", {scores}, matrix);
    const int32_t out = b_.Fused("Context", {b_.Dropout(weights, s_.attention_dropout), v}, v, out_shape);
    b_.EndCore();
    return out;
  }

  int32_t SelfAttention(int32_t x) {
    const uint64_t n = b_.rows();
    if (m_.kv_lora_rank != 0) return LatentAttention(x);
    const uint64_t q = Heads() * m_.head_dim, kv = KeyHeads() * m_.head_dim;
    const int32_t all = Column(x, m_.hidden, q + 2 * kv, n);
    int32_t query = b_.list().View(all, {n, q}), key = b_.list().View(all, {n, kv});
    const int32_t value = b_.list().View(all, {n, kv});
    if (m_.qk_norm) query = MegatronNorm(&b_, query, m_.head_dim), key = MegatronNorm(&b_, key, m_.head_dim);
    // The parts of the fused projection are copied apart.
    query = b_.Apply("aten::clone", {query}, {n, q});
    key = b_.Apply("aten::clone", {key}, {n, kv});
    const int32_t v = b_.Apply("aten::clone", {value}, {n, kv});
    return Row(Core(query, key, v, m_.head_dim, m_.head_dim, KeyHeads(), s_.sequence, s_.sequence), q);
  }

  int32_t CrossAttention(int32_t x, int32_t encoded) {
    const uint64_t q = Heads() * m_.head_dim, kv = KeyHeads() * m_.head_dim;
    const uint64_t n = b_.rows(),
                   keys = b_.Numel(encoded) / m_.hidden / s_.batch * (s_.sequence_parallel ? s_.tensor : 1);
    const int32_t query = Column(x, m_.hidden, q, n);
    const int32_t both = Column(encoded, m_.hidden, 2 * kv, s_.batch * keys);
    const int32_t k = b_.Apply("aten::clone", {both}, {s_.batch * keys, kv});
    const int32_t v = b_.Apply("aten::clone", {both}, {s_.batch * keys, kv});
    return Row(Core(query, k, v, m_.head_dim, m_.head_dim, KeyHeads(), s_.sequence, keys), q);
  }

  int32_t LatentAttention(int32_t x) {
    const uint64_t n = b_.rows(), dim = m_.qk_nope_dim + m_.qk_rope_dim;
    int32_t query = x;
    uint64_t in = m_.hidden;
    if (m_.q_lora_rank != 0) {
      query = MegatronNorm(&b_, Column(x, m_.hidden, m_.q_lora_rank, b_.norm_rows()), m_.q_lora_rank);
      in = m_.q_lora_rank;
    }
    query = b_.Apply("aten::cat", {Column(query, in, Heads() * dim, n)}, {n, Heads() * dim});
    const int32_t packed = Column(x, m_.hidden, m_.kv_lora_rank + m_.qk_rope_dim, b_.norm_rows());
    const int32_t latent =
        MegatronNorm(&b_, b_.Apply("aten::clone", {packed}, {b_.norm_rows(), m_.kv_lora_rank}), m_.kv_lora_rank);
    const int32_t up = Column(latent, m_.kv_lora_rank, Heads() * (m_.qk_nope_dim + m_.v_dim), n);
    const int32_t key = b_.Apply("aten::cat", {up}, {n, Heads() * dim});
    const int32_t value = b_.Apply("aten::clone", {up}, {n, Heads() * m_.v_dim});
    return Row(Core(query, key, value, dim, m_.v_dim, Heads(), s_.sequence, s_.sequence), Heads() * m_.v_dim);
  }

  // The fused gate keeps its input; the other activations are computed from theirs.
  int32_t Activate(int32_t x, uint64_t rows, uint64_t width) { return b_.Fused("Activation", {x}, x, {rows, width}); }

  int32_t Mlp(int32_t x, uint64_t width) {
    const uint64_t n = b_.rows();
    const int32_t up = Column(x, m_.hidden, (m_.gated ? 2 : 1) * width, n);
    return Row(Activate(up, n, width), width);
  }

  // Tokens in equal numbers on every expert: each rank's experts take experts_per_token times the tokens of one rank
  // (arXiv:2101.03961, section 2.2, with a capacity factor of 1).
  int32_t Experts(int32_t x) {
    const uint64_t etp = p_.expert_tensor_ranks(), width = m_.expert_intermediate / etp;
    // Ranks of a tensor group hold different tokens where the expert layers are not divided as the others.
    const uint64_t tokens = b_.rows() / s_.tensor * etp, routed = tokens * std::max<uint64_t>(m_.experts_per_token, 1);
    const uint64_t own = b_.norm_rows();
    const int32_t flat = b_.list().View(x, {own, m_.hidden});
    const int32_t scores = b_.Fused("Router", {flat}, flat, {own, m_.experts}, "float32");
    const int32_t shares = b_.Apply("aten::_softmax", {scores}, {own, m_.experts});
    const int32_t sent = b_.Fused("Permute", {shares}, flat, {routed, m_.hidden});
    const uint64_t experts = std::max<uint64_t>(1, m_.experts / p_.expert), up_width = (m_.gated ? 2 : 1) * width;
    const int32_t up =
        b_.Apply("aten::_grouped_mm", {sent, b_.Parameter({experts, m_.hidden, up_width})}, {routed, up_width});
    const int32_t act = Activate(up, routed, width);
    const int32_t down =
        b_.Apply("aten::_grouped_mm", {act, b_.Parameter({experts, width, m_.hidden})}, {routed, m_.hidden});
    int32_t out = b_.Fused("Unpermute", {down}, down, {own, m_.hidden});
    if (m_.shared_experts != 0) out = b_.Add(out, Mlp(x, m_.expert_intermediate * m_.shared_experts / s_.tensor));
    return out;
  }

  const ModelConfig& m_;
  const Parallelism& p_;
  LayerBuilder& b_;
  const LayerSettings& s_;
};

}  // namespace

int32_t MegatronNorm(LayerBuilder* b, int32_t x, uint64_t width) {
  const int32_t weight = b->Parameter({width});
  const int32_t out = b->Apply("aten::native_layer_norm", {x, weight, b->Parameter({width})}, b->ShapeOf(x));
  b->list().AddOutput({b->Numel(x) / width, 1}, "float32");
  b->list().AddOutput({b->Numel(x) / width, 1}, "float32");
  return out;
}

int32_t MegatronLayer(const ModelConfig& m, const Parallelism& p, LayerBuilder* b, int32_t x, bool sparse,
                      int32_t encoded) {
  return Layer(m, p, b).Run(x, sparse, encoded);
}

int32_t MegatronHead(const ModelConfig& m, LayerBuilder* b, int32_t x) {
  const LayerSettings& s = b->settings();
  if (m.masked_head && m.type != "t5") {
    const int32_t dense = b->Linear(x, m.hidden, m.hidden, true);
    x = MegatronNorm(b, b->Fused("Activation", {dense}, dense, b->ShapeOf(dense)), m.hidden);
  }
  const uint64_t classes = m.vocabulary / s.tensor;
  const int32_t weight = b->Parameter({classes, m.hidden});
  const int32_t flat = b->list().View(x, {b->Numel(x) / m.hidden, m.hidden});
  const int32_t logits =
      b->Apply("aten::mm", {flat, b->list().View(weight, {m.hidden, classes})}, {b->rows(), classes});
  const int32_t wide = b->Cast(logits, "float32");
  // The exponentials are written over the float32 copy, which is kept as the softmax.
  const int32_t loss = b->Fused("VocabParallelCrossEntropy", {wide}, wide, {b->rows()}, "float32");
  return loss;
}

}  // namespace vramledger
