// ONNX files as operators.
#ifndef VRAMLEDGER_TOOLS_ESTIMATE_ONNX_MODEL_H_
#define VRAMLEDGER_TOOLS_ESTIMATE_ONNX_MODEL_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/estimate/operators.h"

namespace vramledger {

// The graph's nodes as operators, its initializers as parameters. Dimensions that the file leaves open are taken as 1,
// which is said in `assumptions`. Errors are one sentence without the file's name.
absl::StatusOr<OperatorList> ReadOnnx(std::string_view bytes, std::vector<std::string>* assumptions);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ESTIMATE_ONNX_MODEL_H_
