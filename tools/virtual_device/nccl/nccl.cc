// NCCL: communicators that know their rank and size. Collectives exchange nothing; like kernels, they may have
// changed device memory. Group calls and queries start no work.
#include <nccl.h>

#include <cstdio>
#include <cstring>
#include <unistd.h>

#include "tools/virtual_device/core/memory.h"
#include "tools/virtual_device/core/state.h"

struct ncclComm {
  int rank = 0, size = 1, device = 0;
};

namespace {
ncclResult_t Work(cudaStream_t stream) { return vd::OnLaunch(stream) == vd::kOk ? ncclSuccess : ncclUnhandledCudaError; }
ncclResult_t Make(ncclComm_t* comm, int size, int rank) {
  if (vd::EnsureContext() != vd::kOk) return ncclUnhandledCudaError;
  *comm = new ncclComm{rank, size, vd::g_thread.device};
  return ncclSuccess;
}
}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "vramledger %d", static_cast<int>(getpid()));
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess ? "no error" : "error reported by the virtual device";
}
const char* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId, int rank) { return Make(comm, size, rank); }
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId, int rank, ncclConfig_t*) {
  return Make(comm, size, rank);
}
ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int size, int rank, int, ncclUniqueId*, ncclConfig_t*) {
  return Make(comm, size, rank);
}
ncclResult_t ncclCommInitAll(ncclComm_t* comms, int count, const int* devices) {
  for (int i = 0; i < count; ++i) {
    if (const ncclResult_t result = Make(&comms[i], count, i); result != ncclSuccess) return result;
    comms[i]->device = devices != nullptr ? devices[i] : i;
  }
  return ncclSuccess;
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int, ncclComm_t* made, ncclConfig_t*) {
  *made = nullptr;
  return color < 0 ? ncclSuccess : Make(made, comm->size, comm->rank);
}
ncclResult_t ncclCommShrink(ncclComm_t comm, int*, int excluded, ncclComm_t* made, ncclConfig_t*, int) {
  return Make(made, comm->size - excluded, comm->rank);
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) { return ncclCommDestroy(comm); }
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->size;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  *device = comm->device;
  return ncclSuccess;
}
ncclResult_t ncclCommRegister(const ncclComm_t, void*, size_t, void** handle) {
  *handle = reinterpret_cast<void*>(1);
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }
ncclResult_t ncclGroupStart() { return ncclSuccess; }
ncclResult_t ncclGroupEnd() { return ncclSuccess; }
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void*, ncclDataType_t, ncclScalarResidence_t, ncclComm_t) {
  *op = ncclSum;
  return ncclSuccess;
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclMemAlloc(void** pointer, size_t size) {
  uintptr_t address = 0;
  if (vd::EnsureContext() != vd::kOk) return ncclUnhandledCudaError;
  const int code = vd::DeviceMalloc(vd::g_thread.device, size, &address);
  *pointer = reinterpret_cast<void*>(address);
  return code == vd::kOk ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclMemFree(void* pointer) {
  return vd::DeviceFree(reinterpret_cast<uintptr_t>(pointer)) == vd::kOk ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclAllReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t stream) {
  return Work(stream);
}
ncclResult_t ncclBroadcast(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t stream) { return Work(stream); }
ncclResult_t ncclBcast(void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t stream) { return Work(stream); }
ncclResult_t ncclReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t stream) {
  return Work(stream);
}
ncclResult_t ncclAllGather(const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t stream) { return Work(stream); }
ncclResult_t ncclReduceScatter(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t stream) {
  return Work(stream);
}
ncclResult_t ncclAlltoAll(const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t stream) { return Work(stream); }
ncclResult_t ncclSend(const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t stream) { return Work(stream); }
ncclResult_t ncclRecv(void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t stream) { return Work(stream); }

}  // extern "C"
