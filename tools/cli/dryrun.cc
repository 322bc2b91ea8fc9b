// vramledger dryrun: run a training script on a virtual device.
#include <memory>
#include <vector>

#include "tools/cli/command.h"
#include "tools/virtual_device/launch.h"

namespace vramledger::cli {

void RegisterDryrun(CLI::App& app) {
  const auto o = std::make_shared<vd::LaunchOptions>();
  CLI::App* command = app.add_subcommand("dryrun", "Run a training script on a virtual device: the trace without the GPU");
  command->add_option("--device", o->device, "a card by its name, as `vramledger doctor` lists them, or a device file (default h100-80gb); how many: --devices");
  command->add_option("--memory", o->memory, "total memory of the device, such as 24GiB, 24GB or bytes (default: the device's own)");
  command->add_option("--devices", o->devices, "how many such devices there are (default 1)");
  command->add_option("--address-order", o->address_order, "order in which addresses are handed out: up (default) or down");
  command->add_option("--allocator", o->allocator, "torch (default where its library was built) or plugin: vramledger's; observe: PyTorch's own, watched; native: PyTorch's own, without a trace");
  command->add_option("--trace", o->trace, "where the trace goes (default: the script's name with .vlt; %p is the process id, %r the RANK)");
  command
      ->add_option("--policy", o->policy,
                   "native: PyTorch's own, to the byte (default); vmm: one that does not fragment")
      ->check(CLI::IsMember({"native", "vmm"}));
  command
      ->add_option("--stacks", o->stacks,
                   "record the stack of every allocation: python, cpp or both (modes torch and plugin; slow: "
                   "5-50 us each)")
      ->check(CLI::IsMember({"python", "cpp", "both"}));
  command->add_flag("--no-trace", o->no_trace, "account, but write no trace");
  command->add_flag("--no-hooks", o->no_hooks, "register no PyTorch hooks: phases from the signals alone, no names");
  command->add_option("--delay-seed", o->delay_seed, "let stream work complete later, in an order made from this number");
  command->add_option("--device-report", o->report, "where the device's summary goes (default: TRACE.device.json)");
  command->add_option("COMMAND", o->command, "the program and its arguments, after --")->required();
  command->footer(
      "Kernels do nothing and values computed on the device are zeros; every allocation is real.\n"
      "The exit code is the program's own.\n"
      "Example: vramledger dryrun --device rtx-4090 --trace out/bert.vlt -- python train.py --batch 32");
  command->callback([o] {
    const vd::Launch launch = vd::PrepareLaunch(*o);
    if (!launch.error.empty()) throw Failure{kExitUsage, launch.error};
    if (const std::string reason = vd::WhyNoPackage(launch); !reason.empty()) throw Failure{kExitUsage, reason};
    throw Failure{kExitUsage, vd::Execute(launch)};  // only returns when it could not start
  });
}

}  // namespace vramledger::cli
