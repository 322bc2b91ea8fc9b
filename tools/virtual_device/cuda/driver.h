// Shared by the files of the driver stand-in. Codes of state.h are CUresult values.
#pragma once

#include <cuda.h>

#include "tools/virtual_device/core/state.h"

namespace vd {

inline CUresult Driver(int code) { return static_cast<CUresult>(code); }

// A device's primary context: an address that stands for it.
CUcontext PrimaryContext(int device);
int DeviceOf(CUcontext context);  // -1: not one of ours

inline void* Pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

}  // namespace vd
