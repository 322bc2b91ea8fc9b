// Device address space and its accounting. Memory is address space only: nothing is ever backed, see content.h.
// All sizes in bytes, all functions thread-safe, results are Codes of state.h unless said.
//
// Layout: each device owns 1 TiB at kDeviceBase + device * 1 TiB (lower half cudaMalloc, upper half stream-ordered
// pools); reserved virtual ranges (cuMemAddressReserve) live at kVirtualBase. The base is fixed, so runs repeat.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tools/virtual_device/core/config.h"

namespace vd {

inline constexpr uintptr_t kDeviceBase = 0x200000000000;
inline constexpr int kDeviceSpanBits = 40;
inline constexpr uintptr_t kDeviceEnd = kDeviceBase + (uintptr_t{16} << kDeviceSpanBits);
inline constexpr uintptr_t kVirtualBase = 0x300000000000;
inline constexpr uint64_t kVirtualSpan = uint64_t{1} << 45;
inline constexpr uint64_t kGranularity = 2ull << 20;  // of cudaMalloc and of cuMemCreate

inline bool IsDeviceAddress(uintptr_t address) {
  return address - kDeviceBase < kDeviceEnd - kDeviceBase || address - kVirtualBase < kVirtualSpan;
}

// kImported: another process's memory, opened here through an IPC handle.
enum class MemoryKind : uint8_t { kNone, kDevice, kPool, kMapped, kHost, kRegistered, kManaged, kImported };

struct MemoryRange {
  MemoryKind kind = MemoryKind::kNone;
  uintptr_t base = 0;
  uint64_t size = 0;      // as asked
  int device = 0;
  uint64_t id = 0;        // unique per allocation, never reused
  uint32_t flags = 0;
};

// Counts towards the device's total; made by MemoryInfo's caller on demand.
struct MemoryUse {
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
};

VD_API int ReserveAddressSpace(int device);  // called when a context is made
VD_API int ChargeMemory(int device, uint64_t bytes);
VD_API void ReleaseMemory(int device, uint64_t bytes);
VD_API MemoryUse GetMemoryUse(int device);
VD_API uint64_t PeakMemoryUse(int device);
// What this process holds of the device, its context included.
VD_API uint64_t OwnMemoryUse(int device);

// One allocation or release, as a tool that watches memory is told of it: after an allocation, before the address can be
// handed out again after a release. Called without locks. Physical memory (cuMemCreate) is not told.
struct MemoryEvent {
  bool allocates = false;
  MemoryKind kind = MemoryKind::kNone;
  int device = 0;
  uintptr_t address = 0;
  uint64_t size = 0;  // as asked
};
using MemoryWatcher = void (*)(const MemoryEvent&);
VD_API void SetMemoryWatcher(MemoryWatcher watcher);  // null: nobody watches

VD_API int DeviceMalloc(int device, uint64_t size, uintptr_t* address);
VD_API int DeviceFree(uintptr_t address);

// Stream-ordered pool of a device. Nominal placement: first fit at 512 B, reserve grows in 32 MiB steps.
struct PoolState {
  uint64_t reserved = 0, reserved_high = 0, used = 0, used_high = 0, release_threshold = 0;
};
VD_API int PoolMalloc(int device, uint64_t size, uintptr_t* address);
VD_API int PoolFree(uintptr_t address);
VD_API PoolState GetPool(int device);
VD_API void SetPoolThreshold(int device, uint64_t bytes);
VD_API void ResetPoolHigh(int device, bool reserved);
VD_API void TrimPool(int device, uint64_t keep);

// Host memory known to CUDA: pinned, registered, managed.
VD_API int HostMalloc(uint64_t size, MemoryKind kind, uint32_t flags, void** pointer);
VD_API int HostFree(void* pointer);
VD_API int HostRegister(void* pointer, uint64_t size, uint32_t flags);
VD_API int HostUnregister(void* pointer);

// A place for memory that another process owns; it is charged there, not here.
VD_API int ImportRange(int device, uint64_t size, uintptr_t* address);
VD_API int DropImport(uintptr_t address);

// The allocation that ADDRESS lies in; kind kNone when there is none.
VD_API MemoryRange FindRange(uintptr_t address);
// Whether every byte of [address, address + size) is device memory that may be accessed.
VD_API bool DeviceRangeValid(uintptr_t address, uint64_t size);

// Virtual memory management: handles, reservations, mappings.
VD_API int PhysicalCreate(int device, uint64_t size, uint64_t* handle);
VD_API int PhysicalRetain(uint64_t handle);
VD_API int PhysicalRelease(uint64_t handle);
VD_API int PhysicalInfo(uint64_t handle, int* device, uint64_t* size);
VD_API int VirtualReserve(uint64_t size, uint64_t align, uintptr_t wanted, uintptr_t* address);
VD_API int VirtualFree(uintptr_t address, uint64_t size);
VD_API int VirtualMap(uintptr_t address, uint64_t size, uint64_t offset, uint64_t handle);
VD_API int VirtualUnmap(uintptr_t address, uint64_t size);
VD_API int VirtualSetAccess(uintptr_t address, uint64_t size, bool allowed);
VD_API uint64_t MappedHandle(uintptr_t address);  // 0: none

}  // namespace vd
