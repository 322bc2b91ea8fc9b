// Starts a program on the virtual device: finds the stand-ins, composes the environment, replaces this process.
// Used by `vramledger dryrun` and `vramledger doctor`. Not thread-safe; sizes in bytes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace vd {

struct LaunchOptions {
  std::string device = "h100-80gb";  // a name of ListDeviceModels, or a path with a slash
  std::string memory;                // "" = the device's own; else "24GiB", "24GB", "25000000000"
  int devices = 1;
  std::string address_order = "up";  // up, down
  std::string allocator;             // torch, plugin, observe, native; "" = what `python -m vramledger run` takes by itself
  std::string trace;                 // where the trace goes; not with native
  // Options of `run`, which judges them; not with native.
  std::string policy, stacks;        // "" = not given
  bool no_trace = false, no_hooks = false;
  std::string delay_seed;            // "" = work completes at once
  std::string report;                // where the summary of the device goes; "" = beside the trace
  std::vector<std::string> command;  // python train.py ...
};

// What is to be executed. `error` is one sentence when it cannot be; everything else is then empty.
struct Launch {
  std::string error;
  std::vector<std::string> command;
  std::string program;                             // the file of command[0]
  std::map<std::string, std::string> environment;  // to be set, beside what there is
  size_t package_at = 0;                           // where `-m vramledger run` begins in the command; 0: nowhere
};

// The folder of the stand-ins: VRAMLEDGER_VIRTUAL_DEVICE_DIR, or ../lib/virtual_device beside this executable. "": none.
std::string FindStandIns();
// Files to preload, in FOLDER: every library there.
std::vector<std::string> StandInFiles(const std::string& folder);
// Folder of the executable that is running.
std::string ExecutableFolder();

// False: not a size. Accepts bytes and the suffixes B, KB, MB, GB, TB, KiB, MiB, GiB, TiB, K, M, G, T (binary), in capitals or not.
bool ParseSize(const std::string& text, uint64_t* bytes);

Launch PrepareLaunch(const LaunchOptions& options);

// One sentence where the command goes through the package vramledger and its Python has none; asks that Python. "" otherwise.
std::string WhyNoPackage(const Launch& launch);

// Replaces this process, so that signals and the exit code are the program's own. Returns only on failure: a sentence.
std::string Execute(const Launch& launch);

}  // namespace vd
