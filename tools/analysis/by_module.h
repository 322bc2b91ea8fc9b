// The ledger by module: textbook and traced bytes of every module path.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_BY_MODULE_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_BY_MODULE_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tools/analysis/hindsight.h"
#include "tools/analysis/ledger.h"
#include "tools/foreign/open_input.h"

namespace vramledger {

struct ModuleRow {
  std::string module;  // its path; empty for what belongs to none
  // Parameters, as many gradients, optimizer state in their proportion; nothing where the trace describes no model.
  std::optional<uint64_t> textbook;
  // What autograd saves in it, by the operators that ran; nothing where none were recorded.
  std::optional<uint64_t> analytic_activation;
  CategoryTable own_peak;  // each category at the moment when all of it was largest
  Bytes at_peak;           // all categories at the peak of the whole
  uint64_t traced_requested() const;
  uint64_t traced_rounded() const;
};

// Of `depth` path components at most, 0 for all. Largest first, by rounded bytes at the categories' own peaks; every
// row of a category adds up to that category's row of reconcile. Tensors with a name belong to the module that owns
// them, the rest to the module that they were made for.
// `analytic_activations`: bytes saved by module path, null where they are not known.
absl::StatusOr<std::vector<ModuleRow>> ByModule(const EventInput& input, const Analysis& analysis,
                                                const Hindsight& hindsight, size_t depth,
                                                const std::map<std::string, uint64_t>* analytic_activations);
nlohmann::ordered_json ByModuleJson(const std::vector<ModuleRow>& rows);
std::string ByModuleText(const std::vector<ModuleRow>& rows, size_t shown);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_BY_MODULE_H_
