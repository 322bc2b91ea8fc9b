#include "tracer/format/checker.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace vramledger {
namespace {

struct DeviceState {
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> blocks;  // address -> rounded, requested
  std::map<uint64_t, uint64_t> segments;                     // address -> bytes (mapped ranges for expandable ones)
  uint64_t allocated = 0;
  uint64_t reserved = 0;
  bool saw_segments = false;
};

// The first range of `map` that meets [begin, end), or end().
template <typename Map, typename SizeOf>
typename Map::const_iterator FindOverlap(const Map& map, uint64_t begin, uint64_t end, SizeOf size_of) {
  auto it = map.lower_bound(begin);
  if (it != map.begin()) {
    const auto before = std::prev(it);
    if (before->first + size_of(before->second) > begin) return before;
  }
  return it != map.end() && it->first < end ? it : map.end();
}

class Checker {
 public:
  explicit Checker(EventSource& source) : source_(source) {}

  CheckResult Run() {
    while (const Event* next = source_.Next()) {
      const Event& e = *next;
      ++result_.events;
      uint64_t& last = last_time_[e.thread];
      if (e.time_ns < last) Violate(e, absl::StrCat("time goes back by ", last - e.time_ns, " ns within thread ", e.thread));
      last = e.time_ns;
      Apply(e);
    }
    for (const auto& [device, state] : devices_) {
      result_.live_at_end += state.blocks.size();
      result_.live_bytes_at_end += state.allocated;
    }
    return std::move(result_);
  }

 private:
  void Violate(const Event& e, const std::string& what) {
    ++result_.violations;
    if (result_.sentences.size() < 20) result_.sentences.push_back(absl::StrCat("record ", e.sequence, ": ", what));
  }

  void Apply(const Event& e) {
    DeviceState& d = devices_[e.device];
    switch (e.kind) {
      case RecordKind::kAlloc: return Alloc(e, d);
      case RecordKind::kFreeCompleted: return Free(e, d);
      case RecordKind::kFreeRequested:
        if (!d.blocks.contains(e.address) && source_.health().lost_records == 0) {
          Violate(e, absl::StrCat("free requested of address ", absl::Hex(e.address), ", which is not allocated"));
        }
        return;
      case RecordKind::kSegmentAlloc:
      case RecordKind::kSegmentMap: return MapRange(e, d);
      case RecordKind::kSegmentFree:
      case RecordKind::kSegmentUnmap: return UnmapRange(e, d);
      case RecordKind::kCounters:
        if (source_.health().lost_records > 0) return;
        if (e.b != d.allocated) Violate(e, absl::StrCat("the allocator counted ", e.b, " allocated bytes, the records sum to ", d.allocated));
        if (e.c != d.reserved) Violate(e, absl::StrCat("the allocator counted ", e.c, " reserved bytes, the records sum to ", d.reserved));
        if (e.b == d.allocated && e.c == d.reserved) ++result_.counters_verified;
        return;
      default: return;
    }
  }

  void Alloc(const Event& e, DeviceState& d) {
    ++result_.allocations;
    const auto overlap = FindOverlap(d.blocks, e.address, e.address + e.rounded_bytes, [](const auto& v) { return v.first; });
    if (overlap != d.blocks.end()) {
      Violate(e, absl::StrCat("block ", absl::Hex(e.address), " of ", e.rounded_bytes, " bytes overlaps the live block ",
                              absl::Hex(overlap->first), " of ", overlap->second.first, " bytes"));
      return;
    }
    if (d.saw_segments && source_.health().lost_records == 0) {
      auto segment = d.segments.upper_bound(e.address);
      uint64_t covered = e.address;
      if (segment != d.segments.begin()) {
        --segment;
        // Neighbouring mapped ranges of an expandable segment carry one block.
        while (segment != d.segments.end() && segment->first <= covered && segment->first + segment->second > covered) {
          covered = segment->first + segment->second;
          ++segment;
        }
      }
      if (covered < e.address + e.rounded_bytes) {
        Violate(e, absl::StrCat("block ", absl::Hex(e.address), " of ", e.rounded_bytes, " bytes lies outside every segment"));
      }
    }
    d.blocks.emplace(e.address, std::make_pair(e.rounded_bytes, e.requested_bytes));
    d.allocated += e.rounded_bytes;
  }

  void Free(const Event& e, DeviceState& d) {
    const auto it = d.blocks.find(e.address);
    if (it == d.blocks.end()) {
      if (source_.health().lost_records == 0) Violate(e, absl::StrCat("free of address ", absl::Hex(e.address), ", which is not allocated"));
      return;
    }
    if (e.rounded_bytes != it->second.first) {
      Violate(e, absl::StrCat("free of ", e.rounded_bytes, " bytes at ", absl::Hex(e.address), ", allocated with ", it->second.first));
    }
    d.allocated -= it->second.first;
    d.blocks.erase(it);
  }

  void MapRange(const Event& e, DeviceState& d) {
    d.saw_segments = true;
    if (FindOverlap(d.segments, e.address, e.address + e.rounded_bytes, [](uint64_t v) { return v; }) != d.segments.end()) {
      Violate(e, absl::StrCat("segment ", absl::Hex(e.address), " of ", e.rounded_bytes, " bytes overlaps another"));
      return;
    }
    d.segments[e.address] = e.rounded_bytes;
    d.reserved += e.rounded_bytes;
  }

  void UnmapRange(const Event& e, DeviceState& d) {
    // An unmap may cover parts of one or more mapped ranges.
    uint64_t begin = e.address;
    const uint64_t end = e.address + e.rounded_bytes;
    uint64_t removed = 0;
    while (begin < end) {
      const auto it = FindOverlap(d.segments, begin, end, [](uint64_t v) { return v; });
      if (it == d.segments.end()) break;
      const uint64_t from = it->first;
      const uint64_t to = it->first + it->second;
      const uint64_t cut_begin = std::max(from, e.address);
      const uint64_t cut_end = std::min(to, end);
      d.segments.erase(from);
      if (from < cut_begin) d.segments[from] = cut_begin - from;
      if (cut_end < to) d.segments[cut_end] = to - cut_end;
      removed += cut_end - cut_begin;
      begin = cut_end;
    }
    d.reserved -= removed;
    if (removed != e.rounded_bytes && source_.health().lost_records == 0) {
      Violate(e, absl::StrCat("segment ", absl::Hex(e.address), " of ", e.rounded_bytes, " bytes released, of which ", removed, " were held"));
    }
    const auto live = FindOverlap(d.blocks, e.address, end, [](const auto& v) { return v.first; });
    if (live != d.blocks.end()) Violate(e, absl::StrCat("segment ", absl::Hex(e.address), " released with the live block ", absl::Hex(live->first), " in it"));
  }

  EventSource& source_;
  CheckResult result_;
  absl::flat_hash_map<int, DeviceState> devices_;
  absl::flat_hash_map<uint32_t, uint64_t> last_time_;
};

}  // namespace

CheckResult CheckEvents(EventSource& source) { return Checker(source).Run(); }

}  // namespace vramledger
