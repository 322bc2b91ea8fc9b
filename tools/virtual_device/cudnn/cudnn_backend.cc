// cuDNN's backend interface over the real library's documented device-less mode.
//
// A program with a device puts its handle into operation graphs and execution plans. The device-less mode has a
// description of a device in that place: a CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR made from JSON. So a handle set on an
// operation graph is dropped; wherever heuristics or an engine receive their operation graph, they receive the
// description too; and a plan gets it in place of the handle. Plans, heuristics and workspace sizes are then the real
// ones; only execution does nothing.
#include <cstdio>
#include <mutex>
#include <string>
#include <vector>

#include "tools/virtual_device/core/properties.h"
#include "tools/virtual_device/cudnn/cudnn_real.h"

namespace {

// The keys are the ones that the real library names when one is missing (CUDNN_LOGLEVEL_DBG=3).
std::string DeviceJson(int device) {
  const vd::DeviceModel& m = vd::GetConfig().model;
  cudaDeviceProp p;
  vd::FillProperties(device, &p);
  char text[2048];
  std::snprintf(text, sizeof text,
                "{\"deviceName\":\"%s\",\"cudaDeviceId\":%d,\"deviceVer\":%d,\"multiProcessorCount\":%d,\"driverVer\":%d,"
                "\"maxSharedMemoryPerBlock\":%zu,\"maxSharedMemoryPerBlockOptin\":%zu,\"reservedSharedMemoryPerBlock\":%zu,"
                "\"totalGlobalMem\":%zu,\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
                "\"regsPerBlock\":65536,\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":%d,\"maxThreadsPerBlock\":1024,"
                "\"maxThreadsPerSM\":%d,\"warpSize\":32,\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,"
                "\"smClockRateKHz\":%d,\"memClockRateKHz\":%d,\"l2CacheSize\":%d}",
                p.name, device, 100 * m.major + 10 * m.minor, m.multiprocessors, CUDART_VERSION, p.sharedMemPerBlock,
                p.sharedMemPerBlockOptin, p.reservedSharedMemPerBlock, p.totalGlobalMem, m.blocks_per_multiprocessor,
                m.threads_per_multiprocessor, m.sm_clock_khz, m.memory_clock_khz, p.l2CacheSize);
  return text;
}

cudnnBackendDescriptor_t MakeDescription(int device) {
  const auto create = VD_REAL(cudnnBackendCreateDescriptor);
  const auto set = VD_REAL(cudnnBackendSetAttribute);
  const auto finalize = VD_REAL(cudnnBackendFinalize);
  if (create == nullptr || set == nullptr || finalize == nullptr) return nullptr;
  cudnnBackendDescriptor_t description = nullptr;
  const std::string json = DeviceJson(device);
  cudnnStatus_t status = create(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &description);
  if (status == CUDNN_STATUS_SUCCESS) {
    status = set(description, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                 static_cast<int64_t>(json.size()) + 1, json.c_str());
  }
  if (status == CUDNN_STATUS_SUCCESS) status = finalize(description);
  if (status != CUDNN_STATUS_SUCCESS) {
    std::fprintf(stderr, "vramledger virtual device: cuDNN refused the device's description (%d)\n", status);
    return nullptr;
  }
  return description;
}

// One for each device, never destroyed: plans refer to it.
cudnnBackendDescriptor_t Description() {
  static std::mutex lock;
  static std::vector<cudnnBackendDescriptor_t> made(16, nullptr);
  const std::lock_guard guard(lock);
  cudnnBackendDescriptor_t& mine = made[static_cast<size_t>(vd::g_thread.device)];
  if (mine == nullptr) mine = MakeDescription(vd::g_thread.device);
  return mine;
}

cudnnStatus_t SetDescription(cudnnBackendDescriptor_t on, cudnnBackendAttributeName_t name) {
  const auto set = VD_REAL(cudnnBackendSetAttribute);
  cudnnBackendDescriptor_t description = Description();
  if (set == nullptr || description == nullptr) return CUDNN_STATUS_NOT_SUPPORTED;
  return set(on, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &description);
}

}  // namespace

extern "C" {

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor) {
  const auto real = VD_REAL(cudnnBackendCreateDescriptor);
  return real != nullptr ? real(type, descriptor) : CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  const auto real = VD_REAL(cudnnBackendDestroyDescriptor);
  return real != nullptr ? real(descriptor) : CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  const auto real = VD_REAL(cudnnBackendFinalize);
  return real != nullptr ? real(descriptor) : CUDNN_STATUS_NOT_SUPPORTED;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void* elements) {
  const auto real = VD_REAL(cudnnBackendSetAttribute);
  if (real == nullptr) return CUDNN_STATUS_NOT_SUPPORTED;
  switch (static_cast<int>(name)) {
    case 800:  // the operation graph's handle
      return CUDNN_STATUS_SUCCESS;
    case 400:  // the plan's handle
      return SetDescription(descriptor, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
    case CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH: {
      const cudnnStatus_t status = real(descriptor, name, type, count, elements);
      return status != CUDNN_STATUS_SUCCESS ? status : SetDescription(descriptor, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
    }
    case CUDNN_ATTR_ENGINE_OPERATION_GRAPH: {
      const cudnnStatus_t status = real(descriptor, name, type, count, elements);
      return status != CUDNN_STATUS_SUCCESS ? status : SetDescription(descriptor, CUDNN_ATTR_ENGINE_DEVICEPROP);
    }
    default:
      return real(descriptor, name, type, count, elements);
  }
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t wanted, int64_t* count, void* elements) {
  const auto real = VD_REAL(cudnnBackendGetAttribute);
  return real != nullptr ? real(descriptor, name, type, wanted, count, elements) : CUDNN_STATUS_NOT_SUPPORTED;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t) {
  return vd::CudnnLaunch(handle);
}

}  // extern "C"
