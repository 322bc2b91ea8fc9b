#include "tracer/phase/backward_modules.h"

#include <algorithm>

namespace vramledger {
namespace {

// Nodes that accumulate gradients belong to no forward.
constexpr uint64_t kNoSequence = UINT64_MAX;

}  // namespace

BackwardModules::Thread& BackwardModules::Of(uint16_t thread) {
  if (threads_.size() <= thread) threads_.resize(size_t{thread} + 1);
  return threads_[thread];
}

void BackwardModules::Resolve(Event* event) const {
  if (event->thread >= threads_.size()) return;
  const Thread& t = threads_[event->thread];
  // Inside a module a checkpoint computes again, and the module is the allocation's own.
  if (!t.modules.empty()) return;
  event->node = t.node_name;
  if (event->module == 0) event->module = t.node_module;
}

void BackwardModules::Follow(const Event& event) {
  Thread& t = Of(event.thread);
  if (event.kind == RecordKind::kNode) {
    t.node_name = event.a;
    t.node_module =
        event.b == kNoSequence || event.c >= threads_.size() ? 0 : ModuleAt(static_cast<uint16_t>(event.c), event.b);
    return;
  }
  if (event.kind == RecordKind::kModuleEnter) {
    if (t.modules.size() == kMaxDepth) {
      ++t.deeper;
      return;
    }
    t.modules.push_back(event.a);
  } else if (t.deeper != 0) {
    --t.deeper;
    return;
  } else if (!t.modules.empty()) {
    t.modules.pop_back();
  }
  const Change change = {event.b, t.modules.empty() ? 0 : t.modules.back()};
  // A number lower than the last is a thread of that number anew, or damage.
  if (!t.changes.empty() && t.changes.back().sequence > change.sequence) t.changes.clear();
  if (!t.changes.empty() && t.changes.back().sequence == change.sequence) {
    t.changes.back() = change;
    return;
  }
  if (t.changes.size() >= kMaxChanges) t.changes.erase(t.changes.begin(), t.changes.begin() + kMaxChanges / 2);
  t.changes.push_back(change);
}

uint32_t BackwardModules::ModuleAt(uint16_t thread, uint64_t sequence) {
  Thread& t = threads_[thread];
  const auto begin = t.changes.begin(), end = t.changes.end();
  // Backward goes through the nodes from last to first: the answer lies a little before the one before.
  auto after = begin + static_cast<ptrdiff_t>(std::min(t.last_found, t.changes.size()));
  int near = 8;
  while (near > 0 && after != end && after->sequence <= sequence) ++after, --near;
  while (near > 0 && after != begin && std::prev(after)->sequence > sequence) --after, --near;
  if (near == 0)
    after = std::upper_bound(begin, end, sequence, [](uint64_t s, const Change& c) { return s < c.sequence; });
  t.last_found = static_cast<size_t>(after - begin);
  return after == begin ? 0 : std::prev(after)->module;
}

}  // namespace vramledger
