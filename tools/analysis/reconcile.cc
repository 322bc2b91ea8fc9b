#include "tools/analysis/reconcile.h"

#include <algorithm>
#include <map>

#include "tools/analysis/format_text.h"
#include "tools/analysis/model_facts.h"
#include "tools/analysis/reconcile_activations.h"
#include "tools/analysis/timeline.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

constexpr size_t kPlaces = 10;

class Builder {
 public:
  Builder(const EventInput& input, std::optional<int> device, std::optional<size_t> module_depth)
      : input_(input), device_(device), module_depth_(module_depth) {}

  absl::StatusOr<Reconciliation> Run() {
    absl::StatusOr<Analysis> analysis = Analyze(input_, device_, &hindsight_);
    if (!analysis.ok()) return analysis.status();
    out_.analysis = *std::move(analysis);
    metadata_.emplace(out_.analysis.source.metadata_json);
    facts_ = ReadRunFacts(*metadata_);
    out_.activation_checks =
        CheckActivations(input_, hindsight_, out_.analysis.timeline, *metadata_, &operators_problem_);
    out_.layers = LayerTable(*metadata_, out_.activation_checks);
    for (int c = 1; c < kCategoryCount; ++c) AddRow(static_cast<Category>(c));
    AddRow(Category::kUnknown);
    Models();
    for (const ReconcileRow& row : out_.rows) {
      if (row.textbook) out_.textbook_total += *row.textbook;
    }
    if (module_depth_) {
      const ActivationCheck* check = LargestCheck(out_.activation_checks);
      absl::StatusOr<std::vector<ModuleRow>> rows = ByModule(input_, out_.analysis, hindsight_, *module_depth_,
                                                             check != nullptr ? &check->analytic_by_place : nullptr);
      if (!rows.ok()) return rows.status();
      out_.by_module = *std::move(rows);
    }
    return std::move(out_);
  }

 private:
  void AddRow(Category category) {
    const Timeline& t = out_.analysis.timeline;
    const auto index = static_cast<size_t>(category);
    ReconcileRow row;
    row.category = category == Category::kUnknown ? "unexplained" : std::string(CategoryName(category));
    row.traced = t.category_peaks[index].categories[index];
    row.at_peak = t.peak.categories[index];
    const bool described = facts_.parameters.tensors != 0;
    uint64_t rounding = row.traced.rounded - row.traced.requested;
    uint64_t predicted_rounding = 0;
    switch (category) {
      case Category::kParameter:
        if (described) Tensors(facts_.parameters, "numel x element size", &row, &predicted_rounding);
        break;
      case Category::kGradient:
        if (described) Tensors(facts_.trainable, "= parameters that are trained", &row, &predicted_rounding);
        break;
      case Category::kBuffer:
        if (described) Tensors(facts_.buffers, "numel x element size", &row, &predicted_rounding);
        break;
      case Category::kOptimizerState:
        row.textbook = facts_.textbook_state;
        row.analytic = facts_.analytic_state;
        row.formula = facts_.state_formula;
        if (facts_.analytic_state) {
          predicted_rounding = *facts_.analytic_state_rounded - *facts_.analytic_state;
          if (facts_.textbook_state)
            Differ(&row, "state tensors beyond the textbook's", *facts_.analytic_state, *facts_.textbook_state);
          Differ(&row, "state found in the trace beyond its tensors", row.traced.requested, *facts_.analytic_state);
        }
        break;
      case Category::kActivation:
        Activations(&row);
        break;
      case Category::kCastCache:
        if (const ActivationCheck* check = LargestCheck(out_.activation_checks)) {
          row.analytic = check->analytic_casts;
          row.note = "the parameters that autocast casts and autograd saves, as the backward begins";
        }
        break;
      default:
        break;
    }
    if (row.traced.count == 0 && !row.textbook && category != Category::kUnknown) return;
    if (predicted_rounding != 0) {
      const uint64_t part = std::min(predicted_rounding, rounding);
      row.differences.push_back({"each tensor rounded up to 512 B", static_cast<int64_t>(part)});
      rounding -= part;
    }
    if (rounding != 0)
      row.differences.push_back({described && category <= Category::kOptimizerState
                                     ? "ends of blocks too small to split off"
                                     : "rounding to blocks",
                                 static_cast<int64_t>(rounding)});
    out_.rows.push_back(std::move(row));
  }

  static void Differ(ReconcileRow* row, std::string name, uint64_t larger, uint64_t smaller) {
    if (larger != smaller)
      row->differences.push_back({std::move(name), static_cast<int64_t>(larger) - static_cast<int64_t>(smaller)});
  }

  static void Tensors(const TensorSum& sum, std::string formula, ReconcileRow* row, uint64_t* predicted_rounding) {
    row->textbook = row->analytic = sum.bytes;
    row->formula = std::move(formula);
    *predicted_rounding = sum.rounded - sum.bytes;
    if (row->traced.requested < sum.bytes)
      Differ(row, "not found in the trace: shared, on the host, or never made", row->traced.requested, sum.bytes);
    if (row->traced.requested > sum.bytes)
      Differ(row, "copies and blocks without a tensor in the description", row->traced.requested, sum.bytes);
  }

  void Activations(ReconcileRow* row) {
    row->textbook = facts_.textbook_activation;
    row->formula = facts_.activation_formula;
    row->analytic = facts_.analytic_activation;
    row->note = facts_.analytic_note;
    if (const ActivationCheck* check = LargestCheck(out_.activation_checks)) {
      row->analytic = check->analytic;
      row->note = AnalyticNote(*check);
      row->analytic_differences = AnalyticDifferences(*check, row->traced.requested);
    } else if (!operators_problem_.empty()) {
      row->note += Cat(row->note.empty() ? "" : "; ", operators_problem_);
    }
    if (row->traced.count == 0) return;
    const Timeline& t = out_.analysis.timeline;
    const absl::StatusOr<std::unique_ptr<EventSource>> source = input_.NewSource();
    if (!source.ok()) return;
    const uint64_t sequence = t.category_peaks[static_cast<size_t>(Category::kActivation)].sequence;
    std::map<std::string, uint64_t> places;
    const auto groups = GroupsAt(**source, hindsight_, t.device, {{sequence, Category::kActivation}});
    for (const BlockGroup& g : groups[0]) {
      places[g.site.empty() ? std::string("saved outside every module (such as the loss)")
                            : Cat("saved in ", PlacePattern(g.site))] += g.bytes.requested;
    }
    std::vector<std::pair<uint64_t, std::string>> ranked;
    for (const auto& [place, bytes] : places) ranked.emplace_back(bytes, place);
    std::sort(ranked.rbegin(), ranked.rend());
    uint64_t rest = 0;
    for (size_t i = 0; i < ranked.size(); ++i) {
      if (i < kPlaces)
        row->differences.push_back({ranked[i].second, static_cast<int64_t>(ranked[i].first)});
      else
        rest += ranked[i].first;
    }
    if (rest != 0)
      row->differences.push_back(
          {Cat("saved in ", ranked.size() - kPlaces, " other places"), static_cast<int64_t>(rest)});
    if (row->textbook)
      row->differences.push_back({"less what the textbook counts", -static_cast<int64_t>(*row->textbook)});
  }

  void Models() {
    const Timeline& t = out_.analysis.timeline;
    for (const ModelFacts& m : facts_.models) {
      ReconcileModel model{m.name, m.kind, m.parameters.numel, m.parameters.bytes};
      const std::string prefix = Cat(m.name, ".");
      for (const BlockGroup& g : t.peak_groups) {
        if (!std::string_view(g.tensor).starts_with(prefix)) continue;
        if (g.category == Category::kParameter) model.traced_parameter_bytes += g.bytes.requested;
        if (g.category == Category::kGradient) model.traced_gradient_bytes += g.bytes.requested;
        if (g.category == Category::kOptimizerState) model.traced_state_bytes += g.bytes.requested;
      }
      out_.models.push_back(std::move(model));
    }
  }

  const EventInput& input_;
  const std::optional<int> device_;
  const std::optional<size_t> module_depth_;
  Hindsight hindsight_;
  std::optional<Metadata> metadata_;
  RunFacts facts_;
  std::string operators_problem_;
  Reconciliation out_;
};

}  // namespace

absl::StatusOr<Reconciliation> Reconcile(const EventInput& input, std::optional<int> device,
                                         std::optional<size_t> module_depth) {
  return Builder(input, device, module_depth).Run();
}

}  // namespace vramledger
