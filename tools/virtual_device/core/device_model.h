// A GPU model as data: what its driver would report. Read from one JSON file per device (devices/NAME.json).
// Sizes are bytes unless the name says otherwise. No CUDA header here: the offline tool reads these files too.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace vd {

struct DeviceModel {
  std::string id;                   // the file's name without .json, e.g. "h100-80gb"
  std::string name;                 // what cudaDeviceProp.name says
  int major = 0, minor = 0;         // compute capability
  int multiprocessors = 0;
  uint64_t total_memory_bytes = 0;  // what cudaMemGetInfo calls total
  uint64_t shared_per_block_bytes = 49152;
  uint64_t shared_per_block_optin_bytes = 49152;
  uint64_t shared_per_multiprocessor_bytes = 65536;
  uint64_t reserved_shared_per_block_bytes = 0;
  int threads_per_multiprocessor = 1024;
  int blocks_per_multiprocessor = 16;
  uint64_t l2_bytes = 0;
  uint64_t persisting_l2_bytes = 0;
  int memory_bus_bits = 0;
  int memory_clock_khz = 0;
  int sm_clock_khz = 0;
  bool ecc = false;
  bool clusters = false;
  std::map<std::string, std::string> sources;  // key of a value, or "*", to where the value comes from
};

// Reads FILE. Throws std::runtime_error with one sentence when it cannot be used.
DeviceModel ReadDeviceModel(const std::string& file);

// The ids of the devices in FOLDER, sorted; empty if there is no such folder.
std::vector<std::string> ListDeviceModels(const std::string& folder);

}  // namespace vd
