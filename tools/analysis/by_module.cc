#include "tools/analysis/by_module.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "tools/analysis/format_text.h"
#include "tools/analysis/metadata.h"
#include "tools/analysis/model_facts.h"
#include "tools/analysis/text_table.h"
#include "tools/analysis/timeline.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

using Json = nlohmann::ordered_json;

std::string_view Parent(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

std::string Shortened(std::string_view path, size_t depth) {
  size_t end = 0;
  for (size_t i = 0; depth != 0 && i < depth; ++i) {
    end = path.find('.', i == 0 ? 0 : end + 1);
    if (end == std::string_view::npos) break;
  }
  return std::string(depth == 0 ? path : path.substr(0, end));
}

struct Owner {
  std::string module;
  uint64_t bytes;
  bool trainable;
};

// Parameters and buffers by their full names ("Net.fc.weight").
std::map<std::string, Owner, std::less<>> Owners(const Metadata& metadata) {
  std::map<std::string, Owner, std::less<>> out;
  for (const nlohmann::json& model : metadata.models()) {
    const std::string name = JsonText(model, "name");
    for (const char* list : {"parameters", "buffers"}) {
      const auto it = model.find(list);
      if (it == model.end() || !it->is_array()) continue;
      for (const nlohmann::json& t : *it) {
        const std::string full = Cat(name, ".", JsonText(t, "name"));
        const bool parameter = *list == 'p';
        out[full] = {std::string(Parent(full)), JsonUint(t, "numel") * JsonUint(t, "element_bytes", 4),
                     parameter && JsonBool(t, "trainable", true)};
      }
    }
  }
  return out;
}

// "Net.fc.weight.exp_avg" belongs to the module of "Net.fc.weight".
std::string_view ModuleOf(const std::map<std::string, Owner, std::less<>>& owners, const BlockGroup& g) {
  for (std::string_view name = g.tensor; !name.empty(); name = Parent(name)) {
    if (const auto it = owners.find(name); it != owners.end()) return it->second.module;
  }
  if (!g.site.empty() || g.tensor.empty()) return g.site;
  return Parent(g.category == Category::kGradient || g.category == Category::kOptimizerState
                    ? Parent(g.tensor)
                    : std::string_view(g.tensor));
}

}  // namespace

uint64_t ModuleRow::traced_requested() const {
  uint64_t sum = 0;
  for (const Bytes& b : own_peak) sum += b.requested;
  return sum;
}

uint64_t ModuleRow::traced_rounded() const {
  uint64_t sum = 0;
  for (const Bytes& b : own_peak) sum += b.rounded;
  return sum;
}

absl::StatusOr<std::vector<ModuleRow>> ByModule(const EventInput& input, const Analysis& analysis,
                                                const Hindsight& hindsight, size_t depth,
                                                const std::map<std::string, uint64_t>* analytic_activations) {
  const Timeline& t = analysis.timeline;
  const Metadata metadata(analysis.source.metadata_json);
  const auto owners = Owners(metadata);
  std::vector<GroupQuestion> questions;
  for (size_t c = 0; c < kCategoryCount; ++c) {
    const auto category = static_cast<Category>(c);
    if (t.category_peaks[c].categories[c].count != 0) questions.push_back({t.category_peaks[c].sequence, category});
    if (t.peak.categories[c].count != 0) questions.push_back({t.peak.sequence, category});
  }
  absl::StatusOr<std::unique_ptr<EventSource>> source = input.NewSource();
  if (!source.ok()) return source.status();
  const std::vector<std::vector<BlockGroup>> answers = GroupsAt(**source, hindsight, t.device, questions);

  std::map<std::string, ModuleRow> rows;
  std::array<bool, kCategoryCount> own_seen{};
  for (size_t q = 0; q < questions.size(); ++q) {
    // A category's own peak is asked for first; it may be the same moment as the peak of all.
    const auto c = static_cast<size_t>(questions[q].category);
    const bool own = !std::exchange(own_seen[c], true);
    for (const BlockGroup& g : answers[q]) {
      ModuleRow& row = rows[Shortened(ModuleOf(owners, g), depth)];
      (own ? row.own_peak[c] : row.at_peak).Merge(g.bytes);
    }
  }
  const RunFacts facts = ReadRunFacts(metadata);
  const double state_share =
      facts.textbook_state && facts.trainable.bytes != 0
          ? static_cast<double>(*facts.textbook_state) / static_cast<double>(facts.trainable.bytes)
          : 0;
  for (const auto& [name, owner] : owners) {
    ModuleRow& row = rows[Shortened(owner.module, depth)];
    const auto trained = owner.trainable ? static_cast<double>(owner.bytes) * (1 + state_share) : 0.0;
    row.textbook = row.textbook.value_or(0) + owner.bytes + static_cast<uint64_t>(trained);
  }
  if (analytic_activations != nullptr) {
    for (const auto& [place, bytes] : *analytic_activations) {
      ModuleRow& row = rows[Shortened(place, depth)];
      row.analytic_activation = row.analytic_activation.value_or(0) + bytes;
    }
  }
  std::vector<ModuleRow> out;
  for (auto& [module, row] : rows) {
    row.module = module;
    out.push_back(std::move(row));
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const ModuleRow& a, const ModuleRow& b) { return a.traced_rounded() > b.traced_rounded(); });
  return out;
}

nlohmann::ordered_json ByModuleJson(const std::vector<ModuleRow>& rows) {
  Json out = Json::array();
  for (const ModuleRow& row : rows) {
    Json categories = Json::object();
    for (size_t c = 0; c < kCategoryCount; ++c) {
      const Bytes& b = row.own_peak[c];
      if (b.count == 0) continue;
      categories[std::string(CategoryName(static_cast<Category>(c)))] = {
          {"requested_bytes", b.requested}, {"rounded_bytes", b.rounded}, {"count", b.count}};
    }
    out.push_back(
        {{"module", row.module},
         {"textbook_bytes", row.textbook ? Json(*row.textbook) : Json(nullptr)},
         {"analytic_activation_bytes", row.analytic_activation ? Json(*row.analytic_activation) : Json(nullptr)},
         {"requested_bytes", row.traced_requested()},
         {"rounded_bytes", row.traced_rounded()},
         {"at_peak_requested_bytes", row.at_peak.requested},
         {"at_peak_rounded_bytes", row.at_peak.rounded},
         {"categories", std::move(categories)}});
  }
  return out;
}

std::string ByModuleText(const std::vector<ModuleRow>& rows, size_t shown) {
  std::string out =
      "\nBy module: each category at its own peak, rounded bytes (the textbook: parameters, gradients, optimizer "
      "state; analytic: activations by the operators that ran)\n";
  TextTable table;
  table.Row({"module", "textbook", "parameter", "gradient", "optimizer state", "activation", "analytic", "others",
             "at the peak of all"});
  ModuleRow rest;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i >= shown) {
      for (size_t c = 0; c < kCategoryCount; ++c) rest.own_peak[c].Merge(rows[i].own_peak[c]);
      rest.at_peak.Merge(rows[i].at_peak);
      if (rows[i].analytic_activation)
        rest.analytic_activation = rest.analytic_activation.value_or(0) + *rows[i].analytic_activation;
      if (rows[i].textbook) rest.textbook = rest.textbook.value_or(0) + *rows[i].textbook;
    }
    if (i >= shown && i + 1 != rows.size()) continue;
    const ModuleRow& row = i < shown ? rows[i] : rest;
    const auto of = [&](Category c) { return row.own_peak[static_cast<size_t>(c)].rounded; };
    const uint64_t known =
        of(Category::kParameter) + of(Category::kGradient) + of(Category::kOptimizerState) + of(Category::kActivation);
    const std::string name = i < shown ? (row.module.empty() ? std::string("(outside every module)") : row.module)
                                       : Cat("(", rows.size() - shown, " more)");
    table.Row({name, row.textbook ? Grouped(*row.textbook) : std::string("-"), Grouped(of(Category::kParameter)),
               Grouped(of(Category::kGradient)), Grouped(of(Category::kOptimizerState)),
               Grouped(of(Category::kActivation)),
               row.analytic_activation ? Grouped(*row.analytic_activation) : std::string("-"),
               Grouped(row.traced_rounded() - known), Grouped(row.at_peak.rounded)});
  }
  return out + table.Text();
}

}  // namespace vramledger
