// The program's own stretches (`vramledger.phase("x")`): how high memory was while each ran.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_OWN_PHASES_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_OWN_PHASES_H_

#include <vector>

#include "tools/analysis/ledger.h"
#include "tools/foreign/open_input.h"

namespace vramledger {

// In the order in which they first ran; all bytes are rounded ones of the analysis' device, whichever thread asked for
// them. A reading of its own: none is made of a long trace that does not say that there are any.
std::vector<OwnPhase> FindOwnPhases(const EventInput& input, const Analysis& analysis);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_OWN_PHASES_H_
