// What differs between PyTorch's versions, and settings that change while the program runs.
#include <string>

#include "allocator/core/caching_allocator.h"
#include "allocator/core/private_pool.h"
#include "gtest/gtest.h"
#include "tests/allocator/core_fixture.h"

namespace vramledger {
namespace {

class Versions : public CoreTest {
 protected:
  void Change(const std::string& text) {
    auto parsed = AllocatorSettings::Parse(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    allocator_->UpdateSettings(*parsed);
  }
  void StartWith(AllocatorSettings settings, SimulatedDeviceOptions options = {}) {
    allocator_.reset();
    device_.emplace(options);
    allocator_ = std::make_unique<CachingAllocator>(*device_, settings, &observer_);
  }
};

TEST_F(Versions, RoundingChangesForWhatIsAskedFromThenOn) {
  EXPECT_EQ(BlockBytes(33 * kMiB), 34 * kMiB);
  allocator_->EmptyCache();
  Change("roundup_power2_divisions:1,max_split_size_mb:50");
  Change("roundup_power2_divisions:2");
  EXPECT_EQ(BlockBytes(33 * kMiB), 48 * kMiB);
  EXPECT_EQ(allocator_->settings().ToString().find("max_split_size_mb"), std::string::npos);
  Change("");
  allocator_->EmptyCache();
  EXPECT_EQ(BlockBytes(33 * kMiB), 34 * kMiB);
}

TEST_F(Versions, TheSplitLimitShownIsThatOfTheStart) {
  Change("max_split_size_mb:50");
  EXPECT_EQ(Stats().max_split_size, -1);
  Start("max_split_size_mb:50");
  Change("");
  EXPECT_EQ(Stats().max_split_size, int64_t{50} << 20);
}

TEST_F(Versions, ExpandableSegmentsCanBeSwitchedAndBlocksOfBothKindsFreed) {
  void* const plain = Take(30 * kMiB);
  Change("expandable_segments:True");
  void* const mapped = Take(30 * kMiB);
  EXPECT_TRUE(allocator_->UsesExpandableSegments(0));
  Change("");
  EXPECT_FALSE(allocator_->UsesExpandableSegments(0));
  Give(mapped);
  Give(plain);
  EXPECT_EQ(Take(30 * kMiB), plain) << "parts of expandable segments serve only while the setting is on";
  allocator_->EmptyCache();
  EXPECT_EQ(Reserved(), 30 * static_cast<int64_t>(kMiB));
}

TEST_F(Versions, ADeviceWithoutVirtualMemoryManagementStaysPlain) {
  SimulatedDeviceOptions options;
  options.has_vmm = false;
  Start("expandable_segments:True", options);
  ASSERT_NE(Take(30 * kMiB), nullptr);
  Change("expandable_segments:True");
  EXPECT_FALSE(allocator_->UsesExpandableSegments(0));
  EXPECT_NE(Take(30 * kMiB), nullptr);
}

TEST_F(Versions, TheFractionOfTheStartHoldsWhateverTheSettingSaysLater) {
  Start("per_process_memory_fraction:0.5");
  Take(kMiB);
  Change("");
  EXPECT_EQ(Take(60 * kGiB), nullptr);
  EXPECT_NE(Take(30 * kGiB), nullptr);
}

TEST_F(Versions, ARejectedRequestGivesNothingBackAndIsCountedApart) {
  Start("throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.5");
  allocator_->SetMemoryFraction(1, 0);
  void* const cached = Take(kGiB);
  Give(cached);
  OutOfMemoryInfo info;
  const auto result = allocator_->Allocate(0, 0, 60 * kGiB, BlockTag(), &info);
  EXPECT_EQ(result.status, AllocationStatus::kOutOfMemory);
  EXPECT_TRUE(info.rejected);
  EXPECT_EQ(info.allowed_bytes, 40 * kGiB);
  EXPECT_EQ(Stats().num_oom_rejections, 1);
  EXPECT_EQ(Stats().num_ooms, 0);
  EXPECT_EQ(Reserved(), static_cast<int64_t>(kGiB));
  Change("");
  EXPECT_NE(Take(60 * kGiB), nullptr);
  allocator_->ResetAccumulatedStatistics(0);
  EXPECT_EQ(Stats().num_oom_rejections, 0);
}

TEST_F(Versions, OfEqualBlocksTheOneThatHasBeenABlockForLongestIsTaken) {
  AllocatorSettings settings;
  settings.equal_size_order = AllocatorSettings::EqualSizeOrder::kBlockAge;
  StartWith(settings);
  // Four parts of one segment, each cut off the front of what is left: the last is the block that the segment began as.
  void* parts[4];
  for (void*& part : parts) part = Take(5 * kMiB);
  ASSERT_EQ(Distance(parts[0], parts[3]), 15 * kMiB);
  Give(parts[3]);
  Give(parts[1]);
  EXPECT_EQ(Take(5 * kMiB), parts[3]);
  EXPECT_EQ(Take(5 * kMiB), parts[1]);
}

TEST_F(Versions, ARouteIsACaptureOnlyForOlderVersions) {
  for (const bool capture : {true, false}) {
    AllocatorSettings settings;
    settings.routes_are_captures = capture;
    StartWith(settings);
    void* const used = Take(4 * kMiB, 1);
    ASSERT_TRUE(allocator_->RecordStream(used, 2));
    ASSERT_EQ(allocator_->BeginAllocateToPool(0, {1, 0}, [](StreamHandle) { return true; }), PoolStatus::kOk);
    Give(used);
    Take(kMiB, 1);
    // Its event was recorded at the free, or waits for the end of the capture.
    EXPECT_EQ(Stats().active[kAllPools].current, capture ? 2 : 1);
    ASSERT_EQ(allocator_->EndAllocateToPool(0, {1, 0}), PoolStatus::kOk);
    allocator_->BeginCapture(0);
    allocator_->EndCapture(0);
  }
}

TEST_F(Versions, ReservedBytesOfAPrivatePoolOutliveIt) {
  const PoolId pool{0, 7};
  ASSERT_EQ(allocator_->SharePool(0, pool), PoolStatus::kOk);
  ASSERT_EQ(allocator_->BeginAllocateToPool(0, pool, [](StreamHandle) { return true; }), PoolStatus::kOk);
  void* const small = Take(kKiB);
  void* const large = Take(30 * kMiB);
  ASSERT_EQ(allocator_->EndAllocateToPool(0, pool), PoolStatus::kOk);
  Take(30 * kMiB);
  auto own = Stats().reserved_bytes_by_private_pool;
  ASSERT_EQ(own.size(), 1u);
  EXPECT_EQ(own[0].first, pool);
  EXPECT_EQ(own[0].second[kSmallPool].current, 2 * static_cast<int64_t>(kMiB));
  EXPECT_EQ(own[0].second[kLargePool].current, 30 * static_cast<int64_t>(kMiB));
  Give(small);
  Give(large);
  allocator_->ReleasePool(0, pool);
  allocator_->ReleasePool(0, pool);
  allocator_->EmptyCache();
  own = Stats().reserved_bytes_by_private_pool;
  ASSERT_EQ(own.size(), 1u);
  EXPECT_EQ(own[0].second[kAllPools].current, 0);
  EXPECT_EQ(own[0].second[kAllPools].peak, 32 * static_cast<int64_t>(kMiB));
}

}  // namespace
}  // namespace vramledger
