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
  std::string type;               // "bert", "gpt2", "llama", ... or "torchvision"
  uint64_t known_parameters = 0;  // torchvision: only the count is known
  uint64_t hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, intermediate = 0, vocabulary = 0,
           positions = 0;
  uint64_t token_types = 0, norms_per_layer = 2;
  uint64_t experts = 0, experts_per_token = 0, shared_experts = 0, expert_intermediate = 0, dense_first = 0;
  uint64_t kv_lora_rank = 0, q_lora_rank = 0, qk_nope_dim = 0, qk_rope_dim = 0, v_dim = 0;
  uint64_t decoder_layers = 0, relative_buckets = 0;        // t5
  uint64_t image = 0, patch = 0, channels = 0, labels = 0;  // vit
  bool tied = false;
  bool pooler = false;
  bool qk_norm = false;
  bool qkv_bias = false, out_bias = false, mlp_bias = false;
  bool gated = false;  // MLP with a gate: three matrices
  bool rms_norm = false;
  bool composed_activation = false;  // an activation made of many operators (gelu_new)
  double dropout = 0;
  std::vector<std::string> assumptions;  // defaults that were taken
};

// `json` is a config, or an object that holds one under "config".
absl::StatusOr<ModelConfig> ReadModelConfig(const nlohmann::json& json);
// Path of a JSON file, or "torchvision:NAME". Errors are one sentence with the name.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& name_or_path);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ESTIMATE_MODEL_CONFIG_H_
