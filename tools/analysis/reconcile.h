// Textbook, analytic, requested and rounded bytes side by side, with a name for every difference.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_RECONCILE_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_RECONCILE_H_

#include <cstdint>
#include <map>
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

// Activations (or casts) alive when a backward begins: by a recorded list of operators, and in the trace at that place.
struct ActivationCheck {
  std::string mark;
  uint64_t step = 0;
  uint64_t operators = 0;
  uint64_t analytic = 0, traced = 0;
  uint64_t analytic_casts = 0, traced_casts = 0;
  std::map<std::string, uint64_t> not_covered;        // operators of unknown memory, with how often they ran
  std::map<std::string, uint64_t> analytic_by_place;  // module paths
  std::map<std::string, uint64_t> traced_by_place;
};

struct ReconcileRow {
  std::string category;
  std::optional<uint64_t> textbook, analytic;
  Bytes traced;   // at this category's own peak
  Bytes at_peak;  // at the peak of the whole
  std::string formula, note;
  std::vector<Difference> differences;           // from the textbook (analytic where there is none) to rounded
  std::vector<Difference> analytic_differences;  // from analytic to requested
};

struct ReconcileModel {
  std::string name, kind;
  uint64_t parameters = 0;              // numel
  uint64_t parameter_bytes = 0;         // by its description
  uint64_t traced_parameter_bytes = 0;  // by the names in the trace
  uint64_t traced_gradient_bytes = 0;
  uint64_t traced_state_bytes = 0;
};

// A leaf module of a described model. Sizes in bytes.
struct ReconcileLayer {
  std::string path, kind;
  std::string formula;  // of the output's size, for convolutions and pooling: "(224 + 2 x 3 - 7) / 2 + 1 = 112"
  bool as_formula = true;
  uint64_t textbook = 0;                     // its output
  std::optional<uint64_t> analytic, traced;  // what was made in it and lives when the backward begins
};

struct Reconciliation {
  Analysis analysis;
  std::vector<ReconcileRow> rows;
  std::vector<ReconcileModel> models;
  std::vector<ActivationCheck> activation_checks;
  std::vector<ReconcileLayer> layers;
  uint64_t textbook_total = 0;  // parameters + gradients + optimizer states + activations + buffers
  std::optional<std::vector<ModuleRow>> by_module;
};

// `module_depth`: with a table by module, of paths of that many components (0 = whole paths).
absl::StatusOr<Reconciliation> Reconcile(const EventInput& input, std::optional<int> device,
                                         std::optional<size_t> module_depth = std::nullopt);
// With `layers`, the table of layers too.
nlohmann::ordered_json ReconcileJson(const Reconciliation& r, bool layers = false);
std::string ReconcileText(const Reconciliation& r, bool color, bool layers = false);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_RECONCILE_H_
