#include "tests/allocator/fake_cuda.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <set>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr size_t kCapacity = size_t{64} << 20;

struct State {
  std::mutex mutex;
  size_t used[2] = {0, 0};
  std::map<uintptr_t, std::pair<int, size_t>> allocations;
  std::map<uintptr_t, std::pair<int, size_t>> mappings;
  std::map<CUmemGenericAllocationHandle, std::pair<int, size_t>> handles;
  std::set<uintptr_t> events;
  uintptr_t next = uintptr_t{1} << 40;
  bool capture = false;
  bool unloading = false;
  bool events_done = true;
  bool access_fails = false;
  bool has_vmm = true;
  int last_device = -1;
  int synchronizations = 0;
};

State& state() {
  static State* s = new State();
  return *s;
}

thread_local int current_device = 0;
thread_local cudaError_t pending = cudaSuccess;
thread_local cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;

cudaError_t Result(cudaError_t error) {
  if (state().unloading) error = cudaErrorCudartUnloading;
  if (error != cudaSuccess) pending = error;
  return error;
}

bool Forbidden() {
  return state().capture && mode != cudaStreamCaptureModeRelaxed;
}

}  // namespace

EXPORT void fake_cuda_reset() {
  State& s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  s.used[0] = s.used[1] = 0;
  s.allocations.clear();
  s.mappings.clear();
  s.handles.clear();
  s.events.clear();
  s.capture = s.unloading = s.access_fails = false;
  s.events_done = true;
  s.last_device = -1;
  s.synchronizations = 0;
  current_device = 0;
  pending = cudaSuccess;
}
EXPORT int fake_cuda_current_device() {
  return current_device;
}
EXPORT int fake_cuda_pending_error() {
  return pending;
}
EXPORT int fake_cuda_last_device() {
  return state().last_device;
}
EXPORT size_t fake_cuda_used(int device) {
  return state().used[device];
}
EXPORT size_t fake_cuda_handles() {
  return state().handles.size();
}
EXPORT void fake_cuda_set_capture(bool on) {
  state().capture = on;
}
EXPORT void fake_cuda_set_unloading(bool on) {
  state().unloading = on;
}
EXPORT void fake_cuda_set_events_done(bool on) {
  state().events_done = on;
}
EXPORT void fake_cuda_set_access_fails(bool on) {
  state().access_fails = on;
}
EXPORT int fake_cuda_synchronizations() {
  return state().synchronizations;
}

EXPORT cudaError_t cudaGetDeviceCount(int* count) {
  *count = 2;
  return Result(cudaSuccess);
}
EXPORT cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return Result(cudaSuccess);
}
EXPORT cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device > 1) return Result(cudaErrorInvalidDevice);
  const cudaError_t error = Result(cudaSuccess);
  if (error == cudaSuccess) current_device = device;
  return error;
}
EXPORT cudaError_t cudaMalloc(void** address, size_t bytes) {
  State& s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  if (s.unloading) return Result(cudaSuccess);
  if (Forbidden()) return Result(cudaErrorStreamCaptureUnsupported);
  if (s.used[current_device] + bytes > kCapacity) return Result(cudaErrorMemoryAllocation);
  s.used[current_device] += bytes;
  s.allocations[s.next] = {current_device, bytes};
  *address = reinterpret_cast<void*>(s.next);
  s.next += kCapacity;
  return Result(cudaSuccess);
}
EXPORT cudaError_t cudaFree(void* address) {
  State& s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  if (s.unloading) return Result(cudaSuccess);
  const auto it = s.allocations.find(reinterpret_cast<uintptr_t>(address));
  if (it == s.allocations.end()) return Result(cudaErrorInvalidValue);
  s.used[it->second.first] -= it->second.second;
  s.last_device = current_device;
  s.allocations.erase(it);
  return Result(cudaSuccess);
}
EXPORT cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = kCapacity - state().used[current_device];
  *total_bytes = kCapacity;
  return Result(cudaSuccess);
}
EXPORT cudaError_t cudaGetLastError() {
  const cudaError_t error = pending;
  pending = cudaSuccess;
  return error;
}
EXPORT const char* cudaGetErrorString(cudaError_t) {
  return "an error of the fake";
}
EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  State& s = state();
  if (flags != cudaEventDisableTiming) return Result(cudaErrorInvalidValue);
  s.next += 64;
  s.events.insert(s.next);
  *event = reinterpret_cast<cudaEvent_t>(s.next);
  return Result(cudaSuccess);
}
EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  State& s = state();
  s.last_device = current_device;
  return Result(s.events.count(reinterpret_cast<uintptr_t>(event)) != 0 ? cudaSuccess : cudaErrorInvalidResourceHandle);
}
EXPORT cudaError_t cudaEventQuery(cudaEvent_t) {
  if (Forbidden()) return Result(cudaErrorStreamCaptureUnsupported);
  return Result(state().events_done ? cudaSuccess : cudaErrorNotReady);
}
EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t) {
  return Result(cudaSuccess);
}
EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) {
  state().events.erase(reinterpret_cast<uintptr_t>(event));
  return Result(cudaSuccess);
}
EXPORT cudaError_t cudaDeviceSynchronize() {
  ++state().synchronizations;
  return Result(cudaSuccess);
}
#ifndef FAKE_CUDA_LACKS_CAPTURE
EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  if (!state().capture) return Result(cudaSuccess);
  if (stream == nullptr) return Result(cudaErrorStreamCaptureImplicit);
  if (stream == reinterpret_cast<cudaStream_t>(7)) *status = cudaStreamCaptureStatusActive;
  return Result(cudaSuccess);
}
EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* exchanged) {
  std::swap(*exchanged, mode);
  return Result(cudaSuccess);
}
#endif

EXPORT void fake_cuda_set_vmm(bool has) {
  state().has_vmm = has;
}
EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  if (attribute != CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) return CUDA_ERROR_INVALID_VALUE;
  *value = state().has_vmm ? 1 : 0;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*,
                                              CUmemAllocationGranularity_flags) {
  *bytes = size_t{2} << 20;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemAddressReserve(CUdeviceptr* start, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  State& s = state();
  *start = s.next;
  s.next += bytes;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemAddressFree(CUdeviceptr, size_t) {
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                            unsigned long long) {
  State& s = state();
  const int device = properties->location.id;
  if (s.used[device] + bytes > kCapacity) return CUDA_ERROR_OUT_OF_MEMORY;
  s.used[device] += bytes;
  *handle = ++s.next;
  s.handles[*handle] = {device, bytes};
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  state().handles.erase(handle);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t, CUmemGenericAllocationHandle handle,
                         unsigned long long) {
  State& s = state();
  s.mappings[at] = {s.handles.at(handle).first, bytes};
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemUnmap(CUdeviceptr at, size_t bytes) {
  State& s = state();
  const auto it = s.mappings.find(at);
  if (it == s.mappings.end() || it->second.second != bytes) return CUDA_ERROR_INVALID_VALUE;
  s.used[it->second.first] -= bytes;
  s.mappings.erase(it);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) {
  return state().access_fails ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}
