// The peak as a function of the batch size: a straight line for each phase, the highest of them at each batch. Lines
// are drawn through requested bytes, and the larger rounding is added: blocks vary from run to run by tens of MiB,
// requests do not.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_BATCH_MODEL_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_BATCH_MODEL_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "tools/analysis/ledger.h"

namespace vramledger {

class BatchModel {
 public:
  // From two runs at different batch sizes, both of which came to their end.
  static BatchModel FromTwo(const Timeline& a, uint64_t batch_a, const Timeline& b, uint64_t batch_b);
  // From one run: what grows with the batch is taken to be activations, inputs, and the temporaries and passing
  // workspaces of forward and backward.
  // A request that failed counts as held at its moment; one of the optimizer's does not grow.
  static BatchModel FromOne(const Timeline& t, uint64_t batch);

  uint64_t Peak(double batch) const;
  // Largest whole batch whose peak is at most `bytes`; none when even one sample does not fit, or nothing grows.
  std::optional<uint64_t> Largest(uint64_t bytes) const;

 private:
  struct Line {
    double fixed = 0, per_sample = 0;
  };
  std::array<Line, kPhaseCount> lines_{};
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_BATCH_MODEL_H_
