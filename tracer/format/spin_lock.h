// A lock for critical sections of a few nanoseconds, where a futex lock's fixed cost would be most of the time spent.
#ifndef VRAMLEDGER_TRACER_FORMAT_SPIN_LOCK_H_
#define VRAMLEDGER_TRACER_FORMAT_SPIN_LOCK_H_

#include <sched.h>

#include <atomic>

namespace vramledger {

class SpinLock {
 public:
  void lock() {
    for (int spins = 0; held_.exchange(true, std::memory_order_acquire); ++spins) {
      // The holder may have been descheduled: give it the processor rather than burn the time slice.
      while (held_.load(std::memory_order_relaxed)) {
        if (++spins > 64) sched_yield();
      }
    }
  }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> held_{false};
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TRACER_FORMAT_SPIN_LOCK_H_
