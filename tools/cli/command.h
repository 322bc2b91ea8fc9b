// What every command of the tool shares: registration, exit codes, output.
#ifndef VRAMLEDGER_TOOLS_CLI_COMMAND_H_
#define VRAMLEDGER_TOOLS_CLI_COMMAND_H_

#include <CLI/CLI.hpp>
#include <string>

#include "absl/status/status.h"

namespace vramledger::cli {

// Exit codes of every command (README).
inline constexpr int kExitOk = 0;
inline constexpr int kExitCheckFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitUnreadable = 3;

// A command's body reports failure by throwing this from its CLI11 callback; main prints one line and exits.
struct Failure {
  int exit_code;
  std::string sentence;
};

// Throws Failure{kExitUnreadable} with the status's message unless ok.
void RequireReadable(const absl::Status& status);

// One function per command, each in its own file.
void RegisterReport(CLI::App& app);
void RegisterReconcile(CLI::App& app);
void RegisterEstimate(CLI::App& app);
void RegisterAdvise(CLI::App& app);
void RegisterImport(CLI::App& app);
void RegisterExport(CLI::App& app);
void RegisterCheck(CLI::App& app);
void RegisterDryrun(CLI::App& app);
void RegisterReplay(CLI::App& app);
void RegisterDoctor(CLI::App& app);

}  // namespace vramledger::cli

#endif  // VRAMLEDGER_TOOLS_CLI_COMMAND_H_
