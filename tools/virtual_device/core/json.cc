#include "tools/virtual_device/core/json.h"

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

namespace vd {
namespace {

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  JsonValue Document() {
    JsonValue value = Value(0);
    Space();
    if (at_ != text_.size()) Fail("something follows the value");
    return value;
  }

 private:
  [[noreturn]] void Fail(const char* what) const {
    throw std::runtime_error(std::string(what) + " at byte " + std::to_string(at_));
  }
  void Space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
      ++at_;
    }
  }
  char Peek() {
    Space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  void Expect(char c) {
    if (Peek() != c) Fail("unexpected character");
    ++at_;
  }
  bool Word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  JsonValue Value(int depth) {
    if (depth > 16) Fail("nested too deep");
    JsonValue value;
    switch (Peek()) {
      case '{':
        value.kind = JsonValue::Kind::kObject;
        ++at_;
        if (Peek() == '}') { ++at_; return value; }
        for (;;) {
          if (Peek() != '"') Fail("a key must be a string");
          std::string key = String();
          Expect(':');
          value.members[key] = Value(depth + 1);
          if (Peek() != ',') break;
          ++at_;
        }
        Expect('}');
        return value;
      case '[':
        value.kind = JsonValue::Kind::kArray;
        ++at_;
        if (Peek() == ']') { ++at_; return value; }
        for (;;) {
          value.items.push_back(Value(depth + 1));
          if (Peek() != ',') break;
          ++at_;
        }
        Expect(']');
        return value;
      case '"':
        value.kind = JsonValue::Kind::kString;
        value.text = String();
        return value;
      default:
        break;
    }
    if (Word("true")) { value.kind = JsonValue::Kind::kBool; value.boolean = true; return value; }
    if (Word("false")) { value.kind = JsonValue::Kind::kBool; return value; }
    if (Word("null")) return value;
    const std::string rest(text_.substr(at_, 40));
    char* end = nullptr;
    value.number = std::strtod(rest.c_str(), &end);
    if (end == rest.c_str()) Fail("not a value");
    at_ += static_cast<size_t>(end - rest.c_str());
    value.kind = JsonValue::Kind::kNumber;
    return value;
  }

  std::string String() {
    ++at_;
    std::string out;
    while (at_ < text_.size() && text_[at_] != '"') {
      char c = text_[at_++];
      if (c != '\\') { out += c; continue; }
      if (at_ >= text_.size()) break;
      c = text_[at_++];
      switch (c) {
        case 'n': out += '\n'; break;
        case 't': out += '\t'; break;
        case 'r': out += '\r'; break;
        case 'u': {
          if (at_ + 4 > text_.size()) Fail("short \\u escape");
          const auto code = std::strtoul(std::string(text_.substr(at_, 4)).c_str(), nullptr, 16);
          at_ += 4;
          if (code < 0x80) { out += static_cast<char>(code); } else { out += '?'; }
          break;
        }
        default: out += c;
      }
    }
    if (at_ >= text_.size()) Fail("string without an end");
    ++at_;
    return out;
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

JsonValue ParseJson(std::string_view text) { return Parser(text).Document(); }

std::string JsonQuote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char buffer[8];
      std::snprintf(buffer, sizeof buffer, "\\u%04x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += buffer;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace vd
