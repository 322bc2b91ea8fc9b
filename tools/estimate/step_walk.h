// The time line of a training step over its operators: what lives while the forward, the recomputation and the backward
// run, and where the highest point is.
#ifndef VRAMLEDGER_TOOLS_ESTIMATE_STEP_WALK_H_
#define VRAMLEDGER_TOOLS_ESTIMATE_STEP_WALK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/estimate/architectures.h"

namespace vramledger {

struct WalkSettings {
  // Ranges (indices of ForwardGraph::ranges) that keep only what they read from outside and are computed again.
  std::vector<bool> checkpointed;
  // Gradients of parameters stay once made; else each is added to a buffer that stands already, and goes.
  bool keep_parameter_gradients = true;
  bool forward_only = false;
};

// Bytes of blocks, as fresh ones (block_size.h).
struct WalkPoint {
  uint64_t bytes = 0;
  std::string phase;   // "forward", "recompute", "backward"
  std::string module;  // of the operator
  std::string name;    // of the operator
  // What the bytes are: saved for the backward; gradients of activations and what the operator itself makes; gradients
  // of parameters; autocast's copies of parameters.
  uint64_t activation = 0, temporary = 0, parameter_gradient = 0, cast_cache = 0;
};

struct StepWalk {
  uint64_t saved = 0, cast_cache = 0;  // when the backward begins: as FindSavedActivations counts, rounded to 512
  uint64_t requested_saved = 0;        // the same, unrounded
  uint64_t held = 0;                   // of it what the program holds: outputs, the loss; in blocks
  uint64_t parameter_gradients = 0;    // all that the backward makes
  WalkPoint forward, backward;         // the highest points; backward includes the recomputation
  const WalkPoint& highest() const { return backward.bytes > forward.bytes ? backward : forward; }
  std::vector<std::string> not_covered;  // operators of which it is not known what they save
};

// The tensor that is an operator's bias, whose gradient is a sum over the rows of its output's; -1 = it has none.
int32_t BiasOf(const Operator& op);

StepWalk WalkStep(const ForwardGraph& graph, const WalkSettings& settings);

// all: each layer keeps its input only. every: stretches of `every` layers do. sqrt: stretches of the square root of
// the number of layers (arXiv:1604.06174, section 4.1). selective: the attention's scores and products are computed
// again (arXiv:2205.05198, section 5).
enum class Checkpointing { kNone, kAll, kEvery, kSqrt, kSelective };
// Joins the graph's ranges to the stretches that are dropped, and returns which ranges these are.
std::vector<bool> PlanCheckpoints(Checkpointing kind, uint64_t every, ForwardGraph* graph);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ESTIMATE_STEP_WALK_H_
