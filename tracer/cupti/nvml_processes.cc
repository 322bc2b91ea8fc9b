#include "tracer/cupti/nvml_processes.h"

#include <dlfcn.h>
#include <unistd.h>

#include <vector>

#include "absl/strings/str_cat.h"

namespace vramledger {
namespace {

// NVML's header is in no PyTorch wheel. What is used of it, from NVIDIA's public reference
// (docs.nvidia.com/deploy/nvml-api): nvmlProcessInfo_t of nvmlDeviceGetComputeRunningProcesses_v3, and its error codes.
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance;
  unsigned compute_instance;
};
constexpr int kSuccess = 0;
constexpr int kInsufficientSize = 7;
constexpr unsigned long long kNotAvailable = ~0ull;

}  // namespace

struct NvmlProcesses::Functions {
  int (*Init)();
  int (*HandleByBusId)(const char*, void**);
  int (*RunningProcesses)(void*, unsigned*, ProcessInfo*);
};

std::string NvmlProcesses::Open() {
  if (functions_ != nullptr) return "";
  void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_LAZY);
  if (library == nullptr) return "NVML's library (libnvidia-ml.so.1) was not found";
  static Functions found;
  found.Init = reinterpret_cast<decltype(found.Init)>(::dlsym(library, "nvmlInit_v2"));
  found.HandleByBusId =
      reinterpret_cast<decltype(found.HandleByBusId)>(::dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2"));
  found.RunningProcesses =
      reinterpret_cast<decltype(found.RunningProcesses)>(::dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3"));
  if (found.Init == nullptr || found.HandleByBusId == nullptr || found.RunningProcesses == nullptr) {
    return "NVML is older than driver 510 and cannot list processes in the form needed";
  }
  if (const int code = found.Init(); code != kSuccess) return absl::StrCat("NVML refused to start (error ", code, ")");
  functions_ = &found;
  return "";
}

std::optional<ProcessUse> NvmlProcesses::Query(const std::string& bus_id, std::string* why) {
  void* device = nullptr;
  if (const int code = functions_->HandleByBusId(bus_id.c_str(), &device); code != kSuccess) {
    *why = absl::StrCat("NVML does not know the device ", bus_id, " (error ", code, ")");
    return std::nullopt;
  }
  std::vector<ProcessInfo> list(32);
  unsigned count = 0;
  int code = kInsufficientSize;
  for (int tries = 0; tries < 4 && code == kInsufficientSize; ++tries) {
    count = static_cast<unsigned>(list.size());
    code = functions_->RunningProcesses(device, &count, list.data());
    if (code == kInsufficientSize) list.resize(count + 32);
  }
  if (code != kSuccess) {
    *why = absl::StrCat("NVML does not list the processes of this device (error ", code, ")");
    return std::nullopt;
  }
  list.resize(count);
  ProcessUse use;
  bool found = false;
  const auto self = static_cast<unsigned>(::getpid());
  for (const ProcessInfo& p : list) {
    if (p.used_bytes == kNotAvailable) {
      *why = "NVML does not tell the memory of each process here";
      return std::nullopt;
    }
    // The numbers are the host's: in a container the only process of the list is this one under another number.
    if (p.pid == self || list.size() == 1) {
      use.own_bytes += p.used_bytes;
      found = true;
    } else {
      use.other_bytes += p.used_bytes;
      ++use.other_processes;
    }
  }
  if (!found) {
    *why = list.empty() ? "NVML lists no process on this device"
                        : "this process is not among those that NVML lists (a container hides its number)";
    return std::nullopt;
  }
  return use;
}

}  // namespace vramledger
