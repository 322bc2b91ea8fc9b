// The parameter tensors of a model, by architecture, with what parallelism needs to know of each.
#ifndef VRAMLEDGER_TOOLS_ESTIMATE_PARAMETER_LIST_H_
#define VRAMLEDGER_TOOLS_ESTIMATE_PARAMETER_LIST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/estimate/model_config.h"

namespace vramledger {

// Where in the model a tensor stands. A dense layer has one MLP, a sparse one has routed experts; a decoder layer is
// one of an encoder-decoder model (the encoder's are dense).
enum class ModelPart { kEmbedding, kDenseLayer, kSparseLayer, kDecoderLayer, kHead };
inline constexpr ModelPart kModelParts[] = {ModelPart::kEmbedding, ModelPart::kDenseLayer, ModelPart::kSparseLayer,
                                            ModelPart::kDecoderLayer, ModelPart::kHead};

// What tensor and expert parallelism do with a tensor: every rank holds it whole, holds a part of it, or holds some of
// the experts (each of them divided once more by expert tensor parallelism).
enum class TensorSplit { kWhole, kTensor, kExpert, kExpertWhole };

struct ParameterGroup {
  std::string name;
  uint64_t rows = 0, columns = 0;  // one tensor: [rows] when columns is 0
  uint64_t copies = 1;             // equal tensors in one part (in one layer)
  ModelPart part = ModelPart::kEmbedding;
  TensorSplit split = TensorSplit::kWhole;

  uint64_t numel() const { return columns == 0 ? rows : rows * columns; }
};

// How often each part stands in the model (or in one rank's stage of it).
struct PartCounts {
  uint64_t embedding = 1, dense = 0, sparse = 0, decoder = 0, head = 1;

  uint64_t Of(ModelPart part) const;
};
PartCounts CountParts(const ModelConfig& model);

std::vector<ParameterGroup> ListParameters(const ModelConfig& model);
uint64_t CountParameters(const ModelConfig& model);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ESTIMATE_PARAMETER_LIST_H_
