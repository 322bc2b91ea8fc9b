// The phases of the program as NVTX ranges, so that Nsight Systems and other tools show them beside kernels.
#ifndef VRAMLEDGER_TRACER_CUPTI_PHASE_RANGES_H_
#define VRAMLEDGER_TRACER_CUPTI_PHASE_RANGES_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "tracer/format/vocabulary.h"

namespace vramledger {

// In the NVTX domain "vramledger": one range that spans threads for the phase that the program is in, one on its thread
// for each of the user's own scopes, and a mark at each optimizer step. On when a tool is attached
// (NVTX_INJECTION64_PATH is set) or with VRAMLEDGER_NVTX=1; off with VRAMLEDGER_NVTX=0. Without a tool a call costs a
// few ns.
//
// Thread rule: any thread; Push and Pop in pairs on one thread.
class PhaseRanges {
 public:
  PhaseRanges();
  bool enabled() const { return enabled_; }
  void Enter(Phase phase);
  void Push(std::string_view name);
  void Pop();
  void Step(uint64_t number, std::string_view optimizer);
  // Ends the range of the phase.
  void End();

 private:
  bool enabled_ = false;
  void* domain_ = nullptr;
  std::atomic<uint64_t> range_{0};  // of the phase, 0 none
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TRACER_CUPTI_PHASE_RANGES_H_
