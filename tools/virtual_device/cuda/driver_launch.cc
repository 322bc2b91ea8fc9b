// Modules, functions, launches, streams and events.
#include <cstring>
#include <string>

#include "tools/virtual_device/core/memory.h"
#include "tools/virtual_device/core/properties.h"
#include "tools/virtual_device/core/streams.h"
#include "tools/virtual_device/cuda/driver.h"

using vd::Driver;

namespace {

// Modules, libraries, kernels and functions are only passed back: their name is all that is kept.
struct Named {
  std::string name;
};
template <typename Handle>
CUresult Make(Handle* handle, const char* name) {
  *handle = reinterpret_cast<Handle>(new Named{name != nullptr ? name : ""});
  return CUDA_SUCCESS;
}

CUresult Launch(unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, void* stream) {
  const uint64_t threads = uint64_t{bx} * by * bz;
  if (gx == 0 || gy == 0 || gz == 0 || threads == 0 || threads > 1024) return CUDA_ERROR_INVALID_VALUE;
  return Driver(vd::OnLaunch(stream));
}

vd::Event* Of(CUevent event) { return reinterpret_cast<vd::Event*>(event); }

}  // namespace

extern "C" {

CUresult cuModuleLoad(CUmodule* module, const char* file) { return Make(module, file); }
CUresult cuModuleLoadData(CUmodule* module, const void*) { return Make(module, nullptr); }
CUresult cuModuleLoadDataEx(CUmodule* module, const void*, unsigned int, CUjit_option*, void**) { return Make(module, nullptr); }
CUresult cuModuleLoadFatBinary(CUmodule* module, const void*) { return Make(module, nullptr); }
CUresult cuModuleUnload(CUmodule module) {
  delete reinterpret_cast<Named*>(module);
  return CUDA_SUCCESS;
}
CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  *mode = CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}
// Functions are kept: programs hold them for as long as they run.
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) { return Make(function, name); }
CUresult cuLibraryLoadData(CUlibrary* library, const void*, CUjit_option*, void**, unsigned int, CUlibraryOption*, void**,
                           unsigned int) {
  return Make(library, nullptr);
}
CUresult cuLibraryUnload(CUlibrary library) {
  delete reinterpret_cast<Named*>(library);
  return CUDA_SUCCESS;
}
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary, const char* name) { return Make(kernel, name); }
CUresult cuLibraryGetModule(CUmodule* module, CUlibrary) { return Make(module, nullptr); }
CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}
CUresult cuKernelSetAttribute(CUfunction_attribute, int, CUkernel, CUdevice) { return CUDA_SUCCESS; }
CUresult cuFuncGetName(const char** name, CUfunction function) {
  *name = reinterpret_cast<Named*>(function)->name.c_str();
  return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
  cudaFuncAttributes facts;
  vd::FillFunctionAttributes(&facts);
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = facts.maxThreadsPerBlock; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = facts.numRegs; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = facts.binaryVersion; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = facts.maxDynamicSharedSizeBytes; break;
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel, CUdevice) {
  return cuFuncGetAttribute(value, attribute, reinterpret_cast<CUfunction>(kernel));
}

CUresult cuLaunchKernel(CUfunction, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
                        unsigned int bz, unsigned int, CUstream stream, void**, void**) {
  return Launch(gx, gy, gz, bx, by, bz, stream);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction, void**, void**) {
  return Launch(c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ, c->hStream);
}
CUresult cuLaunchCooperativeKernel(CUfunction, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                                   unsigned int by, unsigned int bz, unsigned int, CUstream stream, void**) {
  return Launch(gx, gy, gz, bx, by, bz, stream);
}
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  function(data);
  vd::Enqueue(stream);
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int block_size, size_t shared) {
  *blocks = vd::OccupancyBlocks(block_size, shared);
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction, int block_size, size_t shared,
                                                              unsigned int) {
  *blocks = vd::OccupancyBlocks(block_size, shared);
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction, CUoccupancyB2DSize, size_t shared, int limit) {
  return Driver(vd::OccupancyBlockSize(shared, limit, grid, block));
}
CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const CUlaunchConfig*) {
  *clusters = vd::GetConfig().model.multiprocessors / 2;
  return CUDA_SUCCESS;
}

// A tensor map is read by kernels only.
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  std::memset(map, 0, sizeof *map);
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
  void* made = nullptr;
  const int code = vd::StreamCreate(flags, 0, &made);
  *stream = static_cast<CUstream>(made);
  return Driver(code);
}
CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  void* made = nullptr;
  const int code = vd::StreamCreate(flags, priority, &made);
  *stream = static_cast<CUstream>(made);
  return Driver(code);
}
CUresult cuStreamDestroy(CUstream stream) { return Driver(vd::StreamDestroy(stream)); }
CUresult cuStreamQuery(CUstream stream) { return Driver(vd::StreamDone(stream)); }
CUresult cuStreamSynchronize(CUstream stream) { return Driver(vd::StreamSync(stream)); }
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int) { return Driver(vd::StreamWait(stream, Of(event))); }
CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  *context = vd::PrimaryContext(vd::StreamOf(stream)->device);
  return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  *status = vd::CaptureStatus(stream, nullptr, nullptr) != 0 ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr, cuuint32_t, unsigned int) {
  vd::Enqueue(stream);
  return CUDA_SUCCESS;
}
CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr, cuuint32_t, unsigned int) {
  vd::Enqueue(stream);
  return CUDA_SUCCESS;
}
CUresult cuEventCreate(CUevent* event, unsigned int flags) {
  vd::Event* made = nullptr;
  const int code = vd::EventCreate(flags, &made);
  *event = reinterpret_cast<CUevent>(made);
  return Driver(code);
}
CUresult cuEventDestroy(CUevent event) { return Driver(vd::EventDestroy(Of(event))); }
CUresult cuEventRecord(CUevent event, CUstream stream) { return Driver(vd::EventRecord(Of(event), stream)); }
CUresult cuEventQuery(CUevent event) { return Driver(vd::EventDone(Of(event))); }
CUresult cuEventSynchronize(CUevent event) { return Driver(vd::EventSync(Of(event))); }
CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return Driver(vd::EventElapsed(Of(start), Of(end), milliseconds));
}

}  // extern "C"
