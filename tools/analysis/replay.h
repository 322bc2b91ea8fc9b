// The requests of a trace once more through the allocator core, on a simulated device: with the recorded policy and
// settings as a proof that the core is the recorded allocator, with others to see what they would have done.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_REPLAY_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_REPLAY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "allocator/core/allocator_settings.h"
#include "allocator/core/allocator_types.h"
#include "allocator/core/statistics.h"
#include "allocator/simulated_device_memory.h"
#include "nlohmann/json.hpp"
#include "tools/foreign/open_input.h"
#include "tracer/format/vocabulary.h"

namespace vramledger {

// What is not set is as recorded.
struct ReplayQuestion {
  std::optional<AllocatorSettings::Policy> policy;
  std::optional<AllocatorSettings> settings;  // its policy is ignored
  std::optional<uint64_t> capacity_bytes;     // of the device, in all
  std::optional<uint64_t> used_elsewhere_bytes;
  std::optional<AddressOrder> address_order;
  std::optional<int> device;  // the one with the highest peak
};

struct ReplayOutOfMemory {
  uint64_t sequence = 0;    // the event that could not be served
  uint64_t allocation = 0;  // its number among the allocations, from 1
  Phase phase = Phase::kUnknown;
  std::string site;
  OutOfMemoryInfo info;
};

struct ReplayReport {
  std::string source, format;
  int device = 0;
  AllocatorSettings settings;   // used, with the policy
  bool as_recorded = false;     // policy, settings and device are the recorded ones
  uint64_t capacity_bytes = 0;  // 0: not known, and none was given
  uint64_t used_elsewhere_bytes = 0;

  uint64_t allocations = 0;
  // With the recorded policy and settings only. An address is compared as segment and offset.
  uint64_t addresses_compared = 0, addresses_equal = 0;
  uint64_t segments_compared = 0, segments_equal = 0;  // events: taken, given back, mapped, unmapped
  std::string not_compared;                            // why not, one sentence; empty if compared
  std::string first_difference;                        // empty if none
  uint64_t unknown_frees = 0;                          // of blocks that the trace never saw
  // What the trace found in place when it began.
  uint64_t initial_segments = 0, initial_blocks = 0, initial_bytes = 0;
  bool restored = false;  // put back as it was; else its blocks were requested anew

  uint64_t peak_live_bytes = 0;       // blocks in use or awaited by a stream
  uint64_t peak_allocated_bytes = 0;  // blocks in use
  uint64_t peak_reserved_bytes = 0;
  uint64_t recorded_peak_reserved_bytes = 0;
  uint64_t segment_events = 0;       // of the replay: taken, given back, mapped, unmapped
  uint64_t late_segment_events = 0;  // those of the second half of the allocations
  // The first request that was served in the recording and cannot be served here; the replay ends at it.
  std::optional<ReplayOutOfMemory> out_of_memory;
  // Requests that failed in the recording, and how many of them are served here.
  uint64_t recorded_out_of_memory = 0, recorded_out_of_memory_served = 0;
  std::vector<std::string> notes;
  Statistics statistics;  // the core's, at the end
};

// FailedPrecondition: settings that have no effect with the policy, which may be the recorded one.
absl::StatusOr<ReplayReport> Replay(const EventInput& input, const ReplayQuestion& question);

// Schema vramledger.replay/1.
nlohmann::ordered_json ReplayJson(const ReplayReport& report);
std::string ReplayText(const ReplayReport& report);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_REPLAY_H_
