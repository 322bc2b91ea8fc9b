#include "tools/virtual_device/core/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "tools/virtual_device/core/content.h"
#include "tools/virtual_device/core/gap_allocator.h"
#include "tools/virtual_device/core/state.h"

namespace vd {
namespace {

constexpr int kMostDevices = 16;
constexpr uint64_t kPoolStep = 32ull << 20;
constexpr uint64_t kPoolAlign = 512;

uint64_t RoundUp(uint64_t size, uint64_t step) { return (size + step - 1) / step * step; }

struct DeviceSpace {
  bool reserved = false;
  GapAllocator gaps, pool_gaps;
  uint64_t used = 0, peak = 0;
  PoolState pool;
};

// One lock for all of it: allocation calls are rare (the allocator above caches), lookups take it shared.
struct Space {
  std::shared_mutex lock;
  std::array<DeviceSpace, kMostDevices> devices;
  std::map<uintptr_t, MemoryRange> ranges;  // by base; everything but VMM mappings
  uint64_t next_id = 1;
};
Space& TheSpace() {
  static auto* space = new Space;
  return *space;
}

std::atomic<MemoryWatcher> g_watcher{nullptr};

void Tell(bool allocates, MemoryKind kind, int device, uintptr_t address, uint64_t size) {
  if (const MemoryWatcher watcher = g_watcher.load(std::memory_order_acquire)) watcher({allocates, kind, device, address, size});
}

uint64_t PretendedUse() {
  uint64_t sum = 0;
  for (const OtherProcess& process : GetConfig().other_processes) sum += process.bytes;
  return sum;
}

uint64_t FreeOf(const DeviceSpace& device) {
  const uint64_t total = GetConfig().memory_bytes;
  return total - std::min(total, device.used + PretendedUse());
}

bool ChargeLocked(DeviceSpace& device, uint64_t bytes) {
  if (bytes > FreeOf(device)) return false;
  device.used += bytes;
  device.peak = std::max(device.peak, device.used);
  return true;
}

const MemoryRange* FindLocked(const std::map<uintptr_t, MemoryRange>& ranges, uintptr_t address) {
  auto it = ranges.upper_bound(address);
  if (it == ranges.begin()) return nullptr;
  --it;
  // A zero-size host allocation still owns its own address.
  const uint64_t size = std::max<uint64_t>(it->second.size, 1);
  return address - it->first < size ? &it->second : nullptr;
}

void TellRelease(uintptr_t address, MemoryKind kind) {
  const MemoryRange range = FindRange(address);
  if (range.kind == kind && range.base == address) Tell(false, kind, range.device, address, range.size);
}

bool Reserve(uintptr_t base, uint64_t size) {
  void* at = mmap(reinterpret_cast<void*>(base), size, PROT_NONE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  return at == reinterpret_cast<void*>(base);
}

}  // namespace

bool MappedRange(uintptr_t address, MemoryRange* range);   // memory_vmm.cc
bool MappedRangeValid(uintptr_t address, uint64_t size);   // memory_vmm.cc

void ForkMemory(int action) { ForkLock(TheSpace().lock, action); }

int ReserveAddressSpace(int device) {
  Space& space = TheSpace();
  const std::lock_guard guard(space.lock);
  DeviceSpace& mine = space.devices[device];
  if (mine.reserved) return kOk;
  const uintptr_t base = kDeviceBase + (static_cast<uintptr_t>(device) << kDeviceSpanBits);
  constexpr uint64_t kHalf = uint64_t{1} << (kDeviceSpanBits - 1);
  if (!Reserve(base, 2 * kHalf)) return kOutOfMemory;
  const bool down = GetConfig().address_down;
  mine.gaps = GapAllocator(base + kGranularity, kHalf - kGranularity, down);
  mine.pool_gaps = GapAllocator(base + kHalf, kHalf, down);
  mine.reserved = true;
  return kOk;
}

int ChargeMemory(int device, uint64_t bytes) {
  Space& space = TheSpace();
  const std::lock_guard guard(space.lock);
  return ChargeLocked(space.devices[device], bytes) ? kOk : kOutOfMemory;
}

void ReleaseMemory(int device, uint64_t bytes) {
  Space& space = TheSpace();
  const std::lock_guard guard(space.lock);
  space.devices[device].used -= std::min(bytes, space.devices[device].used);
}

MemoryUse GetMemoryUse(int device) {
  Space& space = TheSpace();
  const std::shared_lock guard(space.lock);
  return {FreeOf(space.devices[device]), GetConfig().memory_bytes};
}

uint64_t OwnMemoryUse(int device) {
  Space& space = TheSpace();
  const std::shared_lock guard(space.lock);
  return space.devices[device].used;
}

void SetMemoryWatcher(MemoryWatcher watcher) { g_watcher.store(watcher, std::memory_order_release); }

uint64_t PeakMemoryUse(int device) {
  Space& space = TheSpace();
  const std::shared_lock guard(space.lock);
  return space.devices[device].peak;
}

int DeviceMalloc(int device, uint64_t size, uintptr_t* address) {
  *address = 0;
  if (size == 0) return kOk;  // documented: a null pointer and success
  if (size > (uint64_t{1} << (kDeviceSpanBits - 1))) return kOutOfMemory;
  const uint64_t rounded = RoundUp(size, kGranularity);
  Space& space = TheSpace();
  {
    const std::lock_guard guard(space.lock);
    DeviceSpace& mine = space.devices[device];
    if (!ChargeLocked(mine, rounded)) return kOutOfMemory;
    const uintptr_t at = mine.gaps.Allocate(rounded, kGranularity);
    if (at == 0) {
      mine.used -= rounded;
      return kOutOfMemory;
    }
    space.ranges[at] = {MemoryKind::kDevice, at, size, device, space.next_id++, 0};
    *address = at;
  }
  Tell(true, MemoryKind::kDevice, device, *address, size);
  return kOk;
}

int DeviceFree(uintptr_t address) {
  if (address == 0) return kOk;
  Space& space = TheSpace();
  uint64_t size = 0;
  if (g_watcher.load(std::memory_order_relaxed) != nullptr) TellRelease(address, MemoryKind::kDevice);
  {
    const std::lock_guard guard(space.lock);
    auto it = space.ranges.find(address);
    if (it == space.ranges.end() || it->second.kind != MemoryKind::kDevice) return kInvalidValue;
    size = it->second.size;
    const uint64_t rounded = RoundUp(size, kGranularity);
    DeviceSpace& mine = space.devices[it->second.device];
    mine.used -= rounded;
    mine.gaps.Free(address, rounded);
    space.ranges.erase(it);
  }
  ForgetContent(address, size);
  return kOk;
}

int PoolMalloc(int device, uint64_t size, uintptr_t* address) {
  *address = 0;
  if (size == 0) return kOk;
  if (size > (uint64_t{1} << (kDeviceSpanBits - 1))) return kOutOfMemory;
  const uint64_t rounded = RoundUp(size, kPoolAlign);
  Space& space = TheSpace();
  std::unique_lock guard(space.lock);
  DeviceSpace& mine = space.devices[device];
  PoolState& pool = mine.pool;
  if (pool.used + rounded > pool.reserved) {
    uint64_t grow = RoundUp(pool.used + rounded - pool.reserved, kPoolStep);
    if (!ChargeLocked(mine, grow)) {
      grow = RoundUp(pool.used + rounded - pool.reserved, kGranularity);  // the last of a full card
      if (!ChargeLocked(mine, grow)) return kOutOfMemory;
    }
    pool.reserved += grow;
    pool.reserved_high = std::max(pool.reserved_high, pool.reserved);
  }
  const uintptr_t at = mine.pool_gaps.Allocate(rounded, kPoolAlign);
  if (at == 0) return kOutOfMemory;
  pool.used += rounded;
  pool.used_high = std::max(pool.used_high, pool.used);
  space.ranges[at] = {MemoryKind::kPool, at, size, device, space.next_id++, 0};
  *address = at;
  guard.unlock();
  Tell(true, MemoryKind::kPool, device, at, size);
  return kOk;
}

namespace {
void TrimLocked(DeviceSpace& mine, uint64_t keep) {
  const uint64_t wanted = std::max(RoundUp(mine.pool.used, kPoolStep), keep);
  if (mine.pool.reserved <= wanted) return;
  mine.used -= mine.pool.reserved - wanted;
  mine.pool.reserved = wanted;
}
}  // namespace

int PoolFree(uintptr_t address) {
  if (address == 0) return kInvalidValue;
  Space& space = TheSpace();
  uint64_t size = 0;
  if (g_watcher.load(std::memory_order_relaxed) != nullptr) TellRelease(address, MemoryKind::kPool);
  {
    const std::lock_guard guard(space.lock);
    auto it = space.ranges.find(address);
    if (it == space.ranges.end() || it->second.kind != MemoryKind::kPool) return kInvalidValue;
    size = it->second.size;
    const uint64_t rounded = RoundUp(size, kPoolAlign);
    DeviceSpace& mine = space.devices[it->second.device];
    mine.pool.used -= rounded;
    mine.pool_gaps.Free(address, rounded);
    space.ranges.erase(it);
    TrimLocked(mine, mine.pool.release_threshold);
  }
  ForgetContent(address, size);
  return kOk;
}

PoolState GetPool(int device) {
  Space& space = TheSpace();
  const std::shared_lock guard(space.lock);
  return space.devices[device].pool;
}
void SetPoolThreshold(int device, uint64_t bytes) {
  Space& space = TheSpace();
  const std::lock_guard guard(space.lock);
  space.devices[device].pool.release_threshold = bytes;
}
void ResetPoolHigh(int device, bool reserved) {
  Space& space = TheSpace();
  const std::lock_guard guard(space.lock);
  PoolState& pool = space.devices[device].pool;
  if (reserved) pool.reserved_high = pool.reserved; else pool.used_high = pool.used;
}
void TrimPool(int device, uint64_t keep) {
  Space& space = TheSpace();
  const std::lock_guard guard(space.lock);
  TrimLocked(space.devices[device], keep);
}

int HostMalloc(uint64_t size, MemoryKind kind, uint32_t flags, void** pointer) {
  *pointer = nullptr;
  if (size == 0) return kOk;
  void* memory = nullptr;
  if (posix_memalign(&memory, 4096, RoundUp(size, 4096)) != 0) return kOutOfMemory;
  Space& space = TheSpace();
  const std::lock_guard guard(space.lock);
  const auto at = reinterpret_cast<uintptr_t>(memory);
  space.ranges[at] = {kind, at, size, g_thread.device, space.next_id++, flags};
  *pointer = memory;
  return kOk;
}

int HostFree(void* pointer) {
  if (pointer == nullptr) return kOk;
  Space& space = TheSpace();
  {
    const std::lock_guard guard(space.lock);
    auto it = space.ranges.find(reinterpret_cast<uintptr_t>(pointer));
    if (it == space.ranges.end() || (it->second.kind != MemoryKind::kHost && it->second.kind != MemoryKind::kManaged)) {
      return kInvalidValue;
    }
    space.ranges.erase(it);
  }
  std::free(pointer);
  return kOk;
}

int ImportRange(int device, uint64_t size, uintptr_t* address) {
  const uint64_t rounded = RoundUp(size, kGranularity);
  Space& space = TheSpace();
  const std::lock_guard guard(space.lock);
  // In the pools' half, so that the addresses of cudaMalloc stay what they are without it.
  const uintptr_t at = space.devices[device].pool_gaps.Allocate(rounded, kGranularity);
  if (at == 0) return kOutOfMemory;
  space.ranges[at] = {MemoryKind::kImported, at, size, device, space.next_id++, 0};
  *address = at;
  return kOk;
}

int DropImport(uintptr_t address) {
  Space& space = TheSpace();
  uint64_t size = 0;
  {
    const std::lock_guard guard(space.lock);
    auto it = space.ranges.find(address);
    if (it == space.ranges.end() || it->second.kind != MemoryKind::kImported) return kInvalidValue;
    size = it->second.size;
    space.devices[it->second.device].pool_gaps.Free(address, RoundUp(size, kGranularity));
    space.ranges.erase(it);
  }
  ForgetContent(address, size);
  return kOk;
}

int HostRegister(void* pointer, uint64_t size, uint32_t flags) {
  if (pointer == nullptr || size == 0) return kInvalidValue;
  const auto at = reinterpret_cast<uintptr_t>(pointer);
  if (IsDeviceAddress(at)) return kInvalidValue;
  Space& space = TheSpace();
  const std::lock_guard guard(space.lock);
  if (FindLocked(space.ranges, at) != nullptr || FindLocked(space.ranges, at + size - 1) != nullptr) {
    return kHostAlreadyRegistered;
  }
  space.ranges[at] = {MemoryKind::kRegistered, at, size, g_thread.device, space.next_id++, flags};
  return kOk;
}

int HostUnregister(void* pointer) {
  Space& space = TheSpace();
  const std::lock_guard guard(space.lock);
  auto it = space.ranges.find(reinterpret_cast<uintptr_t>(pointer));
  if (it == space.ranges.end() || it->second.kind != MemoryKind::kRegistered) return kHostNotRegistered;
  space.ranges.erase(it);
  return kOk;
}

MemoryRange FindRange(uintptr_t address) {
  if (address - kVirtualBase < kVirtualSpan) {
    MemoryRange range;
    return MappedRange(address, &range) ? range : MemoryRange{};
  }
  Space& space = TheSpace();
  const std::shared_lock guard(space.lock);
  const MemoryRange* range = FindLocked(space.ranges, address);
  return range != nullptr ? *range : MemoryRange{};
}

bool DeviceRangeValid(uintptr_t address, uint64_t size) {
  if (size == 0) return true;
  if (address - kVirtualBase < kVirtualSpan) return MappedRangeValid(address, size);
  Space& space = TheSpace();
  const std::shared_lock guard(space.lock);
  const MemoryRange* range = FindLocked(space.ranges, address);
  return range != nullptr && size <= range->size - (address - range->base);
}

}  // namespace vd
