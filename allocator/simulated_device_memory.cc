#include "allocator/simulated_device_memory.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace vramledger {
namespace {

// Each device has its own part of the address space: plain memory, and far above it the reservations.
constexpr uintptr_t kDeviceStride = uintptr_t{1} << 45;
constexpr uintptr_t kFirstReservation = uintptr_t{1} << 44;
constexpr uintptr_t kLargeAlignmentDown = uintptr_t{32} << 20;

thread_local std::string failure_text;

uintptr_t Address(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

}  // namespace

SimulatedDeviceMemory::SimulatedDeviceMemory(SimulatedDeviceOptions options)
    : options_(std::move(options)), random_(options_.seed), devices_(static_cast<size_t>(options_.devices)) {
  for (size_t i = 0; i < devices_.size(); ++i) {
    const uintptr_t base = kDeviceStride * (i + 1);
    // Addresses have room to spare: what limits is the capacity.
    devices_[i].holes[base] = kFirstReservation;
    devices_[i].next_reservation = base + kFirstReservation;
  }
}

DeviceResult SimulatedDeviceMemory::Error(DeviceResult result, std::string text) {
  failure_text = std::move(text);
  return result;
}

const char* SimulatedDeviceMemory::last_error() {
  return failure_text.c_str();
}

bool SimulatedDeviceMemory::InjectedFailure(Operation operation, DeviceResult* result) {
  auto it = failures_.find(operation);
  if (it == failures_.end()) return false;
  Failure& failure = it->second;
  if (failure.skip > 0) {
    --failure.skip;
    return false;
  }
  *result = Error(failure.result, "failure injected by the test");
  if (--failure.count == 0) failures_.erase(it);
  return true;
}

bool SimulatedDeviceMemory::HasRoom(const Device& device, size_t bytes) const {
  const size_t used = device.used + options_.used_elsewhere_bytes;
  return bytes <= options_.capacity_bytes && used <= options_.capacity_bytes - bytes;
}

DeviceResult SimulatedDeviceMemory::MemoryInfo(int device, DeviceMemoryInfo* info) {
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t used = devices_[static_cast<size_t>(device)].used + options_.used_elsewhere_bytes;
  info->total_bytes = options_.capacity_bytes;
  info->free_bytes = options_.capacity_bytes - std::min(used, options_.capacity_bytes);
  return DeviceResult::kOk;
}

uintptr_t SimulatedDeviceMemory::TakeAddress(Device& device, size_t bytes) {
  const auto take = [&](std::map<uintptr_t, size_t>::iterator hole, uintptr_t address) {
    const uintptr_t start = hole->first;
    const uintptr_t end = start + hole->second;
    device.holes.erase(hole);
    if (address > start) device.holes[start] = address - start;
    if (address + bytes < end) device.holes[address + bytes] = end - address - bytes;
    return address;
  };
  if (options_.address_order == AddressOrder::kUp) {
    for (auto hole = device.holes.begin(); hole != device.holes.end(); ++hole) {
      if (hole->second >= bytes) return take(hole, hole->first);
    }
  } else {
    for (auto hole = device.holes.end(); hole != device.holes.begin();) {
      --hole;
      if (hole->second < bytes) continue;
      const uintptr_t alignment = bytes > kGranularity ? kLargeAlignmentDown : kGranularity;
      const uintptr_t address = (hole->first + hole->second - bytes) / alignment * alignment;
      if (address >= hole->first) return take(hole, address);
    }
  }
  return 0;
}

void SimulatedDeviceMemory::ReturnAddress(Device& device, uintptr_t address, size_t bytes) {
  auto next = device.holes.lower_bound(address);
  if (next != device.holes.end() && next->first == address + bytes) {
    bytes += next->second;
    next = device.holes.erase(next);
  }
  if (next != device.holes.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == address) {
      previous->second += bytes;
      return;
    }
  }
  device.holes[address] = bytes;
}

DeviceResult SimulatedDeviceMemory::Allocate(int device, size_t bytes, void** address) {
  std::lock_guard<std::mutex> lock(mutex_);
  DeviceResult result;
  if (InjectedFailure(Operation::kAllocate, &result)) return result;
  Device& d = devices_[static_cast<size_t>(device)];
  const size_t rounded = (bytes + kGranularity - 1) / kGranularity * kGranularity;
  if (!HasRoom(d, rounded)) return Error(DeviceResult::kOutOfMemory, "out of memory");
  const auto in_use = [&](uintptr_t at) {
    const auto next = d.allocations.lower_bound(at);
    return (next != d.allocations.end() && next->first < at + rounded) ||
           (next != d.allocations.begin() && std::prev(next)->first + std::prev(next)->second > at);
  };
  uintptr_t at = 0;
  if (device == 0 && scripted_used_ < options_.scripted_addresses.size()) {
    at = options_.scripted_addresses[scripted_used_++];
    // The caller has left the script: what was given back by now in it is held here still.
    if (in_use(at)) at = 0;
    if (at != 0) scripted_live_.insert(at);
  }
  if (at == 0) {
    // Scripted addresses lie anywhere, so also where no hole tells of them; what they cover of one is not given out.
    do at = TakeAddress(d, rounded);
    while (at != 0 && in_use(at));
  }
  if (at == 0) return Error(DeviceResult::kOutOfMemory, "out of address space");
  d.allocations[at] = rounded;
  d.used += rounded;
  *address = reinterpret_cast<void*>(at);
  return DeviceResult::kOk;
}

DeviceResult SimulatedDeviceMemory::Free(int device, void* address) {
  std::lock_guard<std::mutex> lock(mutex_);
  Device& d = devices_[static_cast<size_t>(device)];
  const auto it = d.allocations.find(Address(address));
  if (it == d.allocations.end()) {
    return Error(DeviceResult::kError, absl::StrFormat("free of 0x%x, which is not allocated", Address(address)));
  }
  d.used -= it->second;
  // Scripted addresses are given out by the script only.
  if (device != 0 || scripted_live_.erase(it->first) == 0) ReturnAddress(d, it->first, it->second);
  d.allocations.erase(it);
  return DeviceResult::kOk;
}

DeviceResult SimulatedDeviceMemory::ReserveAddress(int device, size_t bytes, void** address) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!options_.has_vmm) return Error(DeviceResult::kNotSupported, "no virtual memory management");
  DeviceResult result;
  if (InjectedFailure(Operation::kReserveAddress, &result)) return result;
  Device& d = devices_[static_cast<size_t>(device)];
  uintptr_t at = d.next_reservation;
  if (device == 0 && scripted_reservations_used_ < options_.scripted_reservations.size()) {
    at = options_.scripted_reservations[scripted_reservations_used_++];
  } else {
    const size_t rounded = (bytes + kGranularity - 1) / kGranularity * kGranularity;
    const auto between_others = [&](uintptr_t from) {
      for (const auto& [start, length] : d.reservations) {
        if (start < from + rounded && start + length > from) from = (start + length + kGranularity - 1) / kGranularity * kGranularity;
      }
      return from;
    };
    const uintptr_t end = kDeviceStride * (static_cast<uintptr_t>(device) + 2);
    at = between_others(at);
    // Beyond lies another device, and in the end the process's own stack: begin anew.
    if (at + rounded > end && rounded <= kFirstReservation) {
      at = between_others(end - kFirstReservation);
      if (at + rounded > end) return Error(DeviceResult::kOutOfMemory, "out of address space");
    }
    d.next_reservation = at + rounded;
  }
  d.reservations[at] = bytes;
  *address = reinterpret_cast<void*>(at);
  return DeviceResult::kOk;
}

DeviceResult SimulatedDeviceMemory::ReleaseAddress(int device, void* address, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  Device& d = devices_[static_cast<size_t>(device)];
  const auto it = d.reservations.find(Address(address));
  if (it == d.reservations.end() || it->second != bytes) {
    return Error(DeviceResult::kError, "release of an address range that was not reserved");
  }
  const auto mapped = d.mappings.lower_bound(Address(address));
  if (mapped != d.mappings.end() && mapped->first < Address(address) + bytes) {
    return Error(DeviceResult::kError, "release of an address range that is mapped");
  }
  d.reservations.erase(it);
  return DeviceResult::kOk;
}

DeviceResult SimulatedDeviceMemory::Map(int device, void* address, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!options_.has_vmm) return Error(DeviceResult::kNotSupported, "no virtual memory management");
  DeviceResult result;
  if (InjectedFailure(Operation::kMap, &result)) return result;
  Device& d = devices_[static_cast<size_t>(device)];
  const uintptr_t at = Address(address);
  auto reserved = d.reservations.upper_bound(at);
  const size_t granularity = options_.map_granularity;
  if (at % granularity != 0 || bytes == 0 || bytes % granularity != 0 || reserved == d.reservations.begin() ||
      at + bytes > std::prev(reserved)->first + std::prev(reserved)->second) {
    return Error(DeviceResult::kError, "map outside of a reserved range, or not in granules");
  }
  const auto next = d.mappings.lower_bound(at);
  if ((next != d.mappings.end() && next->first < at + bytes) ||
      (next != d.mappings.begin() && std::prev(next)->first + std::prev(next)->second > at)) {
    return Error(DeviceResult::kError, "map over mapped memory");
  }
  if (!HasRoom(d, bytes)) return Error(DeviceResult::kOutOfMemory, "out of memory");
  d.mappings[at] = bytes;
  d.used += bytes;
  return DeviceResult::kOk;
}

DeviceResult SimulatedDeviceMemory::Unmap(int device, void* address, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  Device& d = devices_[static_cast<size_t>(device)];
  const uintptr_t end = Address(address) + bytes;
  const auto first = d.mappings.find(Address(address));
  auto last = first;
  uintptr_t at = Address(address);
  while (last != d.mappings.end() && last->first == at && at < end) {
    at += last->second;
    ++last;
  }
  if (at != end) return Error(DeviceResult::kError, "unmap of a range that is no row of whole mappings");
  d.mappings.erase(first, last);
  d.used -= bytes;
  return DeviceResult::kOk;
}

DeviceResult SimulatedDeviceMemory::CreateEvent(int, EventHandle* event) {
  std::lock_guard<std::mutex> lock(mutex_);
  DeviceResult result;
  if (InjectedFailure(Operation::kCreateEvent, &result)) return result;
  *event = next_event_++;
  events_[*event] = Event();
  return DeviceResult::kOk;
}

DeviceResult SimulatedDeviceMemory::RecordEvent(int device, EventHandle event, StreamHandle stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  DeviceResult result;
  if (InjectedFailure(Operation::kRecordEvent, &result)) return result;
  Stream& s = devices_[static_cast<size_t>(device)].streams[stream];
  if (s.capturing) ++capture_violations_;
  events_[event] = Event{stream, ++s.submitted};
  if (options_.completion == Completion::kAtOnce) s.done = s.submitted;
  return DeviceResult::kOk;
}

DeviceResult SimulatedDeviceMemory::EventDone(int device, EventHandle event) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Event& e = events_[event];
  Stream& s = devices_[static_cast<size_t>(device)].streams[e.stream];
  if (s.capturing) ++capture_violations_;
  if (options_.completion == Completion::kRandom && s.done < s.submitted && random_() % (options_.delay + 1) == 0) {
    ++s.done;
  }
  return e.ticket <= s.done ? DeviceResult::kOk : DeviceResult::kNotReady;
}

DeviceResult SimulatedDeviceMemory::WaitForEvent(int device, EventHandle event) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Event& e = events_[event];
  Stream& s = devices_[static_cast<size_t>(device)].streams[e.stream];
  if (s.capturing) ++capture_violations_;
  s.done = std::max(s.done, e.ticket);
  return DeviceResult::kOk;
}

void SimulatedDeviceMemory::DestroyEvent(int, EventHandle event) {
  std::lock_guard<std::mutex> lock(mutex_);
  events_.erase(event);
}

DeviceResult SimulatedDeviceMemory::Synchronize(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [handle, stream] : devices_[static_cast<size_t>(device)].streams) stream.done = stream.submitted;
  return DeviceResult::kOk;
}

bool SimulatedDeviceMemory::StreamIsCapturing(int device, StreamHandle stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  return devices_[static_cast<size_t>(device)].streams[stream].capturing;
}

void SimulatedDeviceMemory::Fail(Operation operation, DeviceResult result, int count, int skip) {
  std::lock_guard<std::mutex> lock(mutex_);
  failures_[operation] = Failure{result, count, skip};
}

void SimulatedDeviceMemory::SetCapacity(size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  options_.capacity_bytes = bytes;
}

void SimulatedDeviceMemory::Complete(int device, StreamHandle stream, uint64_t pieces) {
  std::lock_guard<std::mutex> lock(mutex_);
  Stream& s = devices_[static_cast<size_t>(device)].streams[stream];
  s.done = std::min(s.submitted, s.done + pieces);
}

uint64_t SimulatedDeviceMemory::Submitted(int device, StreamHandle stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  return devices_[static_cast<size_t>(device)].streams[stream].submitted;
}

uint64_t SimulatedDeviceMemory::Done(int device, StreamHandle stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  return devices_[static_cast<size_t>(device)].streams[stream].done;
}

void SimulatedDeviceMemory::SetCapturing(int device, StreamHandle stream, bool capturing) {
  std::lock_guard<std::mutex> lock(mutex_);
  devices_[static_cast<size_t>(device)].streams[stream].capturing = capturing;
}

int SimulatedDeviceMemory::capture_violations() {
  std::lock_guard<std::mutex> lock(mutex_);
  return capture_violations_;
}

size_t SimulatedDeviceMemory::used_bytes(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  return devices_[static_cast<size_t>(device)].used;
}

size_t SimulatedDeviceMemory::events_alive() {
  std::lock_guard<std::mutex> lock(mutex_);
  return events_.size();
}

size_t SimulatedDeviceMemory::allocations_alive() {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t count = 0;
  for (const Device& device : devices_) count += device.allocations.size() + device.reservations.size();
  return count;
}

}  // namespace vramledger
