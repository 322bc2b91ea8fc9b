// Opening an input for a command.
#ifndef VRAMLEDGER_TOOLS_CLI_LOAD_H_
#define VRAMLEDGER_TOOLS_CLI_LOAD_H_

#include <string>

#include "tools/analysis/timeline.h"
#include "tools/cli/command.h"
#include "tools/cli/output.h"
#include "tools/foreign/text.h"

namespace vramledger::cli {

// Both throw Failure (exit code 3) with one sentence.
inline EventInput OpenOrFail(const std::string& path) {
  absl::StatusOr<EventInput> input = EventInput::Open(path);
  RequireReadable(input.status());
  return *std::move(input);
}

// An analysis that failed: asked about a device that the input does not have (wrong use), or unreadable.
[[noreturn]] inline void FailAnalysis(const std::string& path, const absl::Status& status) {
  throw Failure{absl::IsNotFound(status) ? kExitUsage : kExitUnreadable, path + ": " + std::string(status.message())};
}

// `device` < 0: the one with the highest peak.
inline Analysis AnalyzeOrFail(const std::string& path, int device) {
  const Progress progress("reading " + path);
  const EventInput input = OpenOrFail(path);
  absl::StatusOr<Analysis> analysis = Analyze(input, device < 0 ? std::nullopt : std::optional<int>(device));
  if (!analysis.ok()) FailAnalysis(path, analysis.status());
  return *std::move(analysis);
}

// After what is readable has been printed: the one sentence on what is not, and exit code 3.
inline void FailIfDamaged(const SourceHealth& health) {
  if (!health.damage.empty()) throw Failure{kExitUnreadable, health.damage};
}

// Which device of the trace, as an index: `--device` here, `--device-index` where `--device` is a card.
inline void AddDeviceIndex(CLI::App* command, const std::string& option, int* index, const std::string& for_a_card) {
  command->add_option(option, *index, "index of a device of the trace: 0, 1, ... (default: the one with the highest peak)")
      ->check(CLI::Validator(
          [option, for_a_card](std::string& text) {
            uint64_t number = 0;
            if (ParseInteger(text, &number) && number <= 255) return std::string();
            return Cat("\"", text, "\" is no index of a device of the trace (0 to 255); ", for_a_card);
          },
          ""));
}

}  // namespace vramledger::cli

#endif  // VRAMLEDGER_TOOLS_CLI_LOAD_H_
