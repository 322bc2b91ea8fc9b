#include "tools/analysis/replay.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "allocator/core/caching_allocator.h"
#include "tools/analysis/format_text.h"
#include "tools/analysis/metadata.h"
#include "tools/analysis/replay_events.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

constexpr uint64_t kLargestSmall = uint64_t{1} << 20;
// Of a device whose size nobody knows: more than there is, and little enough that address space for it can be reserved.
constexpr uint64_t kUnknownCapacity = uint64_t{512} << 30;

struct SegmentEvent {
  ReplayEvent::Kind kind;
  uint64_t address, bytes, stream;
};

class SegmentObserver : public AllocatorObserver {
 public:
  void OnAlloc(const BlockView&, BlockTag&) override {}
  void OnFreeRequested(const BlockView&, BlockTag&) override {}
  void OnFree(const BlockView&, BlockTag&, bool) override {}
  void OnSegmentAlloc(const SegmentView& s) override { Add(ReplayEvent::kTake, s); }
  void OnSegmentFree(const SegmentView& s) override { Add(ReplayEvent::kGive, s); }
  void OnSegmentMap(const SegmentView& s) override { Add(ReplayEvent::kMap, s); }
  void OnSegmentUnmap(const SegmentView& s) override { Add(ReplayEvent::kUnmap, s); }
  void OnOutOfMemory(const OutOfMemoryInfo&) override {}

  std::vector<SegmentEvent> events;

 private:
  void Add(ReplayEvent::Kind kind, const SegmentView& s) { events.push_back({kind, s.address, s.bytes, s.stream}); }
};

std::string Text(ReplayEvent::Kind kind, uint64_t address, uint64_t bytes) {
  static constexpr const char* kWords[] = {"request",      "free",           "free",
                                           "free",         "segment taken",  "segment given back",
                                           "pages mapped", "pages unmapped", "out of memory"};
  return absl::StrFormat("%s of %d bytes at 0x%x", kWords[kind], bytes, address);
}

// PyTorch snapshots keep the settings as a dictionary; our traces as text.
AllocatorSettings RecordedSettings(const Metadata& metadata, std::vector<std::string>* notes) {
  AllocatorSettings settings;
  const auto& root = metadata.root();
  const auto parse = [&](const std::string& text) {
    auto parsed = AllocatorSettings::Parse(text);
    if (parsed.ok()) {
      settings = *std::move(parsed);
    } else {
      notes->push_back(
          Cat("the recorded allocator settings are not understood: ", std::string(parsed.status().message())));
    }
  };
  if (const auto it = root.find("allocator"); it != root.end() && it->is_object()) {
    parse(JsonText(*it, "settings"));
    settings.policy =
        AllocatorSettings::PolicyFromName(JsonText(*it, "policy")).value_or(AllocatorSettings::Policy::kNative);
  } else if (const auto old = root.find("allocator_settings"); old != root.end() && old->is_object()) {
    parse(JsonText(*old, "PYTORCH_CUDA_ALLOC_CONF"));
    if (JsonBool(*old, "expandable_segments")) settings.expandable_segments = true;
    const auto limit = old->find("max_split_size");
    if (limit != old->end() && limit->is_number_integer() && limit->get<int64_t>() > 0)
      settings.max_split_size = limit->get<size_t>();
  }
  return settings;
}

class Player {
 public:
  Player(const ReplayHistory& history, const ReplayQuestion& question, AllocatorSettings::EqualSizeOrder equal_order)
      : history_(history), metadata_(history.metadata_json) {
    report_.device = history.device;
    report_.format = history.format;
    report_.notes = history.notes;
    const AllocatorSettings recorded = RecordedSettings(metadata_, &report_.notes);
    recorded_vmm_ = recorded.policy == AllocatorSettings::Policy::kVmm;
    report_.settings = question.settings.value_or(recorded);
    report_.settings.policy = question.policy.value_or(recorded.policy);
    report_.settings.equal_size_order = equal_order;
    const DeviceInfo device = metadata_.device(history.device);
    report_.capacity_bytes = question.capacity_bytes.value_or(device.total_bytes);
    report_.used_elsewhere_bytes = question.used_elsewhere_bytes.value_or(UsedElsewhere());
    report_.as_recorded =
        report_.settings.policy == recorded.policy && report_.settings.ToString() == recorded.ToString() &&
        (!question.capacity_bytes || *question.capacity_bytes == device.total_bytes || device.total_bytes == 0) &&
        !question.address_order;
    report_.recorded_peak_reserved_bytes = history.peak_reserved_bytes;
    report_.initial_segments = history.segments.size();
    report_.initial_blocks = history.blocks.size();
    for (const auto& [address, block] : history.blocks) report_.initial_bytes += block.bytes;
    DecideComparison();
    device_ = std::make_unique<SimulatedDeviceMemory>(DeviceOptions(question));
    allocator_ = std::make_unique<CachingAllocator>(*device_, report_.settings, &observer_);
  }

  ReplayReport Run() {
    Begin();
    size_t half = 0;
    for (size_t i = 0; i < history_.events.size() && !report_.out_of_memory; ++i) {
      if (i == history_.events.size() / 2) half = observer_.events.size();
      Play(i);
    }
    report_.late_segment_events = observer_.events.size() - half;
    if (compare_) CompareSegments();
    report_.segment_events = observer_.events.size();
    report_.statistics = allocator_->GetStatistics(0);
    report_.peak_live_bytes = static_cast<uint64_t>(report_.statistics.active_bytes[kAllPools].peak);
    report_.peak_allocated_bytes = static_cast<uint64_t>(report_.statistics.allocated_bytes[kAllPools].peak);
    report_.peak_reserved_bytes = static_cast<uint64_t>(report_.statistics.reserved_bytes[kAllPools].peak);
    return std::move(report_);
  }

 private:
  static StreamHandle AwaitedStream(uint64_t address) { return StreamHandle{1} << 60 | address; }

  uint64_t UsedElsewhere() const {
    const auto it = metadata_.root().find("devices");
    for (const auto& d : it != metadata_.root().end() ? *it : nlohmann::json::array()) {
      const uint64_t free = JsonUint(d, "free_bytes_at_start"), total = JsonUint(d, "total_bytes");
      if (JsonUint(d, "index") == static_cast<uint64_t>(history_.device) && free != 0 && free <= total)
        return total - free;
    }
    return history_.used_elsewhere_bytes.value_or(0);
  }

  void DecideComparison() {
    const bool has_segments = std::any_of(history_.events.begin(), history_.events.end(),
                                          [](const ReplayEvent& e) { return e.is_segment(); });
    if (!report_.as_recorded) {
      report_.not_compared = "policy, settings or device are not the recorded ones";
    } else if (!has_segments && history_.segments.empty()) {
      report_.not_compared = "the trace tells no segments";
    } else if (!history_.segments.empty() && report_.settings.expandable_segments) {
      report_.not_compared = "the recording begins with expandable segments, whose address ranges it does not tell";
    } else if (std::any_of(history_.events.begin(), history_.events.end(), [](const ReplayEvent& e) {
                 return e.kind == ReplayEvent::kAlloc && e.address % 512 != 0;
               })) {
      report_.not_compared =
          "blocks lie at addresses that are no multiples of 512, so another program than PyTorch made them up";
    }
    compare_ = report_.not_compared.empty();
  }

  SimulatedDeviceOptions DeviceOptions(const ReplayQuestion& question) {
    SimulatedDeviceOptions options;
    options.capacity_bytes = report_.capacity_bytes != 0 ? report_.capacity_bytes : kUnknownCapacity;
    options.used_elsewhere_bytes = report_.used_elsewhere_bytes;
    options.address_order = question.address_order.value_or(AddressOrder::kUp);
    options.completion = Completion::kManual;
    if (!compare_) return options;
    for (const auto& [address, segment] : history_.segments) options.scripted_addresses.push_back(address);
    for (const ReplayEvent& e : history_.events) {
      if (e.kind == ReplayEvent::kTake) options.scripted_addresses.push_back(e.address);
      if (e.kind != ReplayEvent::kMap) continue;
      bool known = false;
      for (const uintptr_t start : options.scripted_reservations)
        known = known || e.address - start < options.capacity_bytes + options.capacity_bytes / 8;
      if (!known) options.scripted_reservations.push_back(e.address);
    }
    return options;
  }

  void Begin() {
    if (compare_ && !history_.segments.empty()) {
      std::vector<SegmentImage> images;
      std::vector<uint64_t> starts;
      for (const auto& [start, segment] : history_.segments) {
        SegmentImage image;
        image.bytes = segment.bytes;
        image.stream = segment.stream;
        image.small_pool = segment.small;
        for (auto b = history_.blocks.lower_bound(start);
             b != history_.blocks.end() && b->first < start + segment.bytes; ++b) {
          image.blocks.push_back({b->first - start, b->second.bytes, b->second.requested});
        }
        images.push_back(std::move(image));
        starts.push_back(start);
      }
      report_.restored = allocator_->Restore(0, images);
      if (report_.restored) {
        for (const auto& [address, block] : history_.blocks) {
          ours_[address] = reinterpret_cast<void*>(address);
          if (block.awaiting_free) RequestFree(address);
        }
      } else {
        compare_ = false;
        report_.not_compared =
            "the state at the start of the recording is no possible one: blocks overlap or leave their segments";
        // Begin with an empty allocator.
        allocator_ = nullptr;
        observer_.events.clear();
        allocator_ = std::make_unique<CachingAllocator>(*device_, report_.settings, &observer_);
      }
      first_event_ = observer_.events.size();
    }
    if (report_.restored) return;
    for (const auto& [address, block] : history_.blocks) {
      ReplayEvent e;
      e.address = address;
      e.bytes = block.requested;
      e.stream = block.stream;
      e.phase = block.phase;
      e.module = block.module;
      Allocate(e);
      if (block.awaiting_free) RequestFree(address);
    }
    first_event_ = observer_.events.size();
  }

  void Note(const std::string& text) {
    if (report_.first_difference.empty()) report_.first_difference = text;
  }

  void Allocate(const ReplayEvent& e) {
    if (const auto it = ours_.find(e.address); it != ours_.end()) {  // its free is missing in the recording
      ++report_.unknown_frees;
      allocator_->Free(it->second);
    }
    OutOfMemoryInfo info;
    const AllocationResult got =
        allocator_->Allocate(0, e.stream, e.bytes, BlockTag(), &info, static_cast<uint8_t>(e.phase));
    ++report_.allocations;
    if (got.status == AllocationStatus::kOutOfMemory) {
      report_.out_of_memory =
          ReplayOutOfMemory{e.sequence, report_.allocations, e.phase,
                            e.module < history_.strings.size() ? history_.strings[e.module] : "", info};
      return;
    }
    if (got.status != AllocationStatus::kOk) {
      if (++failed_ == 1) report_.notes.push_back(Cat("the simulated device failed at event ", e.sequence, " (", device_->last_error(), "): the figures leave that request out"));
      return;
    }
    ours_[e.address] = got.address;
    if (!compare_) return;
    ++report_.addresses_compared;
    if (reinterpret_cast<uintptr_t>(got.address) == e.address) {
      ++report_.addresses_equal;
    } else {
      Note(absl::StrFormat("event %d: %s, here at %p", e.sequence, Text(e.kind, e.address, e.bytes), got.address));
    }
  }

  void RequestFree(uint64_t address) {
    const auto it = ours_.find(address);
    if (it == ours_.end()) {
      ++report_.unknown_frees;
      return;
    }
    allocator_->RecordStream(it->second, AwaitedStream(address));
    allocator_->Free(it->second);
    ours_.erase(it);
  }

  void Play(size_t i) {
    const ReplayEvent& e = history_.events[i];
    switch (e.kind) {
      case ReplayEvent::kAlloc:
        if (e.bytes != 0) Allocate(e);
        break;
      case ReplayEvent::kFreeRequested:
        RequestFree(e.address);
        break;
      case ReplayEvent::kFree: {
        const auto it = ours_.find(e.address);
        if (it == ours_.end()) {
          ++report_.unknown_frees;
          break;
        }
        allocator_->Free(it->second);
        ours_.erase(it);
        break;
      }
      case ReplayEvent::kFreeCompleted:
        device_->Complete(0, AwaitedStream(e.address), 1);
        break;
      case ReplayEvent::kGive:
      case ReplayEvent::kUnmap:
        GiveBack(i);
        break;
      case ReplayEvent::kOutOfMemory: {
        ++report_.recorded_out_of_memory;
        const AllocationResult got = allocator_->Allocate(0, e.stream, e.bytes, BlockTag());
        if (got.status == AllocationStatus::kOutOfMemory) break;
        ++report_.recorded_out_of_memory_served;
        if (report_.as_recorded && report_.capacity_bytes != 0)
          Note(absl::StrFormat("event %d: a request of %d bytes that failed is served here", e.sequence, e.bytes));
        allocator_->Free(got.address);
        break;
      }
      default:
        break;
    }
  }

  // Memory went back to the device: for the request that follows, which will see to it by itself here too, or because
  // the program asked for it.
  void GiveBack(size_t i) {
    if (i > 0 &&
        (history_.events[i - 1].kind == ReplayEvent::kGive || history_.events[i - 1].kind == ReplayEvent::kUnmap))
      return;
    if (report_.settings.garbage_collection_threshold != 0) return;
    if (recorded_vmm_) {  // moves memory for requests all the time; for the program, at no request
      size_t k = i;
      while (k < history_.events.size() && history_.events[k].is_segment()) ++k;
      if (k < history_.events.size() &&
          (history_.events[k].kind == ReplayEvent::kAlloc || history_.events[k].kind == ReplayEvent::kOutOfMemory))
        return;
    }
    DeviceMemoryInfo info;
    device_->MemoryInfo(0, &info);
    for (size_t k = i; k < history_.events.size() && !history_.events[k].is_request(); ++k) {
      const ReplayEvent& e = history_.events[k];
      if (e.kind == ReplayEvent::kOutOfMemory) return;
      if ((e.kind == ReplayEvent::kTake || e.kind == ReplayEvent::kMap) && e.bytes > info.free_bytes) return;
    }
    allocator_->EmptyCache();
  }

  void CompareSegments() {
    size_t at = first_event_;
    for (const ReplayEvent& e : history_.events) {
      if (!e.is_segment()) continue;
      ++report_.segments_compared;
      if (at >= observer_.events.size()) {
        Note(absl::StrFormat("event %d: %s, here nothing", e.sequence, Text(e.kind, e.address, e.bytes)));
        continue;
      }
      const SegmentEvent& got = observer_.events[at++];
      if (got.kind == e.kind && got.address == e.address && got.bytes == e.bytes && got.stream == e.stream) {
        ++report_.segments_equal;
      } else {
        Note(absl::StrFormat("event %d: %s, here %s", e.sequence, Text(e.kind, e.address, e.bytes),
                             Text(got.kind, got.address, got.bytes)));
      }
    }
    if (at < observer_.events.size()) {
      const SegmentEvent& got = observer_.events[at];
      Note(Cat(observer_.events.size() - at,
               " segment events too many, the first: ", Text(got.kind, got.address, got.bytes)));
    }
  }

  const ReplayHistory& history_;
  const Metadata metadata_;
  ReplayReport report_;
  bool recorded_vmm_ = false;
  bool compare_ = false;
  SegmentObserver observer_;
  uint64_t failed_ = 0;  // requests, for another reason than lack of memory
  size_t first_event_ = 0;
  std::unique_ptr<SimulatedDeviceMemory> device_;
  std::unique_ptr<CachingAllocator> allocator_;
  absl::flat_hash_map<uint64_t, void*> ours_;  // recorded address -> ours
};

bool AllEqual(const ReplayReport& r) {
  return r.addresses_equal == r.addresses_compared && r.segments_equal == r.segments_compared &&
         r.first_difference.empty();
}

}  // namespace

absl::StatusOr<ReplayReport> Replay(const EventInput& input, const ReplayQuestion& question) {
  absl::StatusOr<ReplayHistory> history = ReadReplayHistory(input, question.device);
  if (!history.ok()) return history.status();
  if (question.settings) {
    AllocatorSettings settings = *question.settings;
    std::vector<std::string> ignored;
    settings.policy = question.policy.value_or(RecordedSettings(Metadata(history->metadata_json), &ignored).policy);
    if (const std::string idle = settings.WithoutEffect(); !idle.empty())
      return absl::FailedPreconditionError(Cat(idle, ", and a trace does not tell which requests went to one"));
  }
  InferBlockSizes(*history, kLargestSmall);
  using Order = AllocatorSettings::EqualSizeOrder;
  ReplayReport report = Player(*history, question, Order::kAddress).Run();
  // A snapshot does not tell PyTorch's version, which decides between equal blocks.
  if (report.addresses_compared != 0 && !AllEqual(report)) {
    ReplayReport other = Player(*history, question, Order::kSegmentAge).Run();
    if (other.addresses_equal > report.addresses_equal) report = std::move(other);
  }
  report.source = input.path();
  return report;
}

}  // namespace vramledger
