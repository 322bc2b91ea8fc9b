#include "tests/allocator/replay_history.h"

#include <zlib.h>

#include <cinttypes>
#include <cstdio>
#include <set>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "allocator/core/caching_allocator.h"
#include "allocator/simulated_device_memory.h"

namespace vramledger {
namespace {

bool IsSegmentEvent(char kind) { return kind == 'S' || kind == 'F' || kind == 'M' || kind == 'U'; }

class SegmentObserver : public AllocatorObserver {
 public:
  void OnAlloc(const BlockView&, BlockTag&) override {}
  void OnFreeRequested(const BlockView&, BlockTag&) override {}
  void OnFree(const BlockView&, BlockTag&, bool) override {}
  void OnSegmentAlloc(const SegmentView& s) override { Add('S', s); }
  void OnSegmentFree(const SegmentView& s) override { Add('F', s); }
  void OnSegmentMap(const SegmentView& s) override { Add('M', s); }
  void OnSegmentUnmap(const SegmentView& s) override { Add('U', s); }
  void OnOutOfMemory(const OutOfMemoryInfo&) override {}

  std::vector<HistoryEvent> events;

 private:
  void Add(char kind, const SegmentView& s) { events.push_back({kind, s.address, s.bytes, s.stream}); }
};

std::string Text(const HistoryEvent& e) { return absl::StrFormat("%c 0x%x %d", e.kind, e.address, e.bytes); }

SimulatedDeviceOptions Script(const std::vector<HistoryEvent>& history, size_t capacity) {
  SimulatedDeviceOptions options;
  options.capacity_bytes = capacity;
  options.completion = Completion::kManual;
  for (const HistoryEvent& e : history) {
    if (e.kind == 'S') options.scripted_addresses.push_back(e.address);
    if (e.kind != 'M') continue;
    bool known = false;
    for (const uintptr_t start : options.scripted_reservations) known = known || e.address - start < capacity + capacity / 8;
    if (!known) options.scripted_reservations.push_back(e.address);
  }
  return options;
}

}  // namespace

absl::StatusOr<std::vector<HistoryEvent>> ReadHistory(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  std::vector<HistoryEvent> history;
  char line[256];
  while (gzgets(file, line, sizeof(line)) != nullptr) {
    HistoryEvent e;
    if (std::sscanf(line, "%c %" SCNxPTR " %zu %" SCNuPTR, &e.kind, &e.address, &e.bytes, &e.stream) != 4) {
      gzclose(file);
      return absl::InvalidArgumentError(absl::StrCat(path, ": line ", history.size() + 1, " is no event"));
    }
    history.push_back(e);
  }
  gzclose(file);
  return history;
}

ReplayResult ReplayHistory(const std::vector<HistoryEvent>& history, const AllocatorSettings& settings, size_t capacity) {
  ReplayResult result;
  const auto note = [&result](const std::string& text) {
    if (result.first_difference.empty()) result.first_difference = text;
  };
  SimulatedDeviceMemory device(Script(history, capacity));
  SegmentObserver observer;
  CachingAllocator allocator(device, settings, &observer);

  // Frees whose completion comes later waited for a stream: one of their own is made up for each.
  std::set<size_t> delayed;
  std::unordered_map<uintptr_t, size_t> last_request;
  std::vector<HistoryEvent> expected_segments;
  for (size_t i = 0; i < history.size(); ++i) {
    if (history[i].kind == 'R') last_request[history[i].address] = i;
    if (history[i].kind == 'C') delayed.insert(last_request[history[i].address]);
    if (IsSegmentEvent(history[i].kind)) expected_segments.push_back(history[i]);
  }
  const auto made_up_stream = [](uintptr_t address) { return StreamHandle{1} << 60 | address; };

  std::unordered_map<uintptr_t, void*> ours;  // recorded address -> ours
  for (size_t i = 0; i < history.size(); ++i) {
    const HistoryEvent& e = history[i];
    switch (e.kind) {
      case 'A': {
        const AllocationResult got = allocator.Allocate(0, e.stream, e.bytes, BlockTag());
        ++result.allocations;
        ours[e.address] = got.address;
        if (reinterpret_cast<uintptr_t>(got.address) == e.address) {
          ++result.addresses_equal;
        } else {
          note(absl::StrFormat("event %d: %s, got %p", i, Text(e), got.address));
        }
        break;
      }
      case 'R': {
        auto it = ours.find(e.address);
        if (it == ours.end()) {
          ++result.unknown_frees;
          break;
        }
        if (delayed.count(i) != 0) allocator.RecordStream(it->second, made_up_stream(e.address));
        if (allocator.Free(it->second) != FreeStatus::kOk) note(absl::StrFormat("event %d: %s: free refused", i, Text(e)));
        ours.erase(it);
        break;
      }
      case 'C':
        device.Complete(0, made_up_stream(e.address), 1);
        break;
      case 'F':
      case 'U':
        // Memory is given back inside a request that ran out of it, or by empty_cache: with default settings the
        // same segments go, so both are done here.
        if (observer.events.size() < expected_segments.size() && i > 0 && history[i - 1].kind != e.kind) {
          allocator.EmptyCache();
        }
        break;
      default:
        break;
    }
  }
  result.segment_events = expected_segments.size();
  for (size_t i = 0; i < expected_segments.size(); ++i) {
    const HistoryEvent& e = expected_segments[i];
    if (i >= observer.events.size()) {
      note(absl::StrCat("segment event ", i, ": ", Text(e), ", got none"));
      continue;
    }
    const HistoryEvent& got = observer.events[i];
    if (got.kind == e.kind && got.address == e.address && got.bytes == e.bytes && got.stream == e.stream) {
      ++result.segment_events_equal;
    } else {
      note(absl::StrCat("segment event ", i, ": ", Text(e), ", got ", Text(got)));
    }
  }
  if (observer.events.size() > expected_segments.size()) {
    note(absl::StrCat(observer.events.size() - expected_segments.size(), " segment events too many"));
  }
  return result;
}

}  // namespace vramledger
