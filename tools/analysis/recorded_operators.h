// The lists of operators that the Python package recorded, with the moments of the trace that they explain.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_RECORDED_OPERATORS_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_RECORDED_OPERATORS_H_

#include <string>
#include <string_view>
#include <vector>

#include "tools/analysis/metadata.h"
#include "tools/estimate/operators.h"

namespace vramledger {

// A list ends where the backward begins; there the trace has a mark of this text and the list's number.
inline constexpr std::string_view kOperatorsMark = "vramledger.operators ";

struct RecordedOperators {
  std::string mark;
  OperatorList list;
  SavedActivations saved;
  std::string error;  // one sentence, where the list cannot be read; the rest is empty then
};

// From the metadata key "operators": lists by number, each of schema "vramledger.operators/1" with its arrays in
// pieces ("storages.0", "storages.1", ...).
std::vector<RecordedOperators> ReadRecordedOperators(const Metadata& metadata);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_RECORDED_OPERATORS_H_
