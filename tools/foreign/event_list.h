// A list of events held in memory (an imported snapshot, a hand-written text), readable any number of times.
#ifndef VRAMLEDGER_TOOLS_FOREIGN_EVENT_LIST_H_
#define VRAMLEDGER_TOOLS_FOREIGN_EVENT_LIST_H_

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "tracer/format/event.h"

namespace vramledger {

// The site (Event::module) of blocks that existed before the recording began, and of blocks that a library took as
// workspace.
inline constexpr std::string_view kBeforeRecordingSite = "(before the recording)";
inline constexpr std::string_view kWorkspaceSite = "(library workspace)";

struct EventList {
  std::vector<Event> events;
  std::vector<std::string> strings{""};  // by id
  std::string metadata_json = "{}";
  SourceHealth health;
  std::string format = "events";

  uint32_t Intern(std::string_view text) {
    if (text.empty()) return 0;
    const auto [it, fresh] = ids_.try_emplace(std::string(text), static_cast<uint32_t>(strings.size()));
    if (fresh) strings.emplace_back(text);
    return it->second;
  }
  // Appends and numbers the event.
  void Add(Event event) {
    event.sequence = events.size();
    events.push_back(event);
  }

 private:
  absl::flat_hash_map<std::string, uint32_t> ids_;
};

class EventListSource final : public EventSource {
 public:
  explicit EventListSource(std::shared_ptr<const EventList> list, EventFollower follow = nullptr)
      : list_(std::move(list)), follow_(std::move(follow)) {}

  std::string_view String(uint32_t id) const override {
    return id < list_->strings.size() ? std::string_view(list_->strings[id]) : std::string_view();
  }
  const std::string& metadata_json() const override { return list_->metadata_json; }
  const SourceHealth& health() const override { return list_->health; }
  std::string_view format() const override { return list_->format; }

 protected:
  std::span<const Event> NextBatch() override {
    const auto rest = std::span(list_->events).subspan(next_);
    const auto batch = rest.first(std::min(rest.size(), kBatchEvents));
    next_ += batch.size();
    if (follow_ == nullptr) return batch;
    followed_.assign(batch.begin(), batch.end());
    follow_(followed_);
    return followed_;
  }

 private:
  static constexpr size_t kBatchEvents = 1024;

  std::shared_ptr<const EventList> list_;
  const EventFollower follow_;
  std::vector<Event> followed_;  // the batch, where events are changed
  size_t next_ = 0;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_FOREIGN_EVENT_LIST_H_
