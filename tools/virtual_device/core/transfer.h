// Copies between any two addresses; which side is the device's is read from the addresses. Thread-safe.
#pragma once

#include <cstddef>

#include "tools/virtual_device/core/config.h"

namespace vd {

// A Code of state.h: kInvalidValue when a side cannot be accessed. Counts host reads of unknown bytes.
VD_API int CopyBytes(void* to, const void* from, size_t size);
// COUNT elements of PATTERN_SIZE bytes (1, 2 or 4).
VD_API int SetBytes(void* to, const void* pattern, size_t pattern_size, size_t count);

}  // namespace vd
