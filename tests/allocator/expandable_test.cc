// Expandable segments: one growing segment per stream and pool.
#include <string>
#include <vector>

#include "tests/allocator/core_fixture.h"

namespace vramledger {
namespace {

using Lines = std::vector<std::string>;

class Expandable : public CoreTest {
 protected:
  void SetUp() override {
    SimulatedDeviceOptions options;
    options.capacity_bytes = kGiB;
    Start("expandable_segments:True", options);
  }
};

TEST_F(Expandable, GrowsInPagesAtTheEnd) {
  void* const a = Take(512);
  EXPECT_EQ(observer_.Take(), (Lines{"segment_map 2097152", "alloc 512"}));
  void* const b = Take(30 * kMiB);
  EXPECT_EQ(observer_.Take(), (Lines{"segment_map 41943040", "alloc 31457280"}));
  void* const c = Take(15 * kMiB);  // 10 are free, 20 more are mapped behind them
  EXPECT_EQ(observer_.Take(), (Lines{"segment_map 20971520", "alloc 15728640"}));
  EXPECT_EQ(Distance(b, c), 30 * kMiB);
  EXPECT_EQ(Reserved(), static_cast<int64_t>(62 * kMiB));
  EXPECT_EQ(Stats().segment[kAllPools].current, 0);  // PyTorch does not count them
  EXPECT_EQ(Stats().inactive_split[kAllPools].current, 0);
  (void)a;
}

TEST_F(Expandable, SplitsToTheByte) {
  void* const a = Take(2 * kMiB);
  EXPECT_EQ(Distance(a, Take(17 * kMiB)), 2 * kMiB);
  EXPECT_EQ(Distance(a, Take(kMiB + 512)), 19 * kMiB);  // mapped across the page's end
  EXPECT_EQ(Reserved(), static_cast<int64_t>(40 * kMiB));
}

TEST_F(Expandable, HolesAreFilledFromBelow) {
  void* const a = Take(20 * kMiB);
  void* const b = Take(20 * kMiB);
  Give(a);
  allocator_->EmptyCache();
  EXPECT_EQ(Reserved(), static_cast<int64_t>(20 * kMiB));
  EXPECT_EQ(Take(10 * kMiB), a);
  EXPECT_EQ(Distance(a, Take(30 * kMiB)), 40 * kMiB);
  (void)b;
}

TEST_F(Expandable, WholePagesAreUnmappedPartsStay) {
  void* const a = Take(5 * kMiB);
  void* const b = Take(50 * kMiB);
  void* const c = Take(5 * kMiB);
  observer_.Take();
  Give(b);  // 5..55 of 60: page 1 is whole, 0 and 2 are shared
  allocator_->EmptyCache();
  EXPECT_EQ(observer_.Take(), (Lines{"free 52428800", "segment_unmap 20971520"}));
  EXPECT_EQ(Reserved(), static_cast<int64_t>(40 * kMiB));
  // Of the two holes of 15 MiB the lower could grow into the unmapped page, so the upper is the better fit.
  EXPECT_EQ(Take(15 * kMiB), static_cast<char*>(a) + 40 * kMiB);
  Give(a);
  Give(c);
  Give(static_cast<char*>(a) + 40 * kMiB);
  allocator_->EmptyCache();
  EXPECT_EQ(Reserved(), 0);
  EXPECT_EQ(device_->used_bytes(0), 0u);
  EXPECT_EQ(device_->allocations_alive(), 0u);  // the address space went too
}

TEST_F(Expandable, OutOfMemoryMovesPagesBetweenStreams) {
  void* const a = Take(900 * kMiB, 1);
  ASSERT_NE(a, nullptr);
  Give(a);
  EXPECT_NE(Take(500 * kMiB, 2), nullptr);  // would not fit beside the cached 900
  EXPECT_EQ(Stats().num_alloc_retries, 1);
  EXPECT_EQ(Take(600 * kMiB, 1), nullptr);
  EXPECT_EQ(Stats().num_ooms, 1);
  EXPECT_EQ(Reserved(), static_cast<int64_t>(device_->used_bytes(0)));
  EXPECT_NE(Take(500 * kMiB, 1), nullptr);
}

TEST_F(Expandable, AFailedMapLeavesNothingBehind) {
  Take(512);
  device_->Fail(SimulatedDeviceMemory::Operation::kMap, DeviceResult::kError, 1, 2);
  EXPECT_EQ(allocator_->Allocate(0, 0, 90 * kMiB, BlockTag()).status, AllocationStatus::kDeviceError);
  EXPECT_EQ(Reserved(), static_cast<int64_t>(device_->used_bytes(0)));
  EXPECT_NE(Take(90 * kMiB), nullptr);
}

TEST_F(Expandable, RequestsLargerThanTheAddressSpaceAreOutOfMemory) {
  EXPECT_EQ(allocator_->Allocate(0, 0, 2 * kGiB, BlockTag()).status, AllocationStatus::kOutOfMemory);
}

TEST_F(Expandable, WithoutVirtualMemoryPlainSegmentsServe) {
  EXPECT_TRUE(allocator_->UsesExpandableSegments(0));
  SimulatedDeviceOptions options;
  options.has_vmm = false;
  Start("expandable_segments:True", options);
  EXPECT_NE(Take(3 * kMiB), nullptr);
  EXPECT_EQ(observer_.Take(), (Lines{"segment_alloc 20971520", "alloc 3145728"}));
  EXPECT_FALSE(allocator_->UsesExpandableSegments(0));
  EXPECT_EQ(Stats().segment[kAllPools].current, 1);
}

TEST_F(Expandable, DestructionReturnsEveryPage) {
  Take(5 * kMiB);
  Take(70 * kMiB);
  Take(512, 4);
  Give(Take(30 * kMiB, 4));
  allocator_.reset();
  EXPECT_EQ(device_->used_bytes(0), 0u);
  EXPECT_EQ(device_->allocations_alive(), 0u);
}

}  // namespace
}  // namespace vramledger
