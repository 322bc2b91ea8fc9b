// What was found on the stack is remembered for every place of a large model.
#include "allocator/plugin/site_memo.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace vramledger {
namespace {

TEST(SiteMemo, WalksEachPlaceOfALargeModelOnce) {
  const auto memo = std::make_unique<SiteMemo>();
  int walks = 0;
  for (int step = 0; step < 3; ++step) {
    for (uint64_t module = 1; module <= 1500; ++module) {
      for (size_t request = 0; request < 20; ++request) {
        const size_t bytes = size_t{512} << request;
        const bool library = (module + request) % 7 == 0;
        const bool answer = memo->Answer(bytes, module << 20 | request, [&] {
          ++walks;
          return library;
        });
        ASSERT_EQ(answer, library) << "module " << module << ", " << bytes << " bytes";
      }
    }
  }
  EXPECT_GE(walks, 30'000);
  EXPECT_LE(walks, 30'200) << "30,000 places, each walked once but for a few that share a full line";
}

TEST(SiteMemo, FindsPlacesInAnyOrder) {
  const auto memo = std::make_unique<SiteMemo>();
  std::mt19937_64 random(3);
  std::vector<uint64_t> places(3000);
  std::generate(places.begin(), places.end(), std::ref(random));
  int walks = 0;
  for (int step = 0; step < 4; ++step) {
    for (const uint64_t place : places) {
      const bool library = place % 3 == 0;
      EXPECT_EQ(memo->Answer(512, place, [&] { return ++walks, library; }), library);
    }
    std::shuffle(places.begin(), places.end(), random);
  }
  EXPECT_EQ(walks, 3000);
}

TEST(SiteMemo, BeginsAnewWhenItIsFull) {
  const auto memo = std::make_unique<SiteMemo>();
  for (uint64_t place = 0; place < 100'000; ++place)
    ASSERT_EQ(memo->Answer(512, place, [&] { return place % 2 == 0; }), place % 2 == 0);
  int walks = 0;
  for (int again = 0; again < 2; ++again) {
    for (uint64_t place = 0; place < 100; ++place)
      EXPECT_EQ(memo->Answer(512, place, [&] { return ++walks, place % 2 == 0; }), place % 2 == 0);
  }
  EXPECT_EQ(walks, 100) << "what was forgotten is walked once more";
}

TEST(SiteMemo, IsHandedOnWhenItsThreadEnds) {
  const size_t before = SiteMemosMade();
  for (size_t i = 0; i < 1000; ++i) {
    std::thread([i] {
      EXPECT_TRUE(CallerMemo().Answer(512, i, [] { return true; }));
      EXPECT_FALSE(CastMemo().Answer(512, i, [] { return false; }));
    }).join();
  }
  EXPECT_LE(SiteMemosMade(), before + 1);
}

}  // namespace
}  // namespace vramledger
