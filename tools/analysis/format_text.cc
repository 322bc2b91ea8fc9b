#include "tools/analysis/format_text.h"

#include <cstdio>

namespace vramledger {
namespace {

std::string Print(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof(buffer), format, value);
  return buffer;
}

}  // namespace

std::string HumanBytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  auto value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) value /= 1024, ++unit;
  return Print(value < 100 ? "%.2f " : "%.1f ", value) + kUnits[unit];
}

std::string Grouped(uint64_t value) {
  std::string digits = std::to_string(value);
  for (size_t at = digits.size(); at > 3;) digits.insert(at -= 3, 1, ',');
  return digits;
}

std::string Percent(double share) {
  const double percent = share * 100;
  return Print(percent != 0 && percent < 1 && percent > -1 ? "%.2f %%" : "%.1f %%", percent);
}

std::string HumanTime(uint64_t ns) {
  const auto value = static_cast<double>(ns);
  if (ns < 1000) return std::to_string(ns) + " ns";
  if (ns < 1000000) return Print("%.1f us", value / 1e3);
  if (ns < 1000000000) return Print("%.1f ms", value / 1e6);
  return Print("%.3f s", value / 1e9);
}

}  // namespace vramledger
