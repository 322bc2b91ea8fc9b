#include "tools/estimate/parameter_list.h"

#include <algorithm>
#include <utility>

#include "tools/estimate/torchvision_models.h"

namespace vramledger {
namespace {

class Lister {
 public:
  explicit Lister(const ModelConfig& m) : m_(m) {}

  std::vector<ParameterGroup> Run() {
    if (m_.type == "t5") {
      T5();
    } else {
      m_.type == "vit" ? Patches() : Embeddings();
      Layers();
      Head();
    }
    return std::move(out_);
  }

 private:
  void Add(std::string name, uint64_t rows, uint64_t columns, TensorSplit split = TensorSplit::kWhole,
           uint64_t copies = 1) {
    if (rows != 0 && copies != 0) out_.push_back({std::move(name), rows, columns, copies, part_, split});
  }
  // Column-parallel: weight and bias are divided; row-parallel: the bias is whole (arXiv:1909.08053, section 3).
  void Column(const std::string& name, uint64_t in, uint64_t out, bool bias, TensorSplit split = TensorSplit::kTensor,
              uint64_t copies = 1) {
    Add(name + ".weight", out, in, split, copies);
    if (bias) Add(name + ".bias", out, 0, split, copies);
  }
  void Row(const std::string& name, uint64_t in, uint64_t out, bool bias, TensorSplit split = TensorSplit::kTensor,
           uint64_t copies = 1) {
    Add(name + ".weight", out, in, split, copies);
    if (bias)
      Add(name + ".bias", out, 0, split == TensorSplit::kExpert ? TensorSplit::kExpertWhole : TensorSplit::kWhole,
          copies);
  }
  void Norm(const std::string& name, uint64_t size, uint64_t copies = 1) {
    Add(name + ".weight", size, 0, TensorSplit::kWhole, copies);
    if (!m_.rms_norm) Add(name + ".bias", size, 0, TensorSplit::kWhole, copies);
  }

  void Embeddings() {
    part_ = ModelPart::kEmbedding;
    Add("embedding.word", m_.vocabulary, m_.hidden, TensorSplit::kTensor);
    if (m_.learned_positions) Add("embedding.position", m_.positions, m_.hidden);
    Add("embedding.token_type", m_.token_types, m_.hidden);
    if (m_.embedding_norm) Norm("embedding.norm", m_.hidden);
  }

  void Patches() {
    const uint64_t side = m_.image / m_.patch;
    part_ = ModelPart::kEmbedding;
    Column("patch", m_.channels * m_.patch * m_.patch, m_.hidden, true, TensorSplit::kWhole);
    Add("class_token", m_.hidden, 0);
    Add("embedding.position", side * side + 1, m_.hidden);
  }

  void Attention(const std::string& name = "attention") {
    const uint64_t h = m_.hidden;
    if (m_.kv_lora_rank != 0) return LatentAttention();
    const uint64_t q = m_.heads * m_.head_dim, kv = m_.kv_heads * m_.head_dim;
    if (m_.fused_qkv) {
      Column(name + ".qkv", h, q + 2 * kv, m_.qkv_bias);
    } else {
      Column(name + ".q", h, q, m_.qkv_bias);
      Column(name + ".k", h, kv, m_.qkv_bias);
      Column(name + ".v", h, kv, m_.qkv_bias);
    }
    Row(name + ".out", q, h, m_.out_bias);
    if (m_.qk_norm) Norm(name + ".qk_norm", m_.head_dim, 2);
  }

  // DeepSeek's multi-head latent attention (arXiv:2405.04434, section 2.1).
  void LatentAttention() {
    const uint64_t h = m_.hidden, q_out = m_.heads * (m_.qk_nope_dim + m_.qk_rope_dim);
    if (m_.q_lora_rank != 0) {
      Column("attention.q_a", h, m_.q_lora_rank, false, TensorSplit::kWhole);
      Norm("attention.q_a_norm", m_.q_lora_rank);
      Column("attention.q_b", m_.q_lora_rank, q_out, false);
    } else {
      Column("attention.q", h, q_out, false);
    }
    Column("attention.kv_a", h, m_.kv_lora_rank + m_.qk_rope_dim, false, TensorSplit::kWhole);
    Norm("attention.kv_a_norm", m_.kv_lora_rank);
    Column("attention.kv_b", m_.kv_lora_rank, m_.heads * (m_.qk_nope_dim + m_.v_dim), false);
    Row("attention.out", m_.heads * m_.v_dim, h, false);
  }

  void Mlp(const std::string& name, uint64_t intermediate, TensorSplit split = TensorSplit::kTensor,
           uint64_t copies = 1) {
    const uint64_t h = m_.hidden;
    if (m_.gated && m_.fused_gate) {
      Column(name + ".gate_up", h, 2 * intermediate, m_.mlp_bias, split, copies);
    } else {
      if (m_.gated) Column(name + ".gate", h, intermediate, m_.mlp_bias, split, copies);
      Column(name + ".up", h, intermediate, m_.mlp_bias, split, copies);
    }
    Row(name + ".down", intermediate, h, m_.mlp_bias, split, copies);
  }

  void Body(bool sparse) {
    Attention();
    Norm("norm", m_.hidden, m_.norms_per_layer);
    if (!sparse) return Mlp("mlp", m_.intermediate);
    Add("router.weight", m_.experts, m_.hidden);
    Mlp("expert", m_.expert_intermediate, TensorSplit::kExpert, m_.experts);
    if (m_.shared_experts != 0) Mlp("shared_expert", m_.expert_intermediate * m_.shared_experts);
  }

  void Layers() {
    part_ = ModelPart::kDenseLayer;
    Body(false);
    if (m_.experts == 0) return;
    part_ = ModelPart::kSparseLayer;
    Body(true);
  }

  void Head() {
    const uint64_t h = m_.hidden;
    part_ = ModelPart::kHead;
    if (m_.final_norm) Norm("final_norm", h);
    if (m_.masked_head) {
      Column("lm_head.dense", h, h, true, TensorSplit::kWhole);
      Norm("lm_head.norm", h);
      Add("lm_head.bias", m_.vocabulary, 0, TensorSplit::kTensor);
    }
    if (m_.pooler) Column("pooler", h, h, true, TensorSplit::kWhole);
    if (m_.has_logits && !m_.tied) Add("lm_head.weight", m_.vocabulary, h, TensorSplit::kTensor);
    if (m_.labels != 0) Column("head", h, m_.labels, true, TensorSplit::kWhole);
    // Multi-token prediction: a norm of the hidden state and one of the next token's embedding, a projection of both,
    // a layer and its final norm; embedding and head are the model's (arXiv:2412.19437, section 2.2).
    for (uint64_t i = 0; i < m_.mtp_layers; ++i) {
      Norm("mtp.norm", h, 3);
      Column("mtp.projection", 2 * h, h, false);
      Body(m_.experts != 0);
    }
  }

  void T5() {
    Embeddings();
    Add("attention.relative_bias", m_.relative_buckets, m_.heads, TensorSplit::kWhole, m_.decoder_layers != 0 ? 2 : 1);
    part_ = ModelPart::kDenseLayer;
    Attention();
    Norm("norm", m_.hidden, 2);
    Mlp("mlp", m_.intermediate);
    part_ = ModelPart::kDecoderLayer;
    Attention();
    Attention("cross_attention");
    Norm("norm", m_.hidden, 3);
    Mlp("mlp", m_.intermediate);
    part_ = ModelPart::kHead;
    Norm("final_norm", m_.hidden, m_.decoder_layers != 0 ? 2 : 1);
    if (m_.masked_head) Add("lm_head.bias", m_.vocabulary, 0, TensorSplit::kTensor);
    if (!m_.tied) Add("lm_head.weight", m_.vocabulary, m_.hidden, TensorSplit::kTensor);
  }

  const ModelConfig& m_;
  ModelPart part_ = ModelPart::kEmbedding;
  std::vector<ParameterGroup> out_;
};

}  // namespace

uint64_t PartCounts::Of(ModelPart part) const {
  switch (part) {
    case ModelPart::kEmbedding:
      return embedding;
    case ModelPart::kDenseLayer:
      return dense;
    case ModelPart::kSparseLayer:
      return sparse;
    case ModelPart::kDecoderLayer:
      return decoder;
    case ModelPart::kHead:
      return head;
  }
  return 0;
}

PartCounts CountParts(const ModelConfig& model) {
  PartCounts out;
  out.dense = model.experts == 0 ? model.layers : std::min(model.dense_first, model.layers);
  out.sparse = model.layers - out.dense;
  out.decoder = model.decoder_layers;
  return out;
}

std::vector<ParameterGroup> ListParameters(const ModelConfig& model) {
  if (model.type == "torchvision") {
    std::vector<ParameterGroup> out;
    const ForwardGraph graph = BuildTorchvision(model.name, 1, Precision::kFloat32);
    std::vector<bool> seen(graph.list.storages.size());
    for (const OperatorTensor& t : graph.list.tensors) {
      const auto storage = static_cast<size_t>(t.storage);
      if (graph.list.storages[storage].role != TensorRole::kParameter || seen[storage]) continue;
      seen[storage] = true;
      uint64_t columns = t.shape.size() < 2 ? 0 : 1;
      for (size_t d = 1; d < t.shape.size(); ++d) columns *= t.shape[d];
      out.push_back({"", t.shape[0], columns});
    }
    return out;
  }
  return Lister(model).Run();
}

uint64_t CountParameters(const ModelConfig& model) {
  const PartCounts counts = CountParts(model);
  uint64_t sum = 0;
  for (const ParameterGroup& g : ListParameters(model)) sum += g.numel() * g.copies * counts.Of(g.part);
  return sum;
}

}  // namespace vramledger
