// Random operations of several threads on several devices and streams, against a shadow that owns every byte.
// VRAMLEDGER_PROPERTY_OPERATIONS sets how many (default 2,000,000 for all cases together).
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/allocator/shadow_ledger.h"

namespace vramledger {
namespace {

struct Case {
  const char* name;
  const char* settings;
  AddressOrder order;
  Completion completion;
  size_t capacity;
  int threads;
  AllocatorSettings::EqualSizeOrder equal_order = AllocatorSettings::EqualSizeOrder::kAddress;
  AllocatorSettings::Policy policy = AllocatorSettings::Policy::kNative;
};

constexpr size_t kMiB = size_t{1} << 20;

const Case kCases[] = {
    {"Default", "", AddressOrder::kUp, Completion::kRandom, 1024 * kMiB, 4},
    {"OneThread", "", AddressOrder::kDown, Completion::kRandom, 600 * kMiB, 1,
     AllocatorSettings::EqualSizeOrder::kSegmentAge},
    {"SplitLimitAndRounding", "max_split_size_mb:32,roundup_power2_divisions:4", AddressOrder::kDown,
     Completion::kRandom, 1024 * kMiB, 3},
    {"GarbageCollection", "garbage_collection_threshold:0.6,per_process_memory_fraction:0.7", AddressOrder::kUp,
     Completion::kRandom, 1024 * kMiB, 2},
    {"Expandable", "expandable_segments:True", AddressOrder::kUp, Completion::kRandom, 1024 * kMiB, 4},
    {"ExpandableTight", "expandable_segments:True,per_process_memory_fraction:0.9", AddressOrder::kUp,
     Completion::kAtOnce, 256 * kMiB, 2},
    {"Vmm", "", AddressOrder::kUp, Completion::kRandom, 1024 * kMiB, 4, AllocatorSettings::EqualSizeOrder::kAddress,
     AllocatorSettings::Policy::kVmm},
    {"VmmTight", "per_process_memory_fraction:0.9", AddressOrder::kUp, Completion::kRandom, 200 * kMiB, 3,
     AllocatorSettings::EqualSizeOrder::kAddress, AllocatorSettings::Policy::kVmm},
};

long Operations() {
  const char* text = std::getenv("VRAMLEDGER_PROPERTY_OPERATIONS");
  return text != nullptr ? std::atol(text) : 2000000;
}

class Worker {
 public:
  Worker(CachingAllocator* allocator, ShadowLedger* shadow, uint64_t seed, std::mutex* exchange_mutex,
         std::vector<std::pair<int, void*>>* exchange)
      : allocator_(allocator), shadow_(shadow), random_(seed), exchange_mutex_(exchange_mutex), exchange_(exchange) {}

  void Run(long operations) {
    for (long i = 0; i < operations; ++i) Step();
  }

 private:
  size_t Below(size_t n) { return random_() % n; }

  size_t RandomSize() {
    switch (Below(10)) {
      case 0:
        return 512 * (1 + Below(8));  // equal sizes are common
      case 1:
        return kMiB * (1 + Below(24));
      case 2:
        return Below(50) == 0 ? 0 : 1 + Below(kMiB + 1);
      default:
        return 1 + Below(size_t{1} << (4 + Below(21)));
    }
  }

  void Step() {
    const size_t what = Below(1000);
    if (what < 480) {
      Allocate();
    } else if (what < 960) {
      if (!held_.empty()) Free(TakeHeld());
    } else if (what < 985) {
      Exchange();
    } else if (what < 995) {
      if (!held_.empty()) {
        const auto& [device, address] = held_[Below(held_.size())];
        EXPECT_EQ(allocator_->Free(static_cast<char*>(address) + 256, device), FreeStatus::kInsideBlock);
      }
    } else if (what < 998) {
      int local = 0;
      EXPECT_EQ(allocator_->Free(&local), FreeStatus::kForeign);
    } else if (what < 999) {
      allocator_->EmptyCache(static_cast<int>(Below(2)));
    } else {
      const int device = static_cast<int>(Below(2));
      allocator_->BeginCapture(device);
      for (int i = 0; i < 20; ++i) Below(2) == 0 || held_.empty() ? Allocate() : Free(TakeHeld());
      allocator_->EndCapture(device);
    }
    if (held_.size() > 300) Free(TakeHeld());
  }

  void Allocate() {
    const int device = static_cast<int>(Below(2));
    const size_t bytes = RandomSize();
    const AllocationResult result = allocator_->Allocate(device, Below(3), bytes, BlockTag());
    if (bytes == 0) {
      EXPECT_EQ(result.address, nullptr);
      return;
    }
    if (result.status == AllocationStatus::kOutOfMemory) {
      // What a program does then: frees a good part and goes on.
      for (size_t i = held_.size() / 2; i > 0; --i) Free(TakeHeld());
      return;
    }
    ASSERT_EQ(result.status, AllocationStatus::kOk);
    for (int i = 0; i < 2 && Below(6) == 0; ++i) {
      const StreamHandle stream = Below(4);
      shadow_->WillUse(device, result.address, stream);
      EXPECT_TRUE(allocator_->RecordStream(result.address, stream, static_cast<int>(Below(2))));
    }
    held_.emplace_back(device, result.address);
  }

  std::pair<int, void*> TakeHeld() {
    std::swap(held_[Below(held_.size())], held_.back());
    const auto block = held_.back();
    held_.pop_back();
    return block;
  }

  void Free(std::pair<int, void*> block) {
    EXPECT_EQ(allocator_->Free(block.second, static_cast<int>(Below(2))), FreeStatus::kOk);
  }

  // Blocks change hands: they are freed by threads that did not allocate them.
  void Exchange() {
    std::lock_guard<std::mutex> lock(*exchange_mutex_);
    if (!held_.empty() && (exchange_->empty() || Below(2) == 0)) {
      exchange_->push_back(TakeHeld());
    } else if (!exchange_->empty()) {
      held_.push_back(exchange_->back());
      exchange_->pop_back();
    }
  }

  CachingAllocator* allocator_;
  ShadowLedger* shadow_;
  std::mt19937_64 random_;
  std::mutex* exchange_mutex_;
  std::vector<std::pair<int, void*>>* exchange_;
  std::vector<std::pair<int, void*>> held_;
};

class Property : public testing::TestWithParam<Case> {};

TEST_P(Property, NoByteIsHandedOutTwiceAndEveryCounterIsTheSum) {
  const Case& c = GetParam();
  SimulatedDeviceOptions options;
  options.devices = 2;
  options.capacity_bytes = c.capacity;
  options.address_order = c.order;
  options.completion = c.completion;
  options.delay = 3;
  SimulatedDeviceMemory device(options);
  ShadowLedger shadow(&device);
  auto settings = AllocatorSettings::Parse(c.settings);
  ASSERT_TRUE(settings.ok());
  settings->equal_size_order = c.equal_order;
  settings->policy = c.policy;
  {
    CachingAllocator allocator(device, *settings, &shadow);
    std::mutex exchange_mutex;
    std::vector<std::pair<int, void*>> exchange;
    std::vector<Worker> workers;
    for (int i = 0; i < c.threads; ++i) {
      workers.emplace_back(&allocator, &shadow, static_cast<uint64_t>(i) + 1, &exchange_mutex, &exchange);
    }
    constexpr int kRounds = 8;
    const long per_round = Operations() / static_cast<long>(std::size(kCases)) / kRounds / c.threads + 1;
    for (int round = 0; round < kRounds && !HasFailure(); ++round) {
      std::vector<std::thread> threads;
      for (Worker& worker : workers) threads.emplace_back([&worker, per_round] { worker.Run(per_round); });
      for (std::thread& thread : threads) thread.join();
      shadow.Check(allocator);
    }
  }
  EXPECT_EQ(device.used_bytes(0) + device.used_bytes(1), 0u);
  EXPECT_EQ(device.allocations_alive(), 0u);
  EXPECT_EQ(device.events_alive(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Cases, Property, testing::ValuesIn(kCases),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace vramledger
