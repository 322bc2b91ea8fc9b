// The cost of one allocation and its free: PyTorch's native allocator and ours (through CUDAPluggableAllocator, tagged and traced), in
// one process, on whatever device libcudart gives (tests/benchmarks/run.sh uses the virtual one). Built against the installed wheel.
//
//   alloc_pair_bench PLUGIN.so [google-benchmark's options]
#include <benchmark/benchmark.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <dlfcn.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using Allocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;

Allocator* native = nullptr;
std::shared_ptr<Allocator> ours;

// Live blocks of mixed sizes with holes between them, as a training run has. The more there are, the smaller, so that all
// fit on the card.
std::vector<c10::DataPtr> Populate(Allocator& allocator, int64_t live) {
  std::mt19937 random(1);
  const auto units = static_cast<uint32_t>(std::min<int64_t>(1500, (int64_t{36} << 30) / 512 * 4 / 3 / std::max<int64_t>(1, live)));
  std::vector<c10::DataPtr> blocks;
  std::vector<c10::DataPtr> holes;
  for (int64_t i = 0; i < live; ++i) {
    blocks.push_back(allocator.allocate(512 * (1 + random() % units)));
    if (i % 2 == 0) holes.push_back(allocator.allocate(512 * (1 + random() % units)));
  }
  return blocks;
}

constexpr int kPairs = 2000;
constexpr size_t kSizes[] = {512, 2048, 4096, 65536, 262144, 524288, 1048576, 4194304};

void Pairs(Allocator& allocator) {
  for (int i = 0; i < kPairs; ++i) benchmark::DoNotOptimize(allocator.allocate(kSizes[i % std::size(kSizes)]));
}

// Wall time over the pairs of all threads together, from the first that begins to the last that ends.
double NsPerPair(Allocator& allocator, int threads) {
  using Clock = std::chrono::steady_clock;
  if (threads == 1) {
    const auto begin = Clock::now();
    Pairs(allocator);
    return std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / kPairs;
  }
  std::barrier ready(threads);
  std::vector<Clock::time_point> begins(static_cast<size_t>(threads)), ends(begins.size());
  std::vector<std::thread> workers;
  for (size_t i = 0; i < begins.size(); ++i) {
    workers.emplace_back([&, i] {
      Pairs(allocator);  // the thread's own structures, outside of the measurement
      ready.arrive_and_wait();
      begins[i] = Clock::now();
      Pairs(allocator);
      ends[i] = Clock::now();
    });
  }
  for (std::thread& worker : workers) worker.join();
  const auto wall = *std::max_element(ends.begin(), ends.end()) - *std::min_element(begins.begin(), begins.end());
  return std::chrono::duration<double, std::nano>(wall).count() / (static_cast<double>(kPairs) * threads);
}

// Native and ours alternate within each iteration, so that the machine's noise meets both; the ratio is the median over pairs.
void PairAgainstNative(benchmark::State& state) {
  const auto native_blocks = Populate(*native, state.range(0));
  const auto our_blocks = Populate(*ours, state.range(0));
  const int threads = static_cast<int>(state.range(1));
  NsPerPair(*native, threads);
  NsPerPair(*ours, threads);
  std::vector<double> ratios;
  std::vector<double> native_ns;
  std::vector<double> our_ns;
  for (auto _ : state) {
    native_ns.push_back(NsPerPair(*native, threads));
    our_ns.push_back(NsPerPair(*ours, threads));
    ratios.push_back(our_ns.back() / native_ns.back());
  }
  const auto median = [](std::vector<double>& v) {
    std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
    return v[v.size() / 2];
  };
  state.counters["native_ns"] = median(native_ns);
  state.counters["ours_ns"] = median(our_ns);
  // With several threads the scheduler makes single pairs of runs meaningless.
  state.counters["ratio"] = threads == 1 ? median(ratios) : median(our_ns) / median(native_ns);
}
BENCHMARK(PairAgainstNative)
    ->ArgNames({"live", "threads"})
    ->ArgsProduct({{100, 1000, 5000, 10000, 100000, 1000000}, {1, 4, 16}})
    ->Iterations(40)
    ->Unit(benchmark::kMicrosecond);

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: alloc_pair_bench libvramledger_allocator.so [benchmark options]\n");
    return 2;
  }
  void* library = ::dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "cannot load '%s': %s\n", argv[1], ::dlerror());
    return 2;
  }
  const auto allocate = reinterpret_cast<void* (*)(size_t, int, cudaStream_t)>(::dlsym(library, "vramledger_malloc"));
  const auto release = reinterpret_cast<void (*)(void*, size_t, int, cudaStream_t)>(::dlsym(library, "vramledger_free"));
  if (allocate == nullptr || release == nullptr) return 2;
  native = c10::cuda::CUDACachingAllocator::get();
  ours = torch::cuda::CUDAPluggableAllocator::createCustomAllocator(allocate, release);
  // Ours becomes the current one, since its deleter asks the current one; the native one goes on serving whoever holds it.
  torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(ours);
  native->init(c10::cuda::device_count());
  argv[1] = argv[0];
  int count = argc - 1;
  benchmark::Initialize(&count, argv + 1);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
