// Random operations of several threads on several devices, streams and private pools, with graph captures under way now
// and then, under both policies, against a shadow that owns every byte.
// VRAMLEDGER_PROPERTY_OPERATIONS sets how many (default 2,000,000 for all cases together): requests, frees, streams
// recorded, wrong frees, and operations on pools, captures and caches.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/allocator/shadow_ledger.h"

namespace vramledger {
namespace {

using Policy = AllocatorSettings::Policy;
using EqualSizeOrder = AllocatorSettings::EqualSizeOrder;

struct Case {
  const char* name;
  const char* settings;
  AddressOrder order;
  Completion completion;
  size_t capacity;
  int threads;
  std::vector<Policy> policies = {Policy::kNative};  // an allocator for each, on devices of its own
  EqualSizeOrder equal_order = EqualSizeOrder::kAddress;
};

constexpr size_t kMiB = size_t{1} << 20;

const Case kCases[] = {
    {"Default", "", AddressOrder::kUp, Completion::kRandom, 1024 * kMiB, 4},
    {"OneThread",
     "",
     AddressOrder::kDown,
     Completion::kRandom,
     600 * kMiB,
     1,
     {Policy::kNative},
     EqualSizeOrder::kSegmentAge},
    {"SplitLimitAndRounding", "max_split_size_mb:32,roundup_power2_divisions:4", AddressOrder::kDown,
     Completion::kRandom, 1024 * kMiB, 3},
    {"GarbageCollection", "garbage_collection_threshold:0.6,per_process_memory_fraction:0.7", AddressOrder::kUp,
     Completion::kRandom, 1024 * kMiB, 2},
    {"Expandable", "expandable_segments:True", AddressOrder::kUp, Completion::kRandom, 1024 * kMiB, 4},
    {"ExpandableTight", "expandable_segments:True,per_process_memory_fraction:0.9", AddressOrder::kUp,
     Completion::kAtOnce, 256 * kMiB, 2},
    {"Vmm", "", AddressOrder::kUp, Completion::kRandom, 1024 * kMiB, 4, {Policy::kVmm}},
    {"VmmLarge", "", AddressOrder::kUp, Completion::kRandom, 8192 * kMiB, 2, {Policy::kVmm}},
    {"VmmTight",
     "per_process_memory_fraction:0.9",
     AddressOrder::kUp,
     Completion::kRandom,
     200 * kMiB,
     3,
     {Policy::kVmm}},
    {"BothPolicies", "", AddressOrder::kUp, Completion::kRandom, 700 * kMiB, 4, {Policy::kNative, Policy::kVmm}},
};

long Operations() {
  const char* text = std::getenv("VRAMLEDGER_PROPERTY_OPERATIONS");
  return text != nullptr ? std::atol(text) : 2000000;
}

// Takes a pool's segments from the device, as an allocator of the user's would.
class DeviceSource : public SegmentSource {
 public:
  DeviceSource(SimulatedDeviceMemory* memory, int device) : memory_(memory), device_(device) {}
  void* Allocate(size_t bytes) override {
    void* address = nullptr;
    return memory_->Allocate(device_, bytes, &address) == DeviceResult::kOk ? address : nullptr;
  }
  void Free(void* address) override { EXPECT_EQ(memory_->Free(device_, address), DeviceResult::kOk); }

 private:
  SimulatedDeviceMemory* const memory_;
  const int device_;
};

// An allocator with its devices and its shadow, and the blocks that its threads hand to each other.
struct World {
  World(const Case& c, Policy policy) : device(Options(c)), shadow(&device) {
    auto settings = AllocatorSettings::Parse(c.settings);
    EXPECT_TRUE(settings.ok());
    settings->equal_size_order = c.equal_order;
    settings->policy = policy;
    allocator = std::make_unique<CachingAllocator>(device, *settings, &shadow);
  }
  static SimulatedDeviceOptions Options(const Case& c) {
    SimulatedDeviceOptions options;
    options.devices = 2;
    options.capacity_bytes = c.capacity;
    options.address_order = c.order;
    options.completion = c.completion;
    options.delay = 3;
    return options;
  }

  SimulatedDeviceMemory device;
  ShadowLedger shadow;
  std::unique_ptr<CachingAllocator> allocator;
  std::mutex exchange_mutex;
  std::vector<std::pair<int, void*>> exchange;
};

// What one thread does in one world.
class Worker {
 public:
  Worker(World* world, uint64_t number, size_t largest_mib)
      : world_(world), number_(number), largest_mib_(largest_mib), random_(number) {}

  void Step() {
    const size_t what = Below(1000);
    if (what < 470) {
      AllocateAndHold();
    } else if (what < 940) {
      if (!held_.empty()) Free(TakeHeld());
    } else if (what < 965) {
      Exchange();
    } else if (what < 975) {
      if (!held_.empty()) {
        const auto& [device, address] = held_[Below(held_.size())];
        ++operations_;
        EXPECT_EQ(allocator().Free(static_cast<char*>(address) + 256, device), FreeStatus::kInsideBlock);
      }
    } else if (what < 978) {
      int local = 0;
      ++operations_;
      EXPECT_EQ(allocator().Free(&local), FreeStatus::kForeign);
    } else if (what < 979) {
      ++operations_;
      allocator().EmptyCache(static_cast<int>(Below(2)));
    } else if (what < 980) {
      const int device = static_cast<int>(Below(2));
      operations_ += 2;
      allocator().BeginCapture(device);
      for (int i = 0; i < 20; ++i) Below(2) == 0 || held_.empty() ? AllocateAndHold() : Free(TakeHeld());
      allocator().EndCapture(device);
    } else {
      PoolStep();
    }
    if (held_.size() > 300) Free(TakeHeld());
  }

  long operations() const { return operations_; }

 private:
  // A private pool of this thread's. Only this thread frees its blocks.
  struct OwnPool {
    PoolId id;
    int device;
    int uses;
    std::vector<void*> blocks;
  };

  CachingAllocator& allocator() { return *world_->allocator; }
  size_t Below(size_t n) { return random_() % n; }
  // Threads' pools with an odd number lend their free blocks when the device has no more.
  static bool Lends(PoolId id) { return id.second % 2 == 1; }

  size_t RandomSize() {
    switch (Below(10)) {
      case 0:
        return 512 * (1 + Below(8));  // equal sizes are common
      case 1:
        return kMiB * (1 + Below(largest_mib_));
      case 2:
        return Below(50) == 0 ? 0 : 1 + Below(kMiB + 1);
      default:
        return 1 + Below(size_t{1} << (4 + Below(21)));
    }
  }

  // Null for 0 bytes and when memory was out, which frees a good part of what this thread has, as a program would.
  void* Allocate(int device, StreamHandle stream, PoolId expected) {
    const size_t bytes = RandomSize();
    ++operations_;
    const AllocationResult result =
        allocator().Allocate(device, stream, bytes, BlockTag(), nullptr, static_cast<uint8_t>(Below(3)));
    if (bytes == 0) {
      EXPECT_EQ(result.address, nullptr);
      return nullptr;
    }
    if (result.status == AllocationStatus::kOutOfMemory) {
      for (size_t i = held_.size() / 2; i > 0; --i) Free(TakeHeld());
      for (OwnPool& pool : pools_) {
        for (size_t i = pool.blocks.size() / 2; i > 0; --i) FreeFrom(pool);
      }
      return nullptr;
    }
    EXPECT_EQ(result.status, AllocationStatus::kOk);
    if (result.address == nullptr) return nullptr;
    const PoolId pool = world_->shadow.PoolOf(device, result.address);
    EXPECT_TRUE(pool == expected || Lends(pool)) << "a private pool served a stranger";
    for (int i = 0; i < 2 && Below(6) == 0; ++i) {
      const StreamHandle used = Below(4);
      world_->shadow.WillUse(device, result.address, used);
      ++operations_;
      EXPECT_TRUE(allocator().RecordStream(result.address, used, static_cast<int>(Below(2))));
    }
    return result.address;
  }

  void AllocateAndHold() {
    const int device = static_cast<int>(Below(2));
    if (void* address = Allocate(device, Below(3), PoolId())) held_.emplace_back(device, address);
  }

  std::pair<int, void*> TakeHeld() {
    std::swap(held_[Below(held_.size())], held_.back());
    const auto block = held_.back();
    held_.pop_back();
    return block;
  }

  void Free(std::pair<int, void*> block) {
    ++operations_;
    EXPECT_EQ(allocator().Free(block.second, static_cast<int>(Below(2))), FreeStatus::kOk);
  }

  void FreeFrom(OwnPool& pool) {
    std::swap(pool.blocks[Below(pool.blocks.size())], pool.blocks.back());
    void* const address = pool.blocks.back();
    pool.blocks.pop_back();
    Free({pool.device, address});
  }

  // Blocks change hands: they are freed by threads that did not allocate them.
  void Exchange() {
    std::lock_guard<std::mutex> lock(world_->exchange_mutex);
    auto& exchange = world_->exchange;
    if (!held_.empty() && (exchange.empty() || Below(2) == 0)) {
      exchange.push_back(TakeHeld());
    } else if (!exchange.empty()) {
      held_.push_back(exchange.back());
      exchange.pop_back();
    }
  }

  void PoolStep() {
    if (pools_.size() < 3 && Below(2) == 0) NewPool();
    if (pools_.empty()) return;
    const size_t index = Below(pools_.size());
    OwnPool& pool = pools_[index];
    ++operations_;
    switch (Below(8)) {
      case 0:
        EXPECT_EQ(allocator().SharePool(pool.device, pool.id), PoolStatus::kOk);
        ++pool.uses;
        break;
      case 1:
        CheckPool(pool);
        break;
      case 2: {
        PoolState state;
        EXPECT_EQ(allocator().GetPoolState(pool.device, pool.id, &state), PoolStatus::kOk);
        break;
      }
      case 3:
        allocator().EmptyPool(pool.device, pool.id);  // is in use: stays as it is
        break;
      case 4:
      case 5:
        Release(index);
        break;
      default:
        Route(pool);
    }
  }

  void NewPool() {
    OwnPool pool{PoolId{number_, ++pools_made_}, static_cast<int>(Below(2)), 1, {}};
    const bool own_source = Below(3) == 0;
    operations_ += 2;
    EXPECT_EQ(
        allocator().SharePool(pool.device, pool.id,
                              own_source ? std::make_shared<DeviceSource>(&world_->device, pool.device) : nullptr),
        PoolStatus::kOk);
    if (Lends(pool.id)) {
      EXPECT_EQ(allocator().SetPoolUseWhenOut(pool.device, pool.id, true), PoolStatus::kOk);
    }
    if (Below(4) == 0) {
      EXPECT_EQ(allocator().SetPoolNoSplit(pool.device, pool.id), PoolStatus::kOk);
    }
    pools_.push_back(std::move(pool));
  }

  // Requests on a stream of this thread's own go to the pool for a while; others do not.
  void Route(OwnPool& pool) {
    const StreamHandle stream = 100 + number_;
    EXPECT_EQ(allocator().BeginAllocateToPool(pool.device, pool.id, [stream](StreamHandle s) { return s == stream; }),
              PoolStatus::kOk);
    ++pool.uses;
    for (int i = 0; i < 20; ++i) {
      switch (Below(4)) {
        case 0:
        case 1:
          // A request that fails frees blocks of this pool, too.
          if (void* address = Allocate(pool.device, stream, pool.id)) pool.blocks.push_back(address);
          break;
        case 2:
          if (!pool.blocks.empty()) FreeFrom(pool);
          break;
        default:
          AllocateAndHold();
      }
    }
    EXPECT_EQ(allocator().EndAllocateToPool(pool.device, pool.id), PoolStatus::kOk);
    ++operations_;
  }

  void CheckPool(const OwnPool& pool) {
    EXPECT_EQ(allocator().PoolUseCount(pool.device, pool.id), pool.uses);
    std::vector<void*> live;
    EXPECT_EQ(allocator().LivePoolBlocks(pool.device, pool.id, &live), PoolStatus::kOk);
    std::vector<void*> mine;
    for (void* block : pool.blocks) {
      if (world_->shadow.PoolOf(pool.device, block) == pool.id) mine.push_back(block);  // some may be lent by others
    }
    std::sort(live.begin(), live.end());
    std::sort(mine.begin(), mine.end());
    if (Lends(pool.id)) {
      EXPECT_TRUE(std::includes(live.begin(), live.end(), mine.begin(), mine.end()));
    } else {
      EXPECT_EQ(live, mine);
    }
  }

  // Blocks outlive the last user of their pool half of the time.
  void Release(size_t index) {
    OwnPool& pool = pools_[index];
    EXPECT_EQ(allocator().ReleasePool(pool.device, pool.id), PoolStatus::kOk);
    if (--pool.uses > 0) return;
    if (Below(2) == 0) {
      while (!pool.blocks.empty()) FreeFrom(pool);
      allocator().EmptyPool(pool.device, pool.id);
      ++operations_;
    }
    for (void* block : pool.blocks) held_.emplace_back(pool.device, block);
    pools_.erase(pools_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  World* world_;
  const uint64_t number_;  // of the thread, from 1
  const size_t largest_mib_;
  std::mt19937_64 random_;
  std::vector<std::pair<int, void*>> held_;
  std::vector<OwnPool> pools_;
  uint64_t pools_made_ = 0;
  long operations_ = 0;
};

class Property : public testing::TestWithParam<Case> {};

TEST_P(Property, NoByteIsHandedOutTwiceAndEveryCounterIsTheSum) {
  const Case& c = GetParam();
  std::vector<std::unique_ptr<World>> worlds;
  for (const Policy policy : c.policies) worlds.push_back(std::make_unique<World>(c, policy));
  std::vector<std::vector<Worker>> workers(static_cast<size_t>(c.threads));
  for (size_t i = 0; i < workers.size(); ++i) {
    for (const auto& world : worlds) workers[i].emplace_back(world.get(), i + 1, c.capacity > 4096 * kMiB ? 200 : 24);
  }
  constexpr int kRounds = 8;
  const long per_round = Operations() / static_cast<long>(std::size(kCases)) / kRounds / c.threads + 1;
  for (int round = 1; round <= kRounds && !HasFailure(); ++round) {
    std::vector<std::thread> threads;
    for (std::vector<Worker>& mine : workers) {
      threads.emplace_back([&mine, until = per_round * round] {
        const auto done = [&mine] {
          long sum = 0;
          for (const Worker& worker : mine) sum += worker.operations();
          return sum;
        };
        for (size_t turn = 0; done() < until; ++turn) mine[turn / 10 % mine.size()].Step();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& world : worlds) world->shadow.Check(*world->allocator);
  }
  long operations = 0;
  for (const auto& mine : workers) {
    for (const Worker& worker : mine) operations += worker.operations();
  }
  RecordProperty("operations", std::to_string(operations));
  for (const auto& world : worlds) {
    world->allocator.reset();
    EXPECT_EQ(world->device.used_bytes(0) + world->device.used_bytes(1), 0u);
    EXPECT_EQ(world->device.allocations_alive(), 0u);
    EXPECT_EQ(world->device.events_alive(), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Property, testing::ValuesIn(kCases),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace vramledger
