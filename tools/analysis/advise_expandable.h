// Expandable segments as advice: what the recorded requests need with them, by a replay through the allocator core.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_ADVISE_EXPANDABLE_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_ADVISE_EXPANDABLE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "tools/analysis/advise.h"
#include "tools/analysis/metadata.h"
#include "tools/analysis/replay.h"

namespace vramledger {

class ExpandableSegments {
 public:
  ExpandableSegments(const EventInput& input, uint64_t most_replayed) : input_(input), most_replayed_(most_replayed) {}

  // `advice`: with its baseline and what is known of a failure. A run that recorded no segments, or had expandable ones, gets
  // no advice on them.
  void Measure(const Advice& advice, const Metadata& metadata);
  bool possible() const { return possible_; }

  // Reserved bytes for each byte allocated without them: blocks round up otherwise.
  double Ratio() const;
  std::string Method() const;

  // The run as it is, where it only does not fit because of fragmentation. `room`: for the recorded steps; `headroom`: what
  // is kept free beyond that.
  std::optional<Suggestion> Alone(const Advice& advice, uint64_t room, uint64_t headroom) const;

 private:
  absl::StatusOr<ReplayReport> ReplayOn(int device, uint64_t capacity) const;

  const EventInput& input_;
  const uint64_t most_replayed_;
  bool possible_ = false;
  uint64_t baseline_ = 0;  // allocated, as recorded
  std::optional<Verified> measured_;  // where the requests were replayed, and those that failed in the run were served
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_ADVISE_EXPANDABLE_H_
