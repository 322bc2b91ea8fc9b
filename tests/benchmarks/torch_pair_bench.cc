// The cost of one allocation and its free: PyTorch's native allocator and ours (tagged and traced), in one process, on
// whatever device libcudart gives (tests/benchmarks/run.sh uses the virtual one). Built against the installed wheel.
// Mode plugin goes through CUDAPluggableAllocator. In mode observe ours is PyTorch's own allocator while it is watched:
// since nothing can be taken off again, all is measured before, then all again.
//
//   alloc_pair_bench LIBRARY.so torch|plugin|observe [google-benchmark's options]
#include <benchmark/benchmark.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <dlfcn.h>
#include <time.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

using Allocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;

Allocator* native = nullptr;
Allocator* ours = nullptr;

// Live blocks of mixed sizes with holes between them, as a training run has. The more there are, the smaller, so that
// all fit on the card.
std::vector<c10::DataPtr> Populate(Allocator& allocator, int64_t live) {
  std::mt19937 random(1);
  const auto units =
      static_cast<uint32_t>(std::min<int64_t>(1500, (int64_t{36} << 30) / 512 * 4 / 3 / std::max<int64_t>(1, live)));
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

// What a pair takes. Processor time is that of the whole process, so it counts the compression of the trace in the
// background, the kernel's share and the spinning of threads that wait; unlike wall time it hardly depends on what else
// the machine does.
struct Cost {
  double wall_ns;
  double processor_ns;
};

double ProcessorNs() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e9 * static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec);
}

// Wall time over the pairs of all threads together, from the first that begins to the last that ends.
Cost CostOfPair(Allocator& allocator, int threads) {
  using Clock = std::chrono::steady_clock;
  if (threads == 1) {
    const auto begin = Clock::now();
    const double processor = ProcessorNs();
    Pairs(allocator);
    const double used = ProcessorNs() - processor;
    return {std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / kPairs, used / kPairs};
  }
  std::atomic<double> processor_begin{0};
  std::atomic<double> processor_end{0};
  std::barrier ready(threads,
                     [&]() noexcept { (processor_begin == 0 ? processor_begin : processor_end) = ProcessorNs(); });
  std::vector<Clock::time_point> begins(static_cast<size_t>(threads)), ends(begins.size());
  std::vector<std::thread> workers;
  for (size_t i = 0; i < begins.size(); ++i) {
    workers.emplace_back([&, i] {
      Pairs(allocator);  // the thread's own structures, outside of the measurement
      ready.arrive_and_wait();
      begins[i] = Clock::now();
      Pairs(allocator);
      ends[i] = Clock::now();
      ready.arrive_and_wait();
    });
  }
  for (std::thread& worker : workers) worker.join();
  const auto wall = *std::max_element(ends.begin(), ends.end()) - *std::min_element(begins.begin(), begins.end());
  const double pairs = static_cast<double>(kPairs) * threads;
  return {std::chrono::duration<double, std::nano>(wall).count() / pairs, (processor_end - processor_begin) / pairs};
}

double Median(std::vector<double>& v) {
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

// Native and ours alternate within each iteration, so that the machine's noise meets both; the ratio is the median over
// pairs.
void PairAgainstNative(benchmark::State& state) {
  const auto native_blocks = Populate(*native, state.range(0));
  const auto our_blocks = Populate(*ours, state.range(0));
  const int threads = static_cast<int>(state.range(1));
  CostOfPair(*native, threads);
  CostOfPair(*ours, threads);
  std::vector<double> native_ns, our_ns, wall_ratios, native_processor_ns, our_processor_ns;
  for (auto _ : state) {
    const Cost n = CostOfPair(*native, threads);
    const Cost o = CostOfPair(*ours, threads);
    native_ns.push_back(n.wall_ns);
    our_ns.push_back(o.wall_ns);
    wall_ratios.push_back(o.wall_ns / n.wall_ns);
    native_processor_ns.push_back(n.processor_ns);
    our_processor_ns.push_back(o.processor_ns);
  }
  state.counters["native_ns"] = Median(native_ns);
  state.counters["ours_ns"] = Median(our_ns);
  // With several threads the scheduler makes single pairs of runs meaningless.
  state.counters["ratio"] = threads == 1 ? Median(wall_ratios) : Median(our_ns) / Median(native_ns);
  state.counters["native_processor_ns"] = Median(native_processor_ns);
  state.counters["ours_processor_ns"] = Median(our_processor_ns);
  state.counters["processor_ratio"] = Median(our_processor_ns) / Median(native_processor_ns);
}
// The native allocator alone.
void Pair(benchmark::State& state, const std::function<void()>& prepare) {
  prepare();
  const auto blocks = Populate(*native, state.range(0));
  const int threads = static_cast<int>(state.range(1));
  CostOfPair(*native, threads);
  std::vector<double> wall, processor;
  for (auto _ : state) {
    const Cost cost = CostOfPair(*native, threads);
    wall.push_back(cost.wall_ns);
    processor.push_back(cost.processor_ns);
  }
  state.counters["ns"] = Median(wall);
  state.counters["processor_ns"] = Median(processor);
}

void Configure(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"live", "threads"})
      ->ArgsProduct({{100, 1000, 5000, 10000, 100000, 1000000}, {1, 4, 16}})
      ->Iterations(40)
      ->Unit(benchmark::kMicrosecond);
}

size_t Call(void* library, const char* function) {
  char error[1000] = "not there";
  const auto install = reinterpret_cast<size_t (*)(char*, size_t)>(::dlsym(library, function));
  const size_t failed = install != nullptr ? install(error, sizeof(error)) : 1;
  if (failed != 0) std::fprintf(stderr, "%s: %s\n", function, error);
  return failed;
}

// Makes ours the current allocator: its deleter asks the current one; the native one goes on serving whoever holds it.
bool Install(void* library, std::string_view mode) {
  if (mode == "torch") {
    if (Call(library, "vramledger_torch_install") != 0) return false;
    ours = c10::cuda::CUDACachingAllocator::get();
    ours->init(c10::cuda::device_count());
    return true;
  }
  const auto allocate = reinterpret_cast<void* (*)(size_t, int, cudaStream_t)>(::dlsym(library, "vramledger_malloc"));
  const auto release =
      reinterpret_cast<void (*)(void*, size_t, int, cudaStream_t)>(::dlsym(library, "vramledger_free"));
  if (allocate == nullptr || release == nullptr) return false;
  static const auto kept = torch::cuda::CUDAPluggableAllocator::createCustomAllocator(allocate, release);
  torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(kept);
  ours = kept.get();
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc < 3 ? "" : argv[2];
  if (mode != "torch" && mode != "plugin" && mode != "observe") {
    std::fprintf(stderr, "usage: alloc_pair_bench LIBRARY.so torch|plugin|observe [benchmark options]\n");
    return 2;
  }
  void* library = ::dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "cannot load '%s': %s\n", argv[1], ::dlerror());
    return 2;
  }
  native = c10::cuda::CUDACachingAllocator::get();
  if (mode == "observe") {
    Configure(benchmark::RegisterBenchmark("Native", Pair, [] {}));
    Configure(benchmark::RegisterBenchmark("Observed", Pair, [library] {
      static const bool failed = Call(library, "vramledger_observe_install") != 0;
      if (failed) std::exit(2);
    }));
  } else {
    if (!Install(library, mode)) return 2;
    Configure(benchmark::RegisterBenchmark("PairAgainstNative", PairAgainstNative));
  }
  native->init(c10::cuda::device_count());
  argv[2] = argv[0];
  int count = argc - 2;
  benchmark::Initialize(&count, argv + 2);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
