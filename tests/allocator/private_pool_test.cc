// Private pools: routing, life cycle, reuse and recorded states.
#include "allocator/core/private_pool.h"

#include <algorithm>
#include <random>
#include <thread>

#include "tests/allocator/core_fixture.h"
#include "tests/allocator/shadow_ledger.h"

namespace vramledger {
namespace {

constexpr PoolId kGraph{0, 1};
constexpr PoolId kOther{1, 0};

StreamFilter Everything() {
  return [](StreamHandle) { return true; };
}

class PrivatePoolTest : public CoreTest {
 protected:
  PoolId PoolOf(void* address) {
    PoolId id;
    allocator_->ForEachBlock(0, [&](const SegmentView&, const BlockView& block, BlockState, const BlockTag&) {
      if (block.address == reinterpret_cast<uintptr_t>(address)) id = block.pool_id;
    });
    return id;
  }
  void Begin(PoolId id = kGraph) { ASSERT_EQ(allocator_->BeginAllocateToPool(0, id, Everything()), PoolStatus::kOk); }
  void End(PoolId id = kGraph) { ASSERT_EQ(allocator_->EndAllocateToPool(0, id), PoolStatus::kOk); }
  int64_t Reserved() { return allocator_->GetStatistics(0).reserved_bytes[kAllPools].current; }
};

TEST_F(PrivatePoolTest, RequestsAreRoutedByTheFilterAndTheLatestRouteFirst) {
  ASSERT_EQ(allocator_->BeginAllocateToPool(0, kGraph, [](StreamHandle s) { return s == 7; }), PoolStatus::kOk);
  EXPECT_EQ(PoolOf(Take(kMiB, 7)), kGraph);
  EXPECT_EQ(PoolOf(Take(kMiB, 8)), PoolId());
  Begin(kOther);
  EXPECT_EQ(PoolOf(Take(kMiB, 7)), kOther);
  End(kOther);
  EXPECT_EQ(PoolOf(Take(4 * kMiB, 7)), kGraph);
  End();
  EXPECT_EQ(PoolOf(Take(kMiB, 7)), PoolId());
}

TEST_F(PrivatePoolTest, BlocksAreNeverReusedAcrossPools) {
  void* const ours = Take(kMiB);
  Begin();
  void* const theirs = Take(kMiB);
  Give(ours);
  EXPECT_NE(Take(kMiB), ours);
  Give(theirs);
  End();
  void* const next = Take(kMiB);
  EXPECT_EQ(next, ours);
  EXPECT_NE(next, theirs);
}

TEST_F(PrivatePoolTest, SegmentsGoBackOnlyWhenNobodyUsesThePool) {
  ASSERT_EQ(allocator_->SharePool(0, kGraph), PoolStatus::kOk);
  Begin();
  EXPECT_EQ(allocator_->PoolUseCount(0, kGraph), 2);
  Give(Take(30 * kMiB));
  void* const kept = Take(kMiB);
  End();
  EXPECT_EQ(allocator_->ReleasePool(0, kGraph), PoolStatus::kOk);
  allocator_->EmptyCache();
  allocator_->EmptyPool(0, kGraph);
  EXPECT_EQ(Reserved(), static_cast<int64_t>(32 * kMiB));
  EXPECT_EQ(allocator_->ReleasePool(0, kGraph), PoolStatus::kOk);
  EXPECT_EQ(allocator_->PoolUseCount(0, kGraph), 0);
  allocator_->EmptyCache();
  EXPECT_EQ(Reserved(), static_cast<int64_t>(2 * kMiB));  // what is in use stays
  Give(kept);
  allocator_->EmptyPool(0, kGraph);
  EXPECT_EQ(Reserved(), 0);
  EXPECT_EQ(allocator_->PoolUseCount(0, kGraph), -1);
}

// The callbacks run without the lock, so the program may have done anything meanwhile.
TEST_F(PrivatePoolTest, ACallbackMayEndThePoolThatTheRequestWasFor) {
  static CachingAllocator* allocator = nullptr;
  allocator = allocator_.get();
  Begin();
  allocator_->AddFreeMemoryCallback(
      [](void*) {
        if (allocator->PoolUseCount(0, kGraph) <= 0) return false;
        allocator->EndAllocateToPool(0, kGraph);
        allocator->ReleasePool(0, kGraph);
        allocator->EmptyPool(0, kGraph);
        return true;
      },
      nullptr);
  void* const block = Take(3 * kMiB);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(allocator_->PoolUseCount(0, kGraph), -1) << "the pool is gone";
  EXPECT_EQ(PoolOf(block), PoolId());
  Give(block);
  allocator_->EmptyCache();
  EXPECT_EQ(device_->used_bytes(0), 0u) << "it came from the default pool";
}

TEST_F(PrivatePoolTest, WrongUseIsNamed) {
  EXPECT_EQ(allocator_->EndAllocateToPool(0, kGraph), PoolStatus::kNotRouted);
  EXPECT_EQ(allocator_->ReleasePool(0, kGraph), PoolStatus::kUnknownPool);
  EXPECT_EQ(allocator_->SharePool(0, PoolId()), PoolStatus::kUnknownPool);
  EXPECT_EQ(allocator_->SharePool(9, kGraph), PoolStatus::kUnknownPool);
  Begin();
  EXPECT_EQ(allocator_->BeginAllocateToPool(0, kGraph, Everything()), PoolStatus::kAlreadyRouted);
  void* const block = Take(kMiB);
  End();
  EXPECT_EQ(allocator_->ReleasePool(0, kGraph), PoolStatus::kOk);
  EXPECT_EQ(allocator_->ReleasePool(0, kGraph), PoolStatus::kReleased);
  EXPECT_EQ(allocator_->BeginAllocateToPool(0, kGraph, Everything()), PoolStatus::kReleased);
  Give(block);
}

TEST_F(PrivatePoolTest, AReleasedPoolGivesWayWhenMemoryRunsShort) {
  SimulatedDeviceOptions options;
  options.capacity_bytes = 64 * kMiB;
  Start("", options);
  Begin();
  Give(Take(40 * kMiB));
  End();
  EXPECT_EQ(Take(40 * kMiB), nullptr);
  EXPECT_EQ(allocator_->ReleasePool(0, kGraph), PoolStatus::kOk);
  EXPECT_NE(Take(40 * kMiB), nullptr);
}

TEST_F(PrivatePoolTest, APoolMayLendItsFreeBlocks) {
  SimulatedDeviceOptions options;
  options.capacity_bytes = 64 * kMiB;
  Start("", options);
  Begin();
  Give(Take(40 * kMiB));
  End();
  EXPECT_EQ(Take(30 * kMiB), nullptr);
  EXPECT_EQ(allocator_->SetPoolUseWhenOut(0, kGraph, true), PoolStatus::kOk);
  void* const lent = Take(30 * kMiB);
  EXPECT_EQ(PoolOf(lent), kGraph);
  Give(lent);
}

TEST_F(PrivatePoolTest, APoolThatDoesNotSplitHandsOutWholeSegments) {
  Begin();
  ASSERT_EQ(allocator_->SetPoolNoSplit(0, kGraph), PoolStatus::kOk);
  EXPECT_EQ(BlockBytes(kKiB), 2 * kMiB);
  EXPECT_EQ(BlockBytes(3 * kMiB), 20 * kMiB);
  End();
}

TEST_F(PrivatePoolTest, LiveBlocksAreThoseOfThePoolOnly) {
  void* const outside = Take(kMiB);
  Begin();
  std::vector<void*> wanted = {Take(kKiB), Take(3 * kMiB), Take(30 * kMiB)};
  Give(Take(5 * kMiB));
  End();
  std::vector<void*> live;
  ASSERT_EQ(allocator_->LivePoolBlocks(0, kGraph, &live), PoolStatus::kOk);
  std::sort(live.begin(), live.end());
  std::sort(wanted.begin(), wanted.end());
  EXPECT_EQ(live, wanted);
  Give(outside);
}

class CountedSource : public SegmentSource {
 public:
  void* Allocate(size_t bytes) override {
    if (limit < bytes) return nullptr;
    limit -= bytes;
    ++taken;
    next += size_t{1} << 40;
    return reinterpret_cast<void*>(next);
  }
  void Free(void*) override { ++given; }
  size_t limit = 100 * kMiB;
  int taken = 0;
  int given = 0;

 private:
  uintptr_t next = uintptr_t{1} << 45;
};

TEST_F(PrivatePoolTest, SegmentsComeFromThePoolsOwnSource) {
  for (const char* settings : {"", "expandable_segments:True"}) {
    Start(settings);
    const auto source = std::make_shared<CountedSource>();
    ASSERT_EQ(allocator_->SharePool(0, kGraph, source), PoolStatus::kOk);
    Begin();
    void* const a = Take(kMiB);
    void* const b = Take(90 * kMiB);
    EXPECT_EQ(source->taken, 2);
    EXPECT_EQ(Take(20 * kMiB), nullptr);
    End();
    Give(a);
    Give(b);
    EXPECT_EQ(allocator_->ReleasePool(0, kGraph), PoolStatus::kOk);
    EXPECT_EQ(allocator_->ReleasePool(0, kGraph), PoolStatus::kOk);
    allocator_->EmptyCache();
    EXPECT_EQ(source->given, 2);
    EXPECT_EQ(device_->used_bytes(0), 0u) << "the device was asked";
  }
}

TEST_F(PrivatePoolTest, ARecordedStateIsPutBackBlockByBlock) {
  for (const char* settings : {"", "expandable_segments:True"}) {
    Start(settings);
    Begin();
    void* const a = Take(3 * kMiB);
    void* const gap = Take(2 * kMiB);
    void* const b = Take(4 * kMiB);
    void* const small = Take(kKiB);
    Give(gap);
    End();
    PoolState state;
    ASSERT_EQ(allocator_->GetPoolState(0, kGraph, &state), PoolStatus::kOk);
    Give(a);
    Give(b);
    Begin();
    void* const later = Take(8 * kMiB);
    End();
    std::vector<void*> freed;
    std::vector<void*> allocated;
    ASSERT_EQ(allocator_->SetPoolState(0, state, BlockTag(), &freed, &allocated), PoolStatus::kOk);
    std::sort(freed.begin(), freed.end());
    std::vector<void*> expected_freed = {later, small};
    std::sort(expected_freed.begin(), expected_freed.end());
    EXPECT_EQ(freed, expected_freed);
    std::sort(allocated.begin(), allocated.end());
    std::vector<void*> expected = {a, b, small};
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(allocated, expected);
    PoolState again;
    ASSERT_EQ(allocator_->GetPoolState(0, kGraph, &again), PoolStatus::kOk);
    ASSERT_GE(again.ranges.size(), state.ranges.size());
    for (void* address : allocated) Give(address);
  }
}

TEST_F(PrivatePoolTest, AStateOfMemoryThatHasGoneIsRefused) {
  Begin();
  Give(Take(30 * kMiB));
  End();
  PoolState state;
  ASSERT_EQ(allocator_->GetPoolState(0, kGraph, &state), PoolStatus::kOk);
  state.ranges.front().address += 512;
  std::vector<void*> freed;
  std::vector<void*> allocated;
  EXPECT_EQ(allocator_->SetPoolState(0, state, BlockTag(), &freed, &allocated), PoolStatus::kChanged);
  EXPECT_EQ(allocator_->GetPoolState(0, kOther, &state), PoolStatus::kUnknownPool);
}

// Random operations over pools, streams and captures; the shadow ledger owns every byte, and each pool knows its own.
TEST(PrivatePoolProperty, NoByteServesTwoAndNoPoolServesAnother) {
  for (const char* settings : {"", "expandable_segments:True", "max_split_size_mb:32"}) {
    SimulatedDeviceOptions options;
    options.capacity_bytes = size_t{2} << 30;
    options.completion = Completion::kRandom;
    options.delay = 4;
    SimulatedDeviceMemory device(options);
    ShadowLedger shadow(&device);
    CachingAllocator allocator(device, *AllocatorSettings::Parse(settings), &shadow);
    std::mt19937_64 random(11);
    const auto roll = [&](uint64_t n) { return random() % n; };
    struct Live {
      void* address;
      PoolId pool;
    };
    std::vector<Live> live;
    std::vector<PoolId> routed;  // the latest last
    std::vector<PoolId> users;   // one entry for each user of a pool
    uint64_t next_pool = 1;
    for (int i = 0; i < 60000; ++i) {
      switch (roll(16)) {
        case 0:
          if (routed.size() < 3) {
            const PoolId id = !users.empty() && roll(2) ? users[roll(users.size())] : PoolId{0, next_pool++};
            if (std::find(routed.begin(), routed.end(), id) != routed.end()) break;
            ASSERT_EQ(allocator.BeginAllocateToPool(0, id, Everything()), PoolStatus::kOk);
            routed.push_back(id);
            users.push_back(id);
          }
          break;
        case 1:
          if (!routed.empty()) {
            ASSERT_EQ(allocator.EndAllocateToPool(0, routed.back()), PoolStatus::kOk);
            routed.pop_back();
          }
          break;
        case 2:
          if (!users.empty() && roll(3) == 0) {
            const size_t k = roll(users.size());
            if (std::find(routed.begin(), routed.end(), users[k]) != routed.end()) break;
            ASSERT_EQ(allocator.ReleasePool(0, users[k]), PoolStatus::kOk);
            users.erase(users.begin() + static_cast<std::ptrdiff_t>(k));
          }
          break;
        case 3:
          if (roll(20) == 0) allocator.EmptyCache();
          break;
        case 4:
        case 5:
        case 6:
        case 7:
        case 8: {
          const size_t bytes = roll(4) != 0 ? 1 + roll(kMiB) : 1 + roll(64 * kMiB);
          const AllocationResult result = allocator.Allocate(0, roll(3), bytes, BlockTag());
          if (result.address != nullptr) live.push_back({result.address, routed.empty() ? PoolId() : routed.back()});
          break;
        }
        case 9:
          if (!live.empty()) {
            const StreamHandle stream = roll(3);
            void* const address = live[roll(live.size())].address;
            shadow.WillUse(0, address, stream);
            ASSERT_TRUE(allocator.RecordStream(address, stream));
          }
          break;
        default:
          if (!live.empty()) {
            const size_t k = roll(live.size());
            ASSERT_EQ(allocator.Free(live[k].address), FreeStatus::kOk);
            live[k] = live.back();
            live.pop_back();
          }
      }
      if (i % 5000 != 0) continue;
      std::map<uintptr_t, PoolId> pools;
      allocator.ForEachBlock(0, [&](const SegmentView&, const BlockView& block, BlockState state, const BlockTag&) {
        if (state == BlockState::kAllocated) pools[block.address] = block.pool_id;
      });
      ASSERT_EQ(pools.size(), live.size());
      for (const Live& l : live) ASSERT_EQ(pools.at(reinterpret_cast<uintptr_t>(l.address)), l.pool);
    }
    while (!routed.empty()) {
      allocator.EndAllocateToPool(0, routed.back());
      routed.pop_back();
    }
    for (const PoolId id : users) ASSERT_EQ(allocator.ReleasePool(0, id), PoolStatus::kOk);
    for (const Live& l : live) ASSERT_EQ(allocator.Free(l.address), FreeStatus::kOk);
    allocator.EmptyCache();
    EXPECT_EQ(allocator.GetStatistics(0).reserved_bytes[kAllPools].current, 0) << settings;
  }
}

}  // namespace
}  // namespace vramledger
