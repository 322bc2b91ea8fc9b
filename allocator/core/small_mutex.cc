#include "allocator/core/small_mutex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace vramledger {
namespace {

// About the length of a few uncontended allocations; longer waits are for the device and belong in the kernel.
constexpr int kSpins = 100;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

uint32_t* Word(std::atomic<uint32_t>* state) {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  return reinterpret_cast<uint32_t*>(state);
}

}  // namespace

void SmallMutex::LockSlow() {
  for (int i = 0; i < kSpins; ++i) {
    Pause();
    uint32_t expected = kFree;
    if (state_.load(std::memory_order_relaxed) == kFree &&
        state_.compare_exchange_weak(expected, kHeld, std::memory_order_acquire, std::memory_order_relaxed)) {
      return;
    }
  }
  // Whoever has slept once takes the lock in the state "with sleepers", since others may still sleep.
  while (state_.exchange(kHeldWithSleepers, std::memory_order_acquire) != kFree) {
    syscall(SYS_futex, Word(&state_), FUTEX_WAIT_PRIVATE, kHeldWithSleepers, nullptr, nullptr, 0);
  }
}

void SmallMutex::Wake() { syscall(SYS_futex, Word(&state_), FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0); }

}  // namespace vramledger
