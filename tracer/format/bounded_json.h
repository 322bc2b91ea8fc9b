// JSON that anybody may have written.
#ifndef VRAMLEDGER_TRACER_FORMAT_BOUNDED_JSON_H_
#define VRAMLEDGER_TRACER_FORMAT_BOUNDED_JSON_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

namespace vramledger {

// Merging and printing JSON recurse, so a few kilobytes of brackets would exhaust the stack.
inline constexpr int kMaxJsonDepth = 64;

// Nothing where the text is no JSON, or nested deeper.
std::optional<nlohmann::json> ParseBoundedJson(std::string_view text);

}  // namespace vramledger

#endif  // VRAMLEDGER_TRACER_FORMAT_BOUNDED_JSON_H_
