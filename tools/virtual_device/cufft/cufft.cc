// cuFFT: plans that are numbers. Workspace sizes are nominal (0): the real ones need the device.
#include <cufftXt.h>

#include <atomic>

#include "tools/virtual_device/core/state.h"

namespace {
std::atomic<int> g_plans{1};
cufftResult Zero(size_t* size) {
  VD_NOMINAL("cufftMakePlanMany");
  if (size != nullptr) *size = 0;
  return CUFFT_SUCCESS;
}
}  // namespace

extern "C" {

cufftResult cufftCreate(cufftHandle* plan) {
  *plan = g_plans++;
  return CUFFT_SUCCESS;
}
cufftResult cufftDestroy(cufftHandle) { return CUFFT_SUCCESS; }
cufftResult cufftSetStream(cufftHandle, cudaStream_t) { return CUFFT_SUCCESS; }
cufftResult cufftSetAutoAllocation(cufftHandle, int) { return CUFFT_SUCCESS; }
cufftResult cufftSetWorkArea(cufftHandle, void*) { return CUFFT_SUCCESS; }
cufftResult cufftGetVersion(int* version) {
  *version = CUFFT_VERSION;
  return CUFFT_SUCCESS;
}
cufftResult cufftXtMakePlanMany(cufftHandle, int, long long int*, long long int*, long long int, long long int,
                                cudaDataType, long long int*, long long int, long long int, cudaDataType, long long int,
                                size_t* size, cudaDataType) {
  return Zero(size);
}
cufftResult cufftMakePlanMany64(cufftHandle, int, long long int*, long long int*, long long int, long long int,
                                long long int*, long long int, long long int, cufftType, long long int, size_t* size) {
  return Zero(size);
}
cufftResult cufftXtExec(cufftHandle, void*, void*, int) {
  return vd::OnLaunch(nullptr) == vd::kOk ? CUFFT_SUCCESS : CUFFT_EXEC_FAILED;
}

}  // extern "C"
