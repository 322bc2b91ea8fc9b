#include "allocator/core/free_set.h"

namespace vramledger {

FreeSet::~FreeSet() = default;

uint32_t FreeSet::Bin::SearchLeaves(const Key& key) const {
  uint32_t low = 0;
  uint32_t high = static_cast<uint32_t>(many->size());
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (key < (*many)[middle]->entries[0].key) {
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

// The first block of a bin, and every block of a bin with more than one leaf.
void FreeSet::InsertSlow(Bin& b, const Entry& entry) {
  if (b.only == nullptr) {
    b.only = NewLeaf();
    b.only->InsertAt(0, entry);
    return;
  }
  const uint32_t index = b.LeafFor(entry.key);
  Leaf* leaf = b.LeafAt(index);
  if (leaf->count == kLeafEntries) {
    if (b.many == nullptr) b.many = std::make_unique<std::vector<Leaf*>>(1, b.only);
    Leaf* upper = NewLeaf();
    constexpr uint32_t kHalf = kLeafEntries / 2;
    std::copy(leaf->entries.begin() + kHalf, leaf->entries.end(), upper->entries.begin());
    upper->count = kLeafEntries - kHalf;
    leaf->count = kHalf;
    b.many->insert(b.many->begin() + index + 1, upper);
    if (!(entry.key < upper->entries[0].key)) leaf = upper;
  }
  leaf->InsertAt(leaf->LowerBound(entry.key), entry);
}

void FreeSet::EraseSlow(Cursor cursor) {
  Bin& b = bins_[cursor.bin];
  std::vector<Leaf*>& leaves = *b.many;
  Leaf* leaf = leaves[cursor.leaf];
  leaf->EraseAt(cursor.entry);
  const auto remove = [&](uint32_t index) {
    leaves[index]->count = 0;
    spare_leaves_.push_back(leaves[index]);
    leaves.erase(leaves.begin() + index);
  };
  if (leaf->count == 0 && leaves.size() > 1) {
    remove(cursor.leaf);
  } else if (leaf->count <= kLeafEntries / 4 && cursor.leaf + 1 < leaves.size()) {
    // Keep the row of leaves short: join one that became small with the one after it.
    const Leaf* after = leaves[cursor.leaf + 1];
    if (leaf->count + after->count <= kLeafEntries * 3 / 4) {
      std::copy(after->entries.begin(), after->entries.begin() + after->count, leaf->entries.begin() + leaf->count);
      leaf->count += after->count;
      remove(cursor.leaf + 1);
    }
  }
  if (leaves.size() > 1) return;
  // One leaf is enough again.
  b.only = leaves[0];
  b.many.reset();
  if (b.only->count == 0) ClearBit(cursor.bin);
}

uint32_t FreeSet::PreviousBin(uint32_t from) const {
  for (uint32_t word = from / 64 + 1; word-- > 0;) {
    uint64_t here = words_[word];
    if (word == from / 64 && from % 64 != 63) here &= (uint64_t{1} << (from % 64 + 1)) - 1;
    if (here != 0) return word * 64 + 63 - static_cast<uint32_t>(std::countl_zero(here));
  }
  return kBins;
}

FreeSet::Cursor FreeSet::Begin() const {
  return Cursor{NextBin(0), 0, 0};
}

FreeSet::Cursor FreeSet::Next(Cursor cursor) const {
  const Bin& b = bins_[cursor.bin];
  if (++cursor.entry < b.LeafAt(cursor.leaf)->count) return cursor;
  cursor.entry = 0;
  if (++cursor.leaf < b.LeafCount()) return cursor;
  return Cursor{NextBin(cursor.bin + 1), 0, 0};
}

FreeSet::Cursor FreeSet::Previous(Cursor cursor) const {
  if (!cursor.at_end()) {
    if (cursor.entry > 0) return Cursor{cursor.bin, cursor.leaf, cursor.entry - 1};
    if (cursor.leaf > 0)
      return Cursor{cursor.bin, cursor.leaf - 1, bins_[cursor.bin].LeafAt(cursor.leaf - 1)->count - 1};
    if (cursor.bin == 0) return Cursor();
  }
  const uint32_t bin = PreviousBin(cursor.bin - 1);
  if (bin == kBins) return Cursor();
  const uint32_t leaf = bins_[bin].LeafCount() - 1;
  return Cursor{bin, leaf, bins_[bin].LeafAt(leaf)->count - 1};
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
