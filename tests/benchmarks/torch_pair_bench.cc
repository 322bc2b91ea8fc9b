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
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace {

using Allocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;

Allocator* native = nullptr;
std::shared_ptr<Allocator> ours;

// Live blocks of mixed sizes with holes between them, as a training run has.
std::vector<c10::DataPtr> Populate(Allocator& allocator, int64_t live) {
  std::mt19937 random(1);
  std::vector<c10::DataPtr> blocks;
  std::vector<c10::DataPtr> holes;
  for (int64_t i = 0; i < live; ++i) {
    const size_t bytes = 512 * (1 + random() % 1500);
    blocks.push_back(allocator.allocate(bytes));
    if (i % 2 == 0) holes.push_back(allocator.allocate(512 * (1 + random() % 1500)));
  }
  return blocks;
}

constexpr int kPairs = 2000;
constexpr size_t kSizes[] = {512, 2048, 4096, 65536, 262144, 524288, 1048576, 4194304};

double NsPerPair(Allocator& allocator) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kPairs; ++i) benchmark::DoNotOptimize(allocator.allocate(kSizes[i % std::size(kSizes)]));
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() / kPairs;
}

// Native and ours alternate within each iteration, so that the machine's noise meets both; the ratio is the median over pairs.
void PairAgainstNative(benchmark::State& state) {
  const auto native_blocks = Populate(*native, state.range(0));
  const auto our_blocks = Populate(*ours, state.range(0));
  NsPerPair(*native);
  NsPerPair(*ours);
  std::vector<double> ratios;
  std::vector<double> native_ns;
  std::vector<double> our_ns;
  for (auto _ : state) {
    native_ns.push_back(NsPerPair(*native));
    our_ns.push_back(NsPerPair(*ours));
    ratios.push_back(our_ns.back() / native_ns.back());
  }
  const auto median = [](std::vector<double>& v) {
    std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
    return v[v.size() / 2];
  };
  state.counters["native_ns"] = median(native_ns);
  state.counters["ours_ns"] = median(our_ns);
  state.counters["ratio"] = median(ratios);
}
BENCHMARK(PairAgainstNative)->ArgName("live")->Arg(0)->Arg(100)->Arg(1000)->Arg(5000)->Arg(20000)->Iterations(60)->Unit(benchmark::kMicrosecond);

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
