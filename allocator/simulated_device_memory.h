// A device that exists only as numbers: capacity, addresses, streams and events. Drives the allocator core in tests and
// in replay. Memory behind its addresses does not exist and must not be touched.
#ifndef VRAMLEDGER_ALLOCATOR_SIMULATED_DEVICE_MEMORY_H_
#define VRAMLEDGER_ALLOCATOR_SIMULATED_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "allocator/core/device_memory.h"

namespace vramledger {

// Where a driver puts the next allocation. Both are met in the field; the public snapshots (tests/results/replay.md)
// show two kinds of driver and nothing between them:
// - up: at the lowest free place, packed without gaps at multiples of 2 MiB, at low addresses (0x7..., 36 bits);
// - down: at the highest free place, at addresses like a host's (0x7f..., 47 bits); segments of 2 MiB at multiples of
//   2 MiB, larger ones at multiples of 32 MiB, with gaps between them.
enum class AddressOrder { kUp, kDown };

// When work on a stream is done.
enum class Completion {
  kAtOnce,
  kRandom,  // each query finishes the oldest piece of work of its stream with the chance 1 / (delay + 1)
  kManual,  // when the test says so, or someone waits
};

struct SimulatedDeviceOptions {
  int devices = 1;
  size_t capacity_bytes = size_t{80} << 30;  // of each
  size_t used_elsewhere_bytes = 0;           // of each: contexts, libraries, other processes
  AddressOrder address_order = AddressOrder::kUp;
  bool has_vmm = true;
  size_t map_granularity = size_t{2} << 20;  // what addresses and sizes of mappings are multiples of
  Completion completion = Completion::kAtOnce;
  uint32_t delay = 0;
  uint64_t seed = 1;
  // Addresses for the first plain allocations of device 0, in order, as recorded from a real driver. One that is still in use
  // when its turn comes is passed over, and the allocation gets another.
  std::vector<uintptr_t> scripted_addresses;
  // The same for its reservations of address space.
  std::vector<uintptr_t> scripted_reservations;
};

class SimulatedDeviceMemory : public DeviceMemory {
 public:
  explicit SimulatedDeviceMemory(SimulatedDeviceOptions options);

  int device_count() override { return options_.devices; }
  DeviceResult MemoryInfo(int device, DeviceMemoryInfo* info) override;
  DeviceResult Allocate(int device, size_t bytes, void** address) override;
  DeviceResult Free(int device, void* address) override;
  size_t granularity(int) override { return options_.map_granularity; }
  DeviceResult ReserveAddress(int device, size_t bytes, void** address) override;
  DeviceResult ReleaseAddress(int device, void* address, size_t bytes) override;
  DeviceResult Map(int device, void* address, size_t bytes) override;
  DeviceResult Unmap(int device, void* address, size_t bytes) override;
  DeviceResult CreateEvent(int device, EventHandle* event) override;
  DeviceResult RecordEvent(int device, EventHandle event, StreamHandle stream) override;
  DeviceResult EventDone(int device, EventHandle event) override;
  DeviceResult WaitForEvent(int device, EventHandle event) override;
  void DestroyEvent(int device, EventHandle event) override;
  DeviceResult Synchronize(int device) override;
  bool StreamIsCapturing(int device, StreamHandle stream) override;
  const char* last_error() override;

  // For tests.

  enum class Operation { kAllocate, kMap, kReserveAddress, kCreateEvent, kRecordEvent };
  // The next `count` operations of this kind, after `skip` that work, answer `result`.
  void Fail(Operation operation, DeviceResult result, int count, int skip = 0);
  // Lets the device appear smaller or larger from now on.
  void SetCapacity(size_t bytes);
  // Finishes the oldest `pieces` of work on a stream.
  void Complete(int device, StreamHandle stream, uint64_t pieces);
  // Pieces of work (recorded events) put on a stream, and done.
  uint64_t Submitted(int device, StreamHandle stream);
  uint64_t Done(int device, StreamHandle stream);
  void SetCapturing(int device, StreamHandle stream, bool capturing);
  // Events queried, awaited or recorded on a capturing stream: each would have broken the capture.
  int capture_violations();
  size_t used_bytes(int device);
  size_t events_alive();
  size_t allocations_alive();

 private:
  static constexpr size_t kGranularity = size_t{2} << 20;

  struct Stream {
    uint64_t submitted = 0;
    uint64_t done = 0;
    bool capturing = false;
  };
  struct Event {
    StreamHandle stream = 0;
    uint64_t ticket = 0;  // 0: never recorded, which counts as done
  };
  struct Device {
    size_t used = 0;
    std::map<uintptr_t, size_t> holes;  // free address ranges
    std::map<uintptr_t, size_t> allocations;
    std::map<uintptr_t, size_t> reservations;
    std::map<uintptr_t, size_t> mappings;
    uintptr_t next_reservation = 0;
    std::map<StreamHandle, Stream> streams;
  };
  struct Failure {
    DeviceResult result = DeviceResult::kOk;
    int count = 0;
    int skip = 0;
  };

  DeviceResult Error(DeviceResult result, std::string text);
  bool HasRoom(const Device& device, size_t bytes) const;
  bool InjectedFailure(Operation operation, DeviceResult* result);
  uintptr_t TakeAddress(Device& device, size_t bytes);
  void ReturnAddress(Device& device, uintptr_t address, size_t bytes);

  std::mutex mutex_;
  SimulatedDeviceOptions options_;
  std::mt19937_64 random_;
  std::vector<Device> devices_;
  size_t scripted_used_ = 0;
  std::set<uintptr_t> scripted_live_;  // allocated, and from the script
  size_t scripted_reservations_used_ = 0;
  std::map<EventHandle, Event> events_;
  EventHandle next_event_ = 1;
  std::map<Operation, Failure> failures_;
  int capture_violations_ = 0;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_SIMULATED_DEVICE_MEMORY_H_
