#include "tools/foreign/device_report.h"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "tools/foreign/file_bytes.h"
#include "tracer/format/bounded_json.h"

namespace vramledger {
namespace {

constexpr uint64_t kMaxReportBytes = uint64_t{16} << 20;
constexpr const char* kSchema = "vramledger.virtual_device/1";

}  // namespace

std::string WithDeviceReport(const std::string& trace_path, const std::string& metadata_json) {
  const auto text = ReadFile(trace_path + ".device.json", kMaxReportBytes);
  if (!text.ok()) return metadata_json;
  const nlohmann::json report = ParseBoundedJson(*text).value_or(nlohmann::json());
  nlohmann::json metadata = nlohmann::json::parse(metadata_json, nullptr, /*allow_exceptions=*/false);
  if (!report.is_object() || !metadata.is_object() || report.value("schema", nlohmann::json()) != kSchema)
    return metadata_json;
  metadata["virtual_device"] = true;
  for (const char* key : {"address_order", "context_bytes"}) {
    if (report.contains(key)) metadata[key] = report[key];
  }
  metadata["host_reads"] = {{"count", report.value("host_reads", nlohmann::json(0))},
                            {"bytes", report.value("host_read_bytes", nlohmann::json(0))},
                            {"sites", report.value("host_read_sites", nlohmann::json::array())}};
  if (report.contains("device") && metadata.contains("devices") && metadata["devices"].is_array()) {
    for (nlohmann::json& device : metadata["devices"]) {
      if (device.is_object() && !device.contains("name")) device["name"] = report["device"];
    }
  }
  return metadata.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace vramledger
