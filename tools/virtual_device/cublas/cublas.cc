// cuBLAS: the handle and its modes. What would compute is generated as calls of vd_compute.
#include <cublas_v2.h>

#include "tools/virtual_device/core/state.h"

struct cublasContext {
  cudaStream_t stream = nullptr;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
  cublasPointerMode_t pointers = CUBLAS_POINTER_MODE_HOST;
  cublasAtomicsMode_t atomics = CUBLAS_ATOMICS_NOT_ALLOWED;
  int multiprocessors = 0;
};

extern "C" {

__attribute__((visibility("hidden"))) int vd_compute(void* handle) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  return vd::OnLaunch(static_cast<cublasContext*>(handle)->stream) == vd::kOk ? CUBLAS_STATUS_SUCCESS
                                                                              : CUBLAS_STATUS_EXECUTION_FAILED;
}
__attribute__((visibility("hidden"))) int vd_create(void**) { return CUBLAS_STATUS_NOT_SUPPORTED; }

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  if (vd::EnsureContext() != vd::kOk) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int* version) {
  *version = CUBLAS_VERSION;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetProperty(libraryPropertyType type, int* value) {
  *value = type == MAJOR_VERSION ? CUBLAS_VER_MAJOR : type == MINOR_VERSION ? CUBLAS_VER_MINOR : CUBLAS_VER_PATCH;
  return CUBLAS_STATUS_SUCCESS;
}
size_t cublasGetCudartVersion(void) { return 13000; }
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void*, size_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t* stream) {
  *stream = handle->stream;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
  handle->pointers = mode;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t* mode) {
  *mode = handle->pointers;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t mode) {
  handle->atomics = mode;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t* mode) {
  *mode = handle->atomics;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  handle->math = mode;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
  *mode = handle->math;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetSmCountTarget(cublasHandle_t handle, int count) {
  handle->multiprocessors = count;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetSmCountTarget(cublasHandle_t handle, int* count) {
  *count = handle->multiprocessors;
  return CUBLAS_STATUS_SUCCESS;
}
// The batched solvers report bad arguments through host memory: there are none. Pointers are passed alike whatever they
// point to, so one shape serves the four element types.
#define VD_BATCHED(letter, element)                                                                                     \
  cublasStatus_t cublas##letter##geqrfBatched(cublasHandle_t handle, int, int, element* const[], int, element* const[], \
                                              int* info, int) {                                                         \
    *info = 0;                                                                                                          \
    return static_cast<cublasStatus_t>(vd_compute(handle));                                                             \
  }                                                                                                                     \
  cublasStatus_t cublas##letter##getrsBatched(cublasHandle_t handle, cublasOperation_t, int, int, const element* const[], \
                                              int, const int*, element* const[], int, int* info, int) {                 \
    *info = 0;                                                                                                          \
    return static_cast<cublasStatus_t>(vd_compute(handle));                                                             \
  }                                                                                                                     \
  cublasStatus_t cublas##letter##gelsBatched(cublasHandle_t handle, cublasOperation_t, int, int, int, element* const[], \
                                             int, element* const[], int, int* info, int*, int) {                        \
    *info = 0;                                                                                                          \
    return static_cast<cublasStatus_t>(vd_compute(handle));                                                             \
  }
VD_BATCHED(S, float)
VD_BATCHED(D, double)
VD_BATCHED(C, cuComplex)
VD_BATCHED(Z, cuDoubleComplex)

const char* cublasGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS_STATUS_NOT_SUPPORTED";
}
const char* cublasGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "success" : "not supported by the virtual device";
}

}  // extern "C"
