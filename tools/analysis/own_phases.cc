#include "tools/analysis/own_phases.h"

#include <algorithm>
#include <iterator>

namespace vramledger {
namespace {

// A damaged trace may begin stretches without end.
constexpr size_t kMostOpen = 256, kMostNames = 1000;

}  // namespace

// A stretch of the program's own leaves the phase as it is; its record says whether it begins.
void OwnPhaseWatch::Enter(const Event& e, const EventSource& source, uint64_t held, uint64_t step) {
  if (e.a == 0 || e.b != static_cast<uint64_t>(e.phase)) return;
  if (e.c == 1) {
    if (open_.size() == kMostOpen || (out_.size() == kMostNames && !by_name_.contains(e.a))) return;
    const auto [it, fresh] = by_name_.try_emplace(e.a, out_.size());
    if (fresh) out_.emplace_back().name = std::string(source.String(e.a));
    ++out_[it->second].times;
    open_.push_back({e.thread, e.a, held, it->second});
    See(open_.back(), held, e.time_ns, step);
    return;
  }
  const auto last = std::find_if(open_.rbegin(), open_.rend(),
                                 [&](const Open& o) { return o.thread == e.thread && o.name == e.a; });
  if (last != open_.rend()) open_.erase(std::next(last).base());
}

void OwnPhaseWatch::See(const Open& o, uint64_t held, uint64_t time_ns, uint64_t step) {
  OwnPhase& phase = out_[o.phase];
  phase.rise_bytes = std::max(phase.rise_bytes, held - std::min(held, o.held_before));
  if (held <= phase.peak_bytes) return;
  phase.peak_bytes = held;
  phase.peak_time_ns = time_ns;
  phase.peak_step = step;
}

}  // namespace vramledger
