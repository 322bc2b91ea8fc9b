// Opening an input for a command.
#ifndef VRAMLEDGER_TOOLS_CLI_LOAD_H_
#define VRAMLEDGER_TOOLS_CLI_LOAD_H_

#include <string>

#include "tools/analysis/timeline.h"
#include "tools/cli/command.h"
#include "tools/cli/output.h"

namespace vramledger::cli {

// Both throw Failure (exit code 3) with one sentence.
inline EventInput OpenOrFail(const std::string& path) {
  absl::StatusOr<EventInput> input = EventInput::Open(path);
  RequireReadable(input.status());
  return *std::move(input);
}

// `device` < 0: the one with the highest peak.
inline Analysis AnalyzeOrFail(const std::string& path, int device) {
  const Progress progress("reading " + path);
  const EventInput input = OpenOrFail(path);
  absl::StatusOr<Analysis> analysis = Analyze(input, device < 0 ? std::nullopt : std::optional<int>(device));
  if (!analysis.ok()) throw Failure{kExitUnreadable, path + ": " + std::string(analysis.status().message())};
  return *std::move(analysis);
}

}  // namespace vramledger::cli

#endif  // VRAMLEDGER_TOOLS_CLI_LOAD_H_
