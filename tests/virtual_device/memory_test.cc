// Accounting and addresses on a device of 1 GiB with a context of 4 MiB (CMakeLists.txt).
#include "tools/virtual_device/core/memory.h"

#include <gtest/gtest.h>

#include <vector>

#include "tools/virtual_device/core/state.h"

namespace vd {
namespace {

constexpr uint64_t kTotal = 1ull << 30, kContext = 4ull << 20;

class MemoryTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(EnsureContext(0), kOk); }
  static uint64_t Free() { return GetMemoryUse(0).free_bytes; }
};

TEST_F(MemoryTest, OutOfMemoryAtTheByte) {
  EXPECT_EQ(GetMemoryUse(0).total_bytes, kTotal);
  ASSERT_EQ(Free(), kTotal - kContext);
  uintptr_t all = 0, more = 0;
  EXPECT_EQ(DeviceMalloc(0, Free() + 1, &all), kOutOfMemory);
  EXPECT_EQ(all, 0u);
  ASSERT_EQ(DeviceMalloc(0, Free(), &all), kOk);
  EXPECT_EQ(Free(), 0u);
  EXPECT_EQ(DeviceMalloc(0, 1, &more), kOutOfMemory);
  EXPECT_EQ(DeviceFree(all), kOk);
  EXPECT_EQ(Free(), kTotal - kContext);
  EXPECT_EQ(PeakMemoryUse(0), kTotal);
}

TEST_F(MemoryTest, GranularityAndReuse) {
  uintptr_t a = 0, b = 0, c = 0, zero = 1;
  ASSERT_EQ(DeviceMalloc(0, 1, &a), kOk);
  EXPECT_EQ(Free(), kTotal - kContext - kGranularity);
  ASSERT_EQ(DeviceMalloc(0, kGranularity + 1, &b), kOk);
  EXPECT_EQ(Free(), kTotal - kContext - 3 * kGranularity);
  EXPECT_EQ(a % kGranularity, 0u);
  EXPECT_GT(b, a);
  EXPECT_EQ(DeviceFree(a), kOk);
  ASSERT_EQ(DeviceMalloc(0, 512, &c), kOk);
  EXPECT_EQ(c, a);  // upwards: the lowest hole
  EXPECT_EQ(DeviceMalloc(0, 0, &zero), kOk);
  EXPECT_EQ(zero, 0u);
  EXPECT_EQ(DeviceFree(b + 512), kInvalidValue);
  EXPECT_EQ(DeviceFree(b), kOk);
  EXPECT_EQ(DeviceFree(b), kInvalidValue);
  EXPECT_EQ(DeviceFree(c), kOk);
}

TEST_F(MemoryTest, DevicesDoNotShare) {
  ASSERT_EQ(EnsureContext(1), kOk);
  uintptr_t a = 0, b = 0;
  ASSERT_EQ(DeviceMalloc(1, 64 << 20, &b), kOk);
  EXPECT_EQ(Free(), kTotal - kContext);
  ASSERT_EQ(DeviceMalloc(0, 64 << 20, &a), kOk);
  EXPECT_EQ(FindRange(a + 5).device, 0);
  EXPECT_EQ(FindRange(b + 5).device, 1);
  EXPECT_EQ(DeviceFree(a), kOk);
  EXPECT_EQ(DeviceFree(b), kOk);
  EXPECT_EQ(EnsureContext(2), kInvalidDevice);
}

TEST_F(MemoryTest, VirtualMemoryManagement) {
  uintptr_t range = 0;
  uint64_t first = 0, second = 0;
  ASSERT_EQ(VirtualReserve(64 << 20, 0, 0, &range), kOk);
  EXPECT_EQ(Free(), kTotal - kContext);  // a reservation costs nothing
  EXPECT_EQ(PhysicalCreate(0, 3, &first), kInvalidValue);
  ASSERT_EQ(PhysicalCreate(0, 4 << 20, &first), kOk);
  ASSERT_EQ(PhysicalCreate(0, 2 << 20, &second), kOk);
  EXPECT_EQ(Free(), kTotal - kContext - (6 << 20));
  ASSERT_EQ(VirtualMap(range, 4 << 20, 0, first), kOk);
  EXPECT_EQ(VirtualMap(range + (2 << 20), 2 << 20, 0, second), kInvalidValue);  // taken
  ASSERT_EQ(VirtualMap(range + (4 << 20), 2 << 20, 0, second), kOk);
  EXPECT_FALSE(DeviceRangeValid(range, 1));  // no access yet
  ASSERT_EQ(VirtualSetAccess(range, 6 << 20, true), kOk);
  EXPECT_TRUE(DeviceRangeValid(range, 6 << 20));
  EXPECT_FALSE(DeviceRangeValid(range, (6 << 20) + 1));
  EXPECT_EQ(VirtualFree(range, 64 << 20), kInvalidValue);  // still mapped
  EXPECT_EQ(PhysicalRelease(first), kOk);
  EXPECT_EQ(Free(), kTotal - kContext - (6 << 20));  // a mapping keeps it
  EXPECT_EQ(VirtualUnmap(range, 2 << 20), kInvalidValue);  // whole mappings only
  EXPECT_EQ(VirtualUnmap(range, 6 << 20), kOk);
  EXPECT_EQ(Free(), kTotal - kContext - (2 << 20));
  EXPECT_EQ(PhysicalRelease(second), kOk);
  EXPECT_EQ(PhysicalRelease(second), kInvalidValue);
  EXPECT_EQ(VirtualFree(range, 64 << 20), kOk);
  EXPECT_EQ(Free(), kTotal - kContext);
}

TEST_F(MemoryTest, PoolReservesInSteps) {
  std::vector<uintptr_t> blocks(100);
  for (uintptr_t& block : blocks) ASSERT_EQ(PoolMalloc(0, 1000, &block), kOk);
  EXPECT_EQ(GetPool(0).used, 100u * 1024);
  EXPECT_EQ(GetPool(0).reserved, 32ull << 20);
  for (const uintptr_t block : blocks) EXPECT_EQ(PoolFree(block), kOk);
  EXPECT_EQ(GetPool(0).used, 0u);
  EXPECT_EQ(Free(), kTotal - kContext);
}

TEST_F(MemoryTest, HostMemoryIsKnown) {
  void* pinned = nullptr;
  ASSERT_EQ(HostMalloc(10000, MemoryKind::kHost, 3, &pinned), kOk);
  const auto at = reinterpret_cast<uintptr_t>(pinned);
  EXPECT_EQ(FindRange(at + 9999).kind, MemoryKind::kHost);
  EXPECT_EQ(FindRange(at + 10000).kind, MemoryKind::kNone);
  EXPECT_EQ(HostRegister(pinned, 100, 0), kHostAlreadyRegistered);
  EXPECT_EQ(HostFree(pinned), kOk);
  EXPECT_EQ(HostFree(pinned), kInvalidValue);
  char own[64];
  ASSERT_EQ(HostRegister(own, sizeof own, 0), kOk);
  EXPECT_EQ(HostUnregister(own), kOk);
  EXPECT_EQ(HostUnregister(own), kHostNotRegistered);
}

}  // namespace
}  // namespace vd
