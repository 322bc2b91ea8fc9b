// Allocation and copies.
#include <cstring>

#include "tools/virtual_device/core/memory.h"
#include "tools/virtual_device/core/streams.h"
#include "tools/virtual_device/core/transfer.h"
#include "tools/virtual_device/cudart/runtime.h"

using vd::Result;

namespace {

// What every call that touches the device's memory does first.
int Begin() {
  if (const int code = vd::EnsureContext(); code != vd::kOk) return code;
  return vd::CaptureAllows();
}

int Set(void* to, int value, size_t size, void* stream) {
  if (const int code = vd::EnsureContext(); code != vd::kOk) return code;
  const char byte = static_cast<char>(value);
  if (const int code = vd::SetBytes(to, &byte, 1, size); code != vd::kOk) return code;
  vd::Enqueue(stream);
  return vd::kOk;
}

int Copy(void* to, const void* from, size_t size, void* stream) {
  if (const int code = vd::EnsureContext(); code != vd::kOk) return code;
  if (const int code = vd::CopyBytes(to, from, size); code != vd::kOk) return code;
  vd::Enqueue(stream);
  return vd::kOk;
}

int Copy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, void* stream) {
  if (const int code = vd::EnsureContext(); code != vd::kOk) return code;
  if (width > to_pitch || width > from_pitch) return vd::kInvalidValue;
  for (size_t row = 0; row < height; ++row) {
    const int code = vd::CopyBytes(static_cast<char*>(to) + row * to_pitch,
                                   static_cast<const char*>(from) + row * from_pitch, width);
    if (code != vd::kOk) return code;
  }
  vd::Enqueue(stream);
  return vd::kOk;
}

int CheckDevice(cudaMemPool_t pool) {
  const auto number = reinterpret_cast<uintptr_t>(pool);
  return number >= 1 && number <= static_cast<uintptr_t>(vd::DeviceCount()) ? static_cast<int>(number) - 1 : -1;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t size) {
  if (pointer == nullptr) return Result(vd::kInvalidValue);
  if (const int code = Begin(); code != vd::kOk) return Result(code);
  uintptr_t address = 0;
  const int code = vd::DeviceMalloc(vd::g_thread.device, size, &address);
  *pointer = reinterpret_cast<void*>(address);
  return Result(code);
}

cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  *pitch = (width + 511) / 512 * 512;
  return cudaMalloc(pointer, *pitch * height);
}

cudaError_t cudaFree(void* pointer) {
  if (const int code = vd::EnsureContext(); code != vd::kOk) return Result(code);
  if (pointer == nullptr) return cudaSuccess;
  vd::DeviceSync(vd::g_thread.device);  // the driver waits for the device before it gives memory back
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  switch (vd::FindRange(address).kind) {
    case vd::MemoryKind::kManaged: return Result(vd::HostFree(pointer));
    case vd::MemoryKind::kPool: return Result(vd::PoolFree(address));
    default: return Result(vd::DeviceFree(address));
  }
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  if (const int code = vd::EnsureContext(); code != vd::kOk) return Result(code);
  const vd::MemoryUse use = vd::GetMemoryUse(vd::g_thread.device);
  *free_bytes = use.free_bytes;
  *total_bytes = use.total_bytes;
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** pointer, size_t size, unsigned int flags) {
  if (const int code = Begin(); code != vd::kOk) return Result(code);
  return Result(vd::HostMalloc(size, vd::MemoryKind::kHost, flags, pointer));
}
cudaError_t cudaMallocHost(void** pointer, size_t size) { return cudaHostAlloc(pointer, size, 0); }
cudaError_t cudaFreeHost(void* pointer) { return Result(vd::HostFree(pointer)); }
cudaError_t cudaMallocManaged(void** pointer, size_t size, unsigned int flags) {
  if (const int code = Begin(); code != vd::kOk) return Result(code);
  return Result(vd::HostMalloc(size, vd::MemoryKind::kManaged, flags, pointer));
}
cudaError_t cudaHostRegister(void* pointer, size_t size, unsigned int flags) {
  if (const int code = Begin(); code != vd::kOk) return Result(code);
  return Result(vd::HostRegister(pointer, size, flags));
}
cudaError_t cudaHostUnregister(void* pointer) { return Result(vd::HostUnregister(pointer)); }
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned int) {
  if (vd::FindRange(reinterpret_cast<uintptr_t>(host)).kind == vd::MemoryKind::kNone) return Result(vd::kInvalidValue);
  *device = host;
  return cudaSuccess;
}
cudaError_t cudaHostGetFlags(unsigned int* flags, void* host) {
  const vd::MemoryRange range = vd::FindRange(reinterpret_cast<uintptr_t>(host));
  if (range.kind == vd::MemoryKind::kNone) return Result(vd::kInvalidValue);
  *flags = range.flags;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  if (attributes == nullptr) return Result(vd::kInvalidValue);
  std::memset(attributes, 0, sizeof *attributes);
  const vd::MemoryRange range = vd::FindRange(reinterpret_cast<uintptr_t>(pointer));
  attributes->device = range.device;
  void* const plain = const_cast<void*>(pointer);
  switch (range.kind) {
    case vd::MemoryKind::kNone:
      attributes->type = cudaMemoryTypeUnregistered;
      attributes->device = -2;
      break;
    case vd::MemoryKind::kHost: case vd::MemoryKind::kRegistered:
      attributes->type = cudaMemoryTypeHost;
      attributes->hostPointer = attributes->devicePointer = plain;
      break;
    case vd::MemoryKind::kManaged:
      attributes->type = cudaMemoryTypeManaged;
      attributes->hostPointer = attributes->devicePointer = plain;
      break;
    default:
      attributes->type = cudaMemoryTypeDevice;
      attributes->devicePointer = plain;
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t size, enum cudaMemcpyKind) {
  const int code = Copy(to, from, size, nullptr);
  return Result(code != vd::kOk ? code : vd::StreamSync(nullptr));
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, enum cudaMemcpyKind, cudaStream_t stream) {
  return Result(Copy(to, from, size, stream));
}
cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t size) { return Result(Copy(to, from, size, nullptr)); }
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, cudaStream_t stream) {
  return Result(Copy(to, from, size, stream));
}
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                         enum cudaMemcpyKind) {
  return Result(Copy2D(to, to_pitch, from, from_pitch, width, height, nullptr));
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind, cudaStream_t stream) {
  return Result(Copy2D(to, to_pitch, from, from_pitch, width, height, stream));
}
cudaError_t cudaMemset(void* to, int value, size_t size) { return Result(Set(to, value, size, nullptr)); }
cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t stream) {
  return Result(Set(to, value, size, stream));
}
cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
  for (size_t row = 0; row < height; ++row) {
    if (const int code = Set(static_cast<char*>(to) + row * pitch, value, width, stream)) return Result(code);
  }
  return cudaSuccess;
}
cudaError_t cudaMemPrefetchAsync(const void*, size_t, struct cudaMemLocation, unsigned int, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaMemAdvise(const void*, size_t, enum cudaMemoryAdvise, struct cudaMemLocation) { return cudaSuccess; }

// Stream-ordered allocation. A pool's handle is its device's number plus one.
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  if (device < 0 || device >= vd::DeviceCount()) return Result(vd::kInvalidDevice);
  *pool = reinterpret_cast<cudaMemPool_t>(static_cast<uintptr_t>(device) + 1);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) { return cudaDeviceGetDefaultMemPool(pool, device); }

cudaError_t cudaMallocAsync(void** pointer, size_t size, cudaStream_t stream) {
  if (const int code = vd::EnsureContext(); code != vd::kOk) return Result(code);
  uintptr_t address = 0;
  const int code = vd::PoolMalloc(vd::StreamOf(stream)->device, size, &address);
  *pointer = reinterpret_cast<void*>(address);
  return Result(code);
}
cudaError_t cudaMallocFromPoolAsync(void** pointer, size_t size, cudaMemPool_t pool, cudaStream_t) {
  const int device = CheckDevice(pool);
  if (device < 0) return Result(vd::kInvalidValue);
  uintptr_t address = 0;
  const int code = vd::PoolMalloc(device, size, &address);
  *pointer = reinterpret_cast<void*>(address);
  return Result(code);
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const bool pooled = vd::FindRange(address).kind == vd::MemoryKind::kPool;
  return Result(pooled ? vd::PoolFree(address) : vd::DeviceFree(address));
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep) {
  const int device = CheckDevice(pool);
  if (device < 0) return Result(vd::kInvalidValue);
  vd::TrimPool(device, keep);
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const struct cudaMemAccessDesc*, size_t) { return cudaSuccess; }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void* value) {
  const int device = CheckDevice(pool);
  if (device < 0) return Result(vd::kInvalidValue);
  if (attribute == cudaMemPoolAttrReleaseThreshold) vd::SetPoolThreshold(device, *static_cast<uint64_t*>(value));
  if (attribute == cudaMemPoolAttrReservedMemHigh) vd::ResetPoolHigh(device, true);
  if (attribute == cudaMemPoolAttrUsedMemHigh) vd::ResetPoolHigh(device, false);
  return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void* value) {
  const int device = CheckDevice(pool);
  if (device < 0) return Result(vd::kInvalidValue);
  const vd::PoolState state = vd::GetPool(device);
  switch (attribute) {
    case cudaMemPoolAttrReleaseThreshold: *static_cast<uint64_t*>(value) = state.release_threshold; break;
    case cudaMemPoolAttrReservedMemCurrent: *static_cast<uint64_t*>(value) = state.reserved; break;
    case cudaMemPoolAttrReservedMemHigh: *static_cast<uint64_t*>(value) = state.reserved_high; break;
    case cudaMemPoolAttrUsedMemCurrent: *static_cast<uint64_t*>(value) = state.used; break;
    case cudaMemPoolAttrUsedMemHigh: *static_cast<uint64_t*>(value) = state.used_high; break;
    default: *static_cast<int*>(value) = 1;  // the three reuse policies, all on
  }
  return cudaSuccess;
}

}  // extern "C"
