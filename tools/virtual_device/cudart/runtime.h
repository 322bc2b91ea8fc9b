// Shared by the files of the runtime stand-in.
#pragma once

#include <cuda_runtime_api.h>

#include "tools/virtual_device/core/state.h"

namespace vd {

// Remembers an error for cudaGetLastError, as the runtime does, and passes it on. kNotReady is remembered too.
inline cudaError_t Result(int code) {
  if (code != kOk) [[unlikely]] RememberError(code);
  return static_cast<cudaError_t>(code);
}

}  // namespace vd
