// What Megatron-LM's layers keep for the backward, by the account of arXiv:2205.05198 (section 4.1: 34 s b h bytes a
// layer in 16 bits, and 5 a s^2 b of attention that is not fused) carried on to grouped queries, gated MLPs, latent
// attention and routed experts.
#ifndef VRAMLEDGER_TOOLS_ESTIMATE_MEGATRON_LAYERS_H_
#define VRAMLEDGER_TOOLS_ESTIMATE_MEGATRON_LAYERS_H_

#include "tools/estimate/layer_builder.h"
#include "tools/estimate/model_config.h"
#include "tools/estimate/rank_share.h"

namespace vramledger {

// `encoded` is the encoder's output for a decoder layer with cross attention, else -1.
int32_t MegatronLayer(const ModelConfig& model, const Parallelism& parallel, LayerBuilder* builder, int32_t x,
                      bool sparse, int32_t encoded);
int32_t MegatronNorm(LayerBuilder* builder, int32_t x, uint64_t width);
// Logits of a share of the vocabulary, and the loss of the vocabulary-parallel cross entropy, which keeps the softmax
// in float32. Returns the loss.
int32_t MegatronHead(const ModelConfig& model, LayerBuilder* builder, int32_t x);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ESTIMATE_MEGATRON_LAYERS_H_
