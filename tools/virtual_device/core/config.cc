#include "tools/virtual_device/core/config.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "tools/virtual_device/core/environment.h"

namespace vd {
namespace {

constexpr int kMostDevices = 16;

// "2147483648,1073741824g": the bytes of each pretended process, g = of graphics.
std::vector<OtherProcess> ProcessList(const char* text) {
  std::vector<OtherProcess> processes;
  while (text != nullptr && *text != '\0') {
    char* end = nullptr;
    const uint64_t size = std::strtoull(text, &end, 10);
    if (end == text) break;
    const bool graphics = *end == 'g';
    if (graphics) ++end;
    if (size != 0) processes.push_back({size, graphics});
    text = *end == ',' ? end + 1 : nullptr;
  }
  return processes;
}

// How many of COUNT devices CUDA_VISIBLE_DEVICES leaves: its entries up to the first that is not one of them, as CUDA
// reads it. The devices are alike, so only the number matters.
int VisibleDevices(int count) {
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) return count;
  int visible = 0;
  while (*list != '\0') {
    char* end = nullptr;
    const long index = std::strtol(list, &end, 10);
    const bool by_number = end != list && (*end == ',' || *end == '\0') && index >= 0 && index < count;
    const bool by_name = std::strncmp(list, "GPU-", 4) == 0;
    if ((!by_number && !by_name) || visible == count) break;
    ++visible;
    const char* comma = std::strchr(list, ',');
    if (comma == nullptr) break;
    list = comma + 1;
  }
  return visible;
}

Config ReadConfig() {
  Config config;
  const char* wanted = Variable("VRAMLEDGER_VIRTUAL_DEVICE");
  std::string file = wanted != nullptr ? wanted : "h100-80gb";
  if (file.find('/') == std::string::npos) file = StandInFolder() + "/devices/" + file + ".json";
  try {
    config.model = ReadDeviceModel(file);
  } catch (const std::exception& error) {
    config.error = error.what();
    std::fprintf(stderr, "vramledger virtual device: %s\n", error.what());
  }
  config.device_count = static_cast<int>(NumberOr("VRAMLEDGER_VIRTUAL_DEVICE_COUNT", 1));
  if (config.device_count < 0) config.device_count = 0;
  if (config.device_count > kMostDevices) config.device_count = kMostDevices;
  config.installed_count = config.error.empty() ? config.device_count : 0;
  config.device_count = VisibleDevices(config.installed_count);
  config.memory_bytes = NumberOr("VRAMLEDGER_VIRTUAL_DEVICE_MEMORY", config.model.total_memory_bytes);
  config.context_bytes = ContextBytes();
  config.other_processes = ProcessList(Variable("VRAMLEDGER_VIRTUAL_DEVICE_OTHERS"));
  const char* order = Variable("VRAMLEDGER_VIRTUAL_DEVICE_ADDRESS_ORDER");
  config.address_down = order != nullptr && std::string(order) == "down";
  config.delayed = Variable("VRAMLEDGER_VIRTUAL_DEVICE_DELAY_SEED") != nullptr;
  config.delay_seed = NumberOr("VRAMLEDGER_VIRTUAL_DEVICE_DELAY_SEED", 0);
  if (const char* report = Variable("VRAMLEDGER_VIRTUAL_DEVICE_REPORT")) config.report_file = report;
  config.verbose = Variable("VRAMLEDGER_VIRTUAL_DEVICE_VERBOSE") != nullptr;
  return config;
}

}  // namespace

const Config& GetConfig() {
  static const Config* config = new Config(ReadConfig());  // never destroyed: used until the very end of the process
  return *config;
}

const std::string& StandInFolder() {
  static const std::string* folder = [] {
    Dl_info info{};
    std::string path;
    if (dladdr(reinterpret_cast<void*>(&StandInFolder), &info) != 0 && info.dli_fname != nullptr) path = info.dli_fname;
    const size_t slash = path.rfind('/');
    return new std::string(slash == std::string::npos ? "." : path.substr(0, slash));
  }();
  return *folder;
}

}  // namespace vd
