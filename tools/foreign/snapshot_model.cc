#include "tools/foreign/snapshot_model.h"

#include <algorithm>
#include <utility>

#include "nlohmann/json.hpp"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

class SnapshotReader {
 public:
  explicit SnapshotReader(Snapshot* out) : out_(*out) {}

  absl::Status Read(const PickleValue& root) {
    const PickleValue* segments = &root;
    const PickleValue* traces = nullptr;
    if (root.kind == PickleKind::kDict) {
      segments = root.Get("segments");
      traces = root.Get("device_traces");
    }
    if (segments == nullptr || !segments->IsSequence()) {
      return absl::InvalidArgumentError("the pickle is no PyTorch memory snapshot: it has no list \"segments\"");
    }
    for (size_t i = 0; i < segments->items.size(); ++i) {
      where_ = Cat("segment ", i);
      ReadSegment(*segments->items[i]);
      if (!error_.ok()) return error_;
    }
    JudgeSums();
    CheckSegmentsApart();
    if (traces != nullptr && traces->IsSequence()) {
      for (size_t d = 0; d < traces->items.size(); ++d) ReadTrace(d, *traces->items[d]);
    } else if (traces != nullptr) {
      Fail("\"device_traces\" is no list");
    }
    ReadAnnotations(root.Get("external_annotations"));
    ReadSettings(root.Get("allocator_settings"));
    return error_;
  }

 private:
  template <typename... Args>
  void Fail(const Args&... args) {
    if (error_.ok()) error_ = absl::InvalidArgumentError(Cat("the snapshot is damaged: ", args...));
  }

  uint64_t Uint(const PickleValue& dict, std::string_view key, bool required = true, uint64_t fallback = 0) {
    const PickleValue* v = dict.Get(key);
    if (v == nullptr) {
      if (required) Fail(where_, " has no \"", key, "\"");
      return fallback;
    }
    if (v->kind != PickleKind::kInt || (v->integer < 0 && !v->unsigned_above_int64)) {
      Fail(where_, ": \"", key, "\" is no number of bytes or address");
      return fallback;
    }
    return static_cast<uint64_t>(v->integer);
  }
  std::string_view Text(const PickleValue& dict, std::string_view key) {
    const PickleValue* v = dict.Get(key);
    if (v == nullptr || v->kind != PickleKind::kString) {
      Fail(where_, " has no text \"", key, "\"");
      return {};
    }
    return v->text;
  }
  bool Flag(const PickleValue& dict, std::string_view key) {
    const PickleValue* v = dict.Get(key);
    return v != nullptr && v->kind == PickleKind::kBool && v->integer != 0;
  }

  void ReadSegment(const PickleValue& dict) {
    SnapshotSegment s;
    const uint64_t device = Uint(dict, "device");
    if (device > 255) return Fail(where_, ": device ", device, " is out of range");
    s.device = static_cast<int>(device);
    s.address = Uint(dict, "address");
    s.size = Uint(dict, "total_size");
    s.stream = Uint(dict, "stream");
    s.expandable = Flag(dict, "is_expandable");
    const std::string_view type = Text(dict, "segment_type");
    if (error_.ok() && type != "small" && type != "large")
      return Fail(where_, ": segment_type \"", type, "\" is neither small nor large");
    s.small = type == "small";
    const PickleValue* blocks = dict.Get("blocks");
    if (blocks == nullptr || !blocks->IsSequence()) return Fail(where_, " has no list \"blocks\"");
    uint64_t at = s.address, allocated = 0, active = 0;
    const std::string segment = where_;
    for (size_t i = 0; i < blocks->items.size() && error_.ok(); ++i) {
      where_ = Cat(segment, ", block ", i);
      const SnapshotBlock b = ReadBlock(*blocks->items[i], at);
      at += b.size;
      if (b.active) active += b.size;
      if (b.active && !b.pending) allocated += b.size;
      s.blocks.push_back(b);
    }
    where_ = segment;
    if (!error_.ok()) return;
    CheckSums(dict, s, at, allocated, active);
    if (!error_.ok()) return;
    out_.segments.push_back(std::move(s));
  }

  // A segment's own sums. One that does not agree is damage; when none does, another tool than PyTorch wrote the file.
  void CheckSums(const PickleValue& dict, const SnapshotSegment& s, uint64_t end, uint64_t allocated, uint64_t active) {
    std::string wrong;
    if (Uint(dict, "allocated_size") != allocated)
      wrong = Cat("allocated_size is not the sum of its blocks (", allocated, ")");
    if (Uint(dict, "active_size") != active) wrong = Cat("active_size is not the sum of its blocks (", active, ")");
    if (end != s.address + s.size) wrong = Cat("total_size is not the sum of its blocks (", end - s.address, ")");
    if (wrong.empty()) return;
    if (wrong_sums_++ == 0) first_wrong_sum_ = Cat(where_, ": ", wrong);
  }

  void JudgeSums() {
    out_.sums_agree = wrong_sums_ == 0;
    if (wrong_sums_ != 0 && (wrong_sums_ < 2 || wrong_sums_ < out_.segments.size())) Fail(first_wrong_sum_);
  }

  SnapshotBlock ReadBlock(const PickleValue& dict, uint64_t running_address) {
    SnapshotBlock b;
    b.size = Uint(dict, "size");
    b.requested = Uint(dict, "requested_size", false, b.size);
    const std::string_view state = Text(dict, "state");
    if (!error_.ok()) return b;
    b.pending = state == "active_pending_free" || state == "active_awaiting_free";
    b.active = b.pending || state == "active_allocated";
    if (!b.active && state != "inactive") Fail(where_, ": state \"", state, "\" is not known");
    b.address = Uint(dict, "address", false, running_address);
    b.frames = dict.Get("frames");
    if (const PickleValue* history = dict.Get("history");
        history != nullptr && history->IsSequence() && !history->items.empty()) {
      out_.old_layout = true;
      const PickleValue& last = *history->items.front();
      b.frames = last.Get("frames");
      if (b.active && last.Get("real_size") != nullptr) b.requested = Uint(last, "real_size");
    }
    if (b.active && b.requested > b.size)
      Fail(where_, ": requested_size ", b.requested, " is more than the block's size ", b.size);
    return b;
  }

  void CheckSegmentsApart() {
    std::vector<std::pair<std::pair<int, uint64_t>, uint64_t>> spans;
    for (const SnapshotSegment& s : out_.segments) spans.push_back({{s.device, s.address}, s.size});
    std::sort(spans.begin(), spans.end());
    for (size_t i = 1; i < spans.size(); ++i) {
      if (spans[i].first.first == spans[i - 1].first.first &&
          spans[i - 1].first.second + spans[i - 1].second > spans[i].first.second) {
        return Fail("the segments at addresses ", spans[i - 1].first.second, " and ", spans[i].first.second,
                    " overlap");
      }
    }
  }

  void ReadTrace(size_t device, const PickleValue& list) {
    if (!list.IsSequence()) return Fail("the trace of device ", device, " is no list");
    std::vector<SnapshotEntry>& out = out_.traces.emplace_back();
    out.reserve(list.items.size());
    for (size_t i = 0; i < list.items.size() && error_.ok(); ++i) {
      where_number_ = i;
      const PickleValue& dict = *list.items[i];
      SnapshotEntry e;
      if (!ReadAction(dict, device, &e)) continue;
      out.push_back(e);
    }
  }

  bool ReadAction(const PickleValue& dict, size_t device, SnapshotEntry* e) {
    static constexpr std::pair<std::string_view, RecordKind> kActions[] = {
        {"alloc", RecordKind::kAlloc},
        {"free_requested", RecordKind::kFreeRequested},
        {"free_completed", RecordKind::kFreeCompleted},
        {"segment_alloc", RecordKind::kSegmentAlloc},
        {"segment_free", RecordKind::kSegmentFree},
        {"segment_map", RecordKind::kSegmentMap},
        {"segment_unmap", RecordKind::kSegmentUnmap},
        {"oom", RecordKind::kOutOfMemory},
        {"snapshot", RecordKind::kNone},
        {"user_defined", RecordKind::kNone},
        {"workspace_snapshot", RecordKind::kNone},
    };
    where_ = Cat("event ", where_number_, " of device ", device);
    const std::string_view action = Text(dict, "action");
    if (!error_.ok()) return false;
    const auto* found =
        std::find_if(std::begin(kActions), std::end(kActions), [&](const auto& a) { return a.first == action; });
    if (found == std::end(kActions)) {
      Fail(where_, ": action \"", action, "\" is not known");
      return false;
    }
    if (found->second == RecordKind::kNone) return false;
    e->kind = found->second;
    e->size = Uint(dict, "size");
    e->stream = Uint(dict, "stream", false);
    e->address = e->kind == RecordKind::kOutOfMemory ? Uint(dict, "device_free", false, Uint(dict, "addr", false))
                                                     : Uint(dict, "addr");
    if (dict.Get("time_us") != nullptr) {
      e->time_us = Uint(dict, "time_us");
      out_.has_times = true;
    }
    e->frames = dict.Get("frames");
    return error_.ok();
  }

  void ReadAnnotations(const PickleValue* list) {
    if (list == nullptr || !list->IsSequence()) return;
    for (size_t i = 0; i < list->items.size() && error_.ok(); ++i) {
      where_ = Cat("annotation ", i);
      const PickleValue& dict = *list->items[i];
      SnapshotAnnotation a;
      a.name = Text(dict, "name");
      a.start = Text(dict, "stage") == "START";
      a.time_us = Uint(dict, "time_us", false);
      out_.annotations.push_back(a);
    }
  }

  void ReadSettings(const PickleValue* dict) {
    nlohmann::json out = nlohmann::json::object();
    if (dict != nullptr && dict->kind == PickleKind::kDict) {
      for (size_t i = 0; i + 1 < dict->items.size(); i += 2) {
        const PickleValue& k = *dict->items[i];
        const PickleValue& v = *dict->items[i + 1];
        if (k.kind != PickleKind::kString) continue;
        const std::string key(k.text);
        if (v.kind == PickleKind::kString) out[key] = std::string(v.text);
        if (v.kind == PickleKind::kInt) out[key] = v.integer;
        if (v.kind == PickleKind::kFloat) out[key] = v.number;
        if (v.kind == PickleKind::kBool) out[key] = v.integer != 0;
      }
    }
    out_.settings_json = out.dump();
  }

  Snapshot& out_;
  absl::Status error_;
  std::string where_;
  size_t where_number_ = 0;
  size_t wrong_sums_ = 0;
  std::string first_wrong_sum_;
};

}  // namespace

absl::StatusOr<Snapshot> ReadSnapshot(std::string pickle) {
  absl::StatusOr<std::unique_ptr<PickleDocument>> document = ReadPickle(std::move(pickle));
  if (!document.ok()) return document.status();
  Snapshot snapshot;
  snapshot.document = *std::move(document);
  if (absl::Status s = SnapshotReader(&snapshot).Read(snapshot.document->root()); !s.ok()) return s;
  return snapshot;
}

}  // namespace vramledger
