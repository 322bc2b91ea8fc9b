// Remembers what a walk over the stack has found, so that each place of the program is walked once.
#ifndef VRAMLEDGER_ALLOCATOR_PLUGIN_SITE_MEMO_H_
#define VRAMLEDGER_ALLOCATOR_PLUGIN_SITE_MEMO_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace vramledger {

// What is known of one thread's places: some thousands in a training step, in the order in which they were met. A program
// repeats itself, so the place after this one is mostly the one that came after it the last time, and lies behind it in
// memory; a table of hashes answers where that is not so. To be made of zeros (value-initialised, or in fresh pages).
class SiteMemo {
 public:
  // The answer for requests of `bytes` at the place that `context` stands for (phase, module, thread ...): `walk()` the
  // first time.
  template <typename Walk>
  bool Answer(size_t bytes, uint64_t context, Walk walk) {
    const uint64_t key = (Mix(context, bytes) | kKnown) & ~kYes;
    uint32_t at = places_[last_].next;
    if ((places_[at].entry & ~kYes) != key) {
      at = Find(key);
      if (at == kNone) at = Add(key, walk());
      places_[last_].next = at;
    }
    last_ = at;
    return (places_[at].entry & kYes) != 0;
  }

 private:
  static constexpr uint64_t kYes = uint64_t{1} << 63;
  static constexpr uint64_t kKnown = uint64_t{1} << 62;  // so that an unused place is nobody's
  static constexpr int kIndexBits = 15;
  static constexpr uint32_t kPlaces = 1u << kIndexBits;
  static constexpr uint32_t kNone = 0;   // a place that stays unused
  static constexpr size_t kLines = 4096;  // room for twice as many places: few lines are ever full
  struct Place {
    uint64_t entry;  // key and answer
    uint32_t next;   // index of the place that followed the last time
  };
  // Each word: index of a place, and above it some bits of its key. 0 is empty.
  using Line = std::array<uint32_t, 16>;

  static uint64_t Mix(uint64_t context, size_t bytes) {
    uint64_t h = context * 0x9e3779b97f4a7c15u + bytes;
    h = (h ^ h >> 32) * 0xff51afd7ed558ccdu;
    h = (h ^ h >> 29) * 0xc4ceb9fe1a85ec53u;
    return h ^ h >> 32;
  }
  Line& LineOf(uint64_t key) { return lines_[key % kLines]; }
  static uint32_t Tag(uint64_t key) { return static_cast<uint32_t>(key >> 20) << kIndexBits; }

  uint32_t Find(uint64_t key) {
    for (const uint32_t word : LineOf(key)) {
      const uint32_t index = word % kPlaces;
      if (word - index == Tag(key) && (places_[index].entry & ~kYes) == key) return index;
    }
    return kNone;
  }
  uint32_t Add(uint64_t key, bool yes) {
    if (used_ == kPlaces - 1) {  // sizes that are never the same again: begin anew
      places_.fill({});
      lines_.fill({});
      used_ = 0;
      last_ = kNone;
    }
    const uint32_t index = ++used_;
    places_[index] = {key | (yes ? kYes : 0), (index + 1) % kPlaces};
    Line& line = LineOf(key);
    std::move_backward(line.begin(), line.end() - 1, line.end());
    line[0] = Tag(key) | index;
    return index;
  }

  // All zero at first, so that pages of memory come into use with the places.
  alignas(64) std::array<Place, kPlaces> places_;
  alignas(64) std::array<Line, kLines> lines_;
  uint32_t used_;
  uint32_t last_;  // the place before this one
};

// The calling thread's: what is known of who asked for memory, and of autocast's casts. Given to another thread when this
// one ends, since programs start threads all the time (torch.nn.DataParallel at each forward). Allocates host memory for
// a thread's first, when none is spare.
SiteMemo& CallerMemo();
SiteMemo& CastMemo();

// How many threads' memos there are, used or spare.
size_t SiteMemosMade();

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_PLUGIN_SITE_MEMO_H_
