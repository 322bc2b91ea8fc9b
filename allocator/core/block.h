// The ledger's own structures: blocks tile segments, segments come from the device, and each free block lies in the
// free set of the pool (small or large, per stream) that its segment belongs to.
#ifndef VRAMLEDGER_ALLOCATOR_CORE_BLOCK_H_
#define VRAMLEDGER_ALLOCATOR_CORE_BLOCK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "allocator/core/allocator_types.h"

namespace vramledger {

struct StreamPool;

// Address space that was taken from the device in one piece.
struct Segment {
  uintptr_t address = 0;
  size_t bytes = 0;
  StreamPool* pool = nullptr;
  uint32_t age = 0;       // counts up with every segment of the device
  size_t page_bytes = 0;  // > 0: expandable, mapped and unmapped in pages of this size
  bool expandable() const { return page_bytes != 0; }
};

struct StreamUse {
  StreamHandle stream;
  bool captured;  // only by work that was recorded into a graph, which runs when the graph does
};

struct Block {
  uintptr_t address = 0;
  size_t bytes = 0;
  // Of a free block: what it served last, which PyTorch's snapshots show too.
  size_t requested_bytes = 0;
  Block* prev = nullptr;  // neighbours within the segment
  Block* next = nullptr;
  StreamPool* pool = nullptr;
  Segment* segment = nullptr;
  BlockState state = BlockState::kFree;
  uint16_t kind = 0;   // policy vmm: what its request was like, see Lifetimes
  uint32_t order = 0;  // counts up with every block that is made, see EqualSizeOrder::kBlockAge
  uint32_t pending_events = 0;
  uint32_t since = 0;  // policy vmm: number of the request at which it was handed out, or became free
  BlockTag tag;
  int64_t pool_calls_when_freed = 0;  // age of a free block, for garbage collection
  // Streams other than its own that use the block; rarely any. Created at the first RecordStream.
  std::unique_ptr<std::vector<StreamUse>> used_by;

  bool is_split() const { return prev != nullptr || next != nullptr; }
};

// Borders of the whole pages inside a block of an expandable segment; `first` is not below `last` if there are none.
// Pages are counted from the segment's beginning, which may lie anywhere.
struct WholePages {
  uintptr_t first, last;
  explicit WholePages(const Block& block) {
    const uintptr_t origin = block.segment->address;
    const size_t page = block.segment->page_bytes;
    first = origin + (block.address - origin + page - 1) / page * page;
    last = origin + (block.address + block.bytes - origin) / page * page;
  }
};

// Hands out structures from slabs and takes them back; memory returns to the system with the arena.
template <typename T>
class Arena {
 public:
  T* New() {
    if (free_.empty()) Grow();
    T* item = free_.back();
    free_.pop_back();
    return item;
  }
  // Leaves the item as freshly constructed.
  void Delete(T* item) {
    *item = T();
    free_.push_back(item);
  }

 private:
  static constexpr size_t kSlab = 256;

  void Grow() {
    slabs_.push_back(std::make_unique<T[]>(kSlab));
    free_.reserve(slabs_.size() * kSlab);
    for (size_t i = kSlab; i > 0; --i) free_.push_back(&slabs_.back()[i - 1]);
  }

  std::vector<std::unique_ptr<T[]>> slabs_;
  std::vector<T*> free_;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_CORE_BLOCK_H_
