// What the analysis finds: plain structures, filled by the timeline and read by verdicts, reports and reconcile.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_LEDGER_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_LEDGER_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/analysis/outside.h"
#include "tools/analysis/own_phases.h"
#include "tracer/format/event.h"

namespace vramledger {

struct Bytes {
  uint64_t requested = 0;
  uint64_t rounded = 0;
  uint64_t count = 0;

  void Add(uint64_t requested_bytes, uint64_t rounded_bytes) {
    requested += requested_bytes, rounded += rounded_bytes, ++count;
  }
  void Remove(uint64_t requested_bytes, uint64_t rounded_bytes) {
    requested -= requested_bytes, rounded -= rounded_bytes, --count;
  }
  void Merge(const Bytes& other) { requested += other.requested, rounded += other.rounded, count += other.count; }
};

using CategoryTable = std::array<Bytes, kCategoryCount>;

// One moment of the run.
struct Moment {
  uint64_t sequence = 0;
  uint64_t time_ns = 0;
  uint64_t step = 0;
  Phase phase = Phase::kUnknown;
  Bytes total;                 // blocks that the program holds
  uint64_t pending_bytes = 0;  // freed by the program, still awaited by a stream
  uint64_t reserved_bytes = 0;
  CategoryTable categories;
};

struct NamedBytes {
  std::string name;
  Bytes bytes;
};

// A group of equal blocks at one moment: same place, phase, size.
struct BlockGroup {
  std::string site;
  std::string node;    // of autograd, that made them in backward; empty if not known
  std::string stack;   // innermost frame first; empty where stacks were not recorded
  std::string tensor;  // name, when one is known and the group is one block
  Phase phase = Phase::kUnknown;
  Category category = Category::kUnknown;
  uint64_t requested_each = 0;
  Bytes bytes;
};

// reserved - rounded, by why it is free; see DESIGN: never one number without the split.
struct Fragmentation {
  bool known = false;  // false: the source records no segments
  uint64_t sequence = 0;
  uint64_t internal_bytes = 0;  // rounded - requested
  uint64_t pinned_bytes = 0;    // holes in segments that also hold live blocks
  uint64_t idle_bytes = 0;      // whole free segments
  uint64_t stream_bytes = 0;    // free, and of a stream that asks for nothing any more
  uint64_t pending_bytes = 0;
  uint64_t largest_hole_bytes = 0;
  uint64_t holes = 0;
  uint64_t idle_segments = 0, pinned_segments = 0, segments = 0;
  uint64_t pinning_blocks = 0;  // live blocks in segments with holes
  uint64_t pinning_bytes = 0;
  std::string largest_pinned_site;  // place of the largest live block in the segment with most free bytes
  uint64_t external() const { return pinned_bytes + idle_bytes + stream_bytes + pending_bytes; }
};

struct StepSummary {
  uint64_t number = 0;
  std::string optimizer;
  uint64_t end_ns = 0;
  Moment peak;
  std::array<uint64_t, kPhaseCount> phase_peaks{};  // rounded bytes; 0 where the step had no such phase
  uint64_t floor_bytes = 0;     // rounded, held when the step ended
  uint64_t reserved_bytes = 0;  // when the step ended
};

// Blocks of one place and size that outlive their step again and again.
struct LeakSuspect {
  std::string site;
  Phase phase = Phase::kUnknown;
  uint64_t requested_each = 0;
  uint64_t blocks = 0;  // alive at the end, older than a step
  uint64_t steps = 0;   // distinct steps they were born in
  uint64_t bytes = 0;
};

struct FailedRequest {
  uint64_t time_ns = 0;
  uint64_t step = 0;
  Phase phase = Phase::kUnknown;
  uint64_t request_bytes = 0;
  uint64_t device_free_bytes = 0;
  double memory_fraction = 1;  // the share of the device that the process was allowed, as far as the trace says
  Moment moment;
  Fragmentation fragmentation;
  std::optional<OutsideSample> outside;  // the sample made because of it
};

struct PhasePeak {
  bool seen = false;
  Moment moment;
};

// The moment of a mark in the trace.
struct MarkedMoment {
  std::string text;
  Moment moment;
};

// The whole of one device's run.
struct Timeline {
  int device = 0;
  uint64_t events = 0;
  uint64_t allocations = 0;
  uint64_t duration_ns = 0;
  uint64_t unmatched_frees = 0;
  uint64_t unmatched_names = 0;
  uint64_t counters_seen = 0, counters_wrong = 0;
  bool has_phases = false, has_steps = false, has_names = false;
  uint64_t blocks_before_recording = 0;

  Moment peak;
  std::array<std::array<Bytes, kCategoryCount>, kPhaseCount> peak_by_birth_phase{};
  std::vector<NamedBytes> peak_modules;  // largest first
  std::vector<NamedBytes> peak_names;
  std::vector<BlockGroup> peak_groups;  // largest first
  Bytes peak_stale_gradients;           // gradients of an earlier step
  Bytes peak_before_recording;
  Bytes peak_passing_workspace;  // of forward, backward and eval, freed within the operator that took it
  Fragmentation at_peak;

  std::array<Moment, kCategoryCount> category_peaks{};  // by their own category's bytes
  std::array<PhasePeak, kPhaseCount> phase_peaks{};
  uint64_t reserved_peak_bytes = 0;
  uint64_t reserved_peak_time_ns = 0, reserved_peak_step = 0;
  Phase reserved_peak_phase = Phase::kUnknown;
  Fragmentation at_reserved_peak;
  Moment end;
  Fragmentation at_end;
  std::vector<MarkedMoment> marks;  // where recorded lists of operators end

  // The run at even distances in events, at most kSeriesMoments of them.
  static constexpr size_t kSeriesMoments = 512;
  std::vector<Moment> series;
  uint64_t series_every = 64;  // events, a power of two

  std::vector<StepSummary> steps;
  std::vector<OwnPhase> own_phases;
  std::vector<LeakSuspect> leaks;
  std::vector<FailedRequest> failures;
  uint64_t failures_total = 0;

  bool device_sampled = false;
  uint64_t device_total_bytes = 0;
  uint64_t outside_peak_bytes = 0;  // device used - reserved, largest sample
  uint64_t outside_last_bytes = 0;
  uint64_t used_peak_bytes = 0;
  OutsideLedger outside;
};

// "backward of step 4"; "eval after step 3" when no step 4 came to be. StepCell, without the phase: "4", "after 3".
std::string PhaseAndStep(const Timeline& timeline, Phase phase, uint64_t step);
std::string StepCell(const Timeline& timeline, Phase phase, uint64_t step);
// " in backward of step 4", " in backward" of a run without steps, " in step 4" where the phase is not known; "" where nothing is.
std::string InPhaseAndStep(const Timeline& timeline, Phase phase, uint64_t step);
// Without recorded steps the whole run counts as step 1, which tells a reader nothing.
inline bool NamesSteps(const Timeline& timeline) { return timeline.has_steps || timeline.steps.size() > 1; }

// What the two passes need of each other, and the source's own account.
struct SourceFacts {
  std::string path;
  std::string format;
  std::string metadata_json;
  SourceHealth health;
};

struct Analysis {
  SourceFacts source;
  Timeline timeline;
  std::vector<std::pair<int, uint64_t>> device_peaks;  // device, peak rounded bytes
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_LEDGER_H_
