#include "tools/analysis/replay_events.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "tools/analysis/metadata.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

ReplayEvent::Kind KindOf(RecordKind kind) {
  switch (kind) {
    case RecordKind::kFreeRequested:
      return ReplayEvent::kFreeRequested;
    case RecordKind::kFreeCompleted:
      return ReplayEvent::kFreeCompleted;
    case RecordKind::kSegmentAlloc:
      return ReplayEvent::kTake;
    case RecordKind::kSegmentFree:
      return ReplayEvent::kGive;
    case RecordKind::kSegmentMap:
      return ReplayEvent::kMap;
    case RecordKind::kSegmentUnmap:
      return ReplayEvent::kUnmap;
    case RecordKind::kOutOfMemory:
      return ReplayEvent::kOutOfMemory;
    default:
      return ReplayEvent::kAlloc;
  }
}

// What is known of one device while the trace is read.
struct Device {
  ReplayHistory history;
  absl::flat_hash_map<uint64_t, uint64_t> live;   // address -> rounded bytes
  absl::flat_hash_map<uint64_t, bool> requested;  // address -> its free was requested and is not complete
  uint64_t live_bytes = 0, peak_live_bytes = 0, reserved = 0;

  void AddInitial(const Event& e) {
    if (e.kind == RecordKind::kSegmentAlloc) {
      history.segments[e.address] = {e.rounded_bytes, e.stream, e.rounded_bytes <= 2 * kMiB, false};
      reserved += e.rounded_bytes;
    } else if (e.kind == RecordKind::kAlloc) {
      history.blocks[e.address] = {e.rounded_bytes, e.requested_bytes, e.stream, e.phase, e.module, false};
      Take(e);
    } else if (e.kind == RecordKind::kFreeRequested) {
      history.blocks[e.address].awaiting_free = true;
      requested[e.address] = true;
    }
    history.peak_reserved_bytes = std::max(history.peak_reserved_bytes, reserved);
  }

  void Sampled(const Event& e) {
    const uint64_t used = e.c - std::min(e.b, e.c);
    if (!history.used_elsewhere_bytes) history.used_elsewhere_bytes = used - std::min(used, reserved);
  }

  void Add(const Event& e) {
    ReplayEvent r;
    r.kind = KindOf(e.kind);
    r.address = e.address;
    r.bytes = e.requested_bytes;
    r.sequence = e.sequence;
    r.stream = e.stream;
    r.module = e.module;
    r.phase = e.phase;
    r.flags = e.flags;
    switch (r.kind) {
      case ReplayEvent::kAlloc:
        Take(e);
        break;
      case ReplayEvent::kFreeRequested:
        requested[e.address] = true;
        break;
      case ReplayEvent::kFreeCompleted: {
        Leave(e.address);
        const auto it = requested.find(e.address);
        if (it == requested.end()) {
          r.kind = ReplayEvent::kFree;
          break;
        }
        requested.erase(it);
        // PyTorch tells every free as two events; one that is complete at once waits for nothing.
        ReplayEvent* last = history.events.empty() ? nullptr : &history.events.back();
        if (last != nullptr && last->kind == ReplayEvent::kFreeRequested && last->address == e.address) {
          last->kind = ReplayEvent::kFree;
          return;
        }
        break;
      }
      case ReplayEvent::kTake:
      case ReplayEvent::kMap:
        reserved += e.rounded_bytes;
        r.bytes = e.rounded_bytes;
        history.peak_reserved_bytes = std::max(history.peak_reserved_bytes, reserved);
        break;
      case ReplayEvent::kGive:
      case ReplayEvent::kUnmap:
        reserved -= std::min(reserved, e.rounded_bytes);
        r.bytes = e.rounded_bytes;
        break;
      default:
        break;
    }
    history.events.push_back(r);
  }

 private:
  void Take(const Event& e) {
    Leave(e.address);
    live[e.address] = e.rounded_bytes;
    live_bytes += e.rounded_bytes;
    peak_live_bytes = std::max(peak_live_bytes, live_bytes);
  }
  void Leave(uint64_t address) {
    const auto it = live.find(address);
    if (it == live.end()) return;
    live_bytes -= it->second;
    live.erase(it);
  }
};

}  // namespace

absl::StatusOr<ReplayHistory> ReadReplayHistory(const EventInput& input, std::optional<int> device) {
  absl::StatusOr<std::unique_ptr<EventSource>> opened = input.NewSource();
  if (!opened.ok()) return opened.status();
  EventSource& source = **opened;
  // The number of events that tell the state before the recording; an imported trace has it in its metadata, which is
  // complete only at the end of the stream.
  uint64_t initial = 0;
  {
    absl::StatusOr<std::unique_ptr<EventSource>> probe = input.NewSource();
    if (!probe.ok()) return probe.status();
    const Event* e = (*probe)->Next();
    while (e != nullptr && !IsMemoryRecord(e->kind)) e = (*probe)->Next();
    initial = JsonUint(Metadata((*probe)->metadata_json()).root(), "initial_events");
  }

  std::array<std::unique_ptr<Device>, 256> devices;
  uint64_t memory_events = 0;
  uint32_t last_module = 0;
  while (const Event* next = source.Next()) {
    const Event& e = *next;
    if (e.kind == RecordKind::kDeviceUsed && devices[e.device] != nullptr) devices[e.device]->Sampled(e);
    if (!IsMemoryRecord(e.kind)) continue;
    last_module = std::max(last_module, e.module);
    auto& d = devices[e.device];
    if (d == nullptr) d = std::make_unique<Device>();
    if (++memory_events <= initial) {
      d->AddInitial(e);
    } else {
      d->Add(e);
    }
  }
  size_t best = device ? static_cast<size_t>(*device) : 0;
  if (!device) {
    for (size_t i = 0; i < devices.size(); ++i) {
      if (devices[i] == nullptr) continue;
      if (devices[best] == nullptr || devices[i]->peak_live_bytes > devices[best]->peak_live_bytes) best = i;
    }
  }
  if (best >= devices.size() || devices[best] == nullptr)
    return absl::NotFoundError(Cat("the trace has no memory events of device ", device.value_or(0)));
  ReplayHistory history = std::move(devices[best]->history);
  history.device = static_cast<int>(best);
  for (uint32_t id = 0; id <= last_module; ++id) history.strings.emplace_back(source.String(id));
  history.metadata_json = source.metadata_json();
  history.format = std::string(source.format());
  history.notes = source.health().notes;
  return history;
}

void InferBlockSizes(ReplayHistory& history, uint64_t smallest_large_rest) {
  if (history.blocks.empty()) return;
  std::map<uint64_t, uint64_t> live;  // address -> end, over the whole history
  for (const auto& [address, block] : history.blocks) live[address] = address + block.bytes;
  const auto segment_of = [&history](uint64_t address) {
    auto it = history.segments.upper_bound(address);
    if (it == history.segments.begin()) return history.segments.end();
    --it;
    return address - it->first < it->second.bytes ? it : history.segments.end();
  };
  // Known to be in place from the start on, as long as it lives.
  absl::flat_hash_map<uint64_t, bool> untouched;
  for (const auto& [address, block] : history.blocks) untouched[address] = true;
  const auto extend = [&](uint64_t address, uint64_t end) {
    live[address] = end;
    if (untouched.contains(address)) history.blocks[address].bytes = end - address;
  };
  for (const ReplayEvent& e : history.events) {
    if (e.kind == ReplayEvent::kAlloc) {
      const auto segment = segment_of(e.address);
      if (segment != history.segments.end()) {
        const auto next = live.lower_bound(e.address);
        if (next != live.begin()) {
          const auto before = std::prev(next);
          if (before->first >= segment->first && before->second < e.address) extend(before->first, e.address);
        }
      }
      live[e.address] = std::max(live[e.address], e.address + std::max<uint64_t>(512, (e.bytes + 511) / 512 * 512));
    } else if (e.kind == ReplayEvent::kFree || e.kind == ReplayEvent::kFreeCompleted) {
      live.erase(e.address);
      untouched.erase(e.address);
    }
  }
  // The rests of large segments that could not have been split off.
  for (const auto& [start, segment] : history.segments) {
    if (segment.small) continue;
    auto it = history.blocks.lower_bound(start);
    for (; it != history.blocks.end() && it->first < start + segment.bytes; ++it) {
      const auto next = std::next(it);
      const uint64_t limit =
          next != history.blocks.end() ? std::min(next->first, start + segment.bytes) : start + segment.bytes;
      const uint64_t end = it->first + it->second.bytes;
      if (end < limit && limit - end <= smallest_large_rest) it->second.bytes = limit - it->first;
    }
  }
}

}  // namespace vramledger
