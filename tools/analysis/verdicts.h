// What is wrong, if anything, with the evidence for it. The catalogue of ids is part of the tool's contract; a run that
// has nothing wrong gets no verdict.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_VERDICTS_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_VERDICTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "tools/analysis/ledger.h"

namespace vramledger {

struct Verdict {
  std::string id;
  std::string sentence;
  nlohmann::ordered_json evidence;  // keys carry their unit: _bytes, _share, _ns; plain counts
  std::string suggestion;
  std::string price;
  std::string confidence;  // high, medium, low
};

// Most urgent first: failures, leaks, peaks, fragmentation, remarks.
std::vector<Verdict> Judge(const Analysis& analysis);

// The verdict on memory outside the allocator; `capacity` 0 = not known. Part of Judge().
std::optional<Verdict> JudgeOutside(const Timeline& timeline, uint64_t capacity);

// The phase peak next in height that is in another phase than the peak's; null when there is none.
const Moment* NextPeak(const Timeline& timeline);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_VERDICTS_H_
