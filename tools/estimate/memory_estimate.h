// Memory of a training step from a model's sizes alone: the textbook's formulas beside an account of what is saved.
#ifndef VRAMLEDGER_TOOLS_ESTIMATE_MEMORY_ESTIMATE_H_
#define VRAMLEDGER_TOOLS_ESTIMATE_MEMORY_ESTIMATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/estimate/model_config.h"

namespace vramledger {

enum class OptimizerKind { kNone, kSgd, kMomentum, kAdam };
// "adamw", "adam", "sgd", "momentum"; and class names such as "AdamW", "SGD" (with or without momentum: see
// StateCopies).
std::optional<OptimizerKind> OptimizerFromName(std::string_view name);
// Tensors of state for each parameter.
uint64_t StateCopies(OptimizerKind kind);

struct EstimateSettings {
  uint64_t batch = 1;
  uint64_t sequence = 128;
  uint64_t element_bytes = 4;
  OptimizerKind optimizer = OptimizerKind::kAdam;
};

// Sizes in bytes; absent = not known by this method.
struct EstimateColumn {
  std::optional<uint64_t> parameter, buffer, gradient, optimizer_state, activation;
};

struct MemoryEstimate {
  uint64_t parameters = 0;
  EstimateColumn textbook, analytic;
  std::optional<uint64_t> peak, low, high;
  std::vector<std::string> assumptions;
};

MemoryEstimate EstimateMemory(const ModelConfig& model, const EstimateSettings& settings);

// ---- the textbook's formulas, each as it is printed in courses and blogs ----

// (in + 2 pad - kernel) / stride + 1
uint64_t ConvolutionOutput(uint64_t in, uint64_t kernel, uint64_t stride, uint64_t pad);
// One hidden state for each layer: batch x sequence x hidden x layers x element size.
uint64_t TextbookTransformerActivations(uint64_t batch, uint64_t sequence, uint64_t hidden, uint64_t layers,
                                        uint64_t element_bytes);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ESTIMATE_MEMORY_ESTIMATE_H_
