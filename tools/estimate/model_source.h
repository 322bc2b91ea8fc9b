// Where a model's description comes from: a config, a torchvision name, an ONNX file, recorded operators.
#ifndef VRAMLEDGER_TOOLS_ESTIMATE_MODEL_SOURCE_H_
#define VRAMLEDGER_TOOLS_ESTIMATE_MODEL_SOURCE_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "tools/estimate/memory_estimate.h"

namespace vramledger {

struct ModelSource {
  std::optional<ModelConfig> config;
  std::optional<ForwardGraph> graph;  // where there is no config: batch and precision are the graph's own
  std::string graph_name;
  std::optional<uint64_t> graph_batch, graph_sequence;  // of the recorded inputs, where the list says so
  std::vector<std::string> assumptions;

  const std::string& name() const { return config ? config->name : graph_name; }
  std::string type() const { return config ? config->type : "operators"; }
  bool has_sequence() const { return config && config->type != "torchvision" && config->type != "vit"; }
};

// A path, or torchvision:NAME. Errors are one sentence with the name.
absl::StatusOr<ModelSource> LoadModel(const std::string& name_or_path);

// One sentence where the settings do not fit the model.
absl::Status CheckSettings(const ModelSource& model, const EstimateSettings& settings);

MemoryEstimate EstimateMemory(const ModelSource& model, const EstimateSettings& settings);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ESTIMATE_MODEL_SOURCE_H_
