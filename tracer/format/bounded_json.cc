#include "tracer/format/bounded_json.h"

#include <utility>

namespace vramledger {

std::optional<nlohmann::json> ParseBoundedJson(std::string_view text) {
  bool too_deep = false;
  const auto bound = [&too_deep](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    too_deep |= depth > kMaxJsonDepth;
    return !too_deep;
  };
  nlohmann::json parsed = nlohmann::json::parse(text, bound, /*allow_exceptions=*/false);
  if (too_deep || parsed.is_discarded()) return std::nullopt;
  return parsed;
}

}  // namespace vramledger
