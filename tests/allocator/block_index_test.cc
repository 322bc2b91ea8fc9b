#include "allocator/core/block_index.h"

#include <random>
#include <unordered_map>
#include <vector>

#include "gtest/gtest.h"

namespace vramledger {
namespace {

TEST(BlockIndex, AgreesWithAMapUnderRandomUse) {
  std::mt19937_64 random(3);
  BlockIndex index;
  std::unordered_map<uintptr_t, Block*> model;
  std::vector<Block> blocks(4096);
  for (int step = 0; step < 200000; ++step) {
    // Few, dense addresses: long probe runs, many gaps to close.
    const uintptr_t address = 512 * (1 + random() % blocks.size());
    Block* block = &blocks[address / 512 - 1];
    if (model.count(address) != 0) {
      index.Erase(address);
      model.erase(address);
    } else {
      index.Insert(address, block);
      model[address] = block;
    }
    const uintptr_t probe = 512 * (1 + random() % (2 * blocks.size()));
    ASSERT_EQ(index.Find(probe), model.count(probe) != 0 ? model[probe] : nullptr);
  }
  EXPECT_EQ(index.size(), model.size());
  for (const auto& [address, block] : model) EXPECT_EQ(index.Find(address), block);
}

TEST(BlockIndex, AddressZeroIsNeverFound) {
  BlockIndex index;
  EXPECT_EQ(index.Find(0), nullptr);
}

}  // namespace
}  // namespace vramledger
