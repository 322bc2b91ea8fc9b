// Reads a trace, finished or not, in order and with memory bounded by one chunk and some batches plus the strings.
#ifndef VRAMLEDGER_TRACER_FORMAT_TRACE_READER_H_
#define VRAMLEDGER_TRACER_FORMAT_TRACE_READER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tracer/format/event.h"

namespace vramledger {

// Opens a .vlt file. Errors (not found, not a trace, too new, header damaged) are one sentence with path and offset. Damage further
// on does not fail here: events up to it are delivered and health() names the offset. `follow`, which may be null, runs on a thread of the
// reader.
absl::StatusOr<std::unique_ptr<EventSource>> OpenTrace(const std::string& path, EventFollower follow = nullptr);

// True if the file begins with the magic of a trace. False also when it cannot be read.
bool LooksLikeTrace(const std::string& path);

}  // namespace vramledger

#endif  // VRAMLEDGER_TRACER_FORMAT_TRACE_READER_H_
