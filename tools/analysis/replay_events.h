// A trace cut down to what an allocator was asked and did, for one device.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_REPLAY_EVENTS_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_REPLAY_EVENTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/foreign/open_input.h"
#include "tracer/format/event.h"

namespace vramledger {

// 32 bytes, since a trace may have tens of millions.
struct ReplayEvent {
  enum Kind : uint8_t { kAlloc, kFree, kFreeRequested, kFreeCompleted, kTake, kGive, kMap, kUnmap, kOutOfMemory };
  uint64_t address = 0;  // kOutOfMemory: the device's free bytes
  uint64_t bytes = 0;    // requested; segments: all
  uint64_t sequence : 48 = 0;
  uint64_t stream : 16 = 0;
  uint32_t module = 0;
  Kind kind = kAlloc;
  Phase phase = Phase::kUnknown;
  uint8_t flags = 0;

  bool is_segment() const { return kind >= kTake && kind <= kUnmap; }
  bool is_request() const { return kind <= kFreeRequested; }
};

struct RecordedBlock {
  uint64_t bytes = 0;
  uint64_t requested = 0;
  uint16_t stream = 0;
  Phase phase = Phase::kUnknown;
  uint32_t module = 0;
  bool awaiting_free = false;
};
struct RecordedSegment {
  uint64_t bytes = 0;
  uint16_t stream = 0;
  bool small = false;
  bool expandable = false;
};

struct ReplayHistory {
  int device = 0;
  // What was in place before the first event, by address.
  std::map<uint64_t, RecordedSegment> segments;
  std::map<uint64_t, RecordedBlock> blocks;
  std::vector<ReplayEvent> events;
  uint64_t peak_reserved_bytes = 0;
  // By the first sample of the device: in use, and no segment of the allocator's.
  std::optional<uint64_t> used_elsewhere_bytes;
  std::vector<std::string> strings;  // of the modules; by id
  std::string metadata_json;
  std::string format;
  std::vector<std::string> notes;
};

// Without a device: the one that handed out the most bytes at once.
absl::StatusOr<ReplayHistory> ReadReplayHistory(const EventInput& input, std::optional<int> device);

// Where a block that was there before the recording ends is not in a snapshot if it was freed later: only its request
// is. But free memory begins where the block before it ends, and a request takes the beginning of a free block. So each
// later request says where the block before its address ended, at the least; and what is left of a large segment and is
// too small to have been split off belongs to the block before it.
void InferBlockSizes(ReplayHistory& history, uint64_t smallest_large_rest);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_REPLAY_EVENTS_H_
