#include "tools/virtual_device/core/transfer.h"

#include <cstdint>
#include <cstring>

#include "tools/virtual_device/core/content.h"
#include "tools/virtual_device/core/host_reads.h"
#include "tools/virtual_device/core/memory.h"
#include "tools/virtual_device/core/state.h"

namespace vd {

int CopyBytes(void* to, const void* from, size_t size) {
  if (size == 0) return kOk;
  const auto target = reinterpret_cast<uintptr_t>(to);
  const auto source = reinterpret_cast<uintptr_t>(from);
  const bool to_device = IsDeviceAddress(target);
  const bool from_device = IsDeviceAddress(source);
  if (to_device && !DeviceRangeValid(target, size)) return kInvalidValue;
  if (from_device && !DeviceRangeValid(source, size)) return kInvalidValue;
  if (to_device && from_device) {
    CopyContent(target, source, size);
    return kOk;
  }
  if (to_device) return WriteContent(target, from, size) ? kOk : kInvalidValue;
  if (from_device) {
    size_t unknown = 0;
    if (!ReadContent(to, source, size, &unknown)) return kInvalidValue;
    if (unknown != 0) CountHostRead(unknown);
    return kOk;
  }
  if (to == nullptr || from == nullptr) return kInvalidValue;
  std::memmove(to, from, size);
  return kOk;
}

int SetBytes(void* to, const void* pattern, size_t pattern_size, size_t count) {
  const auto address = reinterpret_cast<uintptr_t>(to);
  const size_t size = count * pattern_size;
  if (IsDeviceAddress(address)) {
    if (!DeviceRangeValid(address, size)) return kInvalidValue;
    FillContent(address, pattern, pattern_size, size);
    return kOk;
  }
  const MemoryRange range = FindRange(address);  // pinned and managed memory can be set too
  if (range.kind == MemoryKind::kNone || size > range.size - (address - range.base)) return kInvalidValue;
  for (size_t i = 0; i < count; ++i) std::memcpy(static_cast<char*>(to) + i * pattern_size, pattern, pattern_size);
  return kOk;
}

}  // namespace vd
