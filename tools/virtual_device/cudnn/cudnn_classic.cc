// cuDNN's handle, and the sizes that its older functions ask for with a handle. Those sizes cannot be had without a
// device: each is nominal and listed in README.md.
#include <cstring>

#include "tools/virtual_device/cudnn/cudnn_real.h"

extern "C" {

__attribute__((visibility("hidden"))) int vd_compute(void* handle) {
  return vd::CudnnLaunch(static_cast<cudnnHandle_t>(handle));
}
__attribute__((visibility("hidden"))) int vd_create(void**) { return CUDNN_STATUS_NOT_SUPPORTED; }

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  if (vd::EnsureContext() != vd::kOk) return CUDNN_STATUS_NOT_INITIALIZED;
  *handle = new cudnnContext{nullptr, vd::g_thread.device};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  if (handle == nullptr) return CUDNN_STATUS_BAD_PARAM;
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  if (handle == nullptr) return CUDNN_STATUS_BAD_PARAM;
  *stream = handle->stream;
  return CUDNN_STATUS_SUCCESS;
}

// Batch norm. Nominal: no workspace, no reserve space.
cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnActivationDescriptor_t, size_t* size) {
  VD_NOMINAL("cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize");
  *size = 0;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnActivationDescriptor_t, size_t* size) {
  VD_NOMINAL("cudnnGetBatchNormalizationBackwardExWorkspaceSize");
  *size = 0;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t,
                                                                   const cudnnActivationDescriptor_t,
                                                                   const cudnnTensorDescriptor_t, size_t* size) {
  VD_NOMINAL("cudnnGetBatchNormalizationTrainingExReserveSpaceSize");
  *size = 0;
  return CUDNN_STATUS_SUCCESS;
}

// State of the random generator. Nominal: 64 warps of 32 lanes with 16 bytes each, on every multiprocessor.
cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t, size_t* size) {
  VD_NOMINAL("cudnnDropoutGetStatesSize");
  *size = static_cast<size_t>(vd::GetConfig().model.multiprocessors) * 64 * 32 * 16;
  return CUDNN_STATUS_SUCCESS;
}
// The descriptor is only handed to RNN functions, which read nothing from it here.
cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t, cudnnHandle_t handle, float, void* states, size_t,
                                        unsigned long long) {
  return states != nullptr ? vd::CudnnLaunch(handle) : CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnRestoreDropoutDescriptor(cudnnDropoutDescriptor_t, cudnnHandle_t, float, void*, size_t, unsigned long long) {
  return CUDNN_STATUS_SUCCESS;
}

// CTC loss: nominal workspace.
cudnnStatus_t cudnnGetCTCLossWorkspaceSize_v8(cudnnHandle_t, cudnnCTCLossAlgo_t, cudnnCTCLossDescriptor_t,
                                              const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, size_t* size) {
  VD_NOMINAL("cudnnGetCTCLossWorkspaceSize_v8");
  *size = 4096;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnCTCLoss_v8(cudnnHandle_t handle, cudnnCTCLossAlgo_t, cudnnCTCLossDescriptor_t,
                              const cudnnTensorDescriptor_t, const void*, const int[], const int[], const int[], void*,
                              const cudnnTensorDescriptor_t, void*, size_t, void*) {
  return vd::CudnnLaunch(handle);
}

}  // extern "C"
