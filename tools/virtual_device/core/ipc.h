// Memory and events shared with other processes (cudaIpc*).
//
// A handle says whose it is and how large. The process that opens it gets a range of its own, charged to the owner.
// What the other process wrote cannot be seen: the bytes are not known here (content.h) and read as zeros. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tools/virtual_device/core/config.h"

namespace vd {

inline constexpr size_t kIpcHandleBytes = 64;

// ADDRESS is the start of an allocation of cudaMalloc's; anything else is kInvalidValue.
VD_API int IpcExport(uintptr_t address, void* handle);
// A handle opened again gives the same address and is counted. kInvalidHandle for one of this process, as in CUDA.
VD_API int IpcOpen(const void* handle, uintptr_t* address);
VD_API int IpcClose(uintptr_t address);

VD_API void IpcExportEvent(const void* event, void* handle);
VD_API int IpcCheckEvent(const void* handle);

}  // namespace vd
