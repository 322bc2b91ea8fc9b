#include <gmock/gmock.h>

#include "tests/allocator/core_fixture.h"

namespace vramledger {
namespace {

using testing::ElementsAre;

class VmmPolicy : public CoreTest {
 protected:
  void StartVmm(const std::string& settings = "", SimulatedDeviceOptions options = {}) {
    allocator_.reset();
    device_.emplace(std::move(options));
    auto parsed = AllocatorSettings::Parse(settings);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    parsed->policy = AllocatorSettings::Policy::kVmm;
    allocator_ = std::make_unique<CachingAllocator>(*device_, *parsed, &observer_);
    observer_.Take();
  }
  static SimulatedDeviceOptions OfSize(size_t bytes) {
    SimulatedDeviceOptions options;
    options.capacity_bytes = bytes;
    return options;
  }
  // In different arenas, each of which has room for all of the device's memory (80 GiB).
  static bool LieApart(void* a, void* b) {
    return std::max(Address(a), Address(b)) - std::min(Address(a), Address(b)) > size_t{50} << 30;
  }
  static uintptr_t Address(void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }
  void SetUp() override { StartVmm(); }
};

TEST_F(VmmPolicy, MapsWhatIsNeededInGranules) {
  Take(3 * kMiB);
  EXPECT_EQ(Reserved(), static_cast<int64_t>(4 * kMiB));
  Take(kMiB / 2);  // lies in what is left of the second granule
  EXPECT_EQ(Reserved(), static_cast<int64_t>(4 * kMiB));
  Take(kMiB);
  EXPECT_EQ(Reserved(), static_cast<int64_t>(6 * kMiB));
  EXPECT_EQ(Stats().segment[kAllPools].current, 0);
}

TEST_F(VmmPolicy, ASteadyStateMapsAndUnmapsNothing) {
  for (int step = 0; step < 5; ++step) {
    if (step == 3) observer_.Take();
    std::vector<void*> kept;
    for (size_t i = 0; i < 40; ++i) {
      kept.push_back(Take((3 + i % 7) * kMiB));
      Give(Take(20 * kMiB));
    }
    for (void* block : kept) Give(block);
  }
  for (const std::string& line : observer_.Take()) EXPECT_EQ(line.find("segment"), std::string::npos) << line;
}

TEST_F(VmmPolicy, FreeGranulesServeAnotherStreamAndClass) {
  StartVmm("", OfSize(100 * kMiB));
  std::vector<void*> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(Take(10 * kMiB, 1));
  for (void* block : blocks) Give(block);
  EXPECT_NE(Take(60 * kMiB, 2), nullptr);  // more than the device has left without the granules of stream 1
  for (int i = 0; i < 40; ++i) EXPECT_NE(Take(kMiB, 3), nullptr);
  EXPECT_EQ(Take(2 * kMiB, 1), nullptr);
  EXPECT_EQ(Stats().num_ooms, 1);
  EXPECT_EQ(device_->used_bytes(0), 100 * kMiB);
}

TEST_F(VmmPolicy, AHoleBetweenBlocksIsEmptiedAndFilledAgain) {
  StartVmm("", OfSize(64 * kMiB));
  Take(8 * kMiB);
  void* hole = Take(32 * kMiB);
  Take(8 * kMiB);
  Give(hole);
  void* longer = Take(40 * kMiB);  // does not fit in the hole: its granules move
  ASSERT_NE(longer, nullptr);
  EXPECT_EQ(Reserved(), static_cast<int64_t>(56 * kMiB));
  Give(longer);
  EXPECT_EQ(Take(34 * kMiB), longer);  // what is mapped is taken first
}

// An unmapped block behind a free one: both are the place, and what is free of it must not be unmapped to fill the
// rest.
TEST_F(VmmPolicy, TheFreeBeginningOfAPlaceStays) {
  StartVmm("", OfSize(52 * kMiB));
  Take(8 * kMiB);
  void* hole = Take(24 * kMiB);
  void* after = Take(12 * kMiB);
  Take(8 * kMiB);
  Give(hole);
  ASSERT_NE(Take(20 * kMiB, 1), nullptr);  // with granules of the hole: 4 MiB free, 20 MiB unmapped
  Give(after);
  device_->SetCapacity(100 * kMiB);
  EXPECT_EQ(Take(24 * kMiB), hole);
  EXPECT_EQ(Reserved(), static_cast<int64_t>(60 * kMiB));  // with granules of the hole behind it
}

TEST_F(VmmPolicy, WaitsForAnotherStreamRatherThanFail) {
  SimulatedDeviceOptions options = OfSize(64 * kMiB);
  options.completion = Completion::kManual;
  StartVmm("", options);
  void* block = Take(60 * kMiB);
  EXPECT_TRUE(allocator_->RecordStream(block, 7));
  Give(block);
  EXPECT_NE(Take(50 * kMiB, 3), nullptr);  // only after stream 7 has passed, which is waited for
  EXPECT_EQ(device_->Done(0, 7), 1u);
}

TEST_F(VmmPolicy, NothingIsUnmappedDuringACapture) {
  StartVmm("", OfSize(64 * kMiB));
  Give(Take(40 * kMiB, 1));
  allocator_->BeginCapture(0);
  observer_.Take();
  EXPECT_EQ(Take(40 * kMiB, 2), nullptr);
  EXPECT_THAT(observer_.Take(), ElementsAre(testing::StartsWith("out_of_memory")));
  allocator_->EndCapture(0);
  EXPECT_NE(Take(40 * kMiB, 2), nullptr);
}

TEST_F(VmmPolicy, KeepsToTheMemoryFraction) {
  StartVmm("per_process_memory_fraction:0.5", OfSize(128 * kMiB));
  void* block = Take(60 * kMiB, 1);
  EXPECT_EQ(Take(8 * kMiB), nullptr);
  Give(block);
  EXPECT_NE(Take(62 * kMiB, 2), nullptr);
  EXPECT_LE(Reserved(), static_cast<int64_t>(64 * kMiB));
}

TEST_F(VmmPolicy, EmptyCacheGivesEveryFreeGranuleBack) {
  Give(Take(100 * kMiB));
  Give(Take(kMiB, 2));
  allocator_->EmptyCache();
  EXPECT_EQ(Reserved(), 0);
  EXPECT_EQ(device_->used_bytes(0), 0u);
  EXPECT_NE(Take(100 * kMiB), nullptr);
}

// Where little is live, parts of granules between blocks would be a good part of it.
TEST_F(VmmPolicy, BlocksOfWholeGranulesLieApartUntilMuchIsLive) {
  EXPECT_TRUE(LieApart(Take(4 * kMiB), Take(7 * kMiB + kMiB / 2)));
  Take(size_t{3} << 30);
  EXPECT_FALSE(LieApart(Take(4 * kMiB), Take(7 * kMiB + kMiB / 2)));
}

// Lowest first, so that the blocks in use stay together; the smallest that fits is for whole granules.
TEST_F(VmmPolicy, AMisfittingBlockGoesToTheLowestPlace) {
  void* kept = Take(size_t{3} << 30);
  void* low = Take(11 * kMiB);
  Take(5 * kMiB);
  void* high = Take(9 * kMiB);
  Take(5 * kMiB);
  Give(low);
  Give(high);
  EXPECT_EQ(Take(8 * kMiB + kMiB / 2), low);
  Give(low);
  EXPECT_EQ(Take(8 * kMiB), high);
  Give(kept);
}

// Granules that were free for long are the ones that a step needs last.
TEST_F(VmmPolicy, TheLongestFreeGranulesMoveFirst) {
  StartVmm("", OfSize(60 * kMiB));
  void* early = Take(20 * kMiB, 1);
  void* late = Take(20 * kMiB, 2);
  Take(20 * kMiB, 3);
  Give(early);
  Give(late);
  Take(20 * kMiB, 3);  // with the granules of stream 1
  observer_.Take();
  EXPECT_EQ(Take(20 * kMiB, 2), late);
  for (const std::string& line : observer_.Take()) EXPECT_EQ(line.find("segment"), std::string::npos) << line;
}

TEST_F(VmmPolicy, ShortLivedBlocksLieApartOnceTheyAreKnown) {
  for (int i = 0; i < 2; ++i) Give(Take(5 * kMiB));
  void* brief = Take(5 * kMiB);
  void* kept = Take(7 * kMiB);
  EXPECT_TRUE(LieApart(brief, kept));
}

TEST_F(VmmPolicy, PrivatePoolsHavePlainSegments) {
  const PoolId id{1, 0};
  ASSERT_EQ(allocator_->BeginAllocateToPool(0, id, [](StreamHandle) { return true; }), PoolStatus::kOk);
  observer_.Take();
  Take(30 * kMiB);
  EXPECT_THAT(observer_.Take(), testing::Contains("segment_alloc " + std::to_string(30 * kMiB)));
  ASSERT_EQ(allocator_->EndAllocateToPool(0, id), PoolStatus::kOk);
}

// As under native; there the pool would lend before anything is released, here what can move goes first.
TEST_F(VmmPolicy, APrivatePoolLendsWhenTheDeviceHasNoMore) {
  StartVmm("", OfSize(64 * kMiB));
  const PoolId id{1, 0};
  ASSERT_EQ(allocator_->BeginAllocateToPool(0, id, [](StreamHandle) { return true; }), PoolStatus::kOk);
  void* const own = Take(40 * kMiB);
  Give(own);
  ASSERT_EQ(allocator_->EndAllocateToPool(0, id), PoolStatus::kOk);
  EXPECT_EQ(Take(30 * kMiB), nullptr);
  ASSERT_EQ(allocator_->SetPoolUseWhenOut(0, id, true), PoolStatus::kOk);
  EXPECT_EQ(Take(30 * kMiB), own);
}

// Where the allowance is more than the device has, running out is the first sign that parts of granules are needed.
TEST_F(VmmPolicy, APartOfAGranuleOfAnotherClassServesBeforeMemoryIsOut) {
  StartVmm("", OfSize(kGiB));
  constexpr size_t kBrief = kMiB + kMiB / 8;
  Give(Take(kBrief));  // brief from now on
  Give(Take(kGiB));
  allocator_->EmptyCache();
  Take(kGiB - 6 * kMiB);
  Take(3 * kMiB + kMiB / 2);
  Take(kMiB + kMiB / 4);  // and 1.25 MiB behind it stay free
  ASSERT_EQ(Reserved(), static_cast<int64_t>(kGiB));
  EXPECT_NE(Take(kBrief), nullptr);
}

TEST_F(VmmPolicy, AHugeRequestThatFailsChangesNothingForOthers) {
  StartVmm("", OfSize(512 * kMiB));
  EXPECT_EQ(Take(600 * kMiB), nullptr);
  Give(Take(40 * kMiB, 1));
  EXPECT_NE(Take(40 * kMiB, 2), nullptr);
  EXPECT_EQ(Reserved(), static_cast<int64_t>(40 * kMiB));  // the same granules
}

TEST_F(VmmPolicy, AFailureCountsAfterAPrivatePoolWasRefused) {
  StartVmm("throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.5", OfSize(128 * kMiB));
  ASSERT_TRUE(allocator_->SetMemoryFraction(1, 0));
  const PoolId id{1, 0};
  ASSERT_EQ(allocator_->BeginAllocateToPool(0, id, [](StreamHandle) { return true; }), PoolStatus::kOk);
  EXPECT_EQ(Take(100 * kMiB), nullptr);
  ASSERT_EQ(allocator_->EndAllocateToPool(0, id), PoolStatus::kOk);
  EXPECT_EQ(Stats().num_ooms, 0);
  EXPECT_EQ(Take(200 * kMiB), nullptr);
  EXPECT_EQ(Stats().num_ooms, 1);
}

TEST_F(VmmPolicy, GranulesAreCountedFromWhereTheAddressSpaceBegins) {
  SimulatedDeviceOptions options = OfSize(64 * kMiB);
  options.scripted_reservations = {(uintptr_t{7} << 40) + kMiB};
  options.map_granularity = kMiB;
  StartVmm("", options);
  void* block = Take(40 * kMiB, 1);
  ASSERT_NE(block, nullptr);
  Give(block);
  EXPECT_NE(Take(60 * kMiB, 2), nullptr);
  EXPECT_EQ(static_cast<int64_t>(device_->used_bytes(0)), Reserved());
}

TEST_F(VmmPolicy, ADeviceWithoutVirtualMemoryHasTheNativePolicy) {
  SimulatedDeviceOptions options;
  options.has_vmm = false;
  StartVmm("", options);
  EXPECT_NE(Take(3 * kMiB), nullptr);
  EXPECT_THAT(observer_.Take(), testing::Contains("segment_alloc " + std::to_string(20 * kMiB)));
  EXPECT_FALSE(allocator_->UsesExpandableSegments(0));
}

TEST_F(VmmPolicy, AddressSpaceIsReservedOnce) {
  device_->Fail(SimulatedDeviceMemory::Operation::kReserveAddress, DeviceResult::kError, 100, 1);
  for (StreamHandle stream = 0; stream < 5; ++stream) {
    EXPECT_NE(Take(3 * kMiB, stream), nullptr);
    EXPECT_NE(Take(1000, stream), nullptr);
  }
}

}  // namespace
}  // namespace vramledger
