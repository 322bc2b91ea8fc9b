// Writes any stream of events as a trace file.
#ifndef VRAMLEDGER_TOOLS_FOREIGN_EVENT_WRITER_H_
#define VRAMLEDGER_TOOLS_FOREIGN_EVENT_WRITER_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "tracer/format/event.h"

namespace vramledger {

struct WrittenTrace {
  uint64_t records = 0;
  bool addresses_moved =
      false;  // the source's addresses are no multiples of 16 B: they were moved apart, in the same order
};

// `source` is read to its end; `probe`, a second source of the same events, is looked through first for what the format
// cannot hold.
absl::StatusOr<WrittenTrace> WriteTrace(EventSource& probe, EventSource& source, const std::string& path);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_FOREIGN_EVENT_WRITER_H_
