// A reader for the small JSON files that describe virtual devices. Strings, numbers, booleans, objects and arrays;
// no surrogate pairs. Errors are thrown as std::runtime_error with a byte offset.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace vd {

struct JsonValue {
  enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };
  Kind kind = Kind::kNull;
  bool boolean = false;
  double number = 0;   // exact for integers below 2^53, which every size here is
  std::string text;
  std::vector<JsonValue> items;
  std::map<std::string, JsonValue> members;

  const JsonValue* Find(const std::string& key) const {
    auto it = members.find(key);
    return it == members.end() ? nullptr : &it->second;
  }
};

JsonValue ParseJson(std::string_view text);

// The text as a JSON string literal, quotes included.
std::string JsonQuote(std::string_view text);

}  // namespace vd
