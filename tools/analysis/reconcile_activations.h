// Parts of reconcile: activations as recorded operators explain them, and the table of layers.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_RECONCILE_ACTIVATIONS_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_RECONCILE_ACTIVATIONS_H_

#include <string>
#include <string_view>
#include <vector>

#include "tools/analysis/hindsight.h"
#include "tools/analysis/metadata.h"
#include "tools/analysis/reconcile.h"

namespace vramledger {

// "bert.encoder.layer.*.output.dense": numbers in a module path are places in a list.
std::string PlacePattern(std::string_view path);

// One check for each recorded list whose mark the trace has, in order. `problem`: a sentence, if a list cannot be read.
std::vector<ActivationCheck> CheckActivations(const EventInput& input, const Hindsight& hindsight, const Timeline& t,
                                              const Metadata& metadata, std::string* problem);
// The check whose moment has most activations; null where there is none.
const ActivationCheck* LargestCheck(const std::vector<ActivationCheck>& checks);
// From the check's analytic bytes to `requested`, the category's own peak, place by place.
std::vector<Difference> AnalyticDifferences(const ActivationCheck& check, uint64_t requested);
std::string AnalyticNote(const ActivationCheck& check);

std::vector<ReconcileLayer> LayerTable(const Metadata& metadata, const std::vector<ActivationCheck>& checks);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_RECONCILE_ACTIVATIONS_H_
