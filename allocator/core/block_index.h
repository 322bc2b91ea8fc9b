// Finds the block that begins at an address. Every block of every segment is in it, free ones too, so that taking and
// freeing a block of fitting size does not change it; only splits and merges do.
#ifndef VRAMLEDGER_ALLOCATOR_CORE_BLOCK_INDEX_H_
#define VRAMLEDGER_ALLOCATOR_CORE_BLOCK_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/core/block.h"

namespace vramledger {

// Open addressing with linear probing, at most half full; erasing closes the gap, so there are no tombstones.
class BlockIndex {
 public:
  BlockIndex() : slots_(size_t{1} << kFirstBits), shift_(64 - kFirstBits) {}

  Block* Find(uintptr_t address) const {
    for (size_t i = Home(address);; i = Next(i)) {
      const Slot& slot = slots_[i];
      if (slot.address == address) return slot.block;  // an empty slot has address 0 and no block
      if (slot.block == nullptr) return nullptr;
    }
  }

  void Insert(uintptr_t address, Block* block) {
    if (2 * (size_ + 1) > slots_.size()) Grow();
    ++size_;
    Place(address, block);
  }

  void Erase(uintptr_t address) {
    size_t hole = Home(address);
    while (slots_[hole].address != address) hole = Next(hole);
    --size_;
    for (size_t i = Next(hole); slots_[i].block != nullptr; i = Next(i)) {
      // A later entry may move into the hole if its home is not between the hole and it.
      const size_t home = Home(slots_[i].address);
      if (((i - home) & mask()) >= ((i - hole) & mask())) {
        slots_[hole] = slots_[i];
        hole = i;
      }
    }
    slots_[hole] = Slot();
  }

  size_t size() const { return size_; }

 private:
  struct Slot {
    uintptr_t address = 0;
    Block* block = nullptr;
  };
  static constexpr int kFirstBits = 10;

  size_t mask() const { return slots_.size() - 1; }
  size_t Next(size_t i) const { return (i + 1) & mask(); }
  size_t Home(uintptr_t address) const {
    return static_cast<size_t>((static_cast<uint64_t>(address >> 9) * 0x9E3779B97F4A7C15u) >> shift_);
  }
  void Place(uintptr_t address, Block* block) {
    size_t i = Home(address);
    while (slots_[i].block != nullptr) i = Next(i);
    slots_[i] = Slot{address, block};
  }
  void Grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    --shift_;
    for (const Slot& slot : old) {
      if (slot.block != nullptr) Place(slot.address, slot.block);
    }
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
  int shift_;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_CORE_BLOCK_INDEX_H_
