// The device's properties in CUDA's own types, and occupancy. Needs the CUDA headers.
#pragma once

#include <cuda_runtime_api.h>

#include "tools/virtual_device/core/config.h"

namespace vd {

VD_API void FillProperties(int device, cudaDeviceProp* properties);
// The value of a cudaDeviceAttr (CUdevice_attribute has the same numbers). False: not an attribute we know.
VD_API bool DeviceAttribute(int device, int attribute, int* value);
// Facts of a kernel. Constants for now: 32 registers, no static shared memory.
VD_API void FillFunctionAttributes(cudaFuncAttributes* attributes);
// Blocks of BLOCK_SIZE threads that fit on one multiprocessor, by NVIDIA's cuda_occupancy.h.
VD_API int OccupancyBlocks(int block_size, size_t dynamic_shared_bytes);
VD_API int OccupancyBlockSize(size_t dynamic_shared_bytes, int limit, int* grid, int* block);

}  // namespace vd
