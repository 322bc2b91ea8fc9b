// A clock cheap enough for every record: the processor's time-stamp counter where it runs at a constant rate, CLOCK_MONOTONIC elsewhere.
#ifndef VRAMLEDGER_TRACER_FORMAT_TRACE_CLOCK_H_
#define VRAMLEDGER_TRACER_FORMAT_TRACE_CLOCK_H_

#include <cstdint>

namespace vramledger {

// Thread rule: Now() from any thread. Never goes backward within a thread.
class TraceClock {
 public:
  TraceClock();
  // Nanoseconds since construction. About 10 ns by the counter, 25 ns otherwise (measured on a 2.6 GHz machine).
  uint64_t Now() const;
  // The rate is measured against CLOCK_MONOTONIC for 2 ms when the clock is made (error below 100 ppm).
  bool uses_counter() const { return uses_counter_; }

 private:
  uint64_t start_ns_ = 0;
  uint64_t start_ticks_ = 0;
  uint64_t ns_per_tick_2_32_ = 0;  // fixed point
  bool uses_counter_ = false;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TRACER_FORMAT_TRACE_CLOCK_H_
