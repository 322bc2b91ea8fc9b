#include "allocator/core/free_set.h"

#include <algorithm>
#include <bit>

namespace vramledger {

FreeSet::~FreeSet() = default;

uint32_t FreeSet::BinOf(uint64_t units) {
  if (units < kSubBins) return static_cast<uint32_t>(units);
  const uint32_t exponent = std::min<uint32_t>(31, static_cast<uint32_t>(std::bit_width(units)) - 1);
  return kSubBins * (exponent - kSubBinBits + 1) +
         (static_cast<uint32_t>(units >> (exponent - kSubBinBits)) & (kSubBins - 1));
}

FreeSet::Key FreeSet::KeyOf(const Block* block) const {
  const uint64_t age = by_segment_age_ ? block->segment->age : 0;
  return Key{(static_cast<uint64_t>(block->bytes >> 9) << 32) | age, block->address};
}

uint32_t FreeSet::Leaf::LowerBound(const Key& key) const {
  uint32_t low = 0;
  uint32_t length = count;
  while (length > 0) {
    const uint32_t half = length / 2;
    const bool less = entries[low + half].key < key;
    low = less ? low + half + 1 : low;
    length = less ? length - half - 1 : half;
  }
  return low;
}

uint32_t FreeSet::Bin::LeafFor(const Key& key) const {
  uint32_t low = 0;
  uint32_t high = static_cast<uint32_t>(leaves.size());
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (key < leaves[middle]->entries[0].key) {
      high = middle;
    } else {
      low = middle;
    }
  }
  return low;
}

FreeSet::Leaf* FreeSet::NewLeaf() {
  if (spare_leaves_.empty()) {
    all_leaves_.push_back(std::make_unique<Leaf>());
    return all_leaves_.back().get();
  }
  Leaf* leaf = spare_leaves_.back();
  spare_leaves_.pop_back();
  return leaf;
}

void FreeSet::RemoveLeaf(uint32_t bin, uint32_t leaf) {
  Bin& b = bins_[bin];
  b.leaves[leaf]->count = 0;
  spare_leaves_.push_back(b.leaves[leaf]);
  b.leaves.erase(b.leaves.begin() + leaf);
  if (b.leaves.empty()) {
    words_[bin / 64] &= ~(uint64_t{1} << (bin % 64));
    if (words_[bin / 64] == 0) summary_ &= ~(uint64_t{1} << (bin / 64));
  }
}

void FreeSet::Insert(Block* block) {
  const Key key = KeyOf(block);
  const uint32_t bin = BinOf(block->bytes >> 9);
  Bin& b = bins_[bin];
  ++size_;
  if (b.leaves.empty()) {
    Leaf* leaf = NewLeaf();
    leaf->count = 1;
    leaf->entries[0] = Entry{key, block};
    b.leaves.push_back(leaf);
    words_[bin / 64] |= uint64_t{1} << (bin % 64);
    summary_ |= uint64_t{1} << (bin / 64);
    return;
  }
  const uint32_t index = b.LeafFor(key);
  Leaf* leaf = b.leaves[index];
  if (leaf->count == kLeafEntries) {
    Leaf* upper = NewLeaf();
    constexpr uint32_t kHalf = kLeafEntries / 2;
    std::copy(leaf->entries.begin() + kHalf, leaf->entries.end(), upper->entries.begin());
    upper->count = kLeafEntries - kHalf;
    leaf->count = kHalf;
    b.leaves.insert(b.leaves.begin() + index + 1, upper);
    if (!(key < upper->entries[0].key)) leaf = upper;
  }
  const uint32_t at = leaf->LowerBound(key);
  std::copy_backward(leaf->entries.begin() + at, leaf->entries.begin() + leaf->count,
                     leaf->entries.begin() + leaf->count + 1);
  leaf->entries[at] = Entry{key, block};
  ++leaf->count;
}

void FreeSet::EraseAt(Cursor cursor) {
  Bin& b = bins_[cursor.bin];
  Leaf* leaf = b.leaves[cursor.leaf];
  --size_;
  --leaf->count;
  std::copy(leaf->entries.begin() + cursor.entry + 1, leaf->entries.begin() + leaf->count + 1,
            leaf->entries.begin() + cursor.entry);
  if (leaf->count == 0) {
    RemoveLeaf(cursor.bin, cursor.leaf);
    return;
  }
  // Keep the directory short: join a leaf that became small with the one after it.
  if (leaf->count <= kLeafEntries / 4 && cursor.leaf + 1 < b.leaves.size()) {
    Leaf* after = b.leaves[cursor.leaf + 1];
    if (leaf->count + after->count <= kLeafEntries * 3 / 4) {
      std::copy(after->entries.begin(), after->entries.begin() + after->count, leaf->entries.begin() + leaf->count);
      leaf->count += after->count;
      RemoveLeaf(cursor.bin, cursor.leaf + 1);
    }
  }
}

uint32_t FreeSet::NextBin(uint32_t from) const {
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

uint32_t FreeSet::PreviousBin(uint32_t from) const {
  for (uint32_t word = from / 64 + 1; word-- > 0;) {
    uint64_t here = words_[word];
    if (word == from / 64 && from % 64 != 63) here &= (uint64_t{1} << (from % 64 + 1)) - 1;
    if (here != 0) return word * 64 + 63 - static_cast<uint32_t>(std::countl_zero(here));
  }
  return kBins;
}

FreeSet::Cursor FreeSet::Begin() const { return Cursor{NextBin(0), 0, 0}; }

FreeSet::Cursor FreeSet::LowerBound(size_t bytes) const {
  const uint64_t units = bytes >> 9;
  if (units >> 32 != 0) return Cursor();
  const uint32_t bin = BinOf(units);
  if ((words_[bin / 64] >> (bin % 64)) & 1) {
    const Bin& b = bins_[bin];
    const Key key{units << 32, 0};
    const uint32_t leaf = b.LeafFor(key);
    const uint32_t entry = b.leaves[leaf]->LowerBound(key);
    if (entry < b.leaves[leaf]->count) return Cursor{bin, leaf, entry};
    if (leaf + 1 < b.leaves.size()) return Cursor{bin, leaf + 1, 0};
  }
  return Cursor{NextBin(bin + 1), 0, 0};
}

FreeSet::Cursor FreeSet::Locate(const Block* block) const {
  const Key key = KeyOf(block);
  const uint32_t bin = BinOf(block->bytes >> 9);
  const uint32_t leaf = bins_[bin].LeafFor(key);
  return Cursor{bin, leaf, bins_[bin].leaves[leaf]->LowerBound(key)};
}

FreeSet::Cursor FreeSet::Next(Cursor cursor) const {
  const Bin& b = bins_[cursor.bin];
  if (++cursor.entry < b.leaves[cursor.leaf]->count) return cursor;
  cursor.entry = 0;
  if (++cursor.leaf < b.leaves.size()) return cursor;
  return Cursor{NextBin(cursor.bin + 1), 0, 0};
}

FreeSet::Cursor FreeSet::Previous(Cursor cursor) const {
  if (!cursor.at_end()) {
    if (cursor.entry > 0) return Cursor{cursor.bin, cursor.leaf, cursor.entry - 1};
    if (cursor.leaf > 0) return Cursor{cursor.bin, cursor.leaf - 1, bins_[cursor.bin].leaves[cursor.leaf - 1]->count - 1};
    if (cursor.bin == 0) return Cursor();
  }
  const uint32_t bin = PreviousBin(cursor.bin - 1);
  if (bin == kBins) return Cursor();
  const Bin& b = bins_[bin];
  return Cursor{bin, static_cast<uint32_t>(b.leaves.size()) - 1, b.leaves.back()->count - 1};
}

size_t FreeSet::LargestBytes() const {
  const Cursor last = Previous(Cursor());
  return last.at_end() ? 0 : At(last)->bytes;
}

std::vector<Block*> FreeSet::Blocks() const {
  std::vector<Block*> blocks;
  blocks.reserve(size_);
  for (Cursor c = Begin(); !c.at_end(); c = Next(c)) blocks.push_back(At(c));
  return blocks;
}

}  // namespace vramledger
