// torchvision's classification models as operators, from their published layer tables.
#ifndef VRAMLEDGER_TOOLS_ESTIMATE_TORCHVISION_MODELS_H_
#define VRAMLEDGER_TOOLS_ESTIMATE_TORCHVISION_MODELS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/estimate/architectures.h"

namespace vramledger {

std::vector<std::string> TorchvisionNames();
bool IsTorchvisionName(std::string_view name);

// The training forward on images of 224 x 224 with 1,000 classes and a cross entropy. `name` must be known.
ForwardGraph BuildTorchvision(std::string_view name, uint64_t batch, Precision precision);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ESTIMATE_TORCHVISION_MODELS_H_
