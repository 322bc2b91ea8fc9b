// What the virtual device was asked to be, from the environment (see README.md for the variables). Read once, on
// the first CUDA call of a process; a process that makes none never reads it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/virtual_device/core/device_model.h"

#define VD_API __attribute__((visibility("default")))

namespace vd {

// A process that is only pretended, and what it holds of every device.
struct OtherProcess {
  uint64_t bytes = 0;
  bool graphics = false;  // NVML lists it apart from those that compute
};

struct Config {
  DeviceModel model;
  int device_count = 1;
  int installed_count = 1;          // the same without regard to CUDA_VISIBLE_DEVICES
  uint64_t memory_bytes = 0;        // total memory of each device
  uint64_t context_bytes = 0;       // taken from it when a context is made
  std::vector<OtherProcess> other_processes;
  bool address_down = false;        // hand out the highest fitting address in place of the lowest
  bool delayed = false;             // stream work completes later
  uint64_t delay_seed = 0;
  std::string report_file;          // where the summary goes at exit; empty: nowhere
  bool verbose = false;             // name every unimplemented function's caller too
  std::string error;                // not empty: the device cannot be presented, and why
};

// Thread-safe. Never throws: a bad setting is one line on standard error and `error`.
VD_API const Config& GetConfig();

// The folder that holds the stand-ins.
VD_API const std::string& StandInFolder();

}  // namespace vd
