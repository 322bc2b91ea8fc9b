// What is known about the bytes of device memory.
//
// Kernels do not run, so a byte is known only if the host (or a memset, or a copy of known bytes) wrote it and no
// kernel was launched since: any launch may have changed any byte, so it ends all knowledge. A byte that is not known
// reads as zero. So a read is never stale, and `tensor.cuda().cpu()` gives back what went in.
// Known bytes are kept beside the address space, which itself is never backed by memory.
// Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tools/virtual_device/core/config.h"

namespace vd {

// Records that [address, address + size) now holds the bytes at `from` (host memory). False: `from` cannot be read.
VD_API bool WriteContent(uintptr_t address, const void* from, size_t size);
VD_API void FillContent(uintptr_t address, const void* pattern, size_t pattern_size, size_t size);
VD_API void CopyContent(uintptr_t to, uintptr_t from, size_t size);

// Writes what is known of [address, address + size), zeros elsewhere, to `to`. `unknown` becomes the number of bytes
// that were not known. False: `to` cannot be written.
VD_API bool ReadContent(void* to, uintptr_t address, size_t size, size_t* unknown);

// Forgets the range (a free), or everything (a kernel launch).
VD_API void ForgetContent(uintptr_t address, size_t size);
VD_API void ForgetAllContent();

}  // namespace vd
