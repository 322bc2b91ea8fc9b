// Opens whatever holds events: our traces, PyTorch snapshots (plain or gzip), hand-written event texts.
#ifndef VRAMLEDGER_TOOLS_FOREIGN_OPEN_INPUT_H_
#define VRAMLEDGER_TOOLS_FOREIGN_OPEN_INPUT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tools/foreign/event_list.h"
#include "tracer/format/event.h"

namespace vramledger {

// An opened input that can be read more than once, each time from its start.
class EventInput {
 public:
  // The error is one sentence: path, what is wrong, where.
  static absl::StatusOr<EventInput> Open(const std::string& path);
  static EventInput FromList(std::string path, std::shared_ptr<const EventList> list);

  absl::StatusOr<std::unique_ptr<EventSource>> NewSource() const;
  const std::string& path() const { return path_; }
  bool is_trace() const { return list_ == nullptr; }

 private:
  EventInput(std::string path, std::shared_ptr<const EventList> list);
  std::string path_;
  std::shared_ptr<const EventList> list_;  // null: a trace file, read as a stream
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_FOREIGN_OPEN_INPUT_H_
