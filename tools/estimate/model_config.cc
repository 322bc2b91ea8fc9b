#include "tools/estimate/model_config.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "tools/foreign/file_bytes.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

using nlohmann::json;

// Parameter counts of torchvision's classification models with 1000 classes, as its documentation publishes them.
constexpr std::pair<std::string_view, uint64_t> kTorchvision[] = {
    {"alexnet", 61100840},     {"convnext_base", 88591464}, {"densenet121", 7978856}, {"efficientnet_b0", 5288548},
    {"mobilenet_v2", 3504872}, {"resnet101", 44549160},     {"resnet152", 60192808},  {"resnet18", 11689512},
    {"resnet34", 21797672},    {"resnet50", 25557032},      {"vgg16", 138357544},     {"vgg19", 143667240},
    {"vit_b_16", 86567656}};

uint64_t Number(const json& c, std::initializer_list<const char*> keys, uint64_t fallback = 0) {
  for (const char* key : keys) {
    const auto it = c.find(key);
    if (it != c.end() && it->is_number_unsigned()) return it->get<uint64_t>();
  }
  return fallback;
}

bool Flag(const json& c, const char* key, bool fallback) {
  const auto it = c.find(key);
  return it != c.end() && it->is_boolean() ? it->get<bool>() : fallback;
}

std::string Text(const json& c, const char* key) {
  const auto it = c.find(key);
  return it != c.end() && it->is_string() ? it->get<std::string>() : std::string();
}

// What a family does when the config does not say; the keys are those of its config.json.
void SetFamily(const json& c, ModelConfig* m) {
  const std::string& t = m->type;
  const bool biased = t == "bert" || t == "gpt2" || t == "opt" || t == "gpt_neox" || t == "vit" || t == "gpt_neo";
  m->qkv_bias = m->out_bias = m->mlp_bias = Flag(c, "bias", biased);
  if (t == "gpt_neo") m->qkv_bias = false, m->out_bias = true, m->mlp_bias = true;
  if (t == "qwen2") m->qkv_bias = true, m->out_bias = m->mlp_bias = false;
  if (t == "qwen3") m->qk_norm = true;
  if (const auto it = c.find("attention_bias"); it != c.end() && it->is_boolean())
    m->qkv_bias = m->out_bias = it->get<bool>();
  m->gated = t == "llama" || t == "qwen2" || t == "qwen3" || t == "mixtral" || t == "phi3" || t == "gemma2" ||
             t == "deepseek_v2" || t == "mistral";
  m->rms_norm = m->gated || t == "t5";
  if (t == "gemma2") m->norms_per_layer = 4;
  const bool tied_by_default = t == "bert" || t == "gpt2" || t == "opt" || t == "gpt_neo" || t == "t5" || t == "gemma2";
  m->tied = Flag(c, "tie_word_embeddings", tied_by_default);
  m->pooler = Flag(c, "pooler", t == "bert");
  if (t == "bert") m->token_types = Number(c, {"type_vocab_size"}, 2);
  const std::string activation = Text(c, t == "gpt2" || t == "gpt_neo" ? "activation_function" : "hidden_act");
  m->composed_activation = activation == "gelu_new" || Text(c, "hidden_act") == "gelu_new" ||
                           ((t == "gpt2" || t == "gpt_neo") && activation.empty() && Text(c, "hidden_act").empty());
  for (const char* key : {"hidden_dropout_prob", "resid_pdrop", "dropout", "attention_dropout"}) {
    const auto it = c.find(key);
    if (it != c.end() && it->is_number()) m->dropout = std::max(m->dropout, it->get<double>());
  }
  if (!m->rms_norm && m->dropout == 0 && !c.contains("hidden_dropout_prob") && !c.contains("resid_pdrop") &&
      !c.contains("dropout") && t != "gpt_neox" && t != "vit") {
    m->dropout = 0.1;
    m->assumptions.push_back("dropout 0.1 (the config does not say)");
  }
}

absl::Status Bad(std::string_view what) {
  return absl::InvalidArgumentError(std::string(what));
}

}  // namespace

absl::StatusOr<ModelConfig> ReadModelConfig(const json& outer) {
  if (!outer.is_object()) return Bad("is no JSON object");
  const json& c = outer.contains("config") && outer["config"].is_object() ? outer["config"] : outer;
  ModelConfig m;
  m.name = Text(outer, "name");
  m.type = Text(c, "model_type");
  static constexpr std::string_view kTypes[] = {"bert",     "deepseek_v2", "gemma2",  "gpt2",    "gpt_neo",
                                                "gpt_neox", "llama",       "mistral", "mixtral", "opt",
                                                "phi3",     "qwen2",       "qwen3",   "t5",      "vit"};
  if (m.type.empty()) return Bad("has no \"model_type\", so it is no Hugging Face style config");
  if (std::find(std::begin(kTypes), std::end(kTypes), m.type) == std::end(kTypes)) {
    return Bad(Cat("describes a \"", m.type,
                   "\" model; known are bert, deepseek_v2, gemma2, gpt2, gpt_neo, gpt_neox, llama, mistral, mixtral, "
                   "opt, phi3, qwen2, qwen3, t5, vit"));
  }
  if (m.name.empty()) m.name = m.type;
  m.hidden = Number(c, {"hidden_size", "n_embd", "d_model"});
  m.layers = Number(c, {"num_hidden_layers", "n_layer", "num_layers"});
  m.heads = Number(c, {"num_attention_heads", "n_head", "num_heads"});
  if (m.hidden == 0 || m.layers == 0 || m.heads == 0)
    return Bad("lacks the hidden size, the number of layers or of heads");
  if (m.hidden > (uint64_t{1} << 24) || m.layers > 100000 || m.heads > (uint64_t{1} << 20))
    return Bad("has a size out of range");
  m.kv_heads = Number(c, {"num_key_value_heads"}, m.heads);
  m.head_dim = Number(c, {"head_dim", "d_kv"}, m.hidden / m.heads);
  m.intermediate = Number(c, {"intermediate_size", "ffn_dim", "n_inner", "d_ff"}, 4 * m.hidden);
  m.vocabulary = Number(c, {"vocab_size"});
  m.positions = Number(c, {"max_position_embeddings", "n_positions", "n_ctx"});
  m.experts = Number(c, {"num_local_experts", "n_routed_experts"});
  m.experts_per_token = Number(c, {"num_experts_per_tok"});
  m.shared_experts = Number(c, {"n_shared_experts"});
  m.expert_intermediate = Number(c, {"moe_intermediate_size"}, m.intermediate);
  m.dense_first = Number(c, {"first_k_dense_replace"});
  m.kv_lora_rank = Number(c, {"kv_lora_rank"});
  m.q_lora_rank = Number(c, {"q_lora_rank"});
  m.qk_nope_dim = Number(c, {"qk_nope_head_dim"});
  m.qk_rope_dim = Number(c, {"qk_rope_head_dim"});
  m.v_dim = Number(c, {"v_head_dim"});
  m.decoder_layers = Number(c, {"num_decoder_layers"}, m.type == "t5" ? m.layers : 0);
  m.relative_buckets = Number(c, {"relative_attention_num_buckets"}, m.type == "t5" ? 32 : 0);
  m.image = Number(c, {"image_size"}, 224);
  m.patch = Number(c, {"patch_size"}, 16);
  m.channels = Number(c, {"num_channels"}, 3);
  m.labels = Number(c, {"num_labels"}, m.type == "vit" ? 1000 : 0);
  if (m.vocabulary == 0 && m.type != "vit") return Bad("lacks the vocabulary's size");
  if (m.patch == 0 || m.kv_heads == 0 || m.head_dim == 0) return Bad("has a size of 0");
  SetFamily(c, &m);
  m.norms_per_layer = Number(c, {"norms_per_layer"}, m.norms_per_layer);
  m.qk_norm = Flag(c, "qk_norm", m.qk_norm);
  return m;
}

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& name_or_path) {
  constexpr std::string_view kPrefix = "torchvision:";
  if (std::string_view(name_or_path).starts_with(kPrefix)) {
    const std::string name = name_or_path.substr(kPrefix.size());
    for (const auto& [known, count] : kTorchvision) {
      if (known != name) continue;
      ModelConfig m;
      m.name = name;
      m.type = "torchvision";
      m.known_parameters = count;
      return m;
    }
    std::string list;
    for (const auto& known : kTorchvision) list += Cat(list.empty() ? "" : ", ", known.first);
    return absl::NotFoundError(Cat(name_or_path, ": not known; known are ", list));
  }
  absl::StatusOr<std::string> text = ReadFile(name_or_path, uint64_t{64} << 20);
  if (!text.ok()) return absl::NotFoundError(Cat(name_or_path, ": ", std::string(text.status().message())));
  const json parsed = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) return Bad(Cat(name_or_path, ": is no JSON"));
  absl::StatusOr<ModelConfig> m = ReadModelConfig(parsed);
  if (!m.ok()) return Bad(Cat(name_or_path, ": ", std::string(m.status().message())));
  return m;
}

}  // namespace vramledger
