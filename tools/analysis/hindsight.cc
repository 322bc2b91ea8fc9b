#include "tools/analysis/hindsight.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "tools/analysis/block_table.h"
#include "tools/analysis/site_ids.h"

namespace vramledger {
namespace {

class Pass {
 public:
  explicit Pass(EventSource& source) : source_(source) {
    table_.set_text([this](uint32_t id) { return source_.String(id); });
  }

  Hindsight Run() {
    while (const Event* e = source_.Next()) {
      ++out_.events;
      See(*e);
      table_.Apply(*e, *this);
    }
    for (const auto& entry : table_.live()) Settle(entry.second, /*at_end=*/true);
    SettleLastBackward();
    out_.last_allocation.insert(last_allocations_.begin(), last_allocations_.end());
    return std::move(out_);
  }

  void OnBirth(Block& b) {
    if (out_.categories.size() <= b.ordinal) out_.categories.resize(b.ordinal + 1);
    DeviceHindsight& d = out_.devices[b.device];
    held_[b.device] += b.rounded;
    if (held_[b.device] > d.peak_rounded) {
      d.peak_rounded = held_[b.device];
      d.peak_clock = table_.clock();
    }
    // Of all moments with the most reserved, the one with the most in use: what is free then was never needed.
    if (reserved_[b.device] == d.reserved_peak && held_[b.device] > d.held_at_reserved_peak) {
      d.held_at_reserved_peak = held_[b.device];
      d.reserved_peak_clock = table_.clock();
    }
    const uint64_t place = static_cast<uint64_t>(b.device) << 32 | b.stream;
    if (place != last_place_ || last_allocation_ == nullptr) {
      // Nodes of the map do not move.
      last_allocation_ = &last_allocations_[place];
      last_place_ = place;
    }
    *last_allocation_ = table_.clock();
  }
  void OnRequest(Block& b) { held_[b.device] -= b.rounded; }
  void OnEnd(Block& b) {
    if (!b.pending) held_[b.device] -= b.rounded;
    Settle(b, /*at_end=*/false);
  }

 private:
  void Settle(const Block& b, bool at_end) {
    BlockFacts facts = table_.Facts(b, at_end, sites_.workspace, sites_.before);
    if (!at_end) facts.free_phase = table_.marks().current();
    out_.categories[b.ordinal] = static_cast<uint8_t>(Categorize(facts));
  }

  // What the last backward made and left, where the recording ends before anything else began: gradients are told by the sizes of
  // the parameters, which are among what is there at the end (or were there before the recording, and nothing is known of them).
  // A parameter has one gradient: of more blocks of its size the oldest are taken, as what an operator passes on is short-lived.
  void SettleLastBackward() {
    std::map<std::pair<uint8_t, uint64_t>, int64_t> wanting;  // parameters without a known gradient, by device and size
    std::vector<const Block*> left;
    for (const auto& [key, b] : table_.live()) {
      const auto category = static_cast<Category>(out_.categories[b.ordinal]);
      const bool before = sites_.before != 0 && b.module == sites_.before;
      if (category == Category::kParameter || (before && category == Category::kUnknown)) ++wanting[{b.device, b.requested}];
      if (category == Category::kGradient) --wanting[{b.device, b.requested}];
      if (category == Category::kTemporary && b.phase == Phase::kBackward) left.push_back(&b);
    }
    std::sort(left.begin(), left.end(), [](const Block* a, const Block* b) { return a->ordinal < b->ordinal; });
    for (const Block* b : left) {
      int64_t& parameters = wanting[{b->device, b->requested}];
      if (parameters <= 0) continue;
      --parameters;
      BlockFacts facts = table_.Facts(*b, /*at_end=*/true, sites_.workspace, sites_.before);
      facts.left_in_size_of_parameter = true;
      out_.categories[b->ordinal] = static_cast<uint8_t>(Categorize(facts));
    }
  }

  void See(const Event& e) {
    if (IsMemoryRecord(e.kind)) {
      out_.devices[e.device].seen = true;
      out_.has_phases |= e.phase != Phase::kUnknown;
      sites_.See(source_, e.module);
    }
    switch (e.kind) {
      case RecordKind::kSegmentAlloc:
      case RecordKind::kSegmentMap: {
        DeviceHindsight& d = out_.devices[e.device];
        reserved_[e.device] += e.rounded_bytes;
        if (reserved_[e.device] > d.reserved_peak) {
          d.reserved_peak = reserved_[e.device];
          d.held_at_reserved_peak = 0;
          d.reserved_peak_clock = table_.clock() + 1;
        }
        break;
      }
      case RecordKind::kSegmentFree:
      case RecordKind::kSegmentUnmap:
        reserved_[e.device] -= std::min(reserved_[e.device], e.rounded_bytes);
        break;
      case RecordKind::kStep:
        out_.has_steps = true;
        break;
      case RecordKind::kName:
        out_.has_names = true;
        break;
      default:
        break;
    }
  }

  EventSource& source_;
  Hindsight out_;
  BlockTable table_;
  SiteIds sites_;
  std::map<uint64_t, uint64_t> last_allocations_;  // as Hindsight::last_allocation
  uint64_t last_place_ = 0;
  uint64_t* last_allocation_ = nullptr;  // of last_place_
  std::array<uint64_t, 256> held_{};
  std::array<uint64_t, 256> reserved_{};
};

}  // namespace

int Hindsight::BusiestDevice() const {
  int best = 0;
  for (int d = 0; d < 256; ++d) {
    const DeviceHindsight& a = devices[static_cast<size_t>(d)];
    const DeviceHindsight& b = devices[static_cast<size_t>(best)];
    if (a.seen && (!b.seen || a.peak_rounded > b.peak_rounded)) best = d;
  }
  return best;
}

Hindsight LookThrough(EventSource& source) {
  return Pass(source).Run();
}

}  // namespace vramledger
