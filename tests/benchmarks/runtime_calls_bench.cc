// What the virtual device's stand-ins of the functions cost that PyTorch calls around every kernel: the step benchmarks
// contain that.
//
//   VRAMLEDGER_VIRTUAL_DEVICE=h100-80gb build/bin/runtime_calls_bench
#include <benchmark/benchmark.h>
#include <cuda_runtime_api.h>

extern "C" unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st* stream);
extern "C" cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream);

namespace {

template <typename Call>
void Repeat(benchmark::State& state, Call call) {
  for (auto _ : state) call();
}

int device = 0;
cudaStreamCaptureStatus status;
BENCHMARK_CAPTURE(Repeat, cudaGetDevice, [] { cudaGetDevice(&device); });
BENCHMARK_CAPTURE(Repeat, cudaGetLastError, [] { cudaGetLastError(); });
BENCHMARK_CAPTURE(Repeat, cudaPeekAtLastError, [] { cudaPeekAtLastError(); });
BENCHMARK_CAPTURE(Repeat, cudaSetDevice, [] { cudaSetDevice(0); });
BENCHMARK_CAPTURE(Repeat, cudaLaunchKernel,
                  [] { cudaLaunchKernel(nullptr, dim3(1), dim3(32), nullptr, 0, nullptr); });
BENCHMARK_CAPTURE(Repeat, push_and_pop_configuration, [] {
  dim3 grid, block;
  size_t shared = 0;
  void* stream = nullptr;
  __cudaPushCallConfiguration(dim3(1), dim3(32), 0, nullptr);
  __cudaPopCallConfiguration(&grid, &block, &shared, &stream);
});
BENCHMARK_CAPTURE(Repeat, cudaStreamIsCapturing, [] { cudaStreamIsCapturing(nullptr, &status); });
BENCHMARK_CAPTURE(Repeat, cudaStreamSynchronize, [] { cudaStreamSynchronize(nullptr); });
BENCHMARK_CAPTURE(Repeat, cudaStreamQuery, [] { cudaStreamQuery(nullptr); });

}  // namespace

BENCHMARK_MAIN();
