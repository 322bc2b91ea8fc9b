#include "tools/analysis/own_phases.h"

#include <algorithm>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "tools/analysis/metadata.h"

namespace vramledger {
namespace {

constexpr uint64_t kShortTrace = 4'000'000;  // events

class Follower {
 public:
  Follower(EventSource& source, int device) : source_(source), device_(device) {}

  std::vector<OwnPhase> Run() {
    Event e;
    while (source_.Next(&e)) {
      if (e.kind == RecordKind::kPhase) {
        Enter(e);
      } else if (e.kind == RecordKind::kStep) {
        step_ = e.b + 1;
      } else if (e.device != device_) {
        continue;
      } else if (e.kind == RecordKind::kAlloc) {
        Free(e.address);  // a free was lost
        live_[e.address] = e.rounded_bytes;
        held_ += e.rounded_bytes;
        for (const Open& o : open_) See(o, e.time_ns);
      } else if (e.kind == RecordKind::kFreeRequested || e.kind == RecordKind::kFreeCompleted) {
        Free(e.address);
      }
    }
    return std::move(out_);
  }

 private:
  struct Open {
    uint16_t thread = 0;
    uint32_t name = 0;
    uint64_t held_before = 0;
    size_t phase = 0;
  };

  // A stretch of the program's own leaves the phase as it is; its record says whether it begins.
  void Enter(const Event& e) {
    if (e.a == 0 || e.b != static_cast<uint64_t>(e.phase)) return;
    if (e.c == 1) {
      const auto [it, fresh] = by_name_.try_emplace(e.a, out_.size());
      if (fresh) out_.emplace_back().name = std::string(source_.String(e.a));
      ++out_[it->second].times;
      open_.push_back({e.thread, e.a, held_, it->second});
      See(open_.back(), e.time_ns);
      return;
    }
    const auto last = std::find_if(open_.rbegin(), open_.rend(),
                                   [&](const Open& o) { return o.thread == e.thread && o.name == e.a; });
    if (last != open_.rend()) open_.erase(std::next(last).base());
  }

  void See(const Open& o, uint64_t time_ns) {
    OwnPhase& phase = out_[o.phase];
    phase.rise_bytes = std::max(phase.rise_bytes, held_ - std::min(held_, o.held_before));
    if (held_ <= phase.peak_bytes) return;
    phase.peak_bytes = held_;
    phase.peak_time_ns = time_ns;
    phase.peak_step = step_;
  }

  void Free(uint64_t address) {
    const auto it = live_.find(address);
    if (it == live_.end()) return;
    held_ -= it->second;
    live_.erase(it);
  }

  EventSource& source_;
  const int device_;
  uint64_t held_ = 0, step_ = 1;
  absl::flat_hash_map<uint64_t, uint64_t> live_;  // address -> rounded bytes
  absl::flat_hash_map<uint32_t, size_t> by_name_;
  std::vector<Open> open_;
  std::vector<OwnPhase> out_;
};

}  // namespace

std::vector<OwnPhase> FindOwnPhases(const EventInput& input, const Analysis& analysis) {
  const Metadata metadata(analysis.source.metadata_json);
  if (analysis.timeline.events > kShortTrace && !JsonBool(metadata.root(), "own_phases")) return {};
  const absl::StatusOr<std::unique_ptr<EventSource>> source = input.NewSource();
  if (!source.ok()) return {};
  return Follower(**source, analysis.timeline.device).Run();
}

}  // namespace vramledger
