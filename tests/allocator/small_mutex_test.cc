#include "allocator/core/small_mutex.h"

#include <chrono>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace vramledger {
namespace {

TEST(SmallMutex, ExcludesAndLosesNobody) {
  SmallMutex mutex;
  int64_t count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&mutex, &count] {
      for (int i = 0; i < 20000; ++i) {
        const SmallMutexLock lock(mutex);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 8 * 20000);
}

// As when the holder waits for the device: the others sleep, and each is served once it is over.
TEST(SmallMutex, SleepersWakeUp) {
  SmallMutex mutex;
  int served = 0;
  std::vector<std::thread> threads;
  {
    const SmallMutexLock lock(mutex);
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&mutex, &served] {
        const SmallMutexLock inner(mutex);
        ++served;
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(served, 0);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(served, 4);
}

}  // namespace
}  // namespace vramledger
