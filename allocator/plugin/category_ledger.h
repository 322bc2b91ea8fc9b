// Bytes per category while the program runs, by the same rules as the offline tool: what is known so far instead of the
// whole life of a block.
#ifndef VRAMLEDGER_ALLOCATOR_PLUGIN_CATEGORY_LEDGER_H_
#define VRAMLEDGER_ALLOCATOR_PLUGIN_CATEGORY_LEDGER_H_

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "allocator/core/caching_allocator.h"
#include "tracer/phase/category_rules.h"
#include "tracer/phase/phase_tracker.h"

namespace vramledger {

// What a live block carries in its BlockTag.
struct LiveTag {
  uint8_t phase = 0;
  uint8_t flags = 0;
  uint16_t thread = 0;
  uint32_t module = 0;
  uint32_t cohort = 0;  // of the ledger
  uint32_t reserved = 0;

  static LiveTag From(const BlockTag& tag) { return std::bit_cast<LiveTag>(tag); }
  BlockTag Pack() const { return std::bit_cast<BlockTag>(*this); }
};
static_assert(sizeof(LiveTag) == sizeof(BlockTag));

struct CategoryBytes {
  std::array<int64_t, kCategoryCount> current{};
  std::array<int64_t, kCategoryCount> peak{};
  std::array<int64_t, kCategoryCount> at_peak{};  // composition when the sum was highest
  int64_t total = 0;
  int64_t total_peak = 0;
};

// Blocks of one device that were born between the same two changes of phase, in the same phase, with the same flags and
// role, are of one category as long as they live. So the ledger keeps sums of such cohorts, a few dozen in a training
// run, and a change of phase costs as many steps, however many blocks live.
//
// Thread rule: Add and Remove under the core's device lock (they are called by the observer); the rest from any thread.
class CategoryLedger {
 public:
  explicit CategoryLedger(int devices) : devices_(static_cast<size_t>(devices)) {}

  void Add(const BlockView& block, BlockTag& tag);
  void Remove(const BlockView& block, const BlockTag& tag);

  // The program passed into another phase: live blocks are categorised again.
  void EnterPhase(Phase phase, CachingAllocator& core);
  // A name record says what the block at `address` holds. False if it is no live block.
  bool Name(uintptr_t address, Role role, CachingAllocator& core, BlockView* block);

  CategoryBytes Get(int device, CachingAllocator& core);
  void ResetPeaks(int device, CachingAllocator& core);

 private:
  struct Kind {
    uint32_t epoch = 0;  // changes of phase before the blocks' birth, from 1; 0 = the place is spare
    uint8_t phase = 0;
    uint8_t flags = 0;
    uint8_t role = 0;
    uint64_t key() const { return uint64_t{epoch} << 24 | uint64_t{phase} << 16 | uint64_t{flags} << 8 | role; }
  };
  struct Cohort {
    Kind kind;
    Category category = Category::kUnknown;
    int64_t bytes = 0;
    int64_t blocks = 0;  // 0: to be forgotten at the next change of phase
  };
  struct Device {
    CategoryBytes bytes;
    std::vector<Cohort> cohorts;
    std::vector<uint32_t> spare;  // places in it
    absl::flat_hash_map<uint64_t, uint32_t> places;
    uint64_t last_key = UINT64_MAX;  // of the cohort that was asked for last
    uint32_t last_place = 0;
  };

  uint32_t PlaceOf(Device& device, const Kind& kind);
  Category Decide(const Kind& kind) const;
  static void Move(CategoryBytes& bytes, int64_t size, Category from, Category to);

  std::vector<Device> devices_;  // each guarded by the core's lock of that device
  std::atomic<uint32_t> epoch_{1};
  std::mutex marks_mutex_;
  PhaseMarks marks_;
  bool names_known_ = false;  // guarded by marks_mutex_: a parameter has been named
};

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_PLUGIN_CATEGORY_LEDGER_H_
