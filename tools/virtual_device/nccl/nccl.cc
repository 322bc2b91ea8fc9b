// NCCL: communicators that know their rank and size. Nothing is exchanged between processes: what a rank would receive
// is taken to equal what it sends itself (the usual case of the checks that frameworks make, such as DDP's comparison of
// parameter shapes); a sum is not known. Only the receiving buffer changes. Group calls and queries start no work.
// A group of broadcasts, one from each rank, gathers: what a rank sends in it is what it is taken to receive from the others.
#include <nccl.h>

#include <cstdio>
#include <cstring>
#include <unistd.h>

#include <utility>
#include <vector>

#include "tools/virtual_device/core/content.h"
#include "tools/virtual_device/core/memory.h"
#include "tools/virtual_device/core/state.h"
#include "tools/virtual_device/core/streams.h"

struct ncclComm {
  int rank = 0, size = 1, device = 0;
};

namespace {
size_t Bytes(size_t count, ncclDataType_t type) {
  switch (type) {
    case ncclFloat16: case ncclBfloat16: return 2 * count;
    case ncclInt32: case ncclUint32: case ncclFloat32: return 4 * count;
    case ncclInt64: case ncclUint64: case ncclFloat64: return 8 * count;
    default: return count;  // the one-byte types
  }
}

// COPIES times SIZE bytes arrive at TO: those at FROM each time, or (null) what is not known.
ncclResult_t Receive(const void* from, void* to, size_t size, int copies, cudaStream_t stream) {
  if (vd::EnsureContext() != vd::kOk) return ncclUnhandledCudaError;
  const auto target = reinterpret_cast<uintptr_t>(to);
  const auto source = reinterpret_cast<uintptr_t>(from);
  const size_t all = size * static_cast<size_t>(copies);
  if (all != 0 && !vd::DeviceRangeValid(target, all)) return ncclInvalidArgument;
  if (from != nullptr && size != 0 && !vd::DeviceRangeValid(source, size)) return ncclInvalidArgument;
  if (from == nullptr) {
    vd::ForgetContent(target, all);
  } else {
    for (int i = 0; i < copies; ++i) vd::CopyContent(target + size * static_cast<size_t>(i), source, size);
  }
  vd::Enqueue(stream);
  return ncclSuccess;
}

// The broadcasts of the group that this thread has open: PyTorch 2.15 gathers a list of tensors with one from each rank.
struct Broadcast {
  ncclComm_t comm;
  uintptr_t from, to;
  size_t size;
};
struct Group {
  int depth = 0;
  std::vector<Broadcast> sent, received;  // what this rank sends out of place, what it receives in place
};
thread_local Group t_group;

// What arrives in place is left as it was, unless this rank sends something too: then it is like what this rank sends.
void FinishGroup() {
  const Group group = std::exchange(t_group, Group{});
  for (const Broadcast& in : group.received) {
    bool sends = false;
    uintptr_t like = 0;
    for (const Broadcast& out : group.sent) {
      if (out.comm != in.comm) continue;
      sends = true;
      if (out.size == in.size) like = out.from;
    }
    if (like != 0) {
      vd::CopyContent(in.to, like, in.size);
    } else if (sends) {
      vd::ForgetContent(in.to, in.size);  // another size: not like anything
    }
  }
}

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
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 0)
ncclResult_t ncclCommGetUniqueId(ncclComm_t, ncclUniqueId* id) { return ncclGetUniqueId(id); }
// Ranks that are there already keep their number and give no other; new ones have no communicator yet.
ncclResult_t ncclCommGrow(ncclComm_t comm, int size, const ncclUniqueId*, int rank, ncclComm_t* made, ncclConfig_t*) {
  return Make(made, size, comm != nullptr ? comm->rank : rank);
}
// A communicator here holds no device memory and has nothing in flight.
ncclResult_t ncclCommMemStats(ncclComm_t, ncclCommMemStat_t, uint64_t* value) {
  *value = 0;
  return ncclSuccess;
}
ncclResult_t ncclCommSuspend(ncclComm_t, int) { return ncclSuccess; }
ncclResult_t ncclCommResume(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommRevoke(ncclComm_t, int) { return ncclSuccess; }
ncclResult_t ncclWinGetUserPtr(ncclComm_t, ncclWindow_t window, void** pointer) {
  *pointer = window;
  return ncclSuccess;
}
#endif
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
// A window is its address: nobody else looks through it.
ncclResult_t ncclCommWindowRegister(ncclComm_t, void* buffer, size_t, ncclWindow_t* window, int) {
  *window = reinterpret_cast<ncclWindow_t>(buffer);
  return ncclSuccess;
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t) { return ncclSuccess; }
ncclResult_t ncclGroupStart() {
  ++t_group.depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (t_group.depth == 0) return ncclInvalidUsage;
  if (--t_group.depth == 0) FinishGroup();
  return ncclSuccess;
}
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

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
  const bool same = comm->size == 1 || op == ncclMax || op == ncclMin || op == ncclAvg;
  return Receive(same ? from : nullptr, to, Bytes(count, type), 1, stream);
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  const size_t size = Bytes(count, type);
  const ncclResult_t result = Receive(from, to, size, 1, stream);
  if (t_group.depth == 0 || result != ncclSuccess) return result;
  const Broadcast one{comm, reinterpret_cast<uintptr_t>(from), reinterpret_cast<uintptr_t>(to), size};
  if (comm->rank == root && from != to) t_group.sent.push_back(one);
  if (comm->rank != root && from == to) t_group.received.push_back(one);
  return result;
}
ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int, ncclComm_t, cudaStream_t stream) {
  return Receive(buffer, buffer, Bytes(count, type), 1, stream);
}
ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  if (comm->rank == root) return ncclAllReduce(from, to, count, type, op, comm, stream);
  return Receive(nullptr, nullptr, 0, 1, stream);
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return Receive(from, to, Bytes(count, type), comm->size, stream);
}
ncclResult_t ncclReduceScatter(const void*, void* to, size_t count, ncclDataType_t type, ncclRedOp_t, ncclComm_t,
                               cudaStream_t stream) {
  return Receive(nullptr, to, Bytes(count, type), 1, stream);
}
ncclResult_t ncclAlltoAll(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return Receive(from, to, Bytes(count, type) * static_cast<size_t>(comm->size), 1, stream);
}
ncclResult_t ncclGather(const void* from, void* to, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  if (comm->rank != root) return Receive(nullptr, nullptr, 0, 1, stream);
  return Receive(from, to, Bytes(count, type), comm->size, stream);
}
ncclResult_t ncclSend(const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t stream) {
  return Receive(nullptr, nullptr, 0, 1, stream);
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int, ncclComm_t, cudaStream_t stream) {
  return Receive(nullptr, to, Bytes(count, type), 1, stream);
}

}  // extern "C"
