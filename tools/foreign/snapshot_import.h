// PyTorch memory snapshots (torch.cuda.memory._snapshot() pickled, every layout since 2023) as a stream of events.
#ifndef VRAMLEDGER_TOOLS_FOREIGN_SNAPSHOT_IMPORT_H_
#define VRAMLEDGER_TOOLS_FOREIGN_SNAPSHOT_IMPORT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tools/foreign/event_list.h"

namespace vramledger {

// `pickle` is the decompressed file. What existed before the recorded history is reconstructed by going backward from
// the final state, and comes first in the list (at time 0, site kBeforeRecordingSite unless its frames are known).
// After the last event, the live blocks are exactly the snapshot's active blocks and the reserved bytes its segments.
absl::StatusOr<std::shared_ptr<const EventList>> ImportSnapshot(std::string pickle);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_FOREIGN_SNAPSHOT_IMPORT_H_
