// Second pass: the run of one device, with every block's category known from the first pass. Memory: the live blocks,
// the groups of equal blocks, and one summary a step.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_TIMELINE_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_TIMELINE_H_

#include <optional>

#include "absl/status/statusor.h"
#include "tools/analysis/hindsight.h"
#include "tools/analysis/ledger.h"
#include "tools/foreign/open_input.h"

namespace vramledger {

Timeline BuildTimeline(EventSource& source, const Hindsight& hindsight, int device);

// Groups of equal blocks of one category that were held right after the event number `sequence`, for each question. One
// pass.
struct GroupQuestion {
  uint64_t sequence;
  Category category;
};
std::vector<std::vector<BlockGroup>> GroupsAt(EventSource& source, const Hindsight& hindsight, int device,
                                              const std::vector<GroupQuestion>& questions);

// Both passes over an input. Without a device: the one with the highest peak. `keep`: where the first pass's result
// goes.
absl::StatusOr<Analysis> Analyze(const EventInput& input, std::optional<int> device = std::nullopt,
                                 Hindsight* keep = nullptr);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_TIMELINE_H_
