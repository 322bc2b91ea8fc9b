// Mixed precision as advice: what of a run's activations would halve under autocast.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_ADVISE_PRECISION_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_ADVISE_PRECISION_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/analysis/advise.h"
#include "tools/analysis/metadata.h"

namespace vramledger {

class PrecisionModel {
 public:
  // A layer of the model, in the order in which they ran: its class, and the bytes and shape of its input.
  void See(const std::string& path, const std::string& kind, uint64_t input_bytes, const std::vector<uint64_t>& in);
  // `activations`: at their peak. Nothing where the run has it already.
  std::optional<Suggestion> Suggest(const Timeline& t, const Metadata& metadata,
                                    const std::vector<BlockGroup>& activations) const;

 private:
  enum class Width { kNarrow, kWide, kGone };
  Width WidthOf(const std::string& site, bool wide_stream) const;

  std::map<std::string, std::string> kinds_;  // path -> class
  uint64_t narrow_copies_ = 0;                // bytes that products keep of norms' outputs
  std::vector<uint64_t> norm_shape_;          // input of the norm whose output is being read
  std::string reader_parent_;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_ADVISE_PRECISION_H_
