#include "tools/analysis/fragmentation.h"

#include <algorithm>

namespace vramledger {
namespace {

struct SegmentView {
  uint64_t begin, end, stream;
};

}  // namespace

Fragmentation MeasureFragmentation(const BlockTable& table, const AddressRanges& reserved,
                                   const FragmentationQuestion& question) {
  Fragmentation f;
  std::vector<const Block*> blocks;
  for (const auto& entry : table.live()) {
    if (entry.second.device == question.device) blocks.push_back(&entry.second);
  }
  std::sort(blocks.begin(), blocks.end(), [](const Block* a, const Block* b) { return a->address < b->address; });
  for (const Block* b : blocks) {
    if (b->pending)
      f.pending_bytes += b->rounded;
    else
      f.internal_bytes += b->rounded - b->requested;
  }
  f.known = !reserved.spans().empty();
  size_t next = 0;
  uint64_t most_pinned = 0;
  for (const auto& [begin, span] : reserved.spans()) {
    const SegmentView s{begin, span.end, span.stream};
    ++f.segments;
    while (next < blocks.size() && blocks[next]->address < s.begin) ++next;
    uint64_t at = s.begin, free_bytes = 0, live_bytes = 0, live_blocks = 0;
    const Block* largest = nullptr;
    const auto hole = [&](uint64_t from, uint64_t to) {
      if (to <= from) return;
      free_bytes += to - from;
      ++f.holes;
      f.largest_hole_bytes = std::max(f.largest_hole_bytes, to - from);
    };
    for (; next < blocks.size() && blocks[next]->address < s.end; ++next) {
      const Block* b = blocks[next];
      hole(at, b->address);
      at = std::max(at, b->address + b->rounded);
      live_bytes += b->rounded;
      ++live_blocks;
      if (largest == nullptr || b->rounded > largest->rounded) largest = b;
    }
    hole(at, s.end);
    if (free_bytes == 0) continue;
    if (!question.stream_asks(s.stream)) {
      f.stream_bytes += free_bytes;
    } else if (live_blocks == 0) {
      f.idle_bytes += free_bytes;
      ++f.idle_segments;
    } else {
      f.pinned_bytes += free_bytes;
      ++f.pinned_segments;
      f.pinning_blocks += live_blocks;
      f.pinning_bytes += live_bytes;
      if (free_bytes > most_pinned) {
        most_pinned = free_bytes;
        f.largest_pinned_site = question.site(largest->module);
      }
    }
  }
  return f;
}

}  // namespace vramledger
