#include "tools/estimate/parameter_list.h"

#include <algorithm>
#include <utility>

namespace vramledger {
namespace {

class Lister {
 public:
  explicit Lister(const ModelConfig& m) : m_(m) {}

  std::vector<ParameterGroup> Run() {
    if (m_.type == "torchvision") return {};
    if (m_.type == "t5") {
      T5();
    } else if (m_.type == "vit") {
      Vit();
    } else {
      Embeddings();
      Layers();
      Head();
    }
    return std::move(out_);
  }

 private:
  void Add(std::string name, uint64_t numel, uint64_t copies = 1) {
    if (numel != 0 && copies != 0) out_.push_back({std::move(name), numel, copies});
  }
  void Linear(const std::string& name, uint64_t in, uint64_t out, bool bias, uint64_t copies) {
    Add(name + ".weight", in * out, copies);
    if (bias) Add(name + ".bias", out, copies);
  }
  void Norm(const std::string& name, uint64_t size, uint64_t copies) {
    Add(name + ".weight", size, copies);
    if (!m_.rms_norm) Add(name + ".bias", size, copies);
  }

  void Embeddings() {
    const uint64_t h = m_.hidden;
    Add("embedding.word", m_.vocabulary * h);
    if (m_.type == "bert" || m_.type == "gpt2" || m_.type == "gpt_neo") Add("embedding.position", m_.positions * h);
    if (m_.type == "opt") Add("embedding.position", (m_.positions + 2) * h);
    if (m_.type == "bert") {
      Add("embedding.token_type", m_.token_types * h);
      Norm("embedding.norm", h, 1);
    }
  }

  void Attention(uint64_t n) {
    const uint64_t h = m_.hidden;
    if (m_.kv_lora_rank != 0) {
      const uint64_t q_out = m_.heads * (m_.qk_nope_dim + m_.qk_rope_dim);
      if (m_.q_lora_rank != 0) {
        Linear("attention.q_a", h, m_.q_lora_rank, false, n);
        Norm("attention.q_a_norm", m_.q_lora_rank, n);
        Linear("attention.q_b", m_.q_lora_rank, q_out, false, n);
      } else {
        Linear("attention.q", h, q_out, false, n);
      }
      Linear("attention.kv_a", h, m_.kv_lora_rank + m_.qk_rope_dim, false, n);
      Norm("attention.kv_a_norm", m_.kv_lora_rank, n);
      Linear("attention.kv_b", m_.kv_lora_rank, m_.heads * (m_.qk_nope_dim + m_.v_dim), false, n);
      Linear("attention.out", m_.heads * m_.v_dim, h, false, n);
      return;
    }
    const uint64_t q = m_.heads * m_.head_dim, kv = m_.kv_heads * m_.head_dim;
    const bool fused = m_.type == "gpt2" || m_.type == "gpt_neox" || m_.type == "phi3";
    if (fused) {
      Linear("attention.qkv", h, q + 2 * kv, m_.qkv_bias, n);
    } else {
      Linear("attention.q", h, q, m_.qkv_bias, n);
      Linear("attention.k", h, kv, m_.qkv_bias, n);
      Linear("attention.v", h, kv, m_.qkv_bias, n);
    }
    Linear("attention.out", q, h, m_.out_bias, n);
    if (m_.qk_norm) Add("attention.qk_norm", m_.head_dim, 2 * n);
  }

  void Mlp(const std::string& name, uint64_t intermediate, uint64_t copies) {
    const uint64_t h = m_.hidden;
    if (m_.gated && m_.type == "phi3") {
      Linear(name + ".gate_up", h, 2 * intermediate, false, copies);
    } else {
      if (m_.gated) Linear(name + ".gate", h, intermediate, m_.mlp_bias, copies);
      Linear(name + ".up", h, intermediate, m_.mlp_bias, copies);
    }
    Linear(name + ".down", intermediate, h, m_.mlp_bias, copies);
  }

  void Layers() {
    const uint64_t h = m_.hidden, n = m_.layers;
    Attention(n);
    Norm("norm", h, m_.norms_per_layer * n);
    if (m_.experts == 0) return Mlp("mlp", m_.intermediate, n);
    const uint64_t dense = std::min(m_.dense_first, n), sparse = n - dense;
    Mlp("mlp", m_.intermediate, dense);
    Add("router.weight", h * m_.experts, sparse);
    Mlp("expert", m_.expert_intermediate, sparse * m_.experts);
    if (m_.shared_experts != 0) Mlp("shared_expert", m_.expert_intermediate * m_.shared_experts, sparse);
  }

  void Head() {
    const uint64_t h = m_.hidden;
    if (m_.type == "bert") {
      if (m_.pooler) Linear("pooler", h, h, true, 1);
      return;
    }
    Norm("final_norm", h, 1);
    if (!m_.tied) Add("lm_head.weight", m_.vocabulary * h);
  }

  void T5() {
    const uint64_t h = m_.hidden, inner = m_.heads * m_.head_dim, encoder = m_.layers, decoder = m_.decoder_layers;
    Add("embedding.shared", m_.vocabulary * h);
    const uint64_t attentions = encoder + 2 * decoder;
    Add("attention.q.weight", h * inner, attentions);
    Add("attention.k.weight", h * inner, attentions);
    Add("attention.v.weight", h * inner, attentions);
    Add("attention.out.weight", inner * h, attentions);
    Add("attention.relative_bias", m_.relative_buckets * m_.heads, decoder != 0 ? 2 : 1);
    Linear("mlp.up", h, m_.intermediate, false, encoder + decoder);
    Linear("mlp.down", m_.intermediate, h, false, encoder + decoder);
    Add("norm.weight", h, 2 * encoder + 3 * decoder + (decoder != 0 ? 2 : 1));
    if (!m_.tied) Add("lm_head.weight", m_.vocabulary * h);
  }

  void Vit() {
    const uint64_t h = m_.hidden, side = m_.image / m_.patch;
    Linear("patch", m_.channels * m_.patch * m_.patch, h, true, 1);
    Add("class_token", h);
    Add("embedding.position", (side * side + 1) * h);
    Layers();
    Norm("final_norm", h, 1);
    if (m_.pooler) Linear("pooler", h, h, true, 1);
    Linear("head", h, m_.labels, true, m_.labels != 0 ? 1 : 0);
  }

  const ModelConfig& m_;
  std::vector<ParameterGroup> out_;
};

}  // namespace

std::vector<ParameterGroup> ListParameters(const ModelConfig& model) {
  return Lister(model).Run();
}

uint64_t CountParameters(const ModelConfig& model) {
  if (model.known_parameters != 0) return model.known_parameters;
  uint64_t sum = 0;
  for (const ParameterGroup& g : ListParameters(model)) sum += g.numel * g.copies;
  return sum;
}

}  // namespace vramledger
