// Remembers what a walk over the stack has found, so that each place of the program is walked once.
#ifndef VRAMLEDGER_ALLOCATOR_PLUGIN_SITE_MEMO_H_
#define VRAMLEDGER_ALLOCATOR_PLUGIN_SITE_MEMO_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace vramledger {

// What is known of one thread's places. A training step has a few thousand of them: with a line of eight for each hash
// nearly all keep their place, where a table of single entries would forget a quarter of them and walk again each step.
class SiteMemo {
 public:
  // The answer for requests of `bytes` at the place that `context` stands for (phase, module, thread ...): `walk()` the
  // first time.
  template <typename Walk>
  bool Answer(size_t bytes, uint64_t context, Walk walk) {
    const uint64_t hash = Mix(context, bytes);
    Line& line = lines_[hash % kLines];
    const uint64_t key = hash | kKnown;  // without the bit of the answer
    for (const uint64_t entry : line) {
      if ((entry & ~kYes) == (key & ~kYes)) return (entry & kYes) != 0;
    }
    const bool yes = walk();
    std::move_backward(line.begin(), line.end() - 1, line.end());
    line[0] = (key & ~kYes) | (yes ? kYes : 0);
    return yes;
  }

 private:
  static constexpr size_t kLines = 4096;  // 256 KiB
  static constexpr uint64_t kYes = uint64_t{1} << 63;
  static constexpr uint64_t kKnown = uint64_t{1} << 62;  // so that an empty entry is no place's
  using Line = std::array<uint64_t, 8>;

  static uint64_t Mix(uint64_t context, size_t bytes) {
    uint64_t h = context * 0x9e3779b97f4a7c15u + bytes;
    h = (h ^ h >> 32) * 0xff51afd7ed558ccdu;
    h = (h ^ h >> 29) * 0xc4ceb9fe1a85ec53u;
    return h ^ h >> 32;
  }

  alignas(64) std::array<Line, kLines> lines_{};
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
