// The leaf modules that a trace's metadata describes, with the size of their output by the formula.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_LAYER_FACTS_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_LAYER_FACTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/analysis/metadata.h"

namespace vramledger {

struct LayerFacts {
  std::string path;  // the model's name first
  std::string kind;  // class
  bool convolution = false;
  std::string formula;     // "(224 + 2 x 3 - 7) / 2 + 1 = 112", each dimension that differs; empty: no formula
  bool as_formula = true;  // the output seen is the formula's
  uint64_t bytes = 0;      // of the output: by the formula where there is one
};

// Of all models, in the order of their first forward.
std::vector<LayerFacts> ReadLayers(const Metadata& metadata);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_LAYER_FACTS_H_
