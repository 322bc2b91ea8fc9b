// Verifies that a stream of events is a possible history of an allocator, and that its sums close.
#ifndef VRAMLEDGER_TRACER_FORMAT_CHECKER_H_
#define VRAMLEDGER_TRACER_FORMAT_CHECKER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tracer/format/event.h"

namespace vramledger {

struct CheckResult {
  uint64_t events = 0;
  uint64_t allocations = 0;
  uint64_t live_at_end = 0;
  uint64_t live_bytes_at_end = 0;
  uint64_t counters_verified = 0;     // kCounters records whose sums agreed
  uint64_t violations = 0;            // all of them; `sentences` keeps the first 20
  std::vector<std::string> sentences;
};

// Reads the source to its end. A violation is: an address allocated twice, a free of what is not live or of another size, live
// blocks that overlap, a block outside every known segment, segments that overlap, time going backward within a thread, counters that do not
// equal the sums. With lost records frees of unknown addresses are expected and not counted.
CheckResult CheckEvents(EventSource& source);

}  // namespace vramledger

#endif  // VRAMLEDGER_TRACER_FORMAT_CHECKER_H_
