// What an optimizer keeps for a parameter, and what its step allocates for a while.
#ifndef VRAMLEDGER_TOOLS_ESTIMATE_OPTIMIZER_STATE_H_
#define VRAMLEDGER_TOOLS_ESTIMATE_OPTIMIZER_STATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace vramledger {

enum class OptimizerKind {
  kNone,
  kSgd,
  kMomentum,
  kAdam,
  kAmsgrad,
  kAdamax,
  kNadam,
  kAdagrad,
  kAdadelta,
  kRmsprop,
  kRmspropMomentum,
  kRmspropCentered,
  kRmspropCenteredMomentum,
  kAdafactor,
  kLion,
  kMuon,
  kAdam8bit,
  kMomentum8bit,
  kRmsprop8bit,
  kLion8bit,
  kPagedAdam,
  kPagedAdam8bit,
  kPagedLion8bit,
};

// How the step goes over the parameters: for all at once with lists of temporaries, in one kernel, or one by one.
enum class OptimizerLoop { kForeach, kFused, kSingle };

// Names on the command line, in the order of the enumeration. Class names are found too ("AdamW", "PagedAdamW8bit"),
// whatever their case, '-' and '_'.
std::vector<std::string> OptimizerNames();
std::optional<OptimizerKind> OptimizerFromName(std::string_view name);
std::string_view OptimizerName(OptimizerKind kind);

// The textbook's number of tensors as large as the parameter; absent where the state is factored or quantised.
std::optional<uint64_t> StateCopies(OptimizerKind kind);

// One parameter tensor: [rows, columns], or [rows] when columns is 0.
struct StateTensors {
  uint64_t bytes[4] = {0, 0, 0, 0};  // tensors in the allocator's memory, before rounding
  uint64_t count = 0;
  uint64_t paged_bytes = 0;  // in managed memory, which PyTorch's allocator does not see
};
// `element_bytes` is the size of an element of the state (the optimizer's parameter's type; 4 with master weights).
// `scalar_on_device` adds the step count that fused and capturable optimizers keep on the device.
StateTensors StateOfTensor(OptimizerKind kind, uint64_t rows, uint64_t columns, uint64_t element_bytes,
                           bool scalar_on_device);

// Temporaries of a step: `all` times the bytes of all parameters at once (foreach), plus `largest` times those of the
// largest tensor. `weight_decay` is L2 decay added to the gradient (not AdamW's and Lion's, which scale the parameter).
struct StepTemporaries {
  double all = 0, largest = 0;
};
StepTemporaries TemporariesOfStep(OptimizerKind kind, OptimizerLoop loop, bool weight_decay);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ESTIMATE_OPTIMIZER_STATE_H_
