// The free blocks of one pool and stream, ordered by (size, address), with exact best fit at the price of a few cache lines.
//
// Sizes fall into bins: one per 512 bytes below 32 KiB, then 64 per power of two. A bitmap finds the first bin that is not empty. A
// bin keeps its blocks in order in leaves of up to 32 entries; most bins hold one leaf with a few entries.
#ifndef VRAMLEDGER_ALLOCATOR_CORE_FREE_SET_H_
#define VRAMLEDGER_ALLOCATOR_CORE_FREE_SET_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "allocator/core/block.h"

namespace vramledger {

class FreeSet {
 public:
  // With `by_segment_age`, blocks of equal size are ordered by the age of their segment before their address, as PyTorch's
  // allocator does in versions after 2.11; without, by address alone.
  explicit FreeSet(bool by_segment_age) : by_segment_age_(by_segment_age), bins_(kBins) {}
  ~FreeSet();
  FreeSet(const FreeSet&) = delete;
  FreeSet& operator=(const FreeSet&) = delete;

  // A place in the order. Valid until the set is changed.
  struct Cursor {
    uint32_t bin = kBins;
    uint32_t leaf = 0;
    uint32_t entry = 0;
    bool at_end() const { return bin == kBins; }
  };

  void Insert(Block* block);
  void Erase(const Block* block) { EraseAt(Locate(block)); }
  void EraseAt(Cursor cursor);

  Cursor Begin() const;
  // The first block of at least `bytes`.
  Cursor LowerBound(size_t bytes) const;
  Cursor Locate(const Block* block) const;
  Cursor Next(Cursor cursor) const;
  // The place before; at_end() before the first. Of at_end(): the last.
  Cursor Previous(Cursor cursor) const;
  Block* At(Cursor cursor) const { return bins_[cursor.bin].leaves[cursor.leaf]->entries[cursor.entry].block; }

  size_t size() const { return size_; }
  // Size of the largest block, 0 if none.
  size_t LargestBytes() const;
  // All blocks in order.
  std::vector<Block*> Blocks() const;

 private:
  static constexpr uint32_t kSubBinBits = 6;
  static constexpr uint32_t kSubBins = 1u << kSubBinBits;
  static constexpr uint32_t kBins = kSubBins * (32 - kSubBinBits + 1);
  static constexpr uint32_t kWords = (kBins + 63) / 64;
  static_assert(kWords <= 64);
  static constexpr uint32_t kLeafEntries = 32;

  struct Key {
    uint64_t size_and_age;
    uint64_t address;
    bool operator<(const Key& other) const {
      return size_and_age != other.size_and_age ? size_and_age < other.size_and_age : address < other.address;
    }
  };
  struct Entry {
    Key key;
    Block* block;
  };
  struct Leaf {
    uint32_t count = 0;
    std::array<Entry, kLeafEntries> entries;
    // Index of the first entry not less than `key`.
    uint32_t LowerBound(const Key& key) const;
  };
  struct Bin {
    std::vector<Leaf*> leaves;
    // The leaf that holds or should hold `key`: the last whose first entry is not greater, or the first.
    uint32_t LeafFor(const Key& key) const;
  };

  static uint32_t BinOf(uint64_t units);
  Key KeyOf(const Block* block) const;
  uint32_t NextBin(uint32_t from) const;      // first non-empty bin >= from, or kBins
  uint32_t PreviousBin(uint32_t from) const;  // last non-empty bin <= from, or kBins
  Leaf* NewLeaf();
  void RemoveLeaf(uint32_t bin, uint32_t leaf);

  const bool by_segment_age_;
  size_t size_ = 0;
  uint64_t summary_ = 0;  // bit w: words_[w] is not 0
  std::array<uint64_t, kWords> words_{};
  std::vector<Bin> bins_;
  std::vector<std::unique_ptr<Leaf>> all_leaves_;
  std::vector<Leaf*> spare_leaves_;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_CORE_FREE_SET_H_
