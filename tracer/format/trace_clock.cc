#include "tracer/format/trace_clock.h"

#include <time.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace vramledger {
namespace {

uint64_t MonotonicNs() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

#if defined(__x86_64__)
// CPUID 8000_0007h EDX bit 8: the counter runs at a constant rate in all power states (Intel SDM vol. 3, "Invariant TSC").
bool CounterIsConstant() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & (1u << 8)) != 0;
}
uint64_t Ticks() { return __rdtsc(); }
#else
bool CounterIsConstant() { return false; }
uint64_t Ticks() { return 0; }
#endif

}  // namespace

TraceClock::TraceClock() : start_ns_(MonotonicNs()) {
  if (!CounterIsConstant()) return;
  start_ticks_ = Ticks();
  const uint64_t begin = MonotonicNs();
  const uint64_t begin_ticks = Ticks();
  uint64_t end = begin;
  while (end - begin < 2'000'000) end = MonotonicNs();
  const uint64_t ticks = Ticks() - begin_ticks;
  if (ticks == 0) return;
  ns_per_tick_2_32_ = ((end - begin) << 32) / ticks;
  uses_counter_ = true;
}

uint64_t TraceClock::Now() const {
  if (!uses_counter_) return MonotonicNs() - start_ns_;
  return static_cast<uint64_t>((static_cast<unsigned __int128>(Ticks() - start_ticks_) * ns_per_tick_2_32_) >> 32);
}

}  // namespace vramledger
