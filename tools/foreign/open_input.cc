#include "tools/foreign/open_input.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "tools/foreign/file_bytes.h"
#include "tools/foreign/pickle_reader.h"
#include "tools/foreign/snapshot_import.h"
#include "tools/foreign/text.h"
#include "tools/foreign/text_events.h"
#include "tracer/format/trace_reader.h"
#include "tracer/phase/backward_modules.h"

namespace vramledger {
namespace {

bool LooksLikeText(std::string_view start) {
  return std::all_of(start.begin(), start.end(), [](char c) {
    const auto b = static_cast<unsigned char>(c);
    return b >= 0x20 || b == '\n' || b == '\r' || b == '\t';
  });
}

absl::StatusOr<std::shared_ptr<const EventList>> ReadForeign(const std::string& path) {
  absl::StatusOr<std::string> bytes = ReadFile(path);
  if (!bytes.ok()) return bytes.status();
  if (bytes->empty()) return absl::InvalidArgumentError("is empty (0 bytes)");
  if (IsGzip(*bytes)) {
    bytes = Gunzip(*bytes);
    if (!bytes.ok()) return bytes.status();
    if (bytes->empty()) return absl::InvalidArgumentError("holds an empty gzip stream");
  }
  if (bytes->starts_with(kTextEventsMagic)) return ReadTextEvents(*bytes);
  if (LooksLikePickle(*bytes)) return ImportSnapshot(*std::move(bytes));
  const std::string_view start = std::string_view(*bytes).substr(0, 256);
  return absl::InvalidArgumentError(Cat("is neither a vramledger trace nor a PyTorch memory snapshot: it begins with ",
                                        LooksLikeText(start) ? "text" : "bytes that are neither, at byte 0"));
}

// Modules and nodes of allocations in backward, and stacks.
class Follower {
 public:
  void operator()(std::span<Event> events) {
    for (Event& event : events) {
      modules_.See(&event);
      if (event.kind == RecordKind::kStack) {
        if (stacks_.size() <= event.thread) stacks_.resize(size_t{event.thread} + 1);
        stacks_[event.thread] = event.a;
      } else if (event.kind == RecordKind::kAlloc && event.thread < stacks_.size()) {
        event.stack = stacks_[event.thread];
      }
    }
  }

 private:
  BackwardModules modules_;
  std::vector<uint32_t> stacks_;  // by thread
};

}  // namespace

EventInput::EventInput(std::string path, std::shared_ptr<const EventList> list)
    : path_(std::move(path)), list_(std::move(list)) {}

EventInput EventInput::FromList(std::string path, std::shared_ptr<const EventList> list) {
  return EventInput(std::move(path), std::move(list));
}

absl::StatusOr<EventInput> EventInput::Open(const std::string& path) {
  if (LooksLikeTrace(path)) {
    if (absl::StatusOr<std::unique_ptr<EventSource>> probe = OpenTrace(path); !probe.ok()) return probe.status();
    return EventInput(path, nullptr);
  }
  absl::StatusOr<std::shared_ptr<const EventList>> list = ReadForeign(path);
  if (!list.ok()) return absl::Status(list.status().code(), Cat(path, ": ", std::string(list.status().message())));
  return EventInput(path, *std::move(list));
}

absl::StatusOr<std::unique_ptr<EventSource>> EventInput::NewSource() const {
  if (list_ != nullptr) return std::make_unique<EventListSource>(list_, Follower());
  return OpenTrace(path_, Follower());
}

}  // namespace vramledger
