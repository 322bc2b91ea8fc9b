#include "tools/virtual_device/core/device_model.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "tools/virtual_device/core/json.h"

namespace vd {
namespace {

const JsonValue& Need(const JsonValue& object, const std::string& key, JsonValue::Kind kind, const std::string& file) {
  const JsonValue* value = object.Find(key);
  if (value == nullptr || value->kind != kind) {
    throw std::runtime_error("device file " + file + " has no usable \"" + key + "\"");
  }
  return *value;
}

uint64_t Number(const JsonValue& object, const std::string& key, const std::string& file) {
  const double number = Need(object, key, JsonValue::Kind::kNumber, file).number;
  if (number < 0 || number > 9e15) throw std::runtime_error("device file " + file + ": \"" + key + "\" is out of range");
  return static_cast<uint64_t>(number);
}

}  // namespace

DeviceModel ReadDeviceModel(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error("cannot read the device file " + file);
  std::stringstream text;
  text << in.rdbuf();
  JsonValue root;
  try {
    root = ParseJson(text.str());
  } catch (const std::exception& error) {
    throw std::runtime_error("device file " + file + ": " + error.what());
  }
  DeviceModel model;
  model.id = std::filesystem::path(file).stem().string();
  model.name = Need(root, "name", JsonValue::Kind::kString, file).text;
  const std::string capability = Need(root, "compute_capability", JsonValue::Kind::kString, file).text;
  if (std::sscanf(capability.c_str(), "%d.%d", &model.major, &model.minor) != 2) {
    throw std::runtime_error("device file " + file + ": compute_capability must look like \"9.0\"");
  }
  const auto integer = [&](const char* key) { return static_cast<int>(Number(root, key, file)); };
  model.multiprocessors = integer("multiprocessors");
  model.total_memory_bytes = Number(root, "total_memory_bytes", file);
  model.shared_per_block_bytes = Number(root, "shared_memory_per_block_bytes", file);
  model.shared_per_block_optin_bytes = Number(root, "shared_memory_per_block_optin_bytes", file);
  model.shared_per_multiprocessor_bytes = Number(root, "shared_memory_per_multiprocessor_bytes", file);
  model.reserved_shared_per_block_bytes = Number(root, "reserved_shared_memory_per_block_bytes", file);
  model.threads_per_multiprocessor = integer("threads_per_multiprocessor");
  model.blocks_per_multiprocessor = integer("blocks_per_multiprocessor");
  model.l2_bytes = Number(root, "l2_bytes", file);
  model.persisting_l2_bytes = Number(root, "persisting_l2_bytes", file);
  model.memory_bus_bits = integer("memory_bus_bits");
  model.memory_clock_khz = integer("memory_clock_khz");
  model.sm_clock_khz = integer("sm_clock_khz");
  model.ecc = Need(root, "ecc", JsonValue::Kind::kBool, file).boolean;
  model.clusters = Need(root, "clusters", JsonValue::Kind::kBool, file).boolean;
  if (const JsonValue* sources = root.Find("sources")) {
    for (const auto& [key, value] : sources->members) model.sources[key] = value.text;
  }
  return model;
}

std::vector<std::string> ListDeviceModels(const std::string& folder) {
  std::vector<std::string> ids;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    if (entry.path().extension() == ".json") ids.push_back(entry.path().stem().string());
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace vd
