// The real cuDNN, which answers everything that needs no device: descriptors, heuristics, workspace sizes.
#pragma once

#include <cudnn.h>

#include "tools/virtual_device/core/state.h"

// Our handle. The real library never sees one.
struct cudnnContext {
  cudaStream_t stream = nullptr;
  int device = 0;
};

// Address of NAME in the real library, or null (said once on standard error). Loads the library on first use: its path
// is VRAMLEDGER_VIRTUAL_DEVICE_CUDNN, or beside the PyTorch that this process has loaded. Thread-safe.
extern "C" void* vd_real(const char* name);

namespace vd {

template <typename Function>
Function* RealCudnn(Function*, const char* name) {
  return reinterpret_cast<Function*>(vd_real(name));
}
#define VD_REAL(name) ::vd::RealCudnn(&name, #name)

inline cudnnStatus_t CudnnLaunch(cudnnHandle_t handle) {
  if (handle == nullptr) return CUDNN_STATUS_BAD_PARAM;
  return OnLaunch(handle->stream) == kOk ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

}  // namespace vd
