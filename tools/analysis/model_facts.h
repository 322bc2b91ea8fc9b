// What a trace's metadata says about the models and optimizers of the run, and what the formulas make of it.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_MODEL_FACTS_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_MODEL_FACTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/analysis/metadata.h"

namespace vramledger {

struct TensorSum {
  uint64_t numel = 0;
  uint64_t bytes = 0;
  uint64_t rounded = 0;  // every tensor rounded up to 512 B
  uint64_t tensors = 0;
};

struct ModelFacts {
  std::string name, kind;
  TensorSum parameters, trainable, buffers;
};

struct RunFacts {
  std::vector<ModelFacts> models;
  TensorSum parameters, trainable, buffers;  // over all models
  // Bytes of optimizer state: by the textbook (copies of the parameters), and by the state's own tensors.
  std::optional<uint64_t> textbook_state, analytic_state, analytic_state_rounded;
  std::string state_formula;  // "2 x parameters (AdamW)"
  std::optional<uint64_t> textbook_activation;
  std::string activation_formula;
  std::optional<uint64_t> analytic_activation;
  std::string analytic_note;            // how the analytic activation was computed, or why not
  uint64_t convolution_mismatches = 0;  // layers whose output is not what the formula gives
};

RunFacts ReadRunFacts(const Metadata& metadata);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_MODEL_FACTS_H_
