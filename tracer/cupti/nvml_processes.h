// Which processes hold memory of a device, as NVML tells it.
#ifndef VRAMLEDGER_TRACER_CUPTI_NVML_PROCESSES_H_
#define VRAMLEDGER_TRACER_CUPTI_NVML_PROCESSES_H_

#include <cstdint>
#include <optional>
#include <string>

namespace vramledger {

struct ProcessUse {
  uint64_t own_bytes = 0;    // everything of this process: context, modules, what the allocator and the libraries took
  uint64_t other_bytes = 0;  // of all other processes
  uint32_t other_processes = 0;
};

// Thread rule: one thread at a time. A query takes about a millisecond and must stay off the training's threads.
class NvmlProcesses {
 public:
  // Empty = usable; else one sentence.
  std::string Open();
  // `bus_id` as cudaDeviceGetPCIBusId writes it. Nothing where NVML does not say (MIG, WDDM, or a container that hides
  // process numbers so that this process is not among several); `why` is then one sentence.
  std::optional<ProcessUse> Query(const std::string& bus_id, std::string* why);

 private:
  struct Functions;
  const Functions* functions_ = nullptr;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TRACER_CUPTI_NVML_PROCESSES_H_
