// An allocator that is never destroyed serves frees while the process ends, after static destructors have begun.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "allocator/core/caching_allocator.h"
#include "allocator/simulated_device_memory.h"
#include "gtest/gtest.h"

namespace vramledger {
namespace {

CachingAllocator* immortal = nullptr;
std::vector<void*>* blocks = nullptr;

[[noreturn]] void RunAndExit() {
  // Registered first, so it runs last: after the static objects that the allocator's code creates in between are gone.
  std::atexit([] {
    for (void* block : *blocks) {
      if (immortal->Free(block) != FreeStatus::kOk) std::_Exit(3);
    }
    if (immortal->Free((*blocks)[0]) != FreeStatus::kDoubleFree) std::_Exit(4);
    if (immortal->Allocate(0, 0, 1000, BlockTag()).address == nullptr) std::_Exit(5);
    immortal->EmptyCache();
    if (immortal->DescribeAddress((*blocks)[0]).empty()) std::_Exit(6);
    std::fputs("freed at exit\n", stderr);
  });
  auto* device = new SimulatedDeviceMemory(SimulatedDeviceOptions());
  immortal = new CachingAllocator(*device, *AllocatorSettings::FromEnvironment(), nullptr);
  blocks = new std::vector<void*>();
  for (size_t i = 1; i < 100; ++i) blocks->push_back(immortal->Allocate(0, 0, i * 50000, BlockTag()).address);
  immortal->RecordStream((*blocks)[5], 9);
  immortal->Free((*blocks)[5]);
  (*blocks)[5] = immortal->Allocate(0, 0, 700, BlockTag()).address;
  std::exit(0);
}

TEST(ShutdownDeathTest, FreesAtExitAreServed) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(RunAndExit(), testing::ExitedWithCode(0), "freed at exit");
}

}  // namespace
}  // namespace vramledger
