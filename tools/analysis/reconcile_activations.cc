#include "tools/analysis/reconcile_activations.h"

#include <algorithm>
#include <cstdlib>

#include "tools/analysis/format_text.h"
#include "tools/analysis/recorded_operators.h"
#include "tools/analysis/timeline.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

constexpr size_t kPlaces = 10;

uint64_t OfCategory(const Moment& m, Category c) {
  return m.categories[static_cast<size_t>(c)].requested;
}

}  // namespace

std::string PlacePattern(std::string_view path) {
  std::string out;
  for (const std::string_view part : Split(path, '.')) {
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    out += Cat(out.empty() ? "" : ".", number ? std::string_view("*") : part);
  }
  return out;
}

std::vector<ActivationCheck> CheckActivations(const EventInput& input, const Hindsight& hindsight, const Timeline& t,
                                              const Metadata& metadata, std::string* problem) {
  std::vector<ActivationCheck> out;
  for (const RecordedOperators& recorded : ReadRecordedOperators(metadata)) {
    if (!recorded.error.empty()) {
      *problem = recorded.error;
      continue;
    }
    const auto mark =
        std::find_if(t.marks.begin(), t.marks.end(), [&](const MarkedMoment& m) { return m.text == recorded.mark; });
    if (mark == t.marks.end()) continue;
    ActivationCheck check;
    check.mark = mark->text;
    check.step = mark->moment.step;
    check.operators = recorded.list.operators.size();
    check.analytic = recorded.saved.bytes;
    check.analytic_casts = recorded.saved.cast_bytes;
    check.traced = OfCategory(mark->moment, Category::kActivation);
    check.traced_casts = OfCategory(mark->moment, Category::kCastCache);
    check.not_covered = recorded.saved.not_covered;
    check.analytic_by_place = recorded.saved.by_module;
    if (const auto source = input.NewSource(); source.ok()) {
      const auto groups = GroupsAt(**source, hindsight, t.device, {{mark->moment.sequence, Category::kActivation}});
      for (const BlockGroup& g : groups[0]) check.traced_by_place[g.site] += g.bytes.requested;
    }
    out.push_back(std::move(check));
  }
  return out;
}

const ActivationCheck* LargestCheck(const std::vector<ActivationCheck>& checks) {
  const auto it =
      std::max_element(checks.begin(), checks.end(),
                       [](const ActivationCheck& a, const ActivationCheck& b) { return a.traced < b.traced; });
  return it == checks.end() ? nullptr : &*it;
}

std::vector<Difference> AnalyticDifferences(const ActivationCheck& check, uint64_t requested) {
  std::map<std::string, int64_t> places;
  for (const auto& [place, bytes] : check.traced_by_place) places[PlacePattern(place)] += static_cast<int64_t>(bytes);
  for (const auto& [place, bytes] : check.analytic_by_place) places[PlacePattern(place)] -= static_cast<int64_t>(bytes);
  std::vector<std::pair<int64_t, std::string>> ranked;
  for (const auto& [place, bytes] : places) {
    if (bytes != 0) ranked.emplace_back(bytes, place);
  }
  std::sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) {
    return std::abs(a.first) != std::abs(b.first) ? std::abs(a.first) > std::abs(b.first) : a.second < b.second;
  });
  std::vector<Difference> out;
  int64_t rest = 0;
  for (size_t i = 0; i < ranked.size(); ++i) {
    const auto& [bytes, place] = ranked[i];
    if (i < kPlaces)
      out.push_back({place.empty() ? std::string("alive outside every module, beyond what the operators save")
                                   : Cat("alive in ", place, ", beyond what its operators save"),
                     bytes});
    else
      rest += bytes;
  }
  if (rest != 0) out.push_back({Cat("the same in ", ranked.size() - kPlaces, " other places"), rest});
  const int64_t later = static_cast<int64_t>(requested) - static_cast<int64_t>(check.traced);
  if (later != 0)
    out.push_back({Cat("more at its own peak than as the backward of step ", check.step, " begins"), later});
  return out;
}

std::string AnalyticNote(const ActivationCheck& check) {
  std::string out = Cat("what autograd saves of ", Grouped(check.operators),
                        " operators, one by one, and the outputs that the program holds, as the backward of step ",
                        check.step, " begins; there the trace has ", Grouped(check.traced), " B");
  if (check.not_covered.empty()) return out;
  out += "; not covered:";
  size_t named = 0;
  for (const auto& [name, times] : check.not_covered) {
    if (++named > kPlaces) break;
    out += Cat(named == 1 ? " " : ", ", name, " (", times, ")");
  }
  if (check.not_covered.size() > kPlaces) out += Cat(" and ", check.not_covered.size() - kPlaces, " more");
  return out;
}

}  // namespace vramledger
