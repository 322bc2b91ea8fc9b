// The cost of one allocation and its free in the allocator core alone, on the simulated device: for 10^2 to 10^5 live
// blocks, 1 to 4 threads, with and without an observer, and for a pattern that reuses blocks of one size against one
// that splits and joins.
#include <benchmark/benchmark.h>

#include <memory>
#include <random>
#include <vector>

#include "allocator/core/caching_allocator.h"
#include "allocator/simulated_device_memory.h"

namespace vramledger {
namespace {

class CountingObserver : public AllocatorObserver {
 public:
  void OnAlloc(const BlockView& block, BlockTag&) override { bytes_ += block.block_bytes; }
  void OnFreeRequested(const BlockView&, BlockTag&) override {}
  void OnFree(const BlockView& block, BlockTag&, bool) override { bytes_ -= block.block_bytes; }
  void OnSegmentAlloc(const SegmentView&) override {}
  void OnSegmentFree(const SegmentView&) override {}
  void OnSegmentMap(const SegmentView&) override {}
  void OnSegmentUnmap(const SegmentView&) override {}
  void OnOutOfMemory(const OutOfMemoryInfo&) override {}

 private:
  size_t bytes_ = 0;
};

struct World {
  World(int64_t live, bool observed)
      : device(Options()), allocator(device, AllocatorSettings(), observed ? &observer : nullptr) {
    // Live blocks of mixed sizes with as many holes between them.
    std::mt19937_64 random(1);
    std::vector<void*> holes;
    for (int64_t i = 0; i < 2 * live; ++i) {
      const size_t bytes =
          random() % 8 == 0 ? (size_t{1} << 20) + random() % (size_t{8} << 20) : 1 + random() % (256 << 10);
      void* block = allocator.Allocate(0, 0, bytes, BlockTag()).address;
      if (i % 2 == 1) holes.push_back(block);
    }
    for (void* hole : holes) allocator.Free(hole);
  }
  static SimulatedDeviceOptions Options() {
    SimulatedDeviceOptions options;
    options.capacity_bytes = size_t{1} << 43;
    return options;
  }

  SimulatedDeviceMemory device;
  CountingObserver observer;
  CachingAllocator allocator;
};

std::unique_ptr<World> world;

void SetUp(const benchmark::State& state) {
  world = std::make_unique<World>(state.range(0), state.range(1) != 0);
}
void TearDown(const benchmark::State&) {
  world.reset();
}

// Eight sizes in turn; each pair takes the block that the same size left the round before.
void Pair(benchmark::State& state) {
  constexpr size_t kSizes[] = {512, 2048, 4096, 65536, 262144, 524288, 1048576, 4194304};
  CachingAllocator& allocator = world->allocator;
  size_t i = static_cast<size_t>(state.thread_index());
  for (auto _ : state) {
    const AllocationResult block = allocator.Allocate(0, 0, kSizes[i++ % 8], BlockTag());
    allocator.Free(block.address, 0);
  }
}

// A queue of 32 live blocks of random sizes: every pair searches, splits and joins.
void Churn(benchmark::State& state) {
  CachingAllocator& allocator = world->allocator;
  std::mt19937_64 random(static_cast<uint64_t>(state.thread_index()) + 1);
  std::vector<uint32_t> sizes(4096);
  for (uint32_t& size : sizes) size = static_cast<uint32_t>(1 + random() % (size_t{1} << (6 + random() % 17)));
  std::vector<void*> queue(32);
  size_t i = 0;
  for (auto _ : state) {
    void*& slot = queue[i % queue.size()];
    if (slot != nullptr) allocator.Free(slot, 0);
    slot = allocator.Allocate(0, 0, sizes[i % sizes.size()], BlockTag()).address;
    ++i;
  }
  for (void* block : queue) {
    if (block != nullptr) allocator.Free(block, 0);
  }
}

void Arguments(benchmark::internal::Benchmark* b) {
  b->ArgNames({"live", "observer"})->Setup(SetUp)->Teardown(TearDown)->UseRealTime();
}
BENCHMARK(Pair)->Apply(Arguments)->ArgsProduct({{0, 100, 1000, 5000, 10000, 100000}, {0, 1}});
BENCHMARK(Pair)->Apply(Arguments)->Args({5000, 0})->Threads(2)->Threads(4);
BENCHMARK(Churn)->Apply(Arguments)->ArgsProduct({{100, 1000, 5000, 10000, 100000}, {0}});
BENCHMARK(Churn)->Apply(Arguments)->Args({5000, 0})->Threads(2)->Threads(4);

}  // namespace
}  // namespace vramledger

BENCHMARK_MAIN();
