// Blocks of one place and size that outlive their step again and again.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_LEAKS_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_LEAKS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "tools/analysis/block_table.h"
#include "tools/analysis/ledger.h"

namespace vramledger {

// How many optimizers take their steps in turns: a place that leaks does so once in that many steps. At least 1.
uint32_t StepsOfARound(const std::vector<StepSummary>& steps);

class LeakWatch {
 public:
  // A block of the device is freed in `step`.
  void Freed(const Block& b, uint32_t step) {
    if (b.birth_step < step) freed_since_step_.push_back(b);
  }
  // A step ended: what was freed during it was freed by the training, not by the end of the program.
  void EndStep(uint32_t step) {
    for (const Block& b : freed_since_step_) {
      if (step > b.birth_step + 1) ++late_frees_[KeyOf(b)];
    }
    freed_since_step_.clear();
  }
  // The end: `table` holds what is still alive. What was freed after the last step is judged as alive. `round`: see
  // StepsOfARound.
  std::vector<LeakSuspect> Suspects(const BlockTable& table, int device, uint32_t last_step, uint32_t round,
                                    const std::function<std::string(uint32_t)>& site) const;

 private:
  using Key = std::tuple<uint32_t, uint8_t, uint64_t>;  // module, phase, requested bytes
  static Key KeyOf(const Block& b) { return {b.module, static_cast<uint8_t>(b.phase), b.requested}; }
  absl::flat_hash_map<Key, uint64_t> late_frees_;
  std::vector<Block> freed_since_step_;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_LEAKS_H_
