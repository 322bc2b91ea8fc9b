// vramledger replay: the same requests through another policy, setting or device.
#include "tools/analysis/replay.h"

#include <algorithm>
#include <memory>

#include "tools/analysis/format_text.h"
#include "tools/cli/load.h"
#include "tools/foreign/text.h"
#include "tools/virtual_device/core/device_model.h"
#include "tools/virtual_device/launch.h"

namespace vramledger::cli {
namespace {

uint64_t CapacityOf(const std::string& name) {
  const std::string folder = vd::FindStandIns() + "/devices";
  const bool is_path = Contains(name, "/");
  uint64_t index = 0;
  const std::vector<std::string> known = vd::ListDeviceModels(folder);
  if (!is_path && std::find(known.begin(), known.end(), name) == known.end())
    throw Failure{kExitUsage, Cat("\"", name, "\" is no card, which `vramledger doctor` lists by name",
                                  ParseInteger(name, &index) ? "; the index of a device of the trace is given with --device-index" : "")};
  return vd::ReadDeviceModel(is_path ? name : Cat(folder, "/", name, ".json")).total_memory_bytes;
}

}  // namespace

void RegisterReplay(CLI::App& app) {
  struct Options {
    std::string input, policy, settings, capacity, device, order;
    int index = -1;
    bool json = false;
  };
  const auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "replay", "The same requests through another policy, setting or device, or once more through the recorded one");
  command->add_option("TRACE", o->input, "a .vlt trace, a PyTorch memory snapshot, or events as text")->required();
  command->add_option("--policy", o->policy, "native (PyTorch's, to the byte) or vmm (default: as recorded)")
      ->check(CLI::IsMember({"native", "vmm"}));
  command->add_option("--settings", o->settings,
                      "in the syntax of PYTORCH_ALLOC_CONF; \"\" = PyTorch's defaults (default: as recorded)");
  command->add_option("--capacity", o->capacity,
                      "memory of the card: 24GiB, 80GB or a number of bytes (default: as recorded)");
  command->add_option("--device", o->device, "a card by its name, as `vramledger doctor` lists them, for its memory; which device of the trace: --device-index");
  command
      ->add_option("--address-order", o->order,
                   "in which order the device hands out addresses: up or down (default: as recorded, else up)")
      ->check(CLI::IsMember({"up", "down"}));
  AddDeviceIndex(command, "--device-index", &o->index, "a card is given with --device");
  command->add_flag("--json", o->json, "print JSON (schema vramledger.replay/1)");
  command->footer(
      "With the recorded policy and settings, every address and segment is compared with the recording.\n"
      "Exit code 1 when memory runs out.\n"
      "Example: vramledger replay out/bert_b32.vlt --policy native --settings max_split_size_mb:20 --capacity 24GiB");
  command->callback([o, command] {
    const Progress progress("replaying " + o->input);
    ReplayQuestion question;
    if (!o->device.empty() && !o->capacity.empty())
      throw Failure{kExitUsage, "--device and --capacity both say how much memory there is: give one of them"};
    if (!o->policy.empty()) question.policy = AllocatorSettings::PolicyFromName(o->policy);
    if (command->count("--settings") != 0) {
      const auto settings = AllocatorSettings::Parse(o->settings);
      if (!settings.ok()) throw Failure{kExitUsage, std::string(settings.status().message())};
      if (!settings->notes.empty()) throw Failure{kExitUsage, Cat("--settings: ", settings->notes.front())};
      question.settings = *settings;
    }
    if (!o->device.empty()) question.capacity_bytes = CapacityOf(o->device);
    if (!o->capacity.empty()) question.capacity_bytes = ParseCapacity(o->capacity);
    if (!o->order.empty()) question.address_order = o->order == "up" ? AddressOrder::kUp : AddressOrder::kDown;
    if (o->index >= 0) question.device = o->index;
    const EventInput input = OpenOrFail(o->input);
    const absl::StatusOr<ReplayReport> report = Replay(input, question);
    if (absl::IsFailedPrecondition(report.status()))
      throw Failure{kExitUsage, Cat("--settings: ", std::string(report.status().message()))};
    if (!report.ok()) FailAnalysis(o->input, report.status());
    if (o->json) {
      WriteJson("", ReplayJson(*report));
    } else {
      Write("", ReplayText(*report));
    }
    if (report->out_of_memory)
      throw Failure{kExitCheckFailed, Cat(o->input, ": the requests do not fit: out of memory at event ",
                                          Grouped(report->out_of_memory->sequence))};
  });
}

}  // namespace vramledger::cli
