// Small string helpers over std::string_view. (Abseil as packaged by Debian has its own string_view type, which does
// not convert from std's.)
#ifndef VRAMLEDGER_TOOLS_FOREIGN_TEXT_H_
#define VRAMLEDGER_TOOLS_FOREIGN_TEXT_H_

#include <charconv>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace vramledger {

template <typename T>
void CatOne(std::string* out, const T& value) {
  if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    out->append(std::string_view(value));
  } else {
    static_assert(std::is_integral_v<T>, "text or integers only");
    out->append(std::to_string(value));
  }
}

// Text and integers in one string.
template <typename... Args>
std::string Cat(const Args&... args) {
  std::string out;
  (CatOne(&out, args), ...);
  return out;
}

inline bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// The whole text must be the number.
template <typename T>
bool ParseInteger(std::string_view text, T* out, int base = 10) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out, base);
  return !text.empty() && error == std::errc() && end == text.data() + text.size();
}
inline bool ParseDouble(std::string_view text, double* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return !text.empty() && error == std::errc() && end == text.data() + text.size();
}

// Parts between `separator`; empty parts are kept unless `skip_empty`.
inline std::vector<std::string_view> Split(std::string_view text, char separator, bool skip_empty = false) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t at = text.find(separator);
    const std::string_view part = text.substr(0, at);
    if (!part.empty() || !skip_empty) parts.push_back(part);
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

inline void ReplaceAll(std::string* text, std::string_view from, std::string_view to) {
  for (size_t at = text->find(from); at != std::string::npos; at = text->find(from, at + to.size()))
    text->replace(at, from.size(), to);
}

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_FOREIGN_TEXT_H_
