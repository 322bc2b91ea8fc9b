// A small mutex for short critical sections: one atomic read-modify-write to take it uncontended, a plain store to give
// it back.
#ifndef VRAMLEDGER_ALLOCATOR_CORE_SMALL_MUTEX_H_
#define VRAMLEDGER_ALLOCATOR_CORE_SMALL_MUTEX_H_

#include <atomic>
#include <cstdint>

namespace vramledger {

// Who finds it taken spins for a moment, then sleeps in the kernel. Since Unlock does not wait for its store to be seen
// before it looks for sleepers, it can miss one that is just lying down; that one looks again by itself after a
// fraction of a millisecond.
class SmallMutex {
 public:
  SmallMutex() = default;
  SmallMutex(const SmallMutex&) = delete;
  SmallMutex& operator=(const SmallMutex&) = delete;

  void Lock() {
    if (!TryLock()) LockSlow();
  }
  void Unlock() {
    held_.store(0, std::memory_order_release);
    if (sleepers_.load(std::memory_order_relaxed) != 0) Wake();
  }

 private:
  bool TryLock() {
    uint32_t expected = 0;
    return held_.compare_exchange_strong(expected, 1, std::memory_order_acquire, std::memory_order_relaxed);
  }
  void LockSlow();
  void Wake();

  std::atomic<uint32_t> held_{0};
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<uint32_t> waking_{0};  // one was woken and has not looked yet: no need to wake another
};

class SmallMutexLock {
 public:
  explicit SmallMutexLock(SmallMutex& mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~SmallMutexLock() { mutex_.Unlock(); }
  SmallMutexLock(const SmallMutexLock&) = delete;
  SmallMutexLock& operator=(const SmallMutexLock&) = delete;

 private:
  SmallMutex& mutex_;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_CORE_SMALL_MUTEX_H_
