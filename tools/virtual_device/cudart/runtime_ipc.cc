// Memory and events shared between processes.
#include "tools/virtual_device/core/ipc.h"
#include "tools/virtual_device/core/memory.h"
#include "tools/virtual_device/core/streams.h"
#include "tools/virtual_device/cudart/runtime.h"

using vd::Result;

static_assert(sizeof(cudaIpcMemHandle_t) == vd::kIpcHandleBytes && sizeof(cudaIpcEventHandle_t) == vd::kIpcHandleBytes);

extern "C" {

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  if (handle == nullptr) return Result(vd::kInvalidValue);
  return Result(vd::IpcExport(reinterpret_cast<uintptr_t>(pointer), handle));
}

cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle, unsigned int flags) {
  if (pointer == nullptr || flags != cudaIpcMemLazyEnablePeerAccess) return Result(vd::kInvalidValue);
  if (const int code = vd::EnsureContext(); code != vd::kOk) return Result(code);
  uintptr_t address = 0;
  const int code = vd::IpcOpen(&handle, &address);
  *pointer = reinterpret_cast<void*>(address);
  return Result(code);
}

cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  vd::DeviceSync(vd::g_thread.device);
  return Result(vd::IpcClose(reinterpret_cast<uintptr_t>(pointer)));
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  const auto* const own = reinterpret_cast<const vd::Event*>(event);
  constexpr unsigned kNeeded = cudaEventInterprocess | cudaEventDisableTiming;
  if (handle == nullptr || own == nullptr || (own->flags & kNeeded) != kNeeded) return Result(vd::kInvalidHandle);
  vd::IpcExportEvent(own, handle);
  return cudaSuccess;
}

// The other process's work is taken to be done: its clock cannot be read here.
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  if (event == nullptr) return Result(vd::kInvalidValue);
  if (const int code = vd::EnsureContext(); code != vd::kOk) return Result(code);
  if (const int code = vd::IpcCheckEvent(&handle); code != vd::kOk) return Result(code);
  vd::Event* made = nullptr;
  const int code = vd::EventCreate(cudaEventInterprocess | cudaEventDisableTiming, &made);
  *event = reinterpret_cast<cudaEvent_t>(made);
  return Result(code);
}

}  // extern "C"
