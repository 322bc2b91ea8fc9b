// The program's own stretches (`vramledger.phase("x")`): how high memory was while each ran.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_OWN_PHASES_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_OWN_PHASES_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "tracer/format/event.h"

namespace vramledger {

// A stretch that the program named itself, over all its times. Bytes are rounded ones of one device, whichever thread
// asked for them.
struct OwnPhase {
  std::string name;
  uint64_t times = 0;
  uint64_t peak_bytes = 0;  // of all that is held, while it ran
  uint64_t peak_time_ns = 0, peak_step = 0;
  uint64_t rise_bytes = 0;  // the most above what was held as it began
};

// Follows them through the events of a trace, in order.
class OwnPhaseWatch {
 public:
  // A PHASE record, while `held` bytes are held.
  void Enter(const Event& e, const EventSource& source, uint64_t held, uint64_t step);
  // Memory grew to `held`.
  void Raise(uint64_t held, uint64_t time_ns, uint64_t step) {
    for (const Open& o : open_) See(o, held, time_ns, step);
  }
  // In the order in which they first ran.
  std::vector<OwnPhase> Take() { return std::move(out_); }

 private:
  struct Open {
    uint16_t thread = 0;
    uint32_t name = 0;
    uint64_t held_before = 0;
    size_t phase = 0;
  };
  void See(const Open& o, uint64_t held, uint64_t time_ns, uint64_t step);

  absl::flat_hash_map<uint32_t, size_t> by_name_;
  std::vector<Open> open_;
  std::vector<OwnPhase> out_;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_OWN_PHASES_H_
