#include "tracer/cupti/nvml_processes.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

namespace vramledger {
namespace {

// NVML's header is in no PyTorch wheel. What is used of it, from NVIDIA's public reference
// (docs.nvidia.com/deploy/nvml-api): nvmlProcessInfo_t of nvmlDeviceGetComputeRunningProcesses_v3 and of
// nvmlDeviceGetGraphicsRunningProcesses_v3, and their error codes.
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
  int (*ComputeProcesses)(void*, unsigned*, ProcessInfo*);
  int (*GraphicsProcesses)(void*, unsigned*, ProcessInfo*);  // null where there is none
};

namespace {

int List(int (*ask)(void*, unsigned*, ProcessInfo*), void* device, std::vector<ProcessInfo>* list) {
  list->resize(32);
  int code = kInsufficientSize;
  for (int tries = 0; tries < 4 && code == kInsufficientSize; ++tries) {
    auto count = static_cast<unsigned>(list->size());
    code = ask(device, &count, list->data());
    list->resize(code == kInsufficientSize ? count + 32 : count);
  }
  return code;
}

}  // namespace

std::string NvmlProcesses::Open() {
  if (functions_ != nullptr) return "";
  void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_LAZY);
  if (library == nullptr) return "NVML's library (libnvidia-ml.so.1) was not found";
  static Functions found;
  found.Init = reinterpret_cast<decltype(found.Init)>(::dlsym(library, "nvmlInit_v2"));
  found.HandleByBusId =
      reinterpret_cast<decltype(found.HandleByBusId)>(::dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2"));
  found.ComputeProcesses =
      reinterpret_cast<decltype(found.ComputeProcesses)>(::dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3"));
  found.GraphicsProcesses =
      reinterpret_cast<decltype(found.GraphicsProcesses)>(::dlsym(library, "nvmlDeviceGetGraphicsRunningProcesses_v3"));
  if (found.Init == nullptr || found.HandleByBusId == nullptr || found.ComputeProcesses == nullptr) {
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
  std::vector<ProcessInfo> list, graphics;
  if (const int code = List(functions_->ComputeProcesses, device, &list); code != kSuccess) {
    *why = absl::StrCat("NVML does not list the processes of this device (error ", code, ")");
    return std::nullopt;
  }
  // A process that computes and draws may stand in both lists, with the whole of its memory. Some drivers list no graphics.
  if (functions_->GraphicsProcesses != nullptr && List(functions_->GraphicsProcesses, device, &graphics) == kSuccess) {
    for (const ProcessInfo& g : graphics) {
      const auto known = std::find_if(list.begin(), list.end(), [&](const ProcessInfo& p) { return p.pid == g.pid; });
      if (known == list.end()) list.push_back(g);
    }
  }
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
