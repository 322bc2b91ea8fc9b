#include "tools/analysis/recorded_operators.h"

#include <map>

#include "tools/foreign/text.h"

namespace vramledger {
namespace {

using nlohmann::json;

// Puts the pieces of each array together again, in the order of their numbers.
json Joined(const json& pieces) {
  json out = json::object();
  std::map<std::string, std::map<uint64_t, const json*>> arrays;
  for (const auto& [key, value] : pieces.items()) {
    const size_t dot = key.rfind('.');
    uint64_t number = 0;
    if (value.is_array() && dot != std::string::npos && ParseInteger(std::string_view(key).substr(dot + 1), &number))
      arrays[key.substr(0, dot)][number] = &value;
    else
      out[key] = value;
  }
  for (const auto& [key, numbered] : arrays) {
    json& whole = out[key] = json::array();
    for (const auto& [number, piece] : numbered) whole.insert(whole.end(), piece->begin(), piece->end());
  }
  return out;
}

}  // namespace

std::vector<RecordedOperators> ReadRecordedOperators(const Metadata& metadata) {
  std::vector<RecordedOperators> out;
  const auto lists = metadata.root().is_object() ? metadata.root().find("operators") : metadata.root().end();
  if (lists == metadata.root().end() || !lists->is_object()) return out;
  for (const auto& [number, pieces] : lists->items()) {
    RecordedOperators recorded;
    recorded.mark = Cat(kOperatorsMark, number);
    absl::StatusOr<OperatorList> list = OperatorList::FromJson(pieces.is_object() ? Joined(pieces) : pieces);
    if (list.ok()) {
      recorded.list = *std::move(list);
      recorded.saved = FindSavedActivations(recorded.list);
    } else {
      recorded.error = std::string(list.status().message());
    }
    out.push_back(std::move(recorded));
  }
  return out;
}

}  // namespace vramledger
