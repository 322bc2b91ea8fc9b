// What a virtual device wrote beside a trace when the program ended (`dryrun`, TRACE.device.json).
#ifndef VRAMLEDGER_TOOLS_FOREIGN_DEVICE_REPORT_H_
#define VRAMLEDGER_TOOLS_FOREIGN_DEVICE_REPORT_H_

#include <string>

namespace vramledger {

// The trace's metadata with what the device's report adds: "virtual_device", "address_order", "host_reads", and the
// devices' names. A report that is missing, damaged or of another schema adds nothing: the trace alone is still whole.
std::string WithDeviceReport(const std::string& trace_path, const std::string& metadata_json);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_FOREIGN_DEVICE_REPORT_H_
