#include "tests/allocator/replay_history.h"

#include <zlib.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "allocator/core/caching_allocator.h"
#include "allocator/simulated_device_memory.h"
#include "nlohmann/json.hpp"

namespace vramledger {
namespace {

bool IsSegmentEvent(char kind) {
  return kind == 'S' || kind == 'F' || kind == 'M' || kind == 'U';
}

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

std::string Text(const HistoryEvent& e) {
  return absl::StrFormat("%c 0x%x %d", e.kind, e.address, e.bytes);
}

SimulatedDeviceOptions Script(const std::vector<HistoryEvent>& history, const ReplayOptions& replay) {
  SimulatedDeviceOptions options;
  const size_t capacity = replay.capacity_bytes;
  options.capacity_bytes = capacity;
  options.used_elsewhere_bytes = replay.used_elsewhere_bytes;
  options.completion = Completion::kManual;
  for (const HistoryEvent& e : history) {
    if (e.kind == 'S') options.scripted_addresses.push_back(e.address);
    if (e.kind != 'M') continue;
    bool known = false;
    for (const uintptr_t start : options.scripted_reservations)
      known = known || e.address - start < capacity + capacity / 8;
    if (!known) options.scripted_reservations.push_back(e.address);
  }
  return options;
}

// Whether the memory given back at event `i` went because the request that follows could not be served.
bool ForARequest(const std::vector<HistoryEvent>& history, size_t i, size_t room) {
  for (; i < history.size() && history[i].kind != 'A' && history[i].kind != 'D' && history[i].kind != 'R'; ++i) {
    if (history[i].kind == 'O') return true;
    if ((history[i].kind == 'S' || history[i].kind == 'M') && history[i].bytes > room) return true;
  }
  return false;
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

absl::StatusOr<RecordedRun> ReadRun(const std::string& path) {
  std::ifstream file(path);
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
  if (!json.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, " is no JSON object"));
  RecordedRun run;
  absl::StatusOr<AllocatorSettings> settings = AllocatorSettings::Parse(json.value("settings", ""));
  if (!settings.ok()) return settings.status();
  run.options.settings = *settings;
  run.options.capacity_bytes = json.value("capacity_bytes", run.options.capacity_bytes);
  run.options.used_elsewhere_bytes = json.value("used_elsewhere_bytes", run.options.used_elsewhere_bytes);
  run.statistics = json.value("statistics", run.statistics);
  return run;
}

std::vector<std::string> CompareStatistics(const RecordedRun& run, const Statistics& ours) {
  std::vector<std::string> differences;
  for (const auto& [key, value] : ours.Flatten()) {
    const auto it = run.statistics.find(key);
    if (it == run.statistics.end()) {
      differences.push_back(absl::StrCat(key, ": PyTorch has none"));
    } else if (it->second != value) {
      differences.push_back(absl::StrCat(key, ": PyTorch ", it->second, ", here ", value));
    }
  }
  return differences;
}

ReplayResult ReplayHistory(const std::vector<HistoryEvent>& history, const ReplayOptions& options) {
  ReplayResult result;
  const auto note = [&result](const std::string& text) {
    if (result.first_difference.empty()) result.first_difference = text;
  };
  SimulatedDeviceMemory device(Script(history, options));
  SegmentObserver observer;
  CachingAllocator allocator(device, options.settings, &observer);

  std::vector<HistoryEvent> expected_segments;
  std::copy_if(history.begin(), history.end(), std::back_inserter(expected_segments),
               [](const HistoryEvent& e) { return IsSegmentEvent(e.kind); });
  // A free that waited for a stream waits here for one made up for it.
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
      case 'D':
      case 'R': {
        auto it = ours.find(e.address);
        if (it == ours.end()) {
          ++result.unknown_frees;
          break;
        }
        if (e.kind == 'R') allocator.RecordStream(it->second, made_up_stream(e.address));
        if (allocator.Free(it->second) != FreeStatus::kOk)
          note(absl::StrFormat("event %d: %s: free refused", i, Text(e)));
        ours.erase(it);
        break;
      }
      case 'C':
        device.Complete(0, made_up_stream(e.address), 1);
        break;
      case 'F':
      case 'U': {
        if (i > 0 && (history[i - 1].kind == 'F' || history[i - 1].kind == 'U')) break;
        // Given back for the request that follows, which will do it by itself; else by the program.
        DeviceMemoryInfo info;
        device.MemoryInfo(0, &info);
        if (options.settings.garbage_collection_threshold == 0 && !ForARequest(history, i, info.free_bytes)) {
          allocator.EmptyCache();
        }
        break;
      }
      case 'O':
        if (allocator.Allocate(0, e.stream, e.bytes, BlockTag()).status != AllocationStatus::kOutOfMemory) {
          note(absl::StrFormat("event %d: %s: was served", i, Text(e)));
        }
        break;
      default:
        break;
    }
  }
  result.statistics = allocator.GetStatistics(0);
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
