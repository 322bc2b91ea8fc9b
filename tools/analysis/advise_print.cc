#include <algorithm>
#include <cstdio>
#include <map>

#include "tools/analysis/advise.h"
#include "tools/analysis/format_text.h"
#include "tools/analysis/metadata.h"
#include "tools/analysis/report.h"
#include "tools/foreign/text.h"

namespace vramledger {

namespace {

nlohmann::ordered_json OrNull(const std::optional<uint64_t>& n) {
  return n ? nlohmann::ordered_json(*n) : nlohmann::ordered_json(nullptr);
}

// "encoder.layer.0 to .11": runs of numbers under one parent in one word.
std::string ModuleList(const std::vector<std::string>& modules) {
  std::map<std::string, std::vector<uint64_t>> lists;
  std::string out;
  for (const std::string& path : modules) {
    const size_t dot = path.rfind('.');
    uint64_t number = 0;
    if (dot != std::string::npos && ParseInteger(std::string_view(path).substr(dot + 1), &number))
      lists[path.substr(0, dot)].push_back(number);
    else
      out += Cat(out.empty() ? "" : ", ", path);
  }
  for (auto& [parent, numbers] : lists) {
    std::sort(numbers.begin(), numbers.end());
    for (size_t i = 0; i < numbers.size();) {
      size_t last = i;
      while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
      out +=
          Cat(out.empty() ? "" : ", ", parent, ".", numbers[i], last > i ? Cat(" to .", numbers[last]) : std::string());
      i = last + 1;
    }
  }
  return out;
}

}  // namespace

nlohmann::ordered_json AdviceJson(const Advice& a) {
  using Json = nlohmann::ordered_json;
  Json suggestions = Json::array();
  for (const Suggestion& s : a.suggestions) {
    suggestions.push_back({{"id", s.id},
                           {"settings", s.settings},
                           {"predicted_peak_bytes", s.predicted_peak},
                           {"predicted_reserved_bytes", OrNull(s.predicted_reserved)},
                           {"predicted_time_factor", s.time_factor},
                           {"fits", s.fits},
                           {"not_known_to_fit", s.not_known},
                           {"method", s.method},
                           {"price", s.price},
                           {"verified", nullptr}});
    if (s.verified) {
      const auto measured = static_cast<double>(s.verified->peak);
      suggestions.back()["verified"] = {{"peak_bytes", s.verified->peak},
                                        {"reserved_bytes", s.verified->reserved},
                                        {"error_share", (static_cast<double>(s.predicted_peak) - measured) / measured},
                                        {"by", s.verified->by}};
    }
    if (!s.modules.empty()) suggestions.back()["modules"] = s.modules;
  }
  Json ran_out = nullptr;
  if (a.ran_out) {
    ran_out = {{"request_bytes", a.ran_out->request},           {"step", a.ran_out->step},
               {"phase", PhaseName(a.ran_out->phase)},          {"peak_at_least_bytes", a.ran_out->peak_at_least},
               {"device_total_bytes", a.ran_out->device_total}, {"went_on", a.ran_out->went_on}};
  }
  return {{"schema", "vramledger.advise/1"},
          {"source", SourceJson(a.analysis)},
          {"capacity_bytes", a.capacity},
          {"headroom_share", a.headroom_share},
          {"outside_bytes", a.outside},
          {"usable_bytes", a.usable},
          {"baseline_peak_bytes", a.baseline_peak},
          {"baseline_reserved_bytes", OrNull(a.baseline_reserved)},
          {"baseline_fits", a.baseline_fits},
          {"ran_out_of_memory", std::move(ran_out)},
          {"batch_size", a.batch ? Json(*a.batch) : Json(nullptr)},
          {"cautions", a.cautions},
          {"suggestions", std::move(suggestions)},
          {"notes", a.notes}};
}

namespace {

// Of the measured run; what the reserved peak holds in idle segments is told apart.
std::string BaselineReserved(const Advice& a) {
  if (!a.baseline_reserved) return "";
  const uint64_t most = a.analysis.timeline.reserved_peak_bytes;
  return Cat(", ", HumanBytes(*a.baseline_reserved), " reserved",
             most > *a.baseline_reserved ? Cat(" without idle segments (", HumanBytes(most), " with them)") : std::string());
}

// A ratio of what is reserved leaves idle segments out; a replay counts them.
std::string PredictedReserved(const Suggestion& s) {
  if (!s.predicted_reserved) return "";
  return Cat(", ", HumanBytes(*s.predicted_reserved), " reserved", s.id != "EXPANDABLE_SEGMENTS" ? " without idle segments" : "");
}

}  // namespace

std::string AdviceText(const Advice& a, bool color) {
  const Metadata metadata(a.analysis.source.metadata_json);
  const std::string run = Cat("The run", a.batch ? Cat(" at batch ", *a.batch) : std::string());
  const std::string device = metadata.virtual_device() ? " on a virtual device" : "";
  const bool unknown = a.ran_out && !a.ran_out->went_on && !a.ran_out->whole_step &&
                       a.capacity > a.ran_out->allowed && a.ran_out->peak_at_least <= a.usable;
  const std::string verdict =
      Cat(a.baseline_fits ? "fits"
          : unknown       ? "is not known to fit"
                          : "does not fit",
          " in ", HumanBytes(a.capacity), " (", HumanBytes(a.usable), " for blocks, after ", Percent(a.headroom_share),
          " headroom and ", HumanBytes(a.outside), " outside the allocator).");
  std::string headline;
  if (a.ran_out && !a.ran_out->went_on) {
    headline = Cat(run, device, " ran out of memory at a request of ", HumanBytes(a.ran_out->request), " in ",
                   PhaseAndStep(a.analysis.timeline, a.ran_out->phase, a.ran_out->step), "; its true peak is at least ",
                   HumanBytes(a.ran_out->peak_at_least), ". It ", verdict);
  } else {
    const SourceHealth& health = a.analysis.source.health;
    const std::string so_far = !health.ended_early      ? ""
                               : health.damage.empty() ? " has not ended in this trace (crash, kill, or still running). So far it"
                                                       : " can be read up to the damage of the file. So far it";
    headline = Cat(run, so_far, " peaks at ", HumanBytes(a.baseline_peak), " allocated", BaselineReserved(a), device,
                   so_far.empty() ? ", and " : ", and so far it ", verdict);
    if (a.ran_out)
      headline += Cat(" A request of ", HumanBytes(a.ran_out->request), " failed in ",
                      PhaseAndStep(a.analysis.timeline, a.ran_out->phase, a.ran_out->step),
                      "; the program caught it and went on, and it is not counted.");
  }
  std::string out = color ? Cat("\033[1m", headline, "\033[0m\n") : Cat(headline, "\n");
  for (const std::string& caution : a.cautions) out += Cat("\n", caution, "\n");
  for (const Suggestion& s : a.suggestions) {
    char factor[32];
    std::snprintf(factor, sizeof(factor), "%.2f", s.time_factor);
    out += Cat("\n", s.id, " ", s.settings.dump(), ": ", s.fits ? "fits" : s.not_known ? "is not known to fit" : "does not fit", ", predicted ",
               HumanBytes(s.predicted_peak), " allocated",
               PredictedReserved(s),
               ", time x ", factor, "\n  how: ", s.method,
               s.modules.empty() ? std::string() : Cat("\n  modules: ", ModuleList(s.modules)), "\n  price: ", s.price,
               s.verified ? Cat("\n  verified: ", HumanBytes(s.verified->peak), " allocated, ",
                                HumanBytes(s.verified->reserved), " reserved by ", s.verified->by, "\n")
                          : "; not verified by a second run\n");
  }
  for (const std::string& note : a.notes) out += Cat("\nNote: ", note, ".\n");
  return out;
}

}  // namespace vramledger
