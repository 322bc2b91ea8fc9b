// Textbook, analytic, requested and rounded bytes side by side, with a name for every difference.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_RECONCILE_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_RECONCILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tools/analysis/by_module.h"
#include "tools/analysis/ledger.h"
#include "tools/foreign/open_input.h"

namespace vramledger {

struct Difference {
  std::string name;
  int64_t bytes = 0;
};

struct ReconcileRow {
  std::string category;
  std::optional<uint64_t> textbook, analytic;
  Bytes traced;   // at this category's own peak
  Bytes at_peak;  // at the peak of the whole
  std::string formula, note;
  std::vector<Difference> differences;  // from the textbook (analytic where there is none) to rounded
};

struct ReconcileModel {
  std::string name, kind;
  uint64_t parameters = 0;              // numel
  uint64_t parameter_bytes = 0;         // by its description
  uint64_t traced_parameter_bytes = 0;  // by the names in the trace
  uint64_t traced_gradient_bytes = 0;
  uint64_t traced_state_bytes = 0;
};

struct Reconciliation {
  Analysis analysis;
  std::vector<ReconcileRow> rows;
  std::vector<ReconcileModel> models;
  uint64_t textbook_total = 0;  // parameters + optimizer states + activations + buffers
  std::optional<std::vector<ModuleRow>> by_module;
};

// `module_depth`: with a table by module, of paths of that many components (0 = whole paths).
absl::StatusOr<Reconciliation> Reconcile(const EventInput& input, std::optional<int> device,
                                         std::optional<size_t> module_depth = std::nullopt);
nlohmann::ordered_json ReconcileJson(const Reconciliation& r);
std::string ReconcileText(const Reconciliation& r, bool color);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_RECONCILE_H_
