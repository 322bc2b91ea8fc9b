// Memory and virtual memory management.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "tools/virtual_device/core/memory.h"
#include "tools/virtual_device/core/streams.h"
#include "tools/virtual_device/core/transfer.h"
#include "tools/virtual_device/cuda/driver.h"

using vd::Driver;
using vd::Pointer;

namespace {

CUresult Copy(void* to, const void* from, size_t size, void* stream) {
  if (const int code = vd::EnsureContext(); code != vd::kOk) return Driver(code);
  const int code = vd::CopyBytes(to, from, size);
  if (code == vd::kOk) vd::Enqueue(stream);
  return Driver(code);
}

CUresult Set(CUdeviceptr to, const void* pattern, size_t pattern_size, size_t count, void* stream) {
  if (const int code = vd::EnsureContext(); code != vd::kOk) return Driver(code);
  const int code = vd::SetBytes(Pointer(to), pattern, pattern_size, count);
  if (code == vd::kOk) vd::Enqueue(stream);
  return Driver(code);
}

}  // namespace

extern "C" {

CUresult cuMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  if (const int code = vd::EnsureContext(); code != vd::kOk) return Driver(code);
  const vd::MemoryUse use = vd::GetMemoryUse(vd::g_thread.device);
  *free_bytes = use.free_bytes;
  *total_bytes = use.total_bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemAlloc(CUdeviceptr* address, size_t size) {
  if (size == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const int code = vd::EnsureContext(); code != vd::kOk) return Driver(code);
  uintptr_t at = 0;
  const int code = vd::DeviceMalloc(vd::g_thread.device, size, &at);
  *address = at;
  return Driver(code);
}
CUresult cuMemFree(CUdeviceptr address) { return Driver(vd::DeviceFree(address)); }
CUresult cuMemAllocHost(void** pointer, size_t size) { return Driver(vd::HostMalloc(size, vd::MemoryKind::kHost, 0, pointer)); }
CUresult cuMemHostAlloc(void** pointer, size_t size, unsigned int flags) {
  return Driver(vd::HostMalloc(size, vd::MemoryKind::kHost, flags, pointer));
}
CUresult cuMemFreeHost(void* pointer) { return Driver(vd::HostFree(pointer)); }
CUresult cuMemHostRegister(void* pointer, size_t size, unsigned int flags) {
  return Driver(vd::HostRegister(pointer, size, flags));
}
CUresult cuMemHostUnregister(void* pointer) { return Driver(vd::HostUnregister(pointer)); }
CUresult cuMemHostGetDevicePointer(CUdeviceptr* address, void* pointer, unsigned int) {
  *address = reinterpret_cast<CUdeviceptr>(pointer);
  return CUDA_SUCCESS;
}
CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* size, CUdeviceptr address) {
  const vd::MemoryRange range = vd::FindRange(address);
  if (range.kind == vd::MemoryKind::kNone) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = range.base;
  if (size != nullptr) *size = range.size;
  return CUDA_SUCCESS;
}
CUresult cuMemAllocAsync(CUdeviceptr* address, size_t size, CUstream stream) {
  if (const int code = vd::EnsureContext(); code != vd::kOk) return Driver(code);
  uintptr_t at = 0;
  const int code = vd::PoolMalloc(vd::StreamOf(stream)->device, size, &at);
  *address = at;
  return Driver(code);
}
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream) { return Driver(vd::PoolFree(address)); }

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size) { return Copy(Pointer(to), Pointer(from), size, nullptr); }
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  return Copy(Pointer(to), Pointer(from), size, stream);
}
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t size) { return Copy(Pointer(to), from, size, nullptr); }
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t size, CUstream stream) {
  return Copy(Pointer(to), from, size, stream);
}
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t size) { return Copy(to, Pointer(from), size, nullptr); }
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t size, CUstream stream) {
  return Copy(to, Pointer(from), size, stream);
}
CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t size) { return Copy(Pointer(to), Pointer(from), size, nullptr); }
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  return Copy(Pointer(to), Pointer(from), size, stream);
}
CUresult cuMemsetD8(CUdeviceptr to, unsigned char value, size_t count) { return Set(to, &value, 1, count, nullptr); }
CUresult cuMemsetD16(CUdeviceptr to, unsigned short value, size_t count) { return Set(to, &value, 2, count, nullptr); }
CUresult cuMemsetD32(CUdeviceptr to, unsigned int value, size_t count) { return Set(to, &value, 4, count, nullptr); }
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  return Set(to, &value, 1, count, stream);
}
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
  return Set(to, &value, 2, count, stream);
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream) {
  return Set(to, &value, 4, count, stream);
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  const vd::MemoryRange range = vd::FindRange(address);
  if (range.kind == vd::MemoryKind::kNone) return CUDA_ERROR_INVALID_VALUE;
  const bool host = range.kind == vd::MemoryKind::kHost || range.kind == vd::MemoryKind::kRegistered;
  const bool managed = range.kind == vd::MemoryKind::kManaged;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *static_cast<CUcontext*>(data) = vd::PrimaryContext(range.device); break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(data) = host ? CU_MEMORYTYPE_HOST : managed ? CU_MEMORYTYPE_UNIFIED : CU_MEMORYTYPE_DEVICE;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *static_cast<CUdeviceptr*>(data) = address; break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!host && !managed) return CUDA_ERROR_INVALID_VALUE;
      *static_cast<void**>(data) = Pointer(address);
      break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *static_cast<unsigned long long*>(data) = range.id; break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *static_cast<int*>(data) = managed ? 1 : 0; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *static_cast<int*>(data) = range.device; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *static_cast<CUdeviceptr*>(data) = range.base; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *static_cast<size_t*>(data) = range.size; break;
    case CU_POINTER_ATTRIBUTE_MAPPED: *static_cast<int*>(data) = 1; break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *static_cast<int*>(data) = 0; break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}
CUresult cuPointerSetAttribute(const void*, CUpointer_attribute, CUdeviceptr) { return CUDA_SUCCESS; }

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *granularity = vd::kGranularity;
  return CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* properties,
                     unsigned long long) {
  if (properties == nullptr || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  uint64_t made = 0;
  const int code = vd::PhysicalCreate(properties->location.id, size, &made);
  *handle = made;
  return Driver(code);
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) { return Driver(vd::PhysicalRelease(handle)); }
CUresult cuMemAddressReserve(CUdeviceptr* address, size_t size, size_t align, CUdeviceptr wanted, unsigned long long) {
  uintptr_t at = 0;
  const int code = vd::VirtualReserve(size, align, wanted, &at);
  *address = at;
  return Driver(code);
}
CUresult cuMemAddressFree(CUdeviceptr address, size_t size) { return Driver(vd::VirtualFree(address, size)); }
CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long) {
  return Driver(vd::VirtualMap(address, size, offset, handle));
}
CUresult cuMemUnmap(CUdeviceptr address, size_t size) { return Driver(vd::VirtualUnmap(address, size)); }
CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc* access, size_t count) {
  bool allowed = false;
  for (size_t i = 0; i < count; ++i) allowed = allowed || access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return Driver(vd::VirtualSetAccess(address, size, allowed));
}
CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation*, CUdeviceptr address) {
  *flags = vd::DeviceRangeValid(address, 1) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  *handle = vd::MappedHandle(reinterpret_cast<uintptr_t>(address));
  return *handle != 0 ? Driver(vd::PhysicalRetain(*handle)) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
  int device = 0;
  uint64_t size = 0;
  if (const int code = vd::PhysicalInfo(handle, &device, &size); code != vd::kOk) return Driver(code);
  std::memset(properties, 0, sizeof *properties);
  properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties->location.id = device;
  return CUDA_SUCCESS;
}
// A file that only another process of this virtual device could read: it carries the size.
CUresult cuMemExportToShareableHandle(void* shared, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long) {
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  int device = 0;
  uint64_t size = 0;
  if (const int code = vd::PhysicalInfo(handle, &device, &size); code != vd::kOk) return Driver(code);
  const int fd = memfd_create("vramledger", MFD_CLOEXEC);
  const uint64_t words[2] = {static_cast<uint64_t>(device), size};
  if (fd < 0 || write(fd, words, sizeof words) != static_cast<ssize_t>(sizeof words)) return CUDA_ERROR_OUT_OF_MEMORY;
  *static_cast<int*>(shared) = fd;
  return CUDA_SUCCESS;
}
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shared, CUmemAllocationHandleType type) {
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  uint64_t words[2] = {};
  const int fd = static_cast<int>(reinterpret_cast<uintptr_t>(shared));
  if (pread(fd, words, sizeof words, 0) != static_cast<ssize_t>(sizeof words)) return CUDA_ERROR_INVALID_VALUE;
  uint64_t made = 0;
  const int code = vd::PhysicalCreate(static_cast<int>(words[0]), words[1], &made);
  *handle = made;
  return Driver(code);
}

}  // extern "C"
