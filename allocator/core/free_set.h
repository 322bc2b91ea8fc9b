// The free blocks of one pool and stream, ordered by (size, address), with exact best fit at the price of a few cache
// lines.
//
// Sizes fall into bins: one per 512 bytes below 64 KiB, then 128 per power of two. A bitmap finds the first bin that is
// not empty. A bin keeps its blocks in order in leaves of up to 16 entries; most bins hold one leaf with a few entries.
#ifndef VRAMLEDGER_ALLOCATOR_CORE_FREE_SET_H_
#define VRAMLEDGER_ALLOCATOR_CORE_FREE_SET_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "allocator/core/allocator_settings.h"
#include "allocator/core/block.h"

namespace vramledger {

class FreeSet {
 public:
  explicit FreeSet(AllocatorSettings::EqualSizeOrder equal_order) : equal_order_(equal_order), bins_(kBins) {}
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
  Block* At(Cursor cursor) const { return bins_[cursor.bin].LeafAt(cursor.leaf)->entries[cursor.entry].block; }

  size_t size() const { return size_; }
  // Size of the largest block, 0 if none.
  size_t LargestBytes() const;
  // All blocks in order.
  std::vector<Block*> Blocks() const;

 private:
  static constexpr uint32_t kSubBinBits = 7;
  static constexpr uint32_t kSubBins = 1u << kSubBinBits;
  static constexpr uint32_t kBins = kSubBins * (32 - kSubBinBits + 1);
  static constexpr uint32_t kWords = (kBins + 63) / 64;
  static_assert(kWords <= 64);
  static constexpr uint32_t kLeafEntries = 16;

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
    uint32_t LowerBound(const Key& key) const {
      uint32_t i = 0;
      while (i < count && entries[i].key < key) ++i;
      return i;
    }
    void InsertAt(uint32_t at, const Entry& entry) {
      for (uint32_t i = count; i > at; --i) entries[i] = entries[i - 1];
      entries[at] = entry;
      ++count;
    }
    void EraseAt(uint32_t at) {
      --count;
      for (uint32_t i = at; i < count; ++i) entries[i] = entries[i + 1];
    }
  };
  struct Bin {
    Leaf* only = nullptr;                      // kept, empty, when the last block has gone
    std::unique_ptr<std::vector<Leaf*>> many;  // once one leaf was not enough: all of them, in order; never empty

    uint32_t LeafCount() const { return many == nullptr ? 1 : static_cast<uint32_t>(many->size()); }
    Leaf* LeafAt(uint32_t i) const { return many == nullptr ? only : (*many)[i]; }
    // The leaf that holds or should hold `key`: the last whose first entry is not greater, or the first.
    uint32_t LeafFor(const Key& key) const { return many == nullptr ? 0 : SearchLeaves(key); }
    uint32_t SearchLeaves(const Key& key) const;
  };

  static uint32_t BinOf(uint64_t units) {
    if (units < kSubBins) return static_cast<uint32_t>(units);
    const uint32_t exponent = std::min<uint32_t>(31, static_cast<uint32_t>(std::bit_width(units)) - 1);
    return kSubBins * (exponent - kSubBinBits + 1) +
           (static_cast<uint32_t>(units >> (exponent - kSubBinBits)) & (kSubBins - 1));
  }
  Key KeyOf(const Block* block) const {
    using Order = AllocatorSettings::EqualSizeOrder;
    const uint64_t age = equal_order_ == Order::kAddress      ? 0
                         : equal_order_ == Order::kSegmentAge ? block->segment->age
                                                              : block->order;
    return Key{(static_cast<uint64_t>(block->bytes >> 9) << 32) | age, block->address};
  }
  void SetBit(uint32_t bin) {
    words_[bin / 64] |= uint64_t{1} << (bin % 64);
    summary_ |= uint64_t{1} << (bin / 64);
  }
  void ClearBit(uint32_t bin) {
    words_[bin / 64] &= ~(uint64_t{1} << (bin % 64));
    if (words_[bin / 64] == 0) summary_ &= ~(uint64_t{1} << (bin / 64));
  }
  uint32_t NextBin(uint32_t from) const;      // first non-empty bin >= from, or kBins
  uint32_t PreviousBin(uint32_t from) const;  // last non-empty bin <= from, or kBins
  Leaf* NewLeaf();
  void InsertSlow(Bin& bin, const Entry& entry);
  void EraseSlow(Cursor cursor);

  const AllocatorSettings::EqualSizeOrder equal_order_;
  size_t size_ = 0;
  uint64_t summary_ = 0;  // bit w: words_[w] is not 0
  std::array<uint64_t, kWords> words_{};
  std::vector<Bin> bins_;
  std::vector<std::unique_ptr<Leaf>> all_leaves_;
  std::vector<Leaf*> spare_leaves_;
};

inline void FreeSet::Insert(Block* block) {
  const Entry entry{KeyOf(block), block};
  const uint32_t bin = BinOf(block->bytes >> 9);
  Bin& b = bins_[bin];
  ++size_;
  if (b.many == nullptr && b.only != nullptr && b.only->count < kLeafEntries) {
    if (b.only->count == 0) SetBit(bin);
    b.only->InsertAt(b.only->LowerBound(entry.key), entry);
    return;
  }
  SetBit(bin);
  InsertSlow(b, entry);
}

inline void FreeSet::EraseAt(Cursor cursor) {
  Bin& b = bins_[cursor.bin];
  --size_;
  if (b.many != nullptr) {
    EraseSlow(cursor);
    return;
  }
  b.only->EraseAt(cursor.entry);
  if (b.only->count == 0) ClearBit(cursor.bin);
}

inline uint32_t FreeSet::NextBin(uint32_t from) const {
  if (from >= kBins) return kBins;
  const uint32_t word = from / 64;
  const uint64_t here = words_[word] & (~uint64_t{0} << (from % 64));
  if (here != 0) return word * 64 + static_cast<uint32_t>(std::countr_zero(here));
  if (word + 1 >= kWords) return kBins;
  const uint64_t later = summary_ & (~uint64_t{0} << (word + 1));
  if (later == 0) return kBins;
  const uint32_t found = static_cast<uint32_t>(std::countr_zero(later));
  return found * 64 + static_cast<uint32_t>(std::countr_zero(words_[found]));
}

inline FreeSet::Cursor FreeSet::LowerBound(size_t bytes) const {
  const uint64_t units = bytes >> 9;
  if (units >> 32 != 0) return Cursor();
  const uint32_t bin = BinOf(units);
  if ((words_[bin / 64] >> (bin % 64)) & 1) {
    const Bin& b = bins_[bin];
    const Key key{units << 32, 0};
    const uint32_t leaf = b.LeafFor(key);
    const uint32_t entry = b.LeafAt(leaf)->LowerBound(key);
    if (entry < b.LeafAt(leaf)->count) return Cursor{bin, leaf, entry};
    if (leaf + 1 < b.LeafCount()) return Cursor{bin, leaf + 1, 0};
  }
  return Cursor{NextBin(bin + 1), 0, 0};
}

inline FreeSet::Cursor FreeSet::Locate(const Block* block) const {
  const Key key = KeyOf(block);
  const uint32_t bin = BinOf(block->bytes >> 9);
  const uint32_t leaf = bins_[bin].LeafFor(key);
  return Cursor{bin, leaf, bins_[bin].LeafAt(leaf)->LowerBound(key)};
}

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_CORE_FREE_SET_H_
