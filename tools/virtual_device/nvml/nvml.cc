// libnvidia-ml.so.1: how many devices there are, how full they are, and which processes hold memory on them. What no
// virtual device has (temperature, power, clocks, links) answers "not supported".
//
// NVIDIA's header for this library is in no PyTorch wheel. Names, structures and error codes are those of its public
// reference (docs.nvidia.com/deploy/nvml-api) and of NVIDIA's own Python bindings (nvidia-ml-py, BSD).
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tools/virtual_device/core/config.h"
#include "tools/virtual_device/core/memory.h"
#include "tools/virtual_device/core/properties.h"
#include "tools/virtual_device/core/state.h"

namespace {

enum NvmlCode : int {
  kSuccess = 0,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNotFound = 6,
  kInsufficientSize = 7,
};

struct ProcessV1 {
  unsigned pid;
  unsigned long long used_bytes;
};
struct Process {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance;
  unsigned compute_instance;
};
struct Memory {
  unsigned long long total, free, used;
};
struct MemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
struct Utilization {
  unsigned gpu, memory;
};

constexpr unsigned kNoInstance = 0xffffffff;
// Processes that are only pretended get numbers that no real process has.
constexpr unsigned kFirstPretended = 1u << 30;

// A handle is the device's number plus one. The library shows every device, whatever CUDA_VISIBLE_DEVICES says.
using Handle = void*;
int DeviceOf(Handle handle) {
  const auto number = reinterpret_cast<uintptr_t>(handle);
  return number >= 1 && number <= static_cast<uintptr_t>(vd::GetConfig().installed_count) ? static_cast<int>(number) - 1
                                                                                          : -1;
}

std::string Uuid(int device) {
  cudaDeviceProp properties;
  vd::FillProperties(device, &properties);
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    char byte[3];
    std::snprintf(byte, sizeof byte, "%02x", static_cast<unsigned char>(properties.uuid.bytes[i]));
    text += byte;
  }
  return text;
}

int CopyText(const std::string& text, char* out, unsigned capacity) {
  if (out == nullptr) return kInvalidArgument;
  if (text.size() + 1 > capacity) return kInsufficientSize;
  std::memcpy(out, text.c_str(), text.size() + 1);
  return kSuccess;
}

uint64_t OwnBytes(int device) {
  return vd::ContextActive(device) ? vd::OwnMemoryUse(device) : 0;
}

std::vector<Process> Processes(int device, bool graphics) {
  std::vector<Process> out;
  if (!graphics && vd::ContextActive(device)) {
    out.push_back({static_cast<unsigned>(getpid()), OwnBytes(device), kNoInstance, kNoInstance});
  }
  unsigned pid = kFirstPretended;
  for (const vd::OtherProcess& process : vd::GetConfig().other_processes) {
    if (process.graphics == graphics) out.push_back({pid, process.bytes, kNoInstance, kNoInstance});
    ++pid;
  }
  return out;
}

template <typename Info>
int ListProcesses(Handle handle, unsigned* count, Info* infos, bool graphics = false) {
  const int device = DeviceOf(handle);
  if (device < 0 || count == nullptr) return kInvalidArgument;
  const std::vector<Process> found = Processes(device, graphics);
  const unsigned room = *count;
  *count = static_cast<unsigned>(found.size());
  if (found.empty()) return kSuccess;
  if (room < found.size() || infos == nullptr) return kInsufficientSize;
  for (size_t i = 0; i < found.size(); ++i) {
    infos[i].pid = found[i].pid;
    infos[i].used_bytes = found[i].used_bytes;
    if constexpr (sizeof(Info) == sizeof(Process)) {
      infos[i].gpu_instance = infos[i].compute_instance = kNoInstance;
    }
  }
  return kSuccess;
}

std::string BusId(int device) {
  char text[32];
  std::snprintf(text, sizeof text, "00000000:%02X:00.0", device + 1);
  return text;
}

}  // namespace

#define NVML_EXPORT extern "C" __attribute__((visibility("default"))) int

NVML_EXPORT nvmlInit() {
  return kSuccess;
}
NVML_EXPORT nvmlInit_v2() {
  return kSuccess;
}
NVML_EXPORT nvmlInitWithFlags(unsigned) {
  return kSuccess;
}
NVML_EXPORT nvmlShutdown() {
  return kSuccess;
}

extern "C" __attribute__((visibility("default"))) const char* nvmlErrorString(int code) {
  switch (code) {
    case kSuccess:
      return "Success";
    case kInvalidArgument:
      return "Invalid argument";
    case kNotSupported:
      return "Not supported on a virtual device";
    case kNotFound:
      return "Not found";
    case kInsufficientSize:
      return "Insufficient size";
    default:
      return "Unknown";
  }
}

NVML_EXPORT nvmlSystemGetDriverVersion(char* out, unsigned capacity) {
  return CopyText("0.0-virtual", out, capacity);
}
NVML_EXPORT nvmlSystemGetNVMLVersion(char* out, unsigned capacity) {
  return CopyText("0.0-virtual", out, capacity);
}
NVML_EXPORT nvmlSystemGetCudaDriverVersion(int* version) {
  if (version == nullptr) return kInvalidArgument;
  *version = CUDART_VERSION;
  return kSuccess;
}
NVML_EXPORT nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return nvmlSystemGetCudaDriverVersion(version);
}

NVML_EXPORT nvmlDeviceGetCount_v2(unsigned* count) {
  if (count == nullptr) return kInvalidArgument;
  *count = static_cast<unsigned>(vd::GetConfig().installed_count);
  return kSuccess;
}
NVML_EXPORT nvmlDeviceGetCount(unsigned* count) {
  return nvmlDeviceGetCount_v2(count);
}

NVML_EXPORT nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle* handle) {
  if (handle == nullptr || index >= static_cast<unsigned>(vd::GetConfig().installed_count)) return kInvalidArgument;
  *handle = reinterpret_cast<Handle>(uintptr_t{index} + 1);
  return kSuccess;
}
NVML_EXPORT nvmlDeviceGetHandleByIndex(unsigned index, Handle* handle) {
  return nvmlDeviceGetHandleByIndex_v2(index, handle);
}
NVML_EXPORT nvmlDeviceGetHandleByUUID(const char* uuid, Handle* handle) {
  if (uuid == nullptr || handle == nullptr) return kInvalidArgument;
  for (int device = 0; device < vd::GetConfig().installed_count; ++device) {
    if (Uuid(device) == uuid) return nvmlDeviceGetHandleByIndex_v2(static_cast<unsigned>(device), handle);
  }
  return kNotFound;
}
NVML_EXPORT nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, Handle* handle) {
  if (bus_id == nullptr || handle == nullptr) return kInvalidArgument;
  unsigned domain = 0, bus = 0;
  if (std::sscanf(bus_id, "%x:%x:", &domain, &bus) != 2 || domain != 0 || bus == 0) return kNotFound;
  return nvmlDeviceGetHandleByIndex_v2(bus - 1, handle) == kSuccess ? kSuccess : kNotFound;
}

NVML_EXPORT nvmlDeviceGetIndex(Handle handle, unsigned* index) {
  const int device = DeviceOf(handle);
  if (device < 0 || index == nullptr) return kInvalidArgument;
  *index = static_cast<unsigned>(device);
  return kSuccess;
}
NVML_EXPORT nvmlDeviceGetName(Handle handle, char* out, unsigned capacity) {
  return DeviceOf(handle) < 0 ? kInvalidArgument : CopyText(vd::GetConfig().model.name, out, capacity);
}
NVML_EXPORT nvmlDeviceGetUUID(Handle handle, char* out, unsigned capacity) {
  const int device = DeviceOf(handle);
  return device < 0 ? kInvalidArgument : CopyText(Uuid(device), out, capacity);
}
NVML_EXPORT nvmlDeviceGetPciInfo_v3(Handle handle, PciInfo* info) {
  const int device = DeviceOf(handle);
  if (device < 0 || info == nullptr) return kInvalidArgument;
  std::memset(info, 0, sizeof *info);
  info->bus = static_cast<unsigned>(device) + 1;
  const std::string text = BusId(device);
  std::memcpy(info->bus_id, text.c_str(), text.size());
  std::memcpy(info->bus_id_legacy, text.c_str() + 4, text.size() - 4);
  return kSuccess;
}

NVML_EXPORT nvmlDeviceGetMemoryInfo(Handle handle, Memory* memory) {
  const int device = DeviceOf(handle);
  if (device < 0 || memory == nullptr) return kInvalidArgument;
  const vd::MemoryUse use = vd::GetMemoryUse(device);
  *memory = {use.total_bytes, use.free_bytes, use.total_bytes - use.free_bytes};
  return kSuccess;
}
NVML_EXPORT nvmlDeviceGetMemoryInfo_v2(Handle handle, MemoryV2* memory) {
  const int device = DeviceOf(handle);
  if (device < 0 || memory == nullptr) return kInvalidArgument;
  const vd::MemoryUse use = vd::GetMemoryUse(device);
  *memory = {memory->version, use.total_bytes, 0, use.free_bytes, use.total_bytes - use.free_bytes};
  return kSuccess;
}

// Kernels do nothing, so nothing is ever busy.
NVML_EXPORT nvmlDeviceGetUtilizationRates(Handle handle, Utilization* rates) {
  if (DeviceOf(handle) < 0 || rates == nullptr) return kInvalidArgument;
  *rates = {0, 0};
  return kSuccess;
}

NVML_EXPORT nvmlDeviceGetComputeRunningProcesses(Handle handle, unsigned* count, ProcessV1* infos) {
  return ListProcesses(handle, count, infos);
}
NVML_EXPORT nvmlDeviceGetComputeRunningProcesses_v2(Handle handle, unsigned* count, Process* infos) {
  return ListProcesses(handle, count, infos);
}
NVML_EXPORT nvmlDeviceGetComputeRunningProcesses_v3(Handle handle, unsigned* count, Process* infos) {
  return ListProcesses(handle, count, infos);
}
NVML_EXPORT nvmlDeviceGetGraphicsRunningProcesses_v3(Handle handle, unsigned* count, Process* infos) {
  return ListProcesses(handle, count, infos, /*graphics=*/true);
}

// PyTorch looks these up together with the others and cannot do without the names.
NVML_EXPORT nvmlDeviceGetNvLinkRemoteDeviceType(Handle, unsigned, int*) {
  return kNotSupported;
}
NVML_EXPORT nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle, unsigned, PciInfo*) {
  return kNotSupported;
}
NVML_EXPORT nvmlDeviceGetTemperature(Handle, int, unsigned*) {
  return kNotSupported;
}
NVML_EXPORT nvmlDeviceGetTemperatureV(Handle, void*) {
  return kNotSupported;
}
NVML_EXPORT nvmlDeviceGetPowerUsage(Handle, unsigned*) {
  return kNotSupported;
}
NVML_EXPORT nvmlDeviceGetClockInfo(Handle, int, unsigned*) {
  return kNotSupported;
}
NVML_EXPORT nvmlDeviceGetMigMode(Handle, unsigned*, unsigned*) {
  return kNotSupported;
}
