// Activation checkpointing as advice: the blocks of a list of equal modules keep their inputs only.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_ADVISE_CHECKPOINTING_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_ADVISE_CHECKPOINTING_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/analysis/advise.h"

namespace vramledger {

class CheckpointModel {
 public:
  // A layer of the model, in the order in which they ran, and the bytes of its input.
  void See(const std::string& path, uint64_t input_bytes);
  // `activations`: at their peak.
  std::optional<Suggestion> Suggest(const Timeline& t, const std::vector<BlockGroup>& activations) const;

 private:
  std::map<std::string, uint64_t> inputs_;  // of the blocks, by path ("model.layer.3")
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_ADVISE_CHECKPOINTING_H_
