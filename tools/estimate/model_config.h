// A model's sizes, from a Hugging Face style config.json, from a file of data/model_configs, or by a torchvision name.
#ifndef VRAMLEDGER_TOOLS_ESTIMATE_MODEL_CONFIG_H_
#define VRAMLEDGER_TOOLS_ESTIMATE_MODEL_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace vramledger {

struct ModelConfig {
  std::string name;
  std::string type;  // "bert", "gpt2", "llama", ... or "torchvision"
  uint64_t hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, intermediate = 0, vocabulary = 0,
           positions = 0;
  uint64_t token_types = 0, norms_per_layer = 2;
  uint64_t experts = 0, experts_per_token = 0, shared_experts = 0, expert_intermediate = 0, dense_first = 0;
  uint64_t kv_lora_rank = 0, q_lora_rank = 0, qk_nope_dim = 0, qk_rope_dim = 0, v_dim = 0;
  uint64_t decoder_layers = 0, relative_buckets = 0;        // t5
  uint64_t image = 0, patch = 0, channels = 0, labels = 0;  // vit
  uint64_t mtp_layers = 0;  // further layers with a head of their own that predict later tokens (arXiv:2412.19437)
  bool tied = false;
  bool pooler = false;
  bool learned_positions = false;  // a table of positions, else rotary or none
  bool rotary = false;
  bool embedding_norm = false;
  bool final_norm = true;
  bool masked_head = false;        // BERT's: a dense layer and a norm before the logits
  bool has_logits = true;          // scores over the vocabulary
  bool parallel_residual = false;  // attention and MLP read the same input
  bool softmax_float32 = true;     // eager attention's softmax
  bool attention_softcap = false, logit_softcap = false;
  bool fused_qkv = false, fused_gate = false;  // one matrix for q, k, v; one for gate and up
  bool attention_module = false;  // torch.nn.MultiheadAttention, as torchvision has it
  bool qk_norm = false;
  bool qkv_bias = false, out_bias = false, mlp_bias = false;
  bool gated = false;  // MLP with a gate: three matrices
  bool rms_norm = false;
  std::string activation;  // "gelu", "gelu_new" (made of many operators), "relu", "silu", "relu2", ...
  double dropout = 0, attention_dropout = 0;
  std::vector<std::string> assumptions;  // defaults that were taken
};

// `json` is a config, or an object that holds one under "config".
absl::StatusOr<ModelConfig> ReadModelConfig(const nlohmann::json& json);
// A torchvision model by its name. The error lists the known ones.
absl::StatusOr<ModelConfig> TorchvisionConfig(const std::string& name);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ESTIMATE_MODEL_CONFIG_H_
