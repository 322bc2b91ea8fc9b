#include "tools/virtual_device/core/gap_allocator.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace vd {
namespace {

constexpr uintptr_t kBase = 0x100000;

TEST(GapAllocator, UpTakesTheLowestGapThatFits) {
  GapAllocator gaps(kBase, 0x1000, false);
  EXPECT_EQ(gaps.Allocate(0x100, 0x100), kBase);
  EXPECT_EQ(gaps.Allocate(0x200, 0x100), kBase + 0x100);
  EXPECT_EQ(gaps.Allocate(0x100, 0x100), kBase + 0x300);
  gaps.Free(kBase + 0x100, 0x200);
  EXPECT_EQ(gaps.Allocate(0x300, 0x100), kBase + 0x400);  // the hole is too small
  EXPECT_EQ(gaps.Allocate(0x200, 0x100), kBase + 0x100);
}

TEST(GapAllocator, DownTakesTheTopOfTheHighestGapThatFits) {
  GapAllocator gaps(kBase, 0x1000, true);
  EXPECT_EQ(gaps.Allocate(0x100, 0x100), kBase + 0xF00);
  EXPECT_EQ(gaps.Allocate(0x200, 0x100), kBase + 0xD00);
  gaps.Free(kBase + 0xF00, 0x100);
  EXPECT_EQ(gaps.Allocate(0x200, 0x100), kBase + 0xB00);
  EXPECT_EQ(gaps.Allocate(0x100, 0x100), kBase + 0xF00);
}

TEST(GapAllocator, FullAndZeroGiveNothing) {
  GapAllocator gaps(kBase, 0x200, false);
  EXPECT_EQ(gaps.Allocate(0, 0x100), 0u);
  EXPECT_EQ(gaps.Allocate(0x300, 0x100), 0u);
  EXPECT_NE(gaps.Allocate(0x200, 0x100), 0u);
  EXPECT_EQ(gaps.Allocate(0x100, 0x100), 0u);
}

// Random use against a plain list of what is taken: nothing overlaps, and when all is free again one range fits.
TEST(GapAllocator, NeverOverlapsAndJoinsAgain) {
  for (const bool down : {false, true}) {
    std::mt19937 random(down ? 1 : 2);
    GapAllocator gaps(kBase, 0x10000, down);
    std::map<uintptr_t, uint64_t> taken;
    for (int step = 0; step < 4000; ++step) {
      if (taken.empty() || random() % 2 == 0) {
        const uint64_t size = (1 + random() % 16) * 0x100;
        const uintptr_t at = gaps.Allocate(size, 0x100);
        if (at == 0) continue;
        ASSERT_EQ(at % 0x100, 0u);
        auto next = taken.lower_bound(at);
        ASSERT_TRUE(next == taken.end() || at + size <= next->first);
        ASSERT_TRUE(next == taken.begin() || std::prev(next)->first + std::prev(next)->second <= at);
        taken[at] = size;
      } else {
        auto it = std::next(taken.begin(), static_cast<long>(random() % taken.size()));
        gaps.Free(it->first, it->second);
        taken.erase(it);
      }
    }
    for (const auto& [at, size] : taken) gaps.Free(at, size);
    EXPECT_EQ(gaps.Allocate(0x10000, 0x100), kBase);
  }
}

}  // namespace
}  // namespace vd
