// A four-byte mutex: one atomic instruction to take it uncontended, a short spin, then sleep in the kernel.
#ifndef VRAMLEDGER_ALLOCATOR_CORE_SMALL_MUTEX_H_
#define VRAMLEDGER_ALLOCATOR_CORE_SMALL_MUTEX_H_

#include <atomic>
#include <cstdint>

namespace vramledger {

class SmallMutex {
 public:
  SmallMutex() = default;
  SmallMutex(const SmallMutex&) = delete;
  SmallMutex& operator=(const SmallMutex&) = delete;

  void Lock() {
    uint32_t expected = kFree;
    if (!state_.compare_exchange_strong(expected, kHeld, std::memory_order_acquire, std::memory_order_relaxed)) {
      LockSlow();
    }
  }
  void Unlock() {
    if (state_.exchange(kFree, std::memory_order_release) == kHeldWithSleepers) Wake();
  }

 private:
  enum : uint32_t { kFree = 0, kHeld = 1, kHeldWithSleepers = 2 };

  void LockSlow();
  void Wake();

  std::atomic<uint32_t> state_{kFree};
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
