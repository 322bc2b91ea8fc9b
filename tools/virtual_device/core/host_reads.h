// Counts host reads of device bytes that a kernel should have made. Such a read gets zeros; where it decides a shape
// or a branch, the run differs from a real one, so the summary at exit names the places. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tools/virtual_device/core/config.h"

namespace vd {

VD_API void CountHostRead(size_t unknown_bytes);

struct HostReadTotals {
  uint64_t reads = 0, bytes = 0;
};
VD_API HostReadTotals GetHostReads();

// The sites as a JSON array: [{"count", "bytes", "python", "native": [..]}].
std::string HostReadSitesJson();
// "file.py:12" of the first site, or "".
std::string FirstHostReadSite();

}  // namespace vd
