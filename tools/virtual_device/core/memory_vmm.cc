// Virtual memory management: physical handles, reserved ranges and what is mapped where.
#include <sys/mman.h>

#include <map>
#include <mutex>

#include "tools/virtual_device/core/content.h"
#include "tools/virtual_device/core/gap_allocator.h"
#include "tools/virtual_device/core/memory.h"
#include "tools/virtual_device/core/state.h"

namespace vd {
namespace {

struct Physical {
  int device = 0;
  uint64_t size = 0;
  int references = 0;  // the creator's and one per mapping; at 0 the memory is given back
};
struct Mapping {
  uint64_t size = 0, handle = 0;
  bool accessible = false;
};
struct Vmm {
  std::mutex lock;
  bool ready = false;
  GapAllocator gaps;
  std::map<uintptr_t, uint64_t> reservations;
  std::map<uintptr_t, Mapping> mappings;
  std::map<uint64_t, Physical> physical;
  uint64_t next_handle = 0x1000;
};
Vmm& TheVmm() {
  static auto* vmm = new Vmm;
  return *vmm;
}

void Drop(Vmm& vmm, uint64_t handle) {
  auto it = vmm.physical.find(handle);
  if (it == vmm.physical.end() || --it->second.references > 0) return;
  ReleaseMemory(it->second.device, it->second.size);
  vmm.physical.erase(it);
}

bool Prepare(Vmm& vmm) {
  if (vmm.ready) return true;
  void* wanted = reinterpret_cast<void*>(kVirtualBase);
  if (mmap(wanted, kVirtualSpan, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) !=
      wanted) {
    return false;
  }
  vmm.gaps = GapAllocator(kVirtualBase, kVirtualSpan, GetConfig().address_down);
  return vmm.ready = true;
}

std::map<uintptr_t, Mapping>::iterator MappingAt(Vmm& vmm, uintptr_t address) {
  auto it = vmm.mappings.upper_bound(address);
  if (it == vmm.mappings.begin()) return vmm.mappings.end();
  --it;
  return address - it->first < it->second.size ? it : vmm.mappings.end();
}

}  // namespace

void ForkVmm(int action) { ForkLock(TheVmm().lock, action); }

int PhysicalCreate(int device, uint64_t size, uint64_t* handle) {
  if (size == 0 || size % kGranularity != 0) return kInvalidValue;
  if (const int code = EnsureContext(device); code != kOk) return code;
  if (const int code = ChargeMemory(device, size); code != kOk) return code;
  Vmm& vmm = TheVmm();
  const std::lock_guard guard(vmm.lock);
  *handle = vmm.next_handle++;
  vmm.physical[*handle] = {device, size, 1};
  return kOk;
}

int PhysicalRetain(uint64_t handle) {
  Vmm& vmm = TheVmm();
  const std::lock_guard guard(vmm.lock);
  auto it = vmm.physical.find(handle);
  if (it == vmm.physical.end()) return kInvalidValue;
  ++it->second.references;
  return kOk;
}

int PhysicalRelease(uint64_t handle) {
  Vmm& vmm = TheVmm();
  const std::lock_guard guard(vmm.lock);
  if (vmm.physical.count(handle) == 0) return kInvalidValue;
  Drop(vmm, handle);
  return kOk;
}

int PhysicalInfo(uint64_t handle, int* device, uint64_t* size) {
  Vmm& vmm = TheVmm();
  const std::lock_guard guard(vmm.lock);
  auto it = vmm.physical.find(handle);
  if (it == vmm.physical.end()) return kInvalidValue;
  *device = it->second.device;
  *size = it->second.size;
  return kOk;
}

int VirtualReserve(uint64_t size, uint64_t align, uintptr_t wanted, uintptr_t* address) {
  *address = 0;
  if (size == 0 || size % kGranularity != 0) return kInvalidValue;
  if (align == 0) align = kGranularity;
  if ((align & (align - 1)) != 0) return kInvalidValue;
  Vmm& vmm = TheVmm();
  const std::lock_guard guard(vmm.lock);
  if (!Prepare(vmm)) return kOutOfMemory;
  // A wanted address is a hint, as in the driver.
  uintptr_t at = wanted % kGranularity == 0 && wanted != 0 && vmm.gaps.AllocateAt(wanted, size) ? wanted : 0;
  if (at == 0) at = vmm.gaps.Allocate(size, std::max(align, kGranularity));
  if (at == 0) return kOutOfMemory;
  vmm.reservations[at] = size;
  *address = at;
  return kOk;
}

int VirtualFree(uintptr_t address, uint64_t size) {
  Vmm& vmm = TheVmm();
  const std::lock_guard guard(vmm.lock);
  auto it = vmm.reservations.find(address);
  if (it == vmm.reservations.end() || it->second != size) return kInvalidValue;
  auto mapped = vmm.mappings.lower_bound(address);
  if (mapped != vmm.mappings.end() && mapped->first < address + size) return kInvalidValue;
  vmm.reservations.erase(it);
  vmm.gaps.Free(address, size);
  return kOk;
}

int VirtualMap(uintptr_t address, uint64_t size, uint64_t offset, uint64_t handle) {
  Vmm& vmm = TheVmm();
  const std::lock_guard guard(vmm.lock);
  auto reserved = vmm.reservations.upper_bound(address);
  if (size == 0 || address % kGranularity != 0 || reserved == vmm.reservations.begin()) return kInvalidValue;
  --reserved;
  if (address + size > reserved->first + reserved->second) return kInvalidValue;
  auto physical = vmm.physical.find(handle);
  if (physical == vmm.physical.end() || offset + size > physical->second.size) return kInvalidValue;
  auto next = vmm.mappings.lower_bound(address);
  if (next != vmm.mappings.end() && next->first < address + size) return kInvalidValue;
  if (MappingAt(vmm, address) != vmm.mappings.end()) return kInvalidValue;
  ++physical->second.references;
  vmm.mappings[address] = {size, handle, false};
  return kOk;
}

int VirtualUnmap(uintptr_t address, uint64_t size) {
  Vmm& vmm = TheVmm();
  {
    const std::lock_guard guard(vmm.lock);
    // Whole mappings only, as the driver demands; check all before any is changed.
    uintptr_t at = address;
    for (auto it = vmm.mappings.find(address); at < address + size; at += it->second.size, ++it) {
      if (it == vmm.mappings.end() || it->first != at || it->second.size > address + size - at) return kInvalidValue;
    }
    auto it = vmm.mappings.find(address);
    while (it != vmm.mappings.end() && it->first < address + size) {
      const uint64_t handle = it->second.handle;
      it = vmm.mappings.erase(it);
      Drop(vmm, handle);
    }
  }
  ForgetContent(address, size);
  return kOk;
}

int VirtualSetAccess(uintptr_t address, uint64_t size, bool allowed) {
  Vmm& vmm = TheVmm();
  const std::lock_guard guard(vmm.lock);
  uintptr_t at = address;
  auto it = vmm.mappings.find(address);
  for (; at < address + size; ++it) {
    if (it == vmm.mappings.end() || it->first != at) return kInvalidValue;
    at += it->second.size;
    it->second.accessible = allowed;
  }
  return kOk;
}

uint64_t MappedHandle(uintptr_t address) {
  Vmm& vmm = TheVmm();
  const std::lock_guard guard(vmm.lock);
  auto it = MappingAt(vmm, address);
  return it == vmm.mappings.end() ? 0 : it->second.handle;
}

bool MappedRange(uintptr_t address, MemoryRange* range) {
  Vmm& vmm = TheVmm();
  const std::lock_guard guard(vmm.lock);
  auto it = MappingAt(vmm, address);
  if (it == vmm.mappings.end()) return false;
  const int device = vmm.physical.at(it->second.handle).device;
  *range = {MemoryKind::kMapped, it->first, it->second.size, device, it->second.handle, 0};
  return true;
}

bool MappedRangeValid(uintptr_t address, uint64_t size) {
  Vmm& vmm = TheVmm();
  const std::lock_guard guard(vmm.lock);
  auto it = MappingAt(vmm, address);
  for (uintptr_t at = address; at < address + size; ++it) {
    if (it == vmm.mappings.end() || it->first > at || !it->second.accessible) return false;
    at = it->first + it->second.size;
  }
  return true;
}

}  // namespace vd
