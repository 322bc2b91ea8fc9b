#include "allocator/core/free_set.h"

#include <algorithm>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"

namespace vramledger {
namespace {

using Order = AllocatorSettings::EqualSizeOrder;
using Key = std::tuple<size_t, uint32_t, uintptr_t>;

// Against std::set, which is what the order is defined by: random inserts, erases and searches, sizes from 512 B to 64
// GiB.
void CompareWithSet(Order order, int distinct_sizes, int steps) {
  std::mt19937_64 random(7);
  std::vector<size_t> sizes;
  for (int i = 0; i < distinct_sizes; ++i) {
    const int shift = static_cast<int>(random() % 28);
    sizes.push_back(512 * (1 + random() % (size_t{1} << shift)));
  }
  std::vector<Segment> segments(50);
  for (size_t i = 0; i < segments.size(); ++i) segments[i].age = static_cast<uint32_t>(random() % 1000);
  std::vector<Block> blocks(3000);
  for (size_t i = 0; i < blocks.size(); ++i) {
    blocks[i].address = (random() % 100000) * 512 + (i << 40);
    blocks[i].bytes = sizes[random() % sizes.size()];
    blocks[i].order = static_cast<uint32_t>(random() % 1000);
    blocks[i].segment = &segments[random() % segments.size()];
  }
  const auto key = [order](const Block& b) {
    const uint32_t age = order == Order::kAddress ? 0 : order == Order::kSegmentAge ? b.segment->age : b.order;
    return Key(b.bytes, age, b.address);
  };

  FreeSet set(order);
  std::set<std::pair<Key, Block*>> model;
  std::vector<bool> inside(blocks.size());
  for (int step = 0; step < steps; ++step) {
    const size_t i = random() % blocks.size();
    if (inside[i]) {
      set.Erase(&blocks[i]);
      model.erase({key(blocks[i]), &blocks[i]});
    } else {
      set.Insert(&blocks[i]);
      model.insert({key(blocks[i]), &blocks[i]});
    }
    inside[i] = !inside[i];
    const size_t wanted = 512 * (1 + random() % (size_t{1} << (random() % 28)));
    const FreeSet::Cursor found = set.LowerBound(wanted);
    const auto expected = model.lower_bound({Key(wanted, 0, 0), nullptr});
    ASSERT_EQ(found.at_end(), expected == model.end());
    if (!found.at_end()) {
      ASSERT_EQ(set.At(found), expected->second);
    }
  }
  ASSERT_EQ(set.size(), model.size());
  std::vector<Block*> in_order;
  for (const auto& [k, block] : model) in_order.push_back(block);
  EXPECT_EQ(set.Blocks(), in_order);
  std::vector<Block*> backwards;
  for (FreeSet::Cursor c = set.Previous(FreeSet::Cursor()); !c.at_end(); c = set.Previous(c))
    backwards.push_back(set.At(c));
  std::reverse(backwards.begin(), backwards.end());
  EXPECT_EQ(backwards, in_order);
  EXPECT_EQ(set.LargestBytes(), in_order.empty() ? 0 : in_order.back()->bytes);
}

TEST(FreeSet, AgreesWithAnOrderedSetManySizes) {
  CompareWithSet(Order::kAddress, 2000, 40000);
}
TEST(FreeSet, AgreesWithAnOrderedSetFewSizes) {
  CompareWithSet(Order::kAddress, 3, 40000);
}
TEST(FreeSet, AgreesWithAnOrderedSetByAge) {
  CompareWithSet(Order::kSegmentAge, 3, 40000);
  CompareWithSet(Order::kBlockAge, 3, 40000);
}

TEST(FreeSet, ImpossiblyLargeRequestFindsNothing) {
  FreeSet set(Order::kAddress);
  Segment segment;
  Block block;
  block.bytes = size_t{1} << 30;
  block.segment = &segment;
  set.Insert(&block);
  EXPECT_TRUE(set.LowerBound(size_t{1} << 62).at_end());
}

}  // namespace
}  // namespace vramledger
