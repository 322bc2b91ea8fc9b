// How variables of the environment are read, alike by the launcher and by the device. One that is empty was not set.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace vd {

inline const char* Variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

inline uint64_t NumberOr(const char* name, uint64_t otherwise) {
  const char* value = Variable(name);
  return value != nullptr ? std::strtoull(value, nullptr, 10) : otherwise;
}

// Assumed size of a context on the device, when nothing was said. Recorded out-of-memory runs bound it by 155 MiB
// on one card and 273 MiB on another; it is an assumption and README.md says so.
inline constexpr uint64_t kDefaultContextBytes = 160ull << 20;

inline uint64_t ContextBytes() { return NumberOr("VRAMLEDGER_VIRTUAL_DEVICE_CONTEXT", kDefaultContextBytes); }

}  // namespace vd
