// vramledger doctor: what is installed, what the virtual device presents and where the figures come from, and which
// functions of NVIDIA's libraries this PyTorch imports that the stand-ins do not implement.
#include <algorithm>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "tools/cli/command.h"
#include "tools/cli/output.h"
#include "tools/virtual_device/core/device_model.h"
#include "tools/virtual_device/elf_file.h"
#include "tools/virtual_device/launch.h"

namespace vramledger::cli {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string site_packages, device;
  bool json = false;
};

// The folder given, that of the active or the repository's virtual environment; "" when there is no PyTorch in it.
std::string FindSitePackages(const std::string& wanted) {
  std::vector<fs::path> roots;
  if (const char* active = std::getenv("VIRTUAL_ENV")) roots.emplace_back(active);
  roots.push_back(fs::path(vd::ExecutableFolder()) / ".." / ".." / ".venv");
  std::vector<fs::path> candidates;
  if (!wanted.empty()) candidates.emplace_back(wanted);
  std::error_code ignored;
  for (const fs::path& root : roots) {
    for (const auto& entry : fs::directory_iterator(root / "lib", ignored)) candidates.push_back(entry.path() / "site-packages");
  }
  for (const fs::path& candidate : candidates) {
    if (fs::exists(candidate / "torch" / "version.py", ignored)) return candidate.lexically_normal().string();
    if (!wanted.empty()) break;
  }
  return "";
}

std::string TorchVersion(const std::string& site_packages) {
  std::ifstream in(site_packages + "/torch/version.py");
  std::string line;
  while (std::getline(in, line)) {
    if (line.rfind("__version__", 0) != 0) continue;
    const size_t from = line.find('\'');
    const size_t to = line.rfind('\'');
    if (from != std::string::npos && to > from) return line.substr(from + 1, to - from - 1);
  }
  return "";
}

struct Coverage {
  size_t imported = 0;
  std::map<std::string, std::vector<std::string>> unimplemented, nominal;  // by library
};

Coverage Compare(const std::string& site_packages, const std::string& stand_ins) {
  std::set<std::string> imports;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(site_packages + "/torch/lib", ignored)) {
    if (entry.path().filename().string().find(".so") == std::string::npos) continue;
    try {
      for (const vd::ElfSymbol& symbol : vd::ReadElfSymbols(entry.path().string())) {
        if (!symbol.defined) imports.insert(symbol.name);
      }
    } catch (const std::exception&) {
      continue;  // not a library
    }
  }
  Coverage coverage;
  for (const std::string& file : vd::StandInFiles(stand_ins)) {
    const std::string name = fs::path(file).filename().string();
    for (const vd::ElfSymbol& symbol : vd::ReadElfSymbols(file)) {
      if (!symbol.defined || imports.count(symbol.name) == 0) continue;
      // Only names of NVIDIA's libraries: the stand-ins define nothing else under a version.
      if (name.rfind("libvramledger", 0) == 0) continue;
      ++coverage.imported;
      if (symbol.section == vd::kUnimplementedSection) coverage.unimplemented[name].push_back(symbol.name);
      if (symbol.section == vd::kNominalSection) coverage.nominal[name].push_back(symbol.name);
    }
  }
  for (auto* list : {&coverage.unimplemented, &coverage.nominal}) {
    for (auto& [name, functions] : *list) std::sort(functions.begin(), functions.end());
  }
  return coverage;
}

nlohmann::ordered_json DeviceJson(const vd::DeviceModel& m) {
  return {{"id", m.id},
          {"name", m.name},
          {"compute_capability", std::to_string(m.major) + "." + std::to_string(m.minor)},
          {"multiprocessors", m.multiprocessors},
          {"total_memory_bytes", m.total_memory_bytes},
          {"shared_memory_per_block_bytes", m.shared_per_block_bytes},
          {"shared_memory_per_block_optin_bytes", m.shared_per_block_optin_bytes},
          {"shared_memory_per_multiprocessor_bytes", m.shared_per_multiprocessor_bytes},
          {"reserved_shared_memory_per_block_bytes", m.reserved_shared_per_block_bytes},
          {"threads_per_multiprocessor", m.threads_per_multiprocessor},
          {"blocks_per_multiprocessor", m.blocks_per_multiprocessor},
          {"l2_bytes", m.l2_bytes},
          {"persisting_l2_bytes", m.persisting_l2_bytes},
          {"memory_bus_bits", m.memory_bus_bits},
          {"memory_clock_khz", m.memory_clock_khz},
          {"sm_clock_khz", m.sm_clock_khz},
          {"ecc", m.ecc},
          {"clusters", m.clusters},
          {"sources", m.sources}};
}

void Run(const Options& o) {
  const std::string site = FindSitePackages(o.site_packages);
  if (site.empty() && !o.site_packages.empty()) throw Failure{kExitUsage, "there is no PyTorch in " + o.site_packages};
  const std::string stand_ins = vd::FindStandIns();
  std::error_code ignored;
  fs::path plugin = fs::path(vd::ExecutableFolder()) / ".." / "lib" / "libvramledger_allocator.so";
  const bool has_plugin = fs::exists(plugin, ignored);
  std::vector<vd::DeviceModel> devices;
  for (const std::string& id : vd::ListDeviceModels(stand_ins + "/devices")) {
    if (o.device.empty() || id == o.device) devices.push_back(vd::ReadDeviceModel(stand_ins + "/devices/" + id + ".json"));
  }
  if (devices.empty() && !o.device.empty()) throw Failure{kExitUsage, "there is no virtual device '" + o.device + "'"};
  Coverage coverage;
  if (!site.empty() && !stand_ins.empty()) coverage = Compare(site, stand_ins);
  size_t missing = 0, nominal = 0;
  for (const auto& [library, functions] : coverage.unimplemented) missing += functions.size();
  for (const auto& [library, functions] : coverage.nominal) nominal += functions.size();

  if (o.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const vd::DeviceModel& model : devices) list.push_back(DeviceJson(model));
    WriteJson("", {{"schema", "vramledger.doctor/1"},
                   {"plugin", has_plugin ? plugin.lexically_normal().string() : ""},
                   {"stand_ins", stand_ins},
                   {"site_packages", site},
                   {"torch", site.empty() ? "" : TorchVersion(site)},
                   {"imported_functions", coverage.imported},
                   {"unimplemented", coverage.unimplemented},
                   {"nominal", coverage.nominal},
                   {"devices", list}});
    return;
  }
  std::string text = site.empty() || stand_ins.empty() ? "Not ready for a dry run.\n" : "Ready for a dry run.\n";
  text += "  PyTorch:   " + (site.empty() ? "not found (--site-packages DIR)" : TorchVersion(site) + " in " + site) + "\n";
  text += "  plug-in:   " + (has_plugin ? plugin.lexically_normal().string() : "not built") + "\n";
  text += "  stand-ins: " + (stand_ins.empty() ? "not built (VRAMLEDGER_VIRTUAL_DEVICE_DIR)" : stand_ins) + "\n";
  if (coverage.imported > 0) {
    text += "\nThis PyTorch imports " + std::to_string(coverage.imported) + " functions that the stand-ins offer; " +
            std::to_string(missing) + " of them are not implemented (they say so when called), " + std::to_string(nominal) +
            " answer a nominal size.\n";
    for (const auto& [library, functions] : coverage.unimplemented) {
      text += "  " + library + " (" + std::to_string(functions.size()) + "):";
      std::string line;
      for (const std::string& function : functions) {
        if (line.size() + function.size() > 100) {
          text += line + "\n   ";
          line.clear();
        }
        line += " " + function;
      }
      text += line + "\n";
    }
  }
  text += "\nVirtual devices (--device NAME):\n";
  for (const vd::DeviceModel& m : devices) {
    text += "  " + m.id + ": " + m.name + ", compute capability " + std::to_string(m.major) + "." + std::to_string(m.minor) + ", " +
            std::to_string(m.multiprocessors) + " SMs, " + std::to_string(m.total_memory_bytes) + " B\n";
    if (o.device.empty()) continue;
    const nlohmann::ordered_json values = DeviceJson(m);
    for (const auto& [key, value] : values.items()) {
      if (key != "sources" && key != "id") text += "    " + key + ": " + value.dump() + "\n";
    }
    text += "    sources:\n";
    for (const auto& [key, source] : m.sources) text += "      " + (key == "*" ? "everything else" : key) + ": " + source + "\n";
  }
  Write("", text);
}

}  // namespace

void RegisterDoctor(CLI::App& app) {
  const auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("doctor", "Show what is installed, the virtual devices, and what the stand-ins lack");
  command->add_option("--site-packages", o->site_packages, "the folder that holds torch (default: the virtual environment's)");
  command->add_option("--device", o->device, "print every property of this device, with its source");
  command->add_flag("--json", o->json, "print JSON (schema vramledger.doctor/1)");
  command->footer("Example: vramledger doctor --device h100-80gb");
  command->callback([o] { Run(*o); });
}

}  // namespace vramledger::cli
