#include "tools/foreign/snapshot_import.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "nlohmann/json.hpp"
#include "tools/foreign/address_ranges.h"
#include "tools/foreign/snapshot_model.h"
#include "tools/foreign/stack_frames.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

uint64_t RoundUp(uint64_t size) {
  return std::max<uint64_t>(kBlockUnit, (size + kBlockUnit - 1) / kBlockUnit * kBlockUnit);
}

class Importer {
 public:
  explicit Importer(Snapshot snapshot) : snapshot_(std::move(snapshot)), list_(std::make_shared<EventList>()) {}

  std::shared_ptr<const EventList> Run() {
    list_->format = "snapshot";
    before_ = list_->Intern(kBeforeRecordingSite);
    int devices = static_cast<int>(snapshot_.traces.size());
    for (const SnapshotSegment& s : snapshot_.segments) devices = std::max(devices, s.device + 1);
    snapshot_.traces.resize(static_cast<size_t>(devices));
    for (int d = 0; d < devices; ++d) Rewind(d);
    initial_events_ = list_->events.size();
    SortAnnotations();
    Merge();
    if (!ended_.empty()) Finish();
    WriteMetadata(devices);
    WriteNotes();
    return list_;
  }

 private:
  struct Live {
    uint64_t requested = 0;
    uint64_t rounded = 0;
    uint64_t stream = 0;
    const PickleValue* frames = nullptr;
    bool pending = false;
  };

  uint16_t Stream(uint64_t handle) {
    if (handle == 0) return 0;
    const auto [it, fresh] =
        streams_.try_emplace(handle, static_cast<uint16_t>(std::min<size_t>(streams_.size() + 1, 65535)));
    return it->second;
  }

  const StackFacts& Facts(const PickleValue* frames) {
    const auto [it, fresh] = stacks_.try_emplace(frames);
    if (!fresh) return it->second;
    std::vector<StackFrame> list;
    if (frames != nullptr && frames->IsSequence()) {
      for (const PickleValue* f : frames->items) {
        const PickleValue* name = f->Get("name");
        const PickleValue* file = f->Get("filename");
        const PickleValue* line = f->Get("line");
        list.push_back({name != nullptr ? name->text : std::string_view(),
                        file != nullptr ? file->text : std::string_view(), line != nullptr ? line->integer : 0});
      }
    }
    return it->second = ReadStack(list);
  }

  // From the final state back to the state before the first recorded event; emits that state.
  void Rewind(int device) {
    absl::flat_hash_map<uint64_t, Live> live;
    AddressRanges reserved;
    for (const SnapshotSegment& s : snapshot_.segments) {
      if (s.device != device) continue;
      reserved.Add(s.address, s.size, s.stream);
      for (const SnapshotBlock& b : s.blocks) {
        if (b.active) live[b.address] = {b.requested, b.size, s.stream, b.frames, b.pending};
      }
    }
    std::vector<SnapshotEntry>& trace = snapshot_.traces[static_cast<size_t>(device)];
    std::vector<uint64_t>& rounded = rounded_.emplace_back(trace.size(), 0);
    size_t unknown_at_end = 0;
    absl::flat_hash_set<uint64_t>
        allocated_later;  // handed out again without a free in between: the timeline ends the earlier one
    for (size_t i = trace.size(); i-- > 0;) {
      const SnapshotEntry& e = trace[i];
      switch (e.kind) {
        case RecordKind::kAlloc: {
          const auto it = live.find(e.address);
          if (it == live.end()) {  // alive by the history, not in the final state
            rounded[i] = RoundUp(e.size);
            if (!allocated_later.contains(e.address)) {
              ++unknown_at_end;
              ended_.push_back({device, e.address, e.size, rounded[i], e.stream});
            }
          } else {
            rounded[i] = it->second.rounded;
            live.erase(it);
          }
          allocated_later.insert(e.address);
          break;
        }
        case RecordKind::kFreeRequested:
        case RecordKind::kFreeCompleted: {
          Live& l = live[e.address];
          if (l.rounded == 0) l = {e.size, RoundUp(e.size), e.stream, nullptr, false};
          l.pending = false;
          allocated_later.erase(e.address);
          rounded[i] = l.rounded;
          break;
        }
        case RecordKind::kSegmentAlloc:
        case RecordKind::kSegmentMap:
          if (!reserved.Remove(e.address, e.size)) ++odd_segments_;
          break;
        case RecordKind::kSegmentFree:
        case RecordKind::kSegmentUnmap:
          reserved.Add(e.address, e.size, e.stream);
          break;
        default:
          break;
      }
    }
    if (unknown_at_end != 0) {
      list_->health.notes.push_back(
          Cat(unknown_at_end, " blocks of device ", device,
              " are alive by the history and absent from the final state; they are taken as freed at its end"));
    }
    EmitInitial(device, live, reserved);
  }

  void EmitInitial(int device, const absl::flat_hash_map<uint64_t, Live>& live, const AddressRanges& reserved) {
    for (const auto& [begin, span] : reserved.spans()) {
      Event e;
      e.kind = RecordKind::kSegmentAlloc;
      e.device = static_cast<uint8_t>(device);
      e.address = begin;
      e.requested_bytes = e.rounded_bytes = span.end - begin;
      e.stream = Stream(span.stream);
      list_->Add(e);
      ++initial_segments_;
    }
    // In the order in which a training run meets the phases, which the state itself does not keep.
    std::vector<std::pair<Phase, uint64_t>> order;
    for (const auto& entry : live) order.emplace_back(Facts(entry.second.frames).phase, entry.first);
    std::sort(order.begin(), order.end());
    for (const auto& [phase, address] : order) {
      const Live& l = live.at(address);
      const StackFacts& facts = Facts(l.frames);
      Event e;
      e.kind = RecordKind::kAlloc;
      e.device = static_cast<uint8_t>(device);
      e.address = address;
      e.requested_bytes = l.requested;
      e.rounded_bytes = l.rounded;
      e.stream = Stream(l.stream);
      e.phase = phase;
      e.module = phase == Phase::kUnknown && facts.site != kWorkspaceSite ? before_ : list_->Intern(facts.site);
      list_->Add(e);
      ++initial_blocks_;
      initial_bytes_ += l.rounded;
      if (l.pending) {
        e.kind = RecordKind::kFreeRequested;
        list_->Add(e);
      }
    }
  }

  void SortAnnotations() {
    std::stable_sort(snapshot_.annotations.begin(), snapshot_.annotations.end(),
                     [](const SnapshotAnnotation& a, const SnapshotAnnotation& b) { return a.time_us < b.time_us; });
  }

  static Phase AnnotatedPhase(std::string_view name) {
    if (name.starts_with("Optimizer.step#")) return Phase::kOptimizer;
    if (name.starts_with("Optimizer.zero_grad#")) return Phase::kZeroGrad;
    if (name.starts_with("enumerate(DataLoader)#")) return Phase::kData;
    return Phase::kUnknown;
  }

  void PassAnnotations(uint64_t until_us) {
    for (;
         next_annotation_ < snapshot_.annotations.size() && snapshot_.annotations[next_annotation_].time_us <= until_us;
         ++next_annotation_) {
      const SnapshotAnnotation& a = snapshot_.annotations[next_annotation_];
      const Phase phase = AnnotatedPhase(a.name);
      if (phase == Phase::kUnknown) continue;
      if (a.start) {
        annotated_ = phase;
        EnterPhase(phase, a.time_us);
        continue;
      }
      annotated_ = Phase::kUnknown;
      if (phase == Phase::kOptimizer) {
        const std::string_view name = a.name.substr(a.name.find('#') + 1);
        Step(a.time_us, list_->Intern(name.substr(0, name.find('.'))));
      }
      EnterPhase(Phase::kIdle, a.time_us);
    }
  }

  uint64_t Nanoseconds(uint64_t time_us) const { return time_us > start_us_ ? (time_us - start_us_) * 1000 : 0; }

  void EnterPhase(Phase phase, uint64_t time_us) {
    if (phase == phase_) return;
    Event e;
    e.kind = RecordKind::kPhase;
    e.phase = phase;
    e.b = static_cast<uint64_t>(phase_);
    e.time_ns = Nanoseconds(time_us);
    list_->Add(e);
    if (phase_ == Phase::kOptimizer && !stepped_by_annotation_) Step(time_us, 0);
    phase_ = phase;
  }

  void Step(uint64_t time_us, uint32_t optimizer) {
    if (optimizer != 0) stepped_by_annotation_ = true;
    Event e;
    e.kind = RecordKind::kStep;
    e.phase = Phase::kOptimizer;
    e.a = optimizer;
    e.b = ++steps_;
    e.time_ns = Nanoseconds(time_us);
    list_->Add(e);
  }

  Phase PhaseOf(const StackFacts& facts) const {
    if (annotated_ != Phase::kUnknown) return annotated_;
    if (facts.phase != Phase::kUnknown) return facts.phase;
    // No frames at all within a backward: the engine's own threads on platforms without C++ frames.
    if (facts.empty && phase_ == Phase::kBackward) return Phase::kBackward;
    // Plain script code between two forward events, such as the loss.
    if (facts.python && phase_ == Phase::kForward) return Phase::kForward;
    return Phase::kUnknown;
  }

  // A snapshot does not number threads. cuBLAS takes a workspace for each of them, and is known by that.
  static constexpr uint16_t kEngineThread = 1;
  bool IsOfEngine(const StackFacts& facts) const {
    if (facts.empty) return phase_ == Phase::kBackward;
    return facts.engine && !facts.makes_tensor;
  }

  // All devices' events in the order of time; the order within a device is kept.
  void Merge() {
    start_us_ = ~uint64_t{0};
    for (const auto& trace : snapshot_.traces) {
      for (const SnapshotEntry& e : trace) {
        if (e.time_us != 0) start_us_ = std::min(start_us_, e.time_us);
      }
    }
    for (const SnapshotAnnotation& a : snapshot_.annotations) {
      if (AnnotatedPhase(a.name) == Phase::kOptimizer && !a.start) stepped_by_annotation_ = true;
    }
    std::vector<size_t> next(snapshot_.traces.size(), 0);
    while (true) {
      size_t best = next.size();
      for (size_t d = 0; d < next.size(); ++d) {
        if (next[d] == snapshot_.traces[d].size()) continue;
        if (best == next.size() || snapshot_.traces[d][next[d]].time_us < snapshot_.traces[best][next[best]].time_us)
          best = d;
      }
      if (best == next.size()) break;
      Emit(best, next[best]++);
    }
    PassAnnotations(~uint64_t{0});
  }

  void Emit(size_t device, size_t index) {
    const SnapshotEntry& s = snapshot_.traces[device][index];
    if (s.time_us != 0) PassAnnotations(s.time_us);
    Event e;
    e.kind = s.kind;
    e.device = static_cast<uint8_t>(device);
    e.time_ns = Nanoseconds(s.time_us);
    e.address = s.address;
    e.requested_bytes = s.size;
    e.rounded_bytes = rounded_[device][index] != 0 ? rounded_[device][index] : s.size;
    e.stream = Stream(s.stream);
    if (s.kind == RecordKind::kAlloc || s.kind == RecordKind::kOutOfMemory) {
      const StackFacts& facts = Facts(s.frames);
      const Phase phase = PhaseOf(facts);
      if (phase != Phase::kUnknown) EnterPhase(phase, s.time_us);
      e.phase = phase;
      e.module = list_->Intern(facts.site);
      if (IsOfEngine(facts)) e.thread = kEngineThread;
      if (s.kind == RecordKind::kAlloc) ++allocations_, with_phase_ += phase != Phase::kUnknown ? 1 : 0;
    } else {
      e.phase = phase_;
    }
    last_us_ = std::max(last_us_, s.time_us);
    list_->Add(e);
  }

  void Finish() {
    for (const Ended& b : ended_) {
      Event e;
      e.kind = RecordKind::kFreeCompleted;
      e.device = static_cast<uint8_t>(b.device);
      e.phase = phase_;
      e.time_ns = Nanoseconds(last_us_);
      e.address = b.address;
      e.requested_bytes = b.requested;
      e.rounded_bytes = b.rounded;
      e.stream = Stream(b.stream);
      list_->Add(e);
    }
  }

  void WriteMetadata(int devices) {
    nlohmann::json m = {{"source", "PyTorch memory snapshot"},
                        {"snapshot_layout", snapshot_.old_layout ? "2023 (history)" : "segments and device traces"},
                        {"initial_blocks", initial_blocks_},
                        {"initial_bytes", initial_bytes_},
                        {"initial_events", initial_events_},
                        {"history_complete", initial_blocks_ == 0 && initial_segments_ == 0},
                        {"state_only", allocations_ == 0}};
    m["allocator_settings"] = nlohmann::json::parse(snapshot_.settings_json);
    for (int d = 0; d < devices; ++d) m["devices"].push_back({{"index", d}});
    list_->metadata_json = m.dump();
  }

  void WriteNotes() {
    std::vector<std::string>& notes = list_->health.notes;
    if (initial_blocks_ != 0) {
      notes.push_back(Cat("the recorded history begins with ", initial_blocks_, " blocks (", initial_bytes_,
                          " bytes) already alive; they were reconstructed from the final state"));
    }
    if (!snapshot_.sums_agree)
      notes.push_back("no segment's sizes are the sum of its blocks: the file was not written by PyTorch itself");
    if (odd_segments_ != 0) notes.push_back(Cat(odd_segments_, " segments of the history do not fit the final state"));
    if (allocations_ == 0) {
      notes.push_back(
          "the snapshot holds a state and no history: there is no timeline, no peak over time and no phase");
    } else if (with_phase_ < allocations_) {
      notes.push_back(Cat("the stack frames give a phase for ", with_phase_, " of ", allocations_, " allocations; what the others are cannot be told"));
    }
    if (allocations_ != 0) {
      notes.push_back(
          "block sizes of freed blocks are computed (rounded up to 512 bytes): the snapshot records only what was "
          "requested");
    }
  }

  struct Ended {
    int device;
    uint64_t address, requested, rounded, stream;
  };

  Snapshot snapshot_;
  std::shared_ptr<EventList> list_;
  uint32_t before_ = 0;
  absl::flat_hash_map<uint64_t, uint16_t> streams_;
  absl::flat_hash_map<const PickleValue*, StackFacts> stacks_;
  std::vector<std::vector<uint64_t>> rounded_;  // by device and event
  std::vector<Ended> ended_;
  size_t initial_blocks_ = 0, initial_segments_ = 0, odd_segments_ = 0, allocations_ = 0, with_phase_ = 0, steps_ = 0;
  uint64_t initial_bytes_ = 0;
  size_t initial_events_ = 0;  // memory events at the head of the list that tell the state before the recording
  size_t next_annotation_ = 0;
  Phase annotated_ = Phase::kUnknown;
  Phase phase_ = Phase::kUnknown;
  bool stepped_by_annotation_ = false;
  uint64_t start_us_ = 0, last_us_ = 0;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const EventList>> ImportSnapshot(std::string pickle) {
  absl::StatusOr<Snapshot> snapshot = ReadSnapshot(std::move(pickle));
  if (!snapshot.ok()) return snapshot.status();
  return Importer(*std::move(snapshot)).Run();
}

}  // namespace vramledger
