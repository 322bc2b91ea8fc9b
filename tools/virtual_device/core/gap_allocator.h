// Hands out address ranges from one span, lowest or highest fitting gap first. Address arithmetic only.
// Not thread-safe: the owner locks.
#pragma once

#include <cstdint>
#include <map>

namespace vd {

class GapAllocator {
 public:
  GapAllocator() = default;
  // All addresses and sizes in bytes. `down`: take the top of the highest gap that fits.
  GapAllocator(uintptr_t base, uint64_t span, bool down) : down_(down) { gaps_[base] = span; }

  // 0 when no gap fits. `size` and `align` must be multiples of one another's granularity; align a power of two.
  uintptr_t Allocate(uint64_t size, uint64_t align) {
    if (size == 0) return 0;
    if (down_) {
      for (auto it = gaps_.rbegin(); it != gaps_.rend(); ++it) {
        if (it->second < size) continue;
        const uintptr_t at = (it->first + it->second - size) & ~(align - 1);
        if (at >= it->first) return Take(it->first, it->second, at, size);
      }
    } else {
      for (auto& [base, span] : gaps_) {
        const uintptr_t at = (base + align - 1) & ~(align - 1);
        if (span >= size && at - base <= span - size) return Take(base, span, at, size);
      }
    }
    return 0;
  }

  // Takes exactly [at, at + size) if it is free.
  bool AllocateAt(uintptr_t at, uint64_t size) {
    auto it = gaps_.upper_bound(at);
    if (size == 0 || it == gaps_.begin()) return false;
    --it;
    if (at + size > it->first + it->second) return false;
    Take(it->first, it->second, at, size);
    return true;
  }

  void Free(uintptr_t at, uint64_t size) {
    auto next = gaps_.lower_bound(at);
    if (next != gaps_.end() && at + size == next->first) {
      size += next->second;
      next = gaps_.erase(next);
    }
    if (next != gaps_.begin()) {
      auto before = std::prev(next);
      if (before->first + before->second == at) {
        before->second += size;
        return;
      }
    }
    gaps_[at] = size;
  }

 private:
  uintptr_t Take(uintptr_t base, uint64_t span, uintptr_t at, uint64_t size) {
    gaps_.erase(base);
    if (at > base) gaps_[base] = at - base;
    if (at + size < base + span) gaps_[at + size] = base + span - at - size;
    return at;
  }

  bool down_ = false;
  std::map<uintptr_t, uint64_t> gaps_;  // start to length
};

}  // namespace vd
