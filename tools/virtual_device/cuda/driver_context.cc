// Initialisation, devices, contexts, error texts.
#include <cstdio>
#include <cstring>

#include "tools/virtual_device/core/memory.h"
#include "tools/virtual_device/core/properties.h"
#include "tools/virtual_device/core/streams.h"
#include "tools/virtual_device/cuda/driver.h"

namespace {
char g_contexts[16];
bool Valid(int device) { return device >= 0 && device < vd::DeviceCount(); }
}  // namespace

namespace vd {
CUcontext PrimaryContext(int device) { return reinterpret_cast<CUcontext>(&g_contexts[device]); }
int DeviceOf(CUcontext context) {
  const auto* at = reinterpret_cast<const char*>(context);
  return at >= g_contexts && at < g_contexts + sizeof g_contexts ? static_cast<int>(at - g_contexts) : -1;
}
}  // namespace vd

using vd::Driver;

extern "C" {

CUresult cuInit(unsigned int) {
  if (vd::InForkedChild()) return Driver(vd::kNotInitialized);
  return vd::DeviceCount() > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}
CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  *count = vd::DeviceCount();
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (!Valid(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  if (!Valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<size_t>(length), "%s", vd::GetConfig().model.name.c_str());
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  if (!Valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  cudaDeviceProp properties;
  vd::FillProperties(device, &properties);
  std::memcpy(uuid->bytes, properties.uuid.bytes, sizeof uuid->bytes);
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t* bytes, CUdevice device) {
  if (!Valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = vd::GetConfig().memory_bytes;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (!Valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  return vd::DeviceAttribute(device, attribute, value) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
  if (!Valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", device + 1);
  return CUDA_SUCCESS;
}
CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  if (!Valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  *major = vd::GetConfig().model.major;
  *minor = vd::GetConfig().model.minor;
  return CUDA_SUCCESS;
}
CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  *can = Valid(device) && Valid(peer) && device != peer ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) {
  if (!Valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (flags != nullptr) *flags = 0;
  if (active != nullptr) *active = vd::ContextActive(device) ? 1 : 0;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (const int code = vd::EnsureContext(device); code != vd::kOk) return Driver(code);
  *context = vd::PrimaryContext(device);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxSetFlags(CUdevice, unsigned int) { return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  vd::ResetContext(device);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  const int device = vd::g_thread.device;
  *context = vd::g_thread.driver_current || vd::ContextActive(device) ? vd::PrimaryContext(device) : nullptr;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
  if (context == nullptr) {
    vd::g_thread.driver_current = false;
    return CUDA_SUCCESS;
  }
  const int device = vd::DeviceOf(context);
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  vd::g_thread.device = device;
  vd::g_thread.driver_current = true;
  return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext context) { return cuCtxSetCurrent(context); }
CUresult cuCtxPopCurrent(CUcontext* context) {
  if (context != nullptr) *context = vd::PrimaryContext(vd::g_thread.device);
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  *device = vd::g_thread.device;
  return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() {
  vd::DeviceSync(vd::g_thread.device);
  return CUDA_SUCCESS;
}
CUresult cuCtxGetFlags(unsigned int* flags) {
  *flags = 0;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetApiVersion(CUcontext, unsigned int* version) {
  *version = 3020;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetId(CUcontext context, unsigned long long* id) {
  *id = static_cast<unsigned long long>(vd::DeviceOf(context)) + 1;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetLimit(size_t* value, CUlimit) {
  *value = 1024;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetLimit(CUlimit, size_t) { return CUDA_SUCCESS; }
CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}
CUresult cuCtxEnablePeerAccess(CUcontext, unsigned int) { return CUDA_SUCCESS; }

// The driver's log, which stays empty: a callback is kept in no list, as nothing would ever call it.
CUresult cuLogsRegisterCallback(CUlogsCallback callback, void*, CUlogsCallbackHandle* handle) {
  if (callback == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (handle != nullptr) *handle = reinterpret_cast<CUlogsCallbackHandle>(1);
  return CUDA_SUCCESS;
}
CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle handle) { return handle != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }
CUresult cuLogsCurrent(CUlogIterator* iterator, unsigned int) {
  if (iterator == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *iterator = 0;
  return CUDA_SUCCESS;
}
CUresult cuLogsDumpToMemory(CUlogIterator*, char* buffer, size_t* size, unsigned int) {
  if (buffer == nullptr || size == nullptr || *size == 0) return CUDA_ERROR_INVALID_VALUE;
  *buffer = '\0';
  *size = 0;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** text) {
  switch (static_cast<int>(error)) {
    case 0: *text = "CUDA_SUCCESS"; break;
    case vd::kInvalidValue: *text = "CUDA_ERROR_INVALID_VALUE"; break;
    case vd::kOutOfMemory: *text = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case vd::kNotInitialized: *text = "CUDA_ERROR_NOT_INITIALIZED"; break;
    case vd::kNoDevice: *text = "CUDA_ERROR_NO_DEVICE"; break;
    case vd::kInvalidHandle: *text = "CUDA_ERROR_INVALID_HANDLE"; break;
    case vd::kNotFound: *text = "CUDA_ERROR_NOT_FOUND"; break;
    case vd::kNotReady: *text = "CUDA_ERROR_NOT_READY"; break;
    case vd::kNotSupported: *text = "CUDA_ERROR_NOT_SUPPORTED"; break;
    default: *text = "CUDA_ERROR_UNKNOWN"; break;
  }
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char** text) {
  switch (static_cast<int>(error)) {
    case 0: *text = "no error"; break;
    case vd::kInvalidValue: *text = "invalid argument"; break;
    case vd::kOutOfMemory: *text = "out of memory"; break;
    case vd::kNotSupported: *text = "operation not supported"; break;
    default: *text = "error reported by the virtual device"; break;
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
