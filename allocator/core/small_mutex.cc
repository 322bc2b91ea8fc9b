#include "allocator/core/small_mutex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace vramledger {
namespace {

// How long a pause is differs between processors. Measured on an Intel Xeon with 4 and 16 threads on two cores (tests/benchmarks/torch_pair_bench.cc): with
// 100 of them a pair cost up to 1.27 of PyTorch's native one, with 10 to 25 at most 0.86; naps of 1 ms cost more than these.
constexpr int kSpins = 20;
constexpr timespec kNap = {0, 100'000};

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

uint32_t* Word(std::atomic<uint32_t>* word) {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  return reinterpret_cast<uint32_t*>(word);
}

}  // namespace

void SmallMutex::LockSlow() {
  for (int i = 0; i < kSpins; ++i) {
    Pause();
    if (held_.load(std::memory_order_relaxed) == 0 && TryLock()) return;
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (!TryLock()) {
    syscall(SYS_futex, Word(&held_), FUTEX_WAIT_PRIVATE, 1, &kNap, nullptr, 0);
    waking_.store(0, std::memory_order_relaxed);
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

void SmallMutex::Wake() {
  if (waking_.load(std::memory_order_relaxed) != 0 || waking_.exchange(1, std::memory_order_relaxed) != 0) return;
  if (syscall(SYS_futex, Word(&held_), FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0) <= 0)
    waking_.store(0, std::memory_order_relaxed);
}

}  // namespace vramledger
