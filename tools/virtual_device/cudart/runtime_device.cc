// Devices, contexts, errors and versions.
#include <cstdio>
#include <cstring>

#include "tools/virtual_device/core/memory.h"
#include "tools/virtual_device/core/properties.h"
#include "tools/virtual_device/core/streams.h"
#include "tools/virtual_device/cudart/runtime.h"

using vd::Result;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  if (count == nullptr) return Result(vd::kInvalidValue);
  if (vd::InForkedChild()) return Result(vd::kNotInitialized);
  *count = vd::DeviceCount();
  return *count > 0 ? cudaSuccess : Result(vd::kNoDevice);
}

cudaError_t cudaGetDevice(int* device) {
  *device = vd::g_thread.device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (const int code = vd::EnsureContext(device); code != vd::kOk) [[unlikely]] return Result(code);
  vd::g_thread.device = device;
  vd::g_thread.driver_current = true;
  return cudaSuccess;
}

cudaError_t cudaInitDevice(int device, unsigned int, unsigned int) { return Result(vd::EnsureContext(device)); }
cudaError_t cudaSetDeviceFlags(unsigned int) { return cudaSuccess; }
cudaError_t cudaGetDeviceFlags(unsigned int* flags) {
  *flags = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceSetLimit(enum cudaLimit, size_t) { return cudaSuccess; }
cudaError_t cudaDeviceGetLimit(size_t* value, enum cudaLimit limit) {
  *value = limit == cudaLimitStackSize ? 1024 : limit == cudaLimitMallocHeapSize ? 8u << 20 : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceSetCacheConfig(enum cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaDeviceGetCacheConfig(enum cudaFuncCache* config) {
  *config = cudaFuncCachePreferNone;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  if (const int code = vd::EnsureContext(); code != vd::kOk) return Result(code);
  if (const int code = vd::CaptureAllows(); code != vd::kOk) return Result(code);
  vd::DeviceSync(vd::g_thread.device);
  return cudaSuccess;
}

cudaError_t cudaDeviceReset() {
  vd::ResetContext(vd::g_thread.device);
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (properties == nullptr) return Result(vd::kInvalidValue);
  if (device < 0 || device >= vd::DeviceCount()) return Result(vd::kInvalidDevice);
  vd::FillProperties(device, properties);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, enum cudaDeviceAttr attribute, int device) {
  if (value == nullptr) return Result(vd::kInvalidValue);
  if (device < 0 || device >= vd::DeviceCount()) return Result(vd::kInvalidDevice);
  return vd::DeviceAttribute(device, attribute, value) ? cudaSuccess : Result(vd::kInvalidValue);
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (text == nullptr || length < 13) return Result(vd::kInvalidValue);
  if (device < 0 || device >= vd::DeviceCount()) return Result(vd::kInvalidDevice);
  std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* text) {
  int bus = 0;
  if (std::sscanf(text, "%*x:%x:", &bus) != 1 || bus < 1 || bus > vd::DeviceCount()) return Result(vd::kInvalidValue);
  *device = bus - 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  const int count = vd::DeviceCount();
  if (device < 0 || device >= count || peer < 0 || peer >= count) return Result(vd::kInvalidDevice);
  *can = device != peer ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int) {
  static std::atomic<uint32_t> enabled[16];
  if (peer < 0 || peer >= vd::DeviceCount() || peer == vd::g_thread.device) return Result(vd::kInvalidDevice);
  const uint32_t bit = 1u << peer;
  const bool before = (enabled[vd::g_thread.device].fetch_or(bit) & bit) != 0;
  return before ? Result(vd::kPeerAlreadyEnabled) : cudaSuccess;
}
cudaError_t cudaDeviceDisablePeerAccess(int) { return cudaSuccess; }
cudaError_t cudaDeviceGetP2PAttribute(int* value, enum cudaDeviceP2PAttr, int, int) {
  *value = 1;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  const int error = vd::g_thread.last_error;
  vd::g_thread.last_error = 0;
  return static_cast<cudaError_t>(error);
}
cudaError_t cudaPeekAtLastError() { return static_cast<cudaError_t>(vd::g_thread.last_error); }

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInitializationError: return "cudaErrorInitializationError";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorSymbolNotFound: return "cudaErrorSymbolNotFound";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorPeerAccessAlreadyEnabled: return "cudaErrorPeerAccessAlreadyEnabled";
    case cudaErrorHostMemoryAlreadyRegistered: return "cudaErrorHostMemoryAlreadyRegistered";
    case cudaErrorHostMemoryNotRegistered: return "cudaErrorHostMemoryNotRegistered";
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorIllegalState: return "cudaErrorIllegalState";
    default: return "cudaErrorUnknown";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInitializationError: return "initialization error";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorSymbolNotFound: return "named symbol not found";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorNotSupported: return "operation not supported";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    default: return "error reported by the virtual device";
  }
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

}  // extern "C"
