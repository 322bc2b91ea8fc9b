#include <cstdio>

#include "tools/analysis/advise.h"
#include "tools/analysis/format_text.h"
#include "tools/analysis/metadata.h"
#include "tools/analysis/report.h"
#include "tools/foreign/text.h"

namespace vramledger {

nlohmann::ordered_json AdviceJson(const Advice& a) {
  using Json = nlohmann::ordered_json;
  Json suggestions = Json::array();
  for (const Suggestion& s : a.suggestions) {
    suggestions.push_back({{"id", s.id},
                           {"settings", s.settings},
                           {"predicted_peak_bytes", s.predicted_peak},
                           {"predicted_time_factor", s.time_factor},
                           {"fits", s.fits},
                           {"method", s.method},
                           {"price", s.price},
                           {"verified", nullptr}});
  }
  return {{"schema", "vramledger.advise/1"},
          {"source", SourceJson(a.analysis)},
          {"capacity_bytes", a.capacity},
          {"headroom_share", a.headroom_share},
          {"outside_bytes", a.outside},
          {"usable_bytes", a.usable},
          {"baseline_peak_bytes", a.baseline_peak},
          {"baseline_fits", a.baseline_fits},
          {"batch_size", a.batch ? Json(*a.batch) : Json(nullptr)},
          {"suggestions", std::move(suggestions)},
          {"notes", a.notes}};
}

std::string AdviceText(const Advice& a, bool color) {
  const Metadata metadata(a.analysis.source.metadata_json);
  std::string headline =
      Cat("The run", a.batch ? Cat(" at batch ", *a.batch) : std::string(), " peaks at ", HumanBytes(a.baseline_peak),
          metadata.virtual_device() ? " on a virtual device" : "", " and ", a.baseline_fits ? "fits" : "does not fit",
          " in ", HumanBytes(a.capacity), " (", HumanBytes(a.usable), " for blocks, after ", Percent(a.headroom_share),
          " headroom and ", HumanBytes(a.outside), " outside the allocator).");
  std::string out = color ? Cat("\033[1m", headline, "\033[0m\n") : Cat(headline, "\n");
  for (const Suggestion& s : a.suggestions) {
    char factor[32];
    std::snprintf(factor, sizeof(factor), "%.2f", s.time_factor);
    out += Cat("\n", s.id, " ", s.settings.dump(), ": ", s.fits ? "fits" : "does not fit", ", predicted peak ",
               HumanBytes(s.predicted_peak), ", time x ", factor, "\n  how: ", s.method, "\n  price: ", s.price,
               "; not verified by a second run\n");
  }
  for (const std::string& note : a.notes) out += Cat("\nNote: ", note, ".\n");
  return out;
}

}  // namespace vramledger
