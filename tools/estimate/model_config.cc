#include "tools/estimate/model_config.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <utility>

#include "tools/estimate/parameter_list.h"
#include "tools/estimate/torchvision_models.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

using nlohmann::json;

// The first of `keys` that holds a number. Into `wrong`, if it is empty: a sentence on a number that is no count.
uint64_t Number(const json& c, std::initializer_list<const char*> keys, uint64_t fallback, std::string* wrong) {
  for (const char* key : keys) {
    const auto it = c.find(key);
    if (it == c.end() || !it->is_number()) continue;
    const double value = it->get<double>();
    if (value >= 0 && value < 1e15 && value == std::floor(value)) return static_cast<uint64_t>(value);
    if (wrong->empty()) *wrong = Cat("has \"", key, "\": ", it->dump(), ", which is no count");
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

bool IsOneOf(std::string_view what, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), what) != names.end();
}

double Fraction(const json& c, std::initializer_list<const char*> keys, double fallback) {
  for (const char* key : keys) {
    const auto it = c.find(key);
    if (it != c.end() && it->is_number()) return std::clamp(it->get<double>(), 0.0, 1.0);
  }
  return fallback;
}

void SetBiases(const json& c, std::string_view t, ModelConfig* m) {
  const bool biased =
      IsOneOf(t, {"bert", "roberta", "xlm-roberta", "camembert", "distilbert", "gpt2", "opt", "gpt_neox", "vit"});
  m->qkv_bias = m->out_bias = m->mlp_bias = Flag(c, "bias", biased);
  if (t == "gpt_neo") m->qkv_bias = false, m->out_bias = true, m->mlp_bias = true;
  if (t == "qwen2") m->qkv_bias = true, m->out_bias = m->mlp_bias = false;
  if (const auto it = c.find("attention_bias"); it != c.end() && it->is_boolean())
    m->qkv_bias = m->out_bias = it->get<bool>();
  m->qkv_bias = Flag(c, "qkv_bias", m->qkv_bias);
}

// What a family does when the config does not say; the keys are those of its config.json.
void SetFamily(const json& c, ModelConfig* m, std::string* wrong) {
  const std::string& t = m->type;
  const bool bert = IsOneOf(t, {"bert", "roberta", "xlm-roberta", "camembert", "distilbert"});
  SetBiases(c, t, m);
  m->gated = Flag(c, "gated",
                  IsOneOf(t, {"llama", "qwen2", "qwen3", "qwen3_moe", "mixtral", "phi3", "gemma", "gemma2",
                              "deepseek_v2", "deepseek_v3", "mistral"}));
  m->rms_norm = m->gated || t == "t5";
  if (const std::string norm = Text(c, "norm"); !norm.empty()) m->rms_norm = norm == "rmsnorm";
  m->qk_norm = t == "qwen3" || t == "qwen3_moe";
  m->fused_qkv = Flag(c, "fused_qkv", t == "gpt2" || t == "gpt_neox" || t == "phi3" || t == "transformer");
  m->fused_gate = Flag(c, "fused_gate", t == "phi3" || t == "transformer");
  if (t == "gemma2") m->norms_per_layer = 4;
  const auto capped = [&](const char* key) {
    const auto it = c.find(key);
    return it == c.end() ? t == "gemma2" : !it->is_null();
  };
  m->attention_softcap = capped("attn_logit_softcapping");
  m->logit_softcap = capped("final_logit_softcapping");
  m->softmax_float32 = !bert && t != "gpt2" && t != "t5";
  m->parallel_residual = Flag(c, "use_parallel_residual", t == "gpt_neox");
  const bool tied_by_default = bert || IsOneOf(t, {"gpt2", "opt", "gpt_neo", "t5", "gemma", "gemma2"});
  m->tied = Flag(c, "tie_word_embeddings", tied_by_default);
  m->masked_head = Flag(c, "masked_head", false);
  m->has_logits = t == "vit" ? false : !bert || m->masked_head;
  m->pooler = Flag(c, "pooler", bert && t != "distilbert" && !m->masked_head);
  m->embedding_norm = bert;
  m->final_norm = Flag(c, "final_norm", !bert);
  if (bert && t != "distilbert") m->token_types = Number(c, {"type_vocab_size"}, t == "bert" ? 2 : 1, wrong);
  m->token_types = Number(c, {"token_types"}, m->token_types, wrong);
  const std::string position = Text(c, "position_embedding");
  m->learned_positions = bert || IsOneOf(t, {"gpt2", "gpt_neo", "opt"});
  if (t == "transformer" || t == "t5") m->learned_positions = position == "learned";
  m->rotary = t == "transformer" ? position == "rope" : !m->learned_positions && t != "t5" && t != "vit";
  if (t == "opt") m->positions += 2;  // its table begins at offset 2
  m->activation = Text(c, "activation_function");
  for (const char* key : {"hidden_act", "hidden_activation", "activation", "feed_forward_proj"}) {
    if (m->activation.empty()) m->activation = Text(c, key);
  }
  if (m->activation.empty())
    m->activation = m->gated                          ? "silu"
                    : IsOneOf(t, {"gpt2", "gpt_neo"}) ? "gelu_new"
                    : t == "opt" || t == "t5"         ? "relu"
                                                      : "gelu";
  const bool drops = bert || IsOneOf(t, {"gpt2", "opt", "gpt_neo", "t5"});
  const bool says = c.contains("hidden_dropout_prob") || c.contains("resid_pdrop") || c.contains("dropout") ||
                    c.contains("dropout_rate") || c.contains("resid_dropout") || c.contains("hidden_dropout");
  // gpt_neo's own default is no dropout; the others' is 0.1 (their configuration classes in transformers).
  const double fallback = drops && t != "gpt_neo" ? 0.1 : 0;
  m->dropout =
      Fraction(c, {"hidden_dropout_prob", "resid_pdrop", "resid_dropout", "hidden_dropout", "dropout", "dropout_rate"},
               fallback);
  m->attention_dropout =
      Fraction(c, {"attention_probs_dropout_prob", "attn_pdrop", "attention_dropout"}, t == "opt" ? 0 : m->dropout);
  if (drops && !says)
    m->assumptions.push_back(t == "gpt_neo" ? "no dropout (the config does not say)"
                                            : "dropout 0.1 (the config does not say)");
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
  static constexpr std::string_view kTypes[] = {
      "bert",    "camembert", "deepseek_v2", "deepseek_v3", "distilbert",  "gemma", "gemma2",     "gpt2",
      "gpt_neo", "gpt_neox",  "llama",       "mistral",     "mixtral",     "opt",   "phi3",       "qwen2",
      "qwen3",   "qwen3_moe", "roberta",     "t5",          "transformer", "vit",   "xlm-roberta"};
  if (m.type.empty()) return Bad("has no \"model_type\", so it is no Hugging Face style config");
  if (std::find(std::begin(kTypes), std::end(kTypes), m.type) == std::end(kTypes)) {
    std::string list;
    for (const std::string_view known : kTypes) list += (list.empty() ? "" : ", ") + std::string(known);
    return Bad(Cat("describes a \"", m.type, "\" model; known are ", list));
  }
  if (m.name.empty()) m.name = m.type;
  std::string wrong;
  const auto number = [&](std::initializer_list<const char*> keys, uint64_t fallback = 0) { return Number(c, keys, fallback, &wrong); };
  m.hidden = number({"hidden_size", "n_embd", "d_model", "dim"});
  m.layers = number({"num_hidden_layers", "n_layer", "num_layers", "n_layers"});
  m.heads = number({"num_attention_heads", "n_head", "num_heads", "n_heads"});
  if (!wrong.empty()) return Bad(wrong);
  if (m.hidden == 0 || m.layers == 0 || m.heads == 0)
    return Bad("lacks the hidden size, the number of layers or of heads");
  if (m.hidden > (uint64_t{1} << 24) || m.layers > 100000 || m.heads > (uint64_t{1} << 20))
    return Bad("has a size out of range");
  m.kv_heads = number({"num_key_value_heads"}, m.heads);
  m.kv_lora_rank = number({"kv_lora_rank"});
  constexpr uint64_t kNotGiven = ~uint64_t{0};
  m.head_dim = number({"head_dim", "d_kv"}, kNotGiven);
  if (m.head_dim == kNotGiven) {
    if (m.hidden % m.heads != 0 && m.kv_lora_rank == 0)
      return Bad(Cat("has ", m.heads, " heads, which do not divide the hidden size ", m.hidden, ", and no \"head_dim\""));
    m.head_dim = m.hidden / m.heads;
  }
  m.intermediate = number({"intermediate_size", "ffn_dim", "n_inner", "d_ff", "hidden_dim"}, 4 * m.hidden);
  m.vocabulary = number({"vocab_size"});
  m.positions = number({"max_position_embeddings", "n_positions", "n_ctx"});
  m.experts = number({"num_local_experts", "n_routed_experts", "num_experts"});
  m.experts_per_token = number({"num_experts_per_tok"});
  m.shared_experts = number({"n_shared_experts"});
  m.expert_intermediate = number({"moe_intermediate_size"}, m.intermediate);
  m.dense_first = number({"first_k_dense_replace"});
  m.q_lora_rank = number({"q_lora_rank"});
  m.qk_nope_dim = number({"qk_nope_head_dim"});
  m.qk_rope_dim = number({"qk_rope_head_dim"});
  m.v_dim = number({"v_head_dim"});
  m.decoder_layers = number({"num_decoder_layers"}, m.type == "t5" ? m.layers : 0);
  m.relative_buckets = number({"relative_attention_num_buckets"}, m.type == "t5" ? 32 : 0);
  m.image = number({"image_size"}, 224);
  m.patch = number({"patch_size"}, 16);
  m.channels = number({"num_channels"}, 3);
  const auto names = c.find("id2label");
  const uint64_t named = names != c.end() && names->is_object() ? names->size() : 0;
  m.labels = number({"num_labels"}, m.type == "vit" ? (named != 0 ? named : 1000) : 0);
  m.mtp_layers = number({"mtp_layers"});
  if (m.vocabulary == 0 && m.type != "vit") return Bad("lacks the vocabulary's size");
  if (m.patch == 0 || m.kv_heads == 0 || m.head_dim == 0 || m.intermediate == 0) return Bad("has a size of 0");
  if (m.experts != 0 && m.expert_intermediate == 0) return Bad("has experts of width 0");
  if (m.kv_lora_rank != 0 && (m.v_dim == 0 || m.qk_nope_dim + m.qk_rope_dim == 0))
    return Bad(
        "has kv_lora_rank, but lacks the dimensions of its heads (v_head_dim, qk_nope_head_dim, qk_rope_head_dim)");
  SetFamily(c, &m, &wrong);
  if (const auto classes = c.find("architectures"); classes != c.end() && classes->is_array() && !m.has_logits) {
    for (const json& name : *classes) {
      if (!name.is_string() || name.get<std::string>().find("ForMaskedLM") == std::string::npos) continue;
      m.assumptions.push_back(Cat("the config names ", name.get<std::string>(),
                                  ": its head is not counted; with \"masked_head\": true in the config it is"));
    }
  }
  m.norms_per_layer = number({"norms_per_layer"}, m.norms_per_layer);
  m.qk_norm = Flag(c, "qk_norm", m.qk_norm);
  if (!wrong.empty()) return Bad(wrong);
  for (const uint64_t size : {m.kv_heads,
                              m.head_dim,
                              m.intermediate,
                              m.vocabulary,
                              m.positions,
                              m.token_types,
                              m.norms_per_layer,
                              m.experts,
                              m.experts_per_token,
                              m.shared_experts,
                              m.expert_intermediate,
                              m.kv_lora_rank,
                              m.q_lora_rank,
                              m.qk_nope_dim,
                              m.qk_rope_dim,
                              m.v_dim,
                              m.decoder_layers,
                              m.relative_buckets,
                              m.image,
                              m.patch,
                              m.channels,
                              m.labels,
                              m.mtp_layers}) {
    if (size > (uint64_t{1} << 24)) return Bad("has a size out of range");
  }
  // Keeps every product below 2^64.
  double parameters = 0;
  const PartCounts counts = CountParts(m);
  for (const ParameterGroup& g : ListParameters(m))
    parameters += static_cast<double>(g.rows) * static_cast<double>(std::max<uint64_t>(g.columns, 1)) *
                  static_cast<double>(g.copies) * static_cast<double>(counts.Of(g.part));
  if (parameters > 1e14) return Bad("describes more than 10^14 parameters");
  return m;
}

absl::StatusOr<ModelConfig> TorchvisionConfig(const std::string& name) {
  if (name == "vit_b_16") {
    absl::StatusOr<ModelConfig> m = ReadModelConfig(json{{"name", name},
                                                         {"config",
                                                          {{"model_type", "vit"},
                                                           {"hidden_size", 768},
                                                           {"num_hidden_layers", 12},
                                                           {"num_attention_heads", 12},
                                                           {"intermediate_size", 3072},
                                                           {"num_labels", 1000},
                                                           {"pooler", false}}}});
    if (m.ok()) m->attention_module = m->fused_qkv = true;
    return m;
  }
  if (IsTorchvisionName(name)) {
    ModelConfig m;
    m.name = name;
    m.type = "torchvision";
    return m;
  }
  std::string list;
  for (const std::string& known : TorchvisionNames()) list += known + ", ";
  return absl::NotFoundError(Cat("torchvision:", name, ": not known; known are ", list, "vit_b_16"));
}

}  // namespace vramledger
