// A library that takes device memory from CUDA itself, as NVIDIA's do: built as libnccl_like.so for the tests.
#include <cuda_runtime_api.h>

extern "C" __attribute__((visibility("default"))) void* take(size_t bytes) {
  void* memory = nullptr;
  return cudaMalloc(&memory, bytes) == cudaSuccess ? memory : nullptr;
}

extern "C" __attribute__((visibility("default"))) int give(void* memory) { return cudaFree(memory); }
