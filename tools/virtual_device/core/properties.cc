#include "tools/virtual_device/core/properties.h"

#include <cuda_occupancy.h>

#include <cstdio>
#include <cstring>

#include "tools/virtual_device/core/config.h"
#include "tools/virtual_device/core/state.h"

namespace vd {
namespace {

constexpr int kRegisters = 32;
constexpr int kAccessPolicyWindow = 134213632;

// The wheel's compiled form that this device runs: the newest of its own major version that is not newer than it, or
// else what the driver would compile from the newest older one.
int BinaryVersion() {
  static const int version = [] {
    const DeviceModel& m = GetConfig().model;
    const int device = m.major * 10 + m.minor;
    int own = 0, older = 0;
    for (const int compiled : {VD_ARCHITECTURES}) {
      if (compiled > device) continue;
      if (compiled / 10 == m.major && compiled > own) own = compiled;
      if (compiled > older) older = compiled;
    }
    return own != 0 ? own : older != 0 ? older : device;
  }();
  return version;
}

cudaOccDeviceProp OccupancyProperties() {
  const DeviceModel& m = GetConfig().model;
  cudaOccDeviceProp p;
  p.computeMajor = m.major;
  p.computeMinor = m.minor;
  p.maxThreadsPerBlock = 1024;
  p.maxThreadsPerMultiprocessor = m.threads_per_multiprocessor;
  p.regsPerBlock = 65536;
  p.regsPerMultiprocessor = 65536;
  p.warpSize = 32;
  p.sharedMemPerBlock = m.shared_per_block_bytes;
  p.sharedMemPerMultiprocessor = m.shared_per_multiprocessor_bytes;
  p.numSms = m.multiprocessors;
  p.sharedMemPerBlockOptin = m.shared_per_block_optin_bytes;
  p.reservedSharedMemPerBlock = m.reserved_shared_per_block_bytes;
  return p;
}

cudaOccFuncAttributes OccupancyFunction() {
  cudaOccFuncAttributes f;
  f.maxThreadsPerBlock = 1024;
  f.numRegs = kRegisters;
  f.sharedSizeBytes = 0;
  f.partitionedGCConfig = PARTITIONED_GC_OFF;
  f.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
  f.maxDynamicSharedSizeBytes = GetConfig().model.shared_per_block_optin_bytes;
  f.numBlockBarriers = 1;
  return f;
}

}  // namespace

void FillProperties(int device, cudaDeviceProp* p) {
  const Config& config = GetConfig();
  const DeviceModel& m = config.model;
  std::memset(p, 0, sizeof *p);
  std::snprintf(p->name, sizeof p->name, "%s", m.name.c_str());
  std::memcpy(p->uuid.bytes, "vramledger-vdev", 15);
  p->uuid.bytes[15] = static_cast<char>('0' + device);
  p->totalGlobalMem = config.memory_bytes;
  p->sharedMemPerBlock = m.shared_per_block_bytes;
  p->regsPerBlock = 65536;
  p->warpSize = 32;
  p->memPitch = 2147483647;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 65536;
  p->major = m.major;
  p->minor = m.minor;
  p->textureAlignment = 512;
  p->texturePitchAlignment = 32;
  p->multiProcessorCount = m.multiprocessors;
  p->canMapHostMemory = 1;
  p->surfaceAlignment = 512;
  p->concurrentKernels = 1;
  p->ECCEnabled = m.ecc ? 1 : 0;
  p->pciBusID = device + 1;
  p->asyncEngineCount = 3;
  p->unifiedAddressing = 1;
  p->memoryBusWidth = m.memory_bus_bits;
  p->l2CacheSize = static_cast<int>(m.l2_bytes);
  p->persistingL2CacheMaxSize = static_cast<int>(m.persisting_l2_bytes);
  p->maxThreadsPerMultiProcessor = m.threads_per_multiprocessor;
  p->streamPrioritiesSupported = 1;
  p->globalL1CacheSupported = p->localL1CacheSupported = 1;
  p->sharedMemPerMultiprocessor = m.shared_per_multiprocessor_bytes;
  p->regsPerMultiprocessor = 65536;
  p->managedMemory = 1;
  p->concurrentManagedAccess = 1;
  p->computePreemptionSupported = 1;
  p->canUseHostPointerForRegisteredMem = 1;
  p->cooperativeLaunch = 1;
  p->sharedMemPerBlockOptin = m.shared_per_block_optin_bytes;
  p->maxBlocksPerMultiProcessor = m.blocks_per_multiprocessor;
  p->accessPolicyMaxWindowSize = m.major >= 8 ? kAccessPolicyWindow : 0;
  p->reservedSharedMemPerBlock = m.reserved_shared_per_block_bytes;
  p->hostRegisterSupported = 1;
  p->memoryPoolsSupported = 1;
  p->memoryPoolSupportedHandleTypes = cudaMemHandleTypePosixFileDescriptor;
  p->clusterLaunch = m.clusters ? 1 : 0;
  p->deviceNumaId = -1;
  p->hostNumaId = -1;
}

bool DeviceAttribute(int device, int attribute, int* value) {
  cudaDeviceProp p;
  FillProperties(device, &p);
  const DeviceModel& m = GetConfig().model;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; return true;
    case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *value = 1024; return true;
    case cudaDevAttrMaxBlockDimZ: *value = 64; return true;
    case cudaDevAttrMaxGridDimX: *value = 2147483647; return true;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = 65535; return true;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = static_cast<int>(p.sharedMemPerBlock); return true;
    case cudaDevAttrTotalConstantMemory: *value = 65536; return true;
    case cudaDevAttrWarpSize: *value = 32; return true;
    case cudaDevAttrMaxPitch: *value = 2147483647; return true;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; return true;
    case cudaDevAttrClockRate: *value = m.sm_clock_khz; return true;
    case cudaDevAttrMemoryClockRate: *value = m.memory_clock_khz; return true;
    case cudaDevAttrTextureAlignment: case cudaDevAttrSurfaceAlignment: *value = 512; return true;
    case cudaDevAttrTexturePitchAlignment: *value = 32; return true;
    case cudaDevAttrMultiProcessorCount: *value = m.multiprocessors; return true;
    case cudaDevAttrKernelExecTimeout: case cudaDevAttrIntegrated: *value = 0; return true;
    case cudaDevAttrEccEnabled: *value = p.ECCEnabled; return true;
    case cudaDevAttrPciBusId: *value = p.pciBusID; return true;
    case cudaDevAttrPciDeviceId: case cudaDevAttrPciDomainId: case cudaDevAttrTccDriver: *value = 0; return true;
    case cudaDevAttrComputeMode: *value = 0; return true;
    case cudaDevAttrGlobalMemoryBusWidth: *value = m.memory_bus_bits; return true;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; return true;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; return true;
    case cudaDevAttrAsyncEngineCount: *value = 3; return true;
    case cudaDevAttrComputeCapabilityMajor: *value = m.major; return true;
    case cudaDevAttrComputeCapabilityMinor: *value = m.minor; return true;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = static_cast<int>(p.sharedMemPerMultiprocessor); return true;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = static_cast<int>(p.sharedMemPerBlockOptin); return true;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = static_cast<int>(p.reservedSharedMemPerBlock); return true;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = p.maxBlocksPerMultiProcessor; return true;
    case cudaDevAttrMaxPersistingL2CacheSize: *value = p.persistingL2CacheMaxSize; return true;
    case cudaDevAttrMaxAccessPolicyWindowSize: *value = p.accessPolicyMaxWindowSize; return true;
    case cudaDevAttrMemoryPoolSupportedHandleTypes: *value = static_cast<int>(p.memoryPoolSupportedHandleTypes); return true;
    case cudaDevAttrClusterLaunch: *value = p.clusterLaunch; return true;
    case cudaDevAttrCanMapHostMemory: case cudaDevAttrConcurrentKernels: case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrStreamPrioritiesSupported: case cudaDevAttrGlobalL1CacheSupported:
    case cudaDevAttrLocalL1CacheSupported: case cudaDevAttrManagedMemory: case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrComputePreemptionSupported: case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrCooperativeLaunch: case cudaDevAttrHostRegisterSupported: case cudaDevAttrMemoryPoolsSupported:
    case 102:  // CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    case 103:  // CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
      *value = 1;
      return true;
    case 132: *value = m.major >= 9 ? 0 : 0; return true;  // CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED: not presented
    default:
      // Everything else that the headers number is a feature that this device does not present.
      *value = 0;
      return attribute > 0 && attribute < 160;
  }
}

void FillFunctionAttributes(cudaFuncAttributes* a) {
  const DeviceModel& m = GetConfig().model;
  std::memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  a->numRegs = kRegisters;
  a->ptxVersion = a->binaryVersion = BinaryVersion();
  a->maxDynamicSharedSizeBytes = static_cast<int>(m.shared_per_block_bytes);
  a->preferredShmemCarveout = -1;
}

int OccupancyBlocks(int block_size, size_t dynamic_shared_bytes) {
  const cudaOccDeviceProp p = OccupancyProperties();
  const cudaOccFuncAttributes f = OccupancyFunction();
  const cudaOccDeviceState state;
  cudaOccResult result;
  if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &p, &f, &state, block_size, dynamic_shared_bytes) !=
      CUDA_OCC_SUCCESS) {
    return 0;
  }
  return result.activeBlocksPerMultiprocessor;
}

int OccupancyBlockSize(size_t dynamic_shared_bytes, int limit, int* grid, int* block) {
  const cudaOccDeviceProp p = OccupancyProperties();
  cudaOccFuncAttributes f = OccupancyFunction();
  if (limit > 0 && limit < f.maxThreadsPerBlock) f.maxThreadsPerBlock = limit;
  const cudaOccDeviceState state;
  return cudaOccMaxPotentialOccupancyBlockSize(grid, block, &p, &f, &state, dynamic_shared_bytes) == CUDA_OCC_SUCCESS
             ? kOk
             : kInvalidValue;
}

}  // namespace vd
