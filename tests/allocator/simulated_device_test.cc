// The simulated device by itself.
#include "allocator/simulated_device_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "allocator/core/device_memory.h"

namespace vramledger {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

uintptr_t Take(SimulatedDeviceMemory& device, size_t bytes) {
  void* address = nullptr;
  EXPECT_EQ(device.Allocate(0, bytes, &address), DeviceResult::kOk) << device.last_error();
  return reinterpret_cast<uintptr_t>(address);
}

TEST(SimulatedDevice, AScriptedAddressInUseIsPassedOver) {
  // Where the device's own addresses begin, so that both kinds could meet.
  const uintptr_t first = uintptr_t{1} << 45;
  SimulatedDeviceOptions options;
  options.capacity_bytes = 256 * kMiB;
  options.scripted_addresses = {first + 2 * kMiB, first + 2 * kMiB, first + 64 * kMiB};
  SimulatedDeviceMemory device(options);
  const uintptr_t scripted = Take(device, 4 * kMiB);
  EXPECT_EQ(scripted, first + 2 * kMiB);
  const uintptr_t other = Take(device, 20 * kMiB);  // it begins at `first`, where only 2 MiB are free
  EXPECT_TRUE(other >= scripted + 4 * kMiB || other + 20 * kMiB <= scripted);
  EXPECT_EQ(Take(device, 2 * kMiB), first + 64 * kMiB);
  EXPECT_EQ(device.Free(0, reinterpret_cast<void*>(scripted)), DeviceResult::kOk);
  EXPECT_EQ(device.Free(0, reinterpret_cast<void*>(other)), DeviceResult::kOk);
  std::vector<uintptr_t> all;
  for (int i = 0; i < 60; ++i) all.push_back(Take(device, 4 * kMiB));
  std::sort(all.begin(), all.end());
  for (size_t i = 1; i < all.size(); ++i) EXPECT_GE(all[i], all[i - 1] + 4 * kMiB);
}

TEST(SimulatedDevice, ReservationsStayInTheDevicesOwnAddresses) {
  constexpr size_t kGiB = size_t{1} << 30;
  SimulatedDeviceOptions options;
  options.devices = 2;
  SimulatedDeviceMemory device(options);
  void* held = nullptr;
  ASSERT_EQ(device.ReserveAddress(0, 3 * kGiB, &held), DeviceResult::kOk);
  const auto kept = reinterpret_cast<uintptr_t>(held);
  for (int i = 0; i < 40000; ++i) {  // the device has room for 16,384 of them side by side
    void* address = nullptr;
    ASSERT_EQ(device.ReserveAddress(0, kGiB, &address), DeviceResult::kOk) << device.last_error();
    const auto at = reinterpret_cast<uintptr_t>(address);
    ASSERT_LE(at + kGiB, uintptr_t{1} << 46) << i;  // where the other device begins
    ASSERT_TRUE(at + kGiB <= kept || at >= kept + 3 * kGiB) << i;
    ASSERT_EQ(device.ReleaseAddress(0, address, kGiB), DeviceResult::kOk);
  }
}

}  // namespace
}  // namespace vramledger
