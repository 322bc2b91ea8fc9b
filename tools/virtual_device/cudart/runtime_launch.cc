// Kernel registration and launch, function attributes, occupancy, driver entry points.
//
// The functions whose names begin with two underscores are the interface that nvcc's host code calls; their
// shapes are the ones that this wheel's own objects use.
#include <dlfcn.h>

#include <mutex>
#include <unordered_map>

#include "tools/virtual_device/core/memory.h"
#include "tools/virtual_device/core/properties.h"
#include "tools/virtual_device/core/streams.h"
#include "tools/virtual_device/core/transfer.h"
#include "tools/virtual_device/cudart/runtime.h"

using vd::Result;

namespace {

// One for each <<<...>>> between push and pop; nvcc's code never nests deeper than a couple.
struct CallConfiguration {
  dim3 grid, block;
  size_t shared = 0;
  void* stream = nullptr;
};
constexpr int kDeepest = 8;
struct CallStack {
  CallConfiguration calls[kDeepest];
  int depth = 0;
};
__thread CallStack t_calls __attribute__((tls_model("initial-exec")));

struct Registry {
  std::mutex lock;
  std::unordered_map<const void*, const char*> functions;  // host function to mangled kernel name
  struct Variable {
    const char* name;
    size_t size;
    uintptr_t address[16];
  };
  std::unordered_map<const void*, Variable> variables;
};
Registry& TheRegistry() {
  static auto* registry = [] {
    auto* made = new Registry;
    made->functions.reserve(1 << 15);
    return made;
  }();
  return *registry;
}

// Variables in device memory get their place on first use; the memory is nominal (the real ones lie in modules).
int SymbolAddress(const void* symbol, uintptr_t* address, size_t* size) {
  if (const int code = vd::EnsureContext(); code != vd::kOk) return code;
  Registry& registry = TheRegistry();
  const std::lock_guard guard(registry.lock);
  auto it = registry.variables.find(symbol);
  if (it == registry.variables.end()) return 13;  // cudaErrorInvalidSymbol
  uintptr_t& mine = it->second.address[vd::g_thread.device];
  if (mine == 0) {
    if (const int code = vd::DeviceMalloc(vd::g_thread.device, it->second.size, &mine); code != vd::kOk) return code;
  }
  *address = mine;
  *size = it->second.size;
  return vd::kOk;
}

// Makes the checks on a launch that cost nothing and that programs meet: empty or oversized blocks.
inline int Launch(const dim3& grid, const dim3& block, void* stream) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || threads == 0 || threads > 1024) [[unlikely]] {
    return cudaErrorInvalidConfiguration;
  }
  return vd::OnLaunch(stream);
}

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void* binary) {
  return new void*(binary);  // a handle of our own; the binary itself is not read
}
void __cudaRegisterFatBinaryEnd(void**) {}
// Runs in static destructors; the registry outlives them, so there is nothing to undo but the handle.
void __cudaUnregisterFatBinary(void** handle) { delete handle; }
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
  Registry& registry = TheRegistry();
  const std::lock_guard guard(registry.lock);
  registry.functions[host] = name;
}
void __cudaRegisterVar(void**, char* host, char*, const char* name, int, size_t size, int, int) {
  Registry& registry = TheRegistry();
  const std::lock_guard guard(registry.lock);
  registry.variables[host] = {name, size, {}};
}
void __cudaRegisterManagedVar(void**, void**, char*, const char*, int, size_t, int, int) {}
char __cudaInitModule(void**) { return 1; }

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st* stream) {
  CallStack& stack = t_calls;
  if (stack.depth >= kDeepest) return 1;
  stack.calls[stack.depth++] = {grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  CallStack& stack = t_calls;
  if (stack.depth == 0) return Result(52);  // cudaErrorMissingConfiguration
  const CallConfiguration& call = stack.calls[--stack.depth];
  *grid = call.grid;
  *block = call.block;
  *shared = call.shared;
  *static_cast<void**>(stream) = call.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3 grid, dim3 block, void**, size_t, cudaStream_t stream) {
  return Result(Launch(grid, block, stream));
}

cudaError_t cudaLaunchKernel(const void*, dim3 grid, dim3 block, void**, size_t, cudaStream_t stream) {
  return Result(Launch(grid, block, stream));
}
cudaError_t cudaLaunchCooperativeKernel(const void*, dim3 grid, dim3 block, void**, size_t, cudaStream_t stream) {
  return Result(Launch(grid, block, stream));
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void*, void**) {
  return Result(Launch(config->gridDim, config->blockDim, config->stream));
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes* attributes, const void*) {
  vd::FillFunctionAttributes(attributes);
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, enum cudaFuncAttribute attribute, int value) {
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    int most = 0;
    vd::DeviceAttribute(vd::g_thread.device, cudaDevAttrMaxSharedMemoryPerBlockOptin, &most);
    if (value > most) return Result(vd::kInvalidValue);
  }
  return cudaSuccess;
}
cudaError_t cudaFuncSetCacheConfig(const void*, enum cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaFuncGetName(const char** name, const void* function) {
  Registry& registry = TheRegistry();
  const std::lock_guard guard(registry.lock);
  auto it = registry.functions.find(function);
  if (it == registry.functions.end()) return Result(98);  // cudaErrorInvalidDeviceFunction
  *name = it->second;
  return cudaSuccess;
}
cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* symbol) {
  *function = reinterpret_cast<cudaFunction_t>(const_cast<void*>(symbol));
  return cudaSuccess;
}
cudaError_t cudaGetKernel(cudaKernel_t* kernel, const void* function) { return __cudaGetKernel(kernel, function); }

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int block_size, size_t shared) {
  *blocks = vd::OccupancyBlocks(block_size, shared);
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int block_size,
                                                                   size_t shared, unsigned int) {
  *blocks = vd::OccupancyBlocks(block_size, shared);
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t*) {
  int sms = 1;
  vd::DeviceAttribute(vd::g_thread.device, cudaDevAttrMultiProcessorCount, &sms);
  *clusters = sms / 2;
  return cudaSuccess;
}

cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) {
  uintptr_t address = 0;
  size_t size = 0;
  const int code = SymbolAddress(symbol, &address, &size);
  *pointer = reinterpret_cast<void*>(address);
  return Result(code);
}
cudaError_t cudaGetSymbolSize(size_t* size, const void* symbol) {
  uintptr_t address = 0;
  return Result(SymbolAddress(symbol, &address, size));
}
cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t count, size_t offset, enum cudaMemcpyKind) {
  uintptr_t address = 0;
  size_t size = 0;
  if (const int code = SymbolAddress(symbol, &address, &size); code != vd::kOk) return Result(code);
  if (offset + count > size) return Result(vd::kInvalidValue);
  return Result(vd::CopyBytes(reinterpret_cast<void*>(address + offset), from, count));
}
cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, size_t count, size_t offset, enum cudaMemcpyKind) {
  uintptr_t address = 0;
  size_t size = 0;
  if (const int code = SymbolAddress(symbol, &address, &size); code != vd::kOk) return Result(code);
  if (offset + count > size) return Result(vd::kInvalidValue);
  return Result(vd::CopyBytes(to, reinterpret_cast<void*>(address + offset), count));
}

// Answered by the driver stand-in, which is the one loaded under that soname.
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult* status) {
  using Query = int (*)(const char*, void**, int, uint64_t, int*);
  static const auto query = [] {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return driver != nullptr ? reinterpret_cast<Query>(dlsym(driver, "cuGetProcAddress_v2")) : nullptr;
  }();
  *function = nullptr;
  int found = 1;  // symbol not found
  if (query != nullptr) query(symbol, function, static_cast<int>(version), flags, &found);
  if (status != nullptr) *status = static_cast<enum cudaDriverEntryPointQueryResult>(found);
  return *function != nullptr ? cudaSuccess : Result(vd::kNotFound);
}
cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPointByVersion(symbol, function, CUDART_VERSION, flags, status);
}

}  // extern "C"
