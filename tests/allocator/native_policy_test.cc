// The rules of PyTorch's native allocator, each with numbers that follow from its documentation and behaviour.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/allocator/core_fixture.h"

namespace vramledger {
namespace {

using testing::ElementsAre;
using Lines = std::vector<std::string>;

class NativePolicy : public CoreTest {};

TEST_F(NativePolicy, SizesRoundUpTo512) {
  EXPECT_EQ(BlockBytes(1), 512u);
  EXPECT_EQ(BlockBytes(511), 512u);
  EXPECT_EQ(BlockBytes(512), 512u);
  EXPECT_EQ(BlockBytes(513), 1024u);
  EXPECT_EQ(BlockBytes(kMiB), kMiB);
  EXPECT_EQ(BlockBytes(3 * kMiB + 1), 3 * kMiB + 512);
}

TEST_F(NativePolicy, ZeroBytesAreNull) {
  const AllocationResult result = allocator_->Allocate(0, 0, 0, BlockTag());
  EXPECT_EQ(result.address, nullptr);
  EXPECT_EQ(result.status, AllocationStatus::kOk);
  EXPECT_EQ(allocator_->Free(nullptr), FreeStatus::kNull);
  EXPECT_THAT(observer_.Take(), ElementsAre());
}

TEST_F(NativePolicy, SegmentSizesByRequest) {
  Take(1);
  EXPECT_EQ(Reserved(), 2 * static_cast<int64_t>(kMiB));
  Take(kMiB);  // still fits: 512 B are used
  EXPECT_EQ(Reserved(), 2 * static_cast<int64_t>(kMiB));
  Take(kMiB + 1);
  EXPECT_EQ(Reserved(), 22 * static_cast<int64_t>(kMiB));
  Start();
  Take(10 * kMiB - 512);
  EXPECT_EQ(Reserved(), 20 * static_cast<int64_t>(kMiB));
  Start();
  Take(10 * kMiB);
  EXPECT_EQ(Reserved(), 10 * static_cast<int64_t>(kMiB));
  Start();
  Take(10 * kMiB + 1);
  EXPECT_EQ(Reserved(), 12 * static_cast<int64_t>(kMiB));
}

TEST_F(NativePolicy, SmallBlocksSplitFrom512On) {
  void* const a = Take(2 * kKiB);
  void* const b = Take(2 * kKiB);
  EXPECT_EQ(Distance(a, b), 2 * kKiB);
  Give(a);
  // 1.5 KiB out of the hole of 2 KiB: 512 B are left and stay usable.
  EXPECT_EQ(Take(3 * 512), a);
  EXPECT_EQ(Distance(a, Take(512)), 3u * 512);
}

TEST_F(NativePolicy, LargeBlocksSplitAboveOneMiB) {
  Take(19 * kMiB);  // 20 MiB segment, one MiB over: not split
  EXPECT_EQ(Stats().allocated_bytes[kAllPools].current, static_cast<int64_t>(20 * kMiB));
  EXPECT_EQ(Stats().inactive_split[kAllPools].current, 0);
  Start();
  Take(19 * kMiB - 512);
  EXPECT_EQ(Stats().allocated_bytes[kAllPools].current, static_cast<int64_t>(19 * kMiB - 512));
  EXPECT_EQ(Stats().inactive_split_bytes[kAllPools].current, static_cast<int64_t>(kMiB + 512));
  Start();
  void* const a = Take(9 * kMiB);
  EXPECT_EQ(Stats().allocated_bytes[kAllPools].current, static_cast<int64_t>(9 * kMiB));
  EXPECT_EQ(Stats().inactive_split_bytes[kAllPools].current, static_cast<int64_t>(11 * kMiB));
  EXPECT_EQ(Distance(a, Take(10 * kMiB)), 9 * kMiB);  // one MiB would be over: goes with it
  EXPECT_EQ(Stats().allocated_bytes[kAllPools].current, static_cast<int64_t>(20 * kMiB));
  EXPECT_EQ(Stats().requested_bytes[kAllPools].current, static_cast<int64_t>(19 * kMiB));
}

TEST_F(NativePolicy, BestFitIsTheSmallestThenTheLowest) {
  std::vector<void*> held;
  std::vector<void*> holes;
  for (const size_t size : {8 * kKiB, 4 * kKiB, 4 * kKiB, 6 * kKiB}) {
    holes.push_back(Take(size));
    held.push_back(Take(512));  // keeps the holes apart
  }
  for (void* hole : holes) Give(hole);
  EXPECT_EQ(Take(4 * kKiB), holes[1]);
  EXPECT_EQ(Take(4 * kKiB), holes[2]);
  EXPECT_EQ(Take(4 * kKiB), holes[3]);  // 6 KiB before 8 KiB
  EXPECT_EQ(Take(4 * kKiB), holes[0]);
}

TEST_F(NativePolicy, EqualHolesByAddressOrBySegmentAge) {
  for (const auto order :
       {AllocatorSettings::EqualSizeOrder::kAddress, AllocatorSettings::EqualSizeOrder::kSegmentAge}) {
    SimulatedDeviceOptions options;
    options.address_order = AddressOrder::kDown;  // the newer segment is the lower one
    device_.emplace(options);
    AllocatorSettings settings;
    settings.equal_size_order = order;
    allocator_ = std::make_unique<CachingAllocator>(*device_, settings, nullptr);
    void* const older = Take(10 * kMiB);
    void* const newer = Take(10 * kMiB);
    ASSERT_LT(newer, older);
    Give(older);
    Give(newer);
    EXPECT_EQ(Take(10 * kMiB), order == AllocatorSettings::EqualSizeOrder::kAddress ? newer : older);
    allocator_.reset();
  }
}

TEST_F(NativePolicy, FreedNeighboursJoin) {
  void* const a = Take(512);
  void* const b = Take(512);
  void* const c = Take(512);
  void* const d = Take(512);
  Give(a);
  Give(c);
  EXPECT_EQ(Stats().inactive_split[kAllPools].current, 3);  // a, c, and the tail of the segment
  Give(b);
  EXPECT_EQ(Stats().inactive_split[kAllPools].current, 2);
  EXPECT_EQ(Take(3 * 512), a);
  Give(a);
  Give(d);
  EXPECT_EQ(Stats().inactive_split[kAllPools].current, 0);  // whole segment free
  EXPECT_EQ(Stats().inactive_split_bytes[kAllPools].current, 0);
}

TEST_F(NativePolicy, StreamsDoNotShare) {
  void* const a = Take(512, 1);
  Give(a);
  EXPECT_NE(Take(512, 2), a);
  EXPECT_EQ(Take(512, 1), a);
  EXPECT_EQ(Reserved(), 4 * static_cast<int64_t>(kMiB));
}

TEST_F(NativePolicy, DevicesDoNotShare) {
  SimulatedDeviceOptions options;
  options.devices = 2;
  Start("", options);
  void* const a = Take(512, 0, 0);
  void* const b = Take(512, 0, 1);
  EXPECT_EQ(Stats(0).allocation[kAllPools].current, 1);
  EXPECT_EQ(Stats(1).allocation[kAllPools].current, 1);
  EXPECT_EQ(allocator_->Free(b, 0), FreeStatus::kOk);  // wrong hint
  EXPECT_EQ(Stats(1).allocation[kAllPools].current, 0);
  EXPECT_EQ(Stats(0).allocation[kAllPools].current, 1);
  Give(a);
  EXPECT_EQ(allocator_->Allocate(2, 0, 512, BlockTag()).status, AllocationStatus::kInvalidDevice);
  EXPECT_EQ(allocator_->Allocate(-1, 0, 512, BlockTag()).status, AllocationStatus::kInvalidDevice);
}

TEST_F(NativePolicy, OutOfMemoryReleasesTheCacheAndRetries) {
  SimulatedDeviceOptions options;
  options.capacity_bytes = 100 * kMiB;
  Start("", options);
  Give(Take(60 * kMiB));
  void* const small = Take(512);
  observer_.Take();
  void* const big = Take(80 * kMiB);
  ASSERT_NE(big, nullptr);
  EXPECT_EQ(observer_.Take(), (Lines{"segment_free 62914560", "segment_alloc 83886080", "alloc 83886080"}));
  EXPECT_EQ(Stats().num_alloc_retries, 1);
  EXPECT_EQ(Stats().num_ooms, 0);

  OutOfMemoryInfo info;
  const AllocationResult result = allocator_->Allocate(0, 0, 30 * kMiB, BlockTag(), &info);
  EXPECT_EQ(result.status, AllocationStatus::kOutOfMemory);
  EXPECT_EQ(result.address, nullptr);
  EXPECT_EQ(info.requested_bytes, 30 * kMiB);
  EXPECT_EQ(info.segment_bytes, 30 * kMiB);
  EXPECT_EQ(info.device_total_bytes, 100 * kMiB);
  EXPECT_EQ(info.device_free_bytes, 18 * kMiB);
  EXPECT_EQ(info.allocated_bytes, 80 * kMiB + 512);
  EXPECT_EQ(info.reserved_bytes, 82 * kMiB);
  EXPECT_EQ(info.cached_bytes, 2 * kMiB - 512);
  EXPECT_EQ(info.largest_free_block_bytes, 0u);  // the large pool has no hole
  EXPECT_FALSE(info.limited_by_fraction);
  EXPECT_EQ(Stats().num_ooms, 1);
  EXPECT_EQ(Stats().num_alloc_retries, 2);
  EXPECT_EQ(observer_.Take(), (Lines{"out_of_memory 31457280"}));
  Give(big);
  Give(small);
  EXPECT_NE(Take(90 * kMiB), nullptr);  // and life goes on
}

TEST_F(NativePolicy, RequestsBeyondAllMeasureAreOutOfMemory) {
  for (const size_t bytes : {size_t{1} << 41, size_t{1} << 62, ~size_t{0}, ~size_t{0} - 511}) {
    EXPECT_EQ(allocator_->Allocate(0, 0, bytes, BlockTag()).status, AllocationStatus::kOutOfMemory);
  }
}

TEST_F(NativePolicy, DeviceErrorsThatAreNotLackOfMemory) {
  device_->Fail(SimulatedDeviceMemory::Operation::kAllocate, DeviceResult::kError, 1);
  EXPECT_EQ(allocator_->Allocate(0, 0, 512, BlockTag()).status, AllocationStatus::kDeviceError);
  EXPECT_EQ(Stats().num_ooms, 0);
  EXPECT_NE(Take(512), nullptr);
}

TEST_F(NativePolicy, TheFractionOfTheSettingsIsToldBeforeAnythingIsAllocated) {
  Start("per_process_memory_fraction:0.5");
  EXPECT_EQ(allocator_->MemoryFraction(0), 0.5);
}

TEST_F(NativePolicy, MemoryFractionLimitsWhatIsReserved) {
  SimulatedDeviceOptions options;
  options.capacity_bytes = 100 * kMiB;
  Start("", options);
  EXPECT_FALSE(allocator_->SetMemoryFraction(1.5, 0));
  EXPECT_FALSE(allocator_->SetMemoryFraction(-0.1, 0));
  EXPECT_EQ(allocator_->MemoryFraction(0), 1);
  EXPECT_TRUE(allocator_->SetMemoryFraction(0.5, 0));
  EXPECT_EQ(allocator_->MemoryFraction(0), 0.5);
  void* const a = Take(50 * kMiB);
  EXPECT_NE(a, nullptr);
  OutOfMemoryInfo info;
  EXPECT_EQ(allocator_->Allocate(0, 0, 512, BlockTag(), &info).status, AllocationStatus::kOutOfMemory);
  EXPECT_TRUE(info.limited_by_fraction);
  EXPECT_EQ(info.allowed_bytes, 50 * kMiB);
  EXPECT_EQ(info.device_free_bytes, 50 * kMiB);
  Give(a);
  EXPECT_NE(Take(512), nullptr);  // the cache was given back to make room
  EXPECT_TRUE(allocator_->SetMemoryFraction(1, 0));
  EXPECT_NE(Take(60 * kMiB), nullptr);
}

TEST_F(NativePolicy, MemoryFractionFromSettings) {
  SimulatedDeviceOptions options;
  options.capacity_bytes = 100 * kMiB;
  Start("per_process_memory_fraction:0.3", options);
  EXPECT_NE(Take(30 * kMiB), nullptr);
  EXPECT_EQ(Take(2 * kMiB), nullptr);
}

TEST_F(NativePolicy, MaxSplitSizeKeepsLargeBlocksWhole) {
  Start("max_split_size_mb:40");
  void* const big = Take(60 * kMiB);
  Give(big);
  EXPECT_NE(Take(30 * kMiB), big);  // an oversize block is not for smaller requests
  EXPECT_EQ(Stats().oversize_segments.current, 1);
  EXPECT_EQ(Stats().oversize_allocations.current, 0);
  EXPECT_NE(Take(40 * kMiB), big);        // 60 is 20 more than 40: too much
  EXPECT_EQ(Take(40 * kMiB + 512), big);  // less than 20 MiB more: given whole
  EXPECT_EQ(Stats().oversize_allocations.current, 2);
  EXPECT_EQ(Stats().inactive_split_bytes[kAllPools].current, 0);
}

TEST_F(NativePolicy, MaxSplitSizeReleasesOnlyWhatIsNeeded) {
  SimulatedDeviceOptions options;
  options.capacity_bytes = 200 * kMiB;
  Start("max_split_size_mb:20", options);
  void* const a = Take(30 * kMiB);
  void* const b = Take(50 * kMiB);
  void* const c = Take(110 * kMiB);
  Give(a);
  Give(b);
  Give(c);
  observer_.Take();
  EXPECT_NE(Take(75 * kMiB), nullptr);  // the smallest that is large enough
  EXPECT_EQ(observer_.Take(), (Lines{"segment_free 115343360", "segment_alloc 79691776", "alloc 78643200"}));
  EXPECT_EQ(Stats().num_alloc_retries, 0);
  EXPECT_NE(Take(71 * kMiB), nullptr);  // none is: the largest ones, until it is enough
  EXPECT_EQ(observer_.Take(),
            (Lines{"segment_free 52428800", "segment_free 31457280", "segment_alloc 75497472", "alloc 74448896"}));
}

TEST_F(NativePolicy, RoundingToDivisionsOfPowersOfTwo) {
  Start("roundup_power2_divisions:4");
  EXPECT_EQ(BlockBytes(1200), 1536u);  // too small for it: 512
  EXPECT_EQ(BlockBytes(2048), 2048u);
  EXPECT_EQ(BlockBytes(2049), 2560u);
  EXPECT_EQ(BlockBytes(5 * kMiB + 1), 6 * kMiB);
  EXPECT_EQ(BlockBytes(1200 * kKiB), 1280 * kKiB);
  Start("roundup_power2_divisions:[4:2,>:1]");
  EXPECT_EQ(BlockBytes(5 * kMiB), 6 * kMiB);
  EXPECT_EQ(BlockBytes(3 * kMiB - 512), 3 * kMiB);
  EXPECT_EQ(BlockBytes(9 * kMiB - 1), 9 * kMiB);
}

TEST_F(NativePolicy, GarbageCollectionFreesTheOldestAboveTheThreshold) {
  SimulatedDeviceOptions options;
  options.capacity_bytes = 1000 * kMiB;
  Start("garbage_collection_threshold:0.5", options);
  ASSERT_TRUE(allocator_->SetMemoryFraction(0.9, 0));
  Give(Take(2 * kMiB, 1));
  void* const old = Take(200 * kMiB);
  void* const young = Take(300 * kMiB);
  Give(old);
  for (int i = 0; i < 10; ++i) Give(Take(2 * kMiB, 1));  // time passes with every search of the pool
  Give(young);
  observer_.Take();
  // 520 MiB are reserved, 450 are the threshold, 70 the target: the old one goes, the young ones stay.
  EXPECT_NE(Take(350 * kMiB), nullptr);
  EXPECT_EQ(observer_.Take(), (Lines{"segment_free 209715200", "segment_alloc 367001600", "alloc 367001600"}));
}

TEST_F(NativePolicy, GarbageCollectionNeedsALimit) {
  SimulatedDeviceOptions options;
  options.capacity_bytes = 1000 * kMiB;
  Start("garbage_collection_threshold:0.5", options);
  Give(Take(600 * kMiB));
  observer_.Take();
  Take(300 * kMiB + 512, 1);
  EXPECT_EQ(observer_.Take(), (Lines{"segment_alloc 316669952", "alloc 314573312"}));
}

TEST_F(NativePolicy, EmptyCacheGivesBackWholeSegmentsOnly) {
  void* const small = Take(512);
  Give(Take(512, 7));
  void* const a = Take(30 * kMiB);
  void* const b = Take(11 * kMiB);
  Give(a);
  Give(b);
  observer_.Take();
  allocator_->EmptyCache();
  EXPECT_EQ(observer_.Take(), (Lines{"segment_free 12582912", "segment_free 31457280", "segment_free 2097152"}));
  EXPECT_EQ(Reserved(), 2 * static_cast<int64_t>(kMiB));
  Give(small);
  allocator_->EmptyCache();
  EXPECT_EQ(device_->used_bytes(0), 0u);
  EXPECT_EQ(Stats().num_device_alloc, 4);
  EXPECT_EQ(Stats().num_device_free, 4);
}

TEST_F(NativePolicy, FreeMemoryCallbackIsAskedBeforeTheDevice) {
  static CachingAllocator* allocator = nullptr;
  static void* hidden = nullptr;
  allocator = allocator_.get();
  hidden = Take(30 * kMiB);
  allocator_->AddFreeMemoryCallback(
      [](void*) {
        if (hidden == nullptr) return false;
        allocator->Free(hidden);
        hidden = nullptr;
        return true;
      },
      nullptr);
  void* const expected = hidden;
  EXPECT_EQ(Take(30 * kMiB), expected);
  EXPECT_NE(Take(30 * kMiB), expected);
}

TEST_F(NativePolicy, ObserverIsToldInTheOrderOfTruth) {
  void* const a = Take(1000);
  Give(a);
  EXPECT_EQ(observer_.Take(), (Lines{"segment_alloc 2097152", "alloc 1000", "free 1000"}));
}

TEST_F(NativePolicy, BaseAllocationIsTheSegment) {
  void* const a = Take(3 * kMiB);
  void* const b = Take(3 * kMiB);
  size_t bytes = 0;
  EXPECT_EQ(allocator_->BaseAllocation(b, &bytes), a);
  EXPECT_EQ(bytes, 20 * kMiB);
  EXPECT_EQ(allocator_->BaseAllocation(static_cast<char*>(b) + 512, &bytes), nullptr);
}

TEST_F(NativePolicy, BadFreesAreNamed) {
  void* const a = Take(4096);
  void* const b = Take(4096);
  char* const inside = static_cast<char*>(a) + 512;
  EXPECT_EQ(allocator_->Free(inside), FreeStatus::kInsideBlock);
  EXPECT_NE(allocator_->DescribeAddress(inside).find("512 bytes inside a block of 4096 bytes in use"),
            std::string::npos);
  Give(a);
  EXPECT_EQ(allocator_->Free(a), FreeStatus::kDoubleFree);
  Give(b);  // joins with a and the tail
  EXPECT_EQ(allocator_->Free(b), FreeStatus::kDoubleFree);
  EXPECT_NE(allocator_->DescribeAddress(b).find("free"), std::string::npos);
  allocator_->EmptyCache();
  EXPECT_EQ(allocator_->Free(b), FreeStatus::kDoubleFree);
  EXPECT_NE(allocator_->DescribeAddress(b).find("given back"), std::string::npos);
  int local = 0;
  EXPECT_EQ(allocator_->Free(&local), FreeStatus::kForeign);
  EXPECT_NE(allocator_->DescribeAddress(&local).find("never handed out"), std::string::npos);
  EXPECT_EQ(Stats().allocation[kAllPools].current, 0);
  EXPECT_EQ(Stats().active[kAllPools].freed, 2);
}

TEST_F(NativePolicy, TagsTravelWithTheBlock) {
  BlockTag tag;
  tag.words = {1, 2};
  void* const a = allocator_->Allocate(0, 5, 1000, tag).address;
  void* const b = Take(2000);
  EXPECT_TRUE(allocator_->UpdateTag(b, 0, [](const BlockView&, BlockTag& t) { t.words[0] = 9; }));
  EXPECT_FALSE(allocator_->UpdateTag(static_cast<char*>(b) + 512, 0, [](const BlockView&, BlockTag&) {}));
  int seen = 0;
  allocator_->ForEachBlock(0, [&](const SegmentView&, const BlockView& block, BlockState state, const BlockTag& t) {
    if (state == BlockState::kFree) return;
    ++seen;
    EXPECT_EQ(state, BlockState::kAllocated);
    if (block.address == reinterpret_cast<uintptr_t>(a)) {
      EXPECT_EQ(t.words[1], 2u);
      EXPECT_EQ(block.stream, 5u);
      EXPECT_EQ(block.requested_bytes, 1000u);
      EXPECT_EQ(block.block_bytes, 1024u);
    } else {
      EXPECT_EQ(t.words[0], 9u);
    }
  });
  EXPECT_EQ(seen, 2);
  Give(b);
  void* const again = Take(2000);
  EXPECT_EQ(again, b);
  allocator_->UpdateTag(again, 0, [](const BlockView&, BlockTag& t) { EXPECT_EQ(t.words[0], 0u); });
}

// As the blocks of PyTorch's snapshots: a free block says what was asked of it last, whatever was joined to it since.
TEST_F(NativePolicy, AFreeBlockRemembersItsLastRequest) {
  const auto requested = [this] {
    std::vector<size_t> sizes;
    allocator_->ForEachBlock(0, [&](const SegmentView&, const BlockView& block, BlockState, const BlockTag&) {
      sizes.push_back(block.requested_bytes);
    });
    return sizes;
  };
  void* const a = Take(700);
  void* const b = Take(900);
  EXPECT_EQ(requested(), (std::vector<size_t>{700, 900, 0}));
  Give(b);
  EXPECT_EQ(requested(), (std::vector<size_t>{700, 900}));
  Give(a);
  EXPECT_EQ(requested(), std::vector<size_t>{700});
  Take(600);  // cut off the front of it
  EXPECT_EQ(requested(), (std::vector<size_t>{600, 700}));
}

TEST_F(NativePolicy, ForEachBlockTilesEverySegment) {
  Take(512);
  Give(Take(3 * kMiB));
  Take(512, 9);
  uintptr_t segment_end = 0;
  uintptr_t next = 0;
  size_t total = 0;
  allocator_->ForEachBlock(0, [&](const SegmentView& segment, const BlockView& block, BlockState, const BlockTag&) {
    if (next == segment_end) {
      EXPECT_EQ(block.address, segment.address);
      segment_end = segment.address + segment.bytes;
    } else {
      EXPECT_EQ(block.address, next);
    }
    next = block.address + block.block_bytes;
    total += block.block_bytes;
  });
  EXPECT_EQ(next, segment_end);
  EXPECT_EQ(static_cast<int64_t>(total), Reserved());
}

TEST_F(NativePolicy, StatisticsFollowPyTorchsMeanings) {
  void* const a = Take(1000);
  void* const b = Take(2 * kMiB);
  Statistics s = Stats();
  EXPECT_EQ(s.allocated_bytes[kSmallPool].current, 1024);
  EXPECT_EQ(s.allocated_bytes[kLargePool].current, static_cast<int64_t>(2 * kMiB));
  EXPECT_EQ(s.requested_bytes[kSmallPool].current, 1000);
  EXPECT_EQ(s.segment[kAllPools].current, 2);
  EXPECT_EQ(s.reserved_bytes[kAllPools].peak, static_cast<int64_t>(22 * kMiB));
  EXPECT_EQ(s.max_split_size, -1);
  Give(a);
  Give(b);
  s = Stats();
  EXPECT_EQ(s.allocated_bytes[kAllPools],
            (Stat{0, static_cast<int64_t>(2 * kMiB + 1024), static_cast<int64_t>(2 * kMiB + 1024),
                  static_cast<int64_t>(2 * kMiB + 1024)}));
  allocator_->ResetPeakStatistics(0);
  EXPECT_EQ(Stats().allocated_bytes[kAllPools].peak, 0);
  allocator_->ResetAccumulatedStatistics(0);
  EXPECT_EQ(Stats().allocated_bytes[kAllPools], Stat());
  Give(Take(512));
  EXPECT_EQ(Stats().allocation[kAllPools], (Stat{0, 1, 1, 1}));
  const auto flat = Stats().Flatten();
  EXPECT_TRUE(std::is_sorted(flat.begin(), flat.end()));
  EXPECT_EQ(flat.size(), 9 * 12 + 8 + 6u);
}

}  // namespace
}  // namespace vramledger
