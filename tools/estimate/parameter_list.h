// The parameter tensors of a model, by architecture.
#ifndef VRAMLEDGER_TOOLS_ESTIMATE_PARAMETER_LIST_H_
#define VRAMLEDGER_TOOLS_ESTIMATE_PARAMETER_LIST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/estimate/model_config.h"

namespace vramledger {

struct ParameterGroup {
  std::string name;
  uint64_t numel = 0;   // of one tensor
  uint64_t copies = 1;  // equal tensors
};

// Empty for torchvision names, of which only the total is known.
std::vector<ParameterGroup> ListParameters(const ModelConfig& model);
uint64_t CountParameters(const ModelConfig& model);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ESTIMATE_PARAMETER_LIST_H_
