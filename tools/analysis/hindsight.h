// First pass: what can only be known once a block's life is over (its category), and where the peaks are.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_HINDSIGHT_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_HINDSIGHT_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "tracer/format/event.h"

namespace vramledger {

struct DeviceHindsight {
  bool seen = false;
  uint64_t peak_rounded = 0;
  uint64_t peak_clock = 0;  // the first event at which it stood
  uint64_t reserved_peak = 0;
  uint64_t reserved_peak_clock = 0;  // of the moments at which that much was reserved, the one with the most in use
  uint64_t held_at_reserved_peak = 0;
};

struct Hindsight {
  std::vector<uint8_t> categories;  // by allocation ordinal: one byte for each
  std::array<DeviceHindsight, 256> devices{};
  absl::flat_hash_map<uint64_t, uint64_t> last_allocation;  // device << 32 | stream -> clock
  uint64_t events = 0;
  bool has_steps = false;
  bool has_phases = false;
  bool has_names = false;

  // The device with the highest peak; 0 when there is none.
  int BusiestDevice() const;
};

Hindsight LookThrough(EventSource& source);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_HINDSIGHT_H_
