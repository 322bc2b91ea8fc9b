#include "tools/analysis/format_text.h"
#include "tools/analysis/metadata.h"
#include "tools/analysis/outside.h"
#include "tools/analysis/reconcile.h"
#include "tools/analysis/report.h"
#include "tools/analysis/text_table.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownModules = 60;

Json OrNull(const std::optional<uint64_t>& n) {
  return n ? Json(*n) : Json(nullptr);
}
std::string OrDash(const std::optional<uint64_t>& n) {
  return n ? Grouped(*n) : std::string("-");
}

double UnexplainedShare(const Timeline& t) {
  return t.peak.total.rounded == 0
             ? 0.0
             : static_cast<double>(t.peak.categories[0].rounded) / static_cast<double>(t.peak.total.rounded);
}

std::string Signed(int64_t bytes) {
  return bytes < 0 ? Cat("-", Grouped(static_cast<uint64_t>(-bytes))) : Cat("+", Grouped(static_cast<uint64_t>(bytes)));
}

// Layer by layer: the output by the formula, and what was made in the layer and lives when the backward begins.
std::string LayersText(const Reconciliation& r) {
  if (r.layers.empty()) return "\nThe trace describes no layers.\n";
  TextTable table;
  table.Row({"layer", "class", "size of the output", "textbook", "analytic", "traced"});
  uint64_t textbook = 0;
  std::optional<uint64_t> analytic, traced;
  for (const ReconcileLayer& l : r.layers) {
    table.Row({l.path, l.kind, l.as_formula ? l.formula : Cat(l.formula, " (another was seen)"), Grouped(l.textbook),
               OrDash(l.analytic), OrDash(l.traced)});
    textbook += l.textbook;
    if (l.analytic) analytic = analytic.value_or(0) + *l.analytic;
    if (l.traced) traced = traced.value_or(0) + *l.traced;
  }
  table.Row({"= all layers", "", "", Grouped(textbook), OrDash(analytic), OrDash(traced)});
  return Cat("\nBy layer, in bytes: its output; what was made in it and lives as the backward begins\n", table.Text());
}

}  // namespace

nlohmann::ordered_json ReconcileJson(const Reconciliation& r, bool layers) {
  const Timeline& t = r.analysis.timeline;
  Json rows = Json::array();
  for (const ReconcileRow& row : r.rows) {
    Json differences = Json::array();
    for (const Difference& d : row.differences) differences.push_back({{"name", d.name}, {"bytes", d.bytes}});
    Json analytic = Json::array();
    for (const Difference& d : row.analytic_differences) analytic.push_back({{"name", d.name}, {"bytes", d.bytes}});
    rows.push_back({{"category", row.category},
                    {"textbook_bytes", OrNull(row.textbook)},
                    {"analytic_bytes", OrNull(row.analytic)},
                    {"requested_bytes", row.traced.requested},
                    {"rounded_bytes", row.traced.rounded},
                    {"at_peak_requested_bytes", row.at_peak.requested},
                    {"at_peak_rounded_bytes", row.at_peak.rounded},
                    {"formula", row.formula},
                    {"note", row.note},
                    {"differences", std::move(differences)},
                    {"analytic_differences", std::move(analytic)}});
  }
  Json models = Json::array();
  for (const ReconcileModel& m : r.models) {
    models.push_back({{"name", m.name},
                      {"class", m.kind},
                      {"parameters", m.parameters},
                      {"parameter_bytes", m.parameter_bytes},
                      {"traced_parameter_bytes", m.traced_parameter_bytes},
                      {"traced_gradient_bytes", m.traced_gradient_bytes},
                      {"traced_optimizer_state_bytes", m.traced_state_bytes}});
  }
  Json checks = Json::array();
  for (const ActivationCheck& c : r.activation_checks) {
    checks.push_back({{"step", c.step},
                      {"operators", c.operators},
                      {"analytic_bytes", c.analytic},
                      {"traced_bytes", c.traced},
                      {"analytic_cast_bytes", c.analytic_casts},
                      {"traced_cast_bytes", c.traced_casts},
                      {"not_covered", c.not_covered}});
  }
  Json out = {{"schema", "vramledger.reconcile/1"},
              {"source", SourceJson(r.analysis)},
              {"device", DeviceJson(r.analysis)},
              {"loss", LossJson(r.analysis)},
              {"rows", std::move(rows)},
              {"textbook_total_bytes", r.textbook_total},
              {"peak",
               {{"phase", PhaseName(t.peak.phase)},
                {"step", t.peak.step},
                {"requested_bytes", t.peak.total.requested},
                {"rounded_bytes", t.peak.total.rounded}}},
              {"reserved_bytes", t.reserved_peak_bytes},
              {"outside", OutsideJson(r.analysis)},
              {"outside_bytes", t.device_sampled ? Json(t.outside_peak_bytes) : Json(nullptr)},
              {"unexplained_bytes", t.peak.categories[0].rounded},
              {"unexplained_share", UnexplainedShare(t)},
              {"models", std::move(models)},
              {"activation_checks", std::move(checks)}};
  if (r.by_module) out["modules"] = ByModuleJson(*r.by_module);
  if (!layers) return out;
  Json& rows_of_layers = out["layers"] = Json::array();
  for (const ReconcileLayer& l : r.layers) {
    rows_of_layers.push_back({{"name", l.path},
                              {"class", l.kind},
                              {"formula", l.formula},
                              {"as_formula", l.as_formula},
                              {"textbook_bytes", l.textbook},
                              {"analytic_bytes", OrNull(l.analytic)},
                              {"traced_bytes", OrNull(l.traced)}});
  }
  return out;
}

std::string ReconcileText(const Reconciliation& r, bool color, bool layers) {
  const Timeline& t = r.analysis.timeline;
  const Metadata metadata(r.analysis.source.metadata_json);
  // A share of a textbook that leaves out what is largest would mislead.
  bool activations_known = false;
  for (const ReconcileRow& row : r.rows) activations_known |= row.category == "activation" && row.textbook.has_value();
  std::string headline =
      Cat("The peak is ", HumanBytes(t.peak.total.rounded), " in ", PhaseAndStep(t, t.peak.phase, t.peak.step),
          metadata.virtual_device() ? " on a virtual device" : "", "; ");
  if (r.textbook_total != 0 && activations_known) {
    headline +=
        Cat("that is ", Percent(static_cast<double>(t.peak.total.rounded) / static_cast<double>(r.textbook_total)),
            " of the textbook's ", HumanBytes(r.textbook_total), "; ");
  }
  headline += Cat(Percent(UnexplainedShare(t)), " of it is unexplained.");
  std::string out = color ? Cat("\033[1m", headline, "\033[0m\n") : Cat(headline, "\n");
  if (r.analysis.source.health.ended_early) out += EarlyEndSentence(r.analysis.source.health) + "\n";
  if (r.analysis.source.health.lost_records != 0) out += LossSentence(r.analysis.source.health) + "\n";
  if (metadata.without_hooks() && !t.has_names)
    out += "Recorded without hooks: phases are guessed from signals, nothing has a name.\n";
  out += "\nEach category at its own peak, in bytes\n";
  TextTable table;
  table.Row({"category", "textbook", "analytic", "requested", "rounded", "rounded, at the peak of all"});
  for (const ReconcileRow& row : r.rows) {
    table.Row({row.category, OrDash(row.textbook), OrDash(row.analytic), Grouped(row.traced.requested),
               Grouped(row.traced.rounded), Grouped(row.at_peak.rounded)});
  }
  if (r.textbook_total != 0) table.Row({"= textbook's total", Grouped(r.textbook_total), "", "", "", ""});
  table.Row({"= in use at the peak", "", "", "", "", Grouped(t.peak.total.rounded)});
  table.Row({"reserved at most", "", "", "", "", Grouped(t.reserved_peak_bytes)});
  table.Row({"outside the allocator", "", "", "", "",
             t.device_sampled ? Grouped(t.outside_peak_bytes) : std::string("not sampled")});
  out += table.Text();
  if (const std::string rows = OutsideText(r.analysis); !rows.empty()) out += Cat("\nOutside the allocator\n", rows);
  if (r.textbook_total == 0)
    out +=
        "\nThe trace describes no model (no torch.nn.Module was trained, or the Python hooks were off), so there is no textbook column.\n";
  else
    out += Cat(
        "\nThe textbook's total is the sum of its column, each at its own peak: parameters + gradients + optimizer states + ",
        activations_known ? "activations + buffers.\n"
                          : "buffers, without activations, for which the textbook has no formula here.\n");
  if (r.by_module) out += ByModuleText(*r.by_module, kShownModules);
  for (const ReconcileRow& row : r.rows) {
    if (row.formula.empty() && row.differences.empty() && row.note.empty()) continue;
    out += Cat("\n", row.category, row.formula.empty() ? std::string() : Cat(": ", row.formula), "\n");
    TextTable differences;
    for (const Difference& d : row.differences) differences.Row({d.name, Signed(d.bytes)});
    out += differences.Text(4);
    if (!row.note.empty()) out += Cat("    analytic: ", row.note, ".\n");
    TextTable analytic;
    for (const Difference& d : row.analytic_differences) analytic.Row({d.name, Signed(d.bytes)});
    out += analytic.Text(6);
    if (row.category == "activation" && row.textbook && row.traced.requested > *row.textbook + *row.textbook / 20) {
      out += Cat(
          "    The rule of thumb counts one output a layer; autograd keeps what each operator's backward needs, here ",
          Percent(static_cast<double>(row.traced.requested) / static_cast<double>(*row.textbook)), " of it.\n");
    }
  }
  if (r.models.size() > 1) {
    out += "\nBy model (parameters, gradients, optimizer state as named in the trace at the peak)\n";
    TextTable models;
    models.Row({"model", "parameters", "parameter B", "traced B", "gradient B", "state B"});
    for (const ReconcileModel& m : r.models) {
      models.Row({m.name, Grouped(m.parameters), Grouped(m.parameter_bytes), Grouped(m.traced_parameter_bytes),
                  Grouped(m.traced_gradient_bytes), Grouped(m.traced_state_bytes)});
    }
    out += models.Text();
  }
  if (layers) out += LayersText(r);
  return out;
}

}  // namespace vramledger
