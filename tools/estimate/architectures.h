// The forward of a model (or of one rank's stage of it) as operators, from its sizes.
#ifndef VRAMLEDGER_TOOLS_ESTIMATE_ARCHITECTURES_H_
#define VRAMLEDGER_TOOLS_ESTIMATE_ARCHITECTURES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/estimate/layer_builder.h"
#include "tools/estimate/model_config.h"
#include "tools/estimate/rank_share.h"

namespace vramledger {

// A stretch of the list.
struct LayerRange {
  size_t begin = 0, end = 0;  // operators [begin, end)
  int64_t layer = -1;         // of the stack, counted from 0: checkpointing may drop what it saves; -1: none
  bool core = false;          // an attention's scores and products
};

struct ForwardGraph {
  OperatorList list;
  std::vector<LayerRange> ranges;  // in order, without gaps
};

// `parts` says what is built: the embedding (or what the previous stage sent), so many layers, the head with its loss.
ForwardGraph BuildForward(const ModelConfig& model, const PartCounts& parts, const LayerSettings& settings,
                          const Parallelism& parallel);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ESTIMATE_ARCHITECTURES_H_
