#include "tools/analysis/timeline.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "tools/analysis/block_table.h"
#include "tools/analysis/fragmentation.h"
#include "tools/analysis/leaks.h"
#include "tools/analysis/recorded_operators.h"
#include "tools/analysis/site_ids.h"
#include "tools/foreign/address_ranges.h"
#include "tools/foreign/device_report.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

constexpr size_t kKeptFailures = 8;
constexpr size_t kKeptGroups = 10000;
constexpr size_t kKeptMarks = 1000;
constexpr uint64_t kOperatorAllocations = 16;  // no operator makes more blocks while it uses a workspace

bool RunsModel(Phase p) {
  return p == Phase::kForward || p == Phase::kBackward || p == Phase::kRecompute || p == Phase::kEval;
}

size_t Index(Phase p) {
  return static_cast<size_t>(p);
}
size_t Index(Category c) {
  return static_cast<size_t>(c);
}

class Pass {
 public:
  Pass(EventSource& source, const Hindsight& hindsight, int device)
      : source_(source), hindsight_(hindsight), mine_(hindsight.devices[static_cast<size_t>(device)]) {
    out_.device = device;
    out_.has_phases = hindsight.has_phases;
    out_.has_steps = hindsight.has_steps;
    out_.has_names = hindsight.has_names;
  }

  Timeline Run() {
    while ((event_ = source_.Next()) != nullptr) {
      const Event& e = *event_;
      ++out_.events;
      out_.duration_ns = std::max(out_.duration_ns, e.time_ns);
      sites_.See(source_, IsMemoryRecord(e.kind) ? e.module : 0);
      const uint64_t forwards = table_.marks().forwards();
      table_.Apply(e, *this);
      if (!out_.has_steps && table_.marks().forwards() != forwards) EndStep(e, 0, table_.marks().forwards() - 1);
      Others(e);
      Marks(e);
      if ((out_.events & (out_.series_every - 1)) == 0) Sample();
    }
    Finish();
    return std::move(out_);
  }

  void OnBirth(Block& b) {
    b.category = static_cast<Category>(hindsight_.categories[b.ordinal]);
    if (b.device != out_.device) return;
    ++out_.allocations;
    if (sites_.before != 0 && b.module == sites_.before) ++out_.blocks_before_recording;
    now_.total.Add(b.requested, b.rounded);
    Bytes& own = now_.categories[Index(b.category)];
    own.Add(b.requested, b.rounded);
    now_.phase = event_->phase != Phase::kUnknown ? event_->phase : table_.marks().current();
    if (sites_.before == 0 || b.module != sites_.before) {
      PhasePeak& phase = out_.phase_peaks[Index(now_.phase)];
      phase.seen = true;
      Raise(&phase.moment);
    }
    Raise(&step_peak_);
    own_phases_.Raise(now_.total.rounded, event_->time_ns, step_);
    uint64_t& of_phase = step_phase_peaks_[Index(now_.phase)];
    of_phase = std::max(of_phase, now_.total.rounded);
    Moment& category = out_.category_peaks[Index(b.category)];
    if (own.rounded > category.categories[Index(b.category)].rounded) Take(&category);
  }
  void OnRequest(Block& b) {
    if (b.device != out_.device) return;
    Passed(b);
    Release(b);
    now_.pending_bytes += b.rounded;
  }
  void OnEnd(Block& b) {
    if (b.device != out_.device) return;
    leaks_.Freed(b, step_);
    Passed(b);
    if (b.pending)
      now_.pending_bytes -= b.rounded;
    else
      Release(b);
  }

 private:
  // A workspace of the peak that is freed within its operator: soon, and in the phase it was born in.
  void Passed(const Block& b) {
    if (peak_workspaces_.empty()) return;
    const auto it = peak_workspaces_.find(b.ordinal);
    if (it == peak_workspaces_.end()) return;
    peak_workspaces_.erase(it);
    if (table_.allocations() - b.ordinal <= kOperatorAllocations && table_.marks().current() == b.phase)
      out_.peak_passing_workspace.Add(b.requested, b.rounded);
  }

  void Release(const Block& b) {
    now_.total.Remove(b.requested, b.rounded);
    now_.categories[Index(b.category)].Remove(b.requested, b.rounded);
  }
  void Take(Moment* out) {
    *out = now_;
    out->sequence = event_->sequence;
    out->time_ns = event_->time_ns;
    out->step = step_;
  }
  void Raise(Moment* out) {
    if (now_.total.rounded > out->total.rounded) Take(out);
  }

  std::string Text(uint32_t id) const { return std::string(source_.String(id)); }

  Fragmentation Measure() const {
    FragmentationQuestion q;
    q.device = out_.device;
    const uint64_t clock = table_.clock();
    const Event* event = event_;
    q.stream_asks = [this, clock, event](uint64_t stream) {
      // At the end nobody asks any more, so no stream is told apart.
      if (event == nullptr || (IsMemoryRecord(event->kind) && event->stream == stream)) return true;
      const auto it = hindsight_.last_allocation.find(static_cast<uint64_t>(out_.device) << 32 | stream);
      return it != hindsight_.last_allocation.end() && it->second > clock;
    };
    q.site = [this](uint32_t id) { return Text(id); };
    Fragmentation f = MeasureFragmentation(table_, reserved_, q);
    f.sequence = event_ != nullptr ? event_->sequence : 0;
    return f;
  }

  void Others(const Event& e) {
    switch (e.kind) {
      case RecordKind::kSegmentAlloc:
      case RecordKind::kSegmentMap:
        if (e.device != out_.device) break;
        reserved_.Add(e.address, e.rounded_bytes, e.stream);
        now_.reserved_bytes += e.rounded_bytes;
        break;
      case RecordKind::kSegmentFree:
      case RecordKind::kSegmentUnmap:
        if (e.device != out_.device) break;
        reserved_.Remove(e.address, e.rounded_bytes);
        now_.reserved_bytes -= std::min(now_.reserved_bytes, e.rounded_bytes);
        break;
      case RecordKind::kPhase:
        if (e.a != 0) own_phases_.Enter(e, source_, now_.total.rounded, step_);
        break;
      case RecordKind::kStep:
        EndStep(e, e.a, e.b);
        break;
      case RecordKind::kOutOfMemory:
        if (e.device == out_.device) Failed(e);
        break;
      case RecordKind::kDeviceUsed:
        if (e.device == out_.device) Sampled(e);
        break;
      case RecordKind::kOutsideAlloc:
        if (e.device == out_.device) outside_.Alloc(e, Text(e.a), reserved_.Holds(e.b));
        break;
      case RecordKind::kOutsideFree:
        if (e.device == out_.device) outside_.Free(e);
        break;
      case RecordKind::kProcessUsed:
        if (e.device == out_.device) outside_.Processes(e, now_.reserved_bytes);
        break;
      case RecordKind::kMark:
        if (e.device == out_.device && source_.String(e.a).starts_with(kMemoryFractionMark))
          ParseDouble(source_.String(e.a).substr(kMemoryFractionMark.size()), &memory_fraction_);
        if (out_.marks.size() < kKeptMarks && source_.String(e.a).starts_with(kOperatorsMark))
          Take(&out_.marks.emplace_back(MarkedMoment{Text(e.a), {}}).moment);
        break;
      case RecordKind::kCounters:
        if (e.device != out_.device) break;
        ++out_.counters_seen;
        if (e.b != now_.total.rounded + now_.pending_bytes && e.b != now_.total.rounded) ++out_.counters_wrong;
        break;
      default:
        break;
    }
  }

  // The two moments that the first pass found.
  void Marks(const Event& e) {
    if (table_.clock() == mine_.peak_clock) TakePeak();
    if (!reserved_measured_ && mine_.reserved_peak_clock != 0 && table_.clock() >= mine_.reserved_peak_clock) {
      reserved_measured_ = true;
      out_.at_reserved_peak = Measure();
      out_.reserved_peak_time_ns = e.time_ns;
      out_.reserved_peak_step = step_;
      out_.reserved_peak_phase = now_.phase;
    }
  }

  void TakePeak() {
    Take(&out_.peak);
    outside_.AtPeak(event_->time_ns);
    out_.at_peak = Measure();
    absl::flat_hash_map<uint32_t, Bytes> modules, names;
    std::map<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, uint8_t, uint8_t, uint64_t>, Bytes> groups;
    for (const auto& entry : table_.live()) {
      const Block& b = entry.second;
      if (b.device != out_.device || b.pending) continue;
      out_.peak_by_birth_phase[Index(b.phase)][Index(b.category)].Add(b.requested, b.rounded);
      modules[b.module].Add(b.requested, b.rounded);
      if (b.name != 0) names[b.name].Add(b.requested, b.rounded);
      groups[{b.module, b.node, b.stack, b.name, static_cast<uint8_t>(b.phase), static_cast<uint8_t>(b.category),
              b.requested}]
          .Add(b.requested, b.rounded);
      if (b.category == Category::kGradient && b.birth_step < step_)
        out_.peak_stale_gradients.Add(b.requested, b.rounded);
      if (b.category == Category::kWorkspace && RunsModel(b.phase)) peak_workspaces_.insert(b.ordinal);
      if (sites_.before != 0 && b.module == sites_.before) out_.peak_before_recording.Add(b.requested, b.rounded);
    }
    out_.peak_modules = Ranked(modules);
    out_.peak_names = Ranked(names);
    for (const auto& [key, bytes] : groups) {
      const auto& [module, node, stack, name, phase, category, requested] = key;
      out_.peak_groups.push_back({Text(module), Text(node), Text(stack), Text(name), static_cast<Phase>(phase),
                                  static_cast<Category>(category), requested, bytes});
    }
    std::stable_sort(out_.peak_groups.begin(), out_.peak_groups.end(),
                     [](const BlockGroup& a, const BlockGroup& b) { return a.bytes.rounded > b.bytes.rounded; });
    if (out_.peak_groups.size() > kKeptGroups) out_.peak_groups.resize(kKeptGroups);
  }

  std::vector<NamedBytes> Ranked(const absl::flat_hash_map<uint32_t, Bytes>& table) const {
    std::vector<NamedBytes> out;
    for (const auto& [id, bytes] : table) out.push_back({Text(id), bytes});
    std::sort(out.begin(), out.end(), [](const NamedBytes& a, const NamedBytes& b) {
      return std::tie(b.bytes.rounded, a.name) < std::tie(a.bytes.rounded, b.name);
    });
    return out;
  }

  void Sample() {
    if (out_.series.size() == Timeline::kSeriesMoments) {
      // Every second one stays, and from here on half as many are taken.
      for (size_t i = 0; i < Timeline::kSeriesMoments / 2; ++i) out_.series[i] = out_.series[2 * i + 1];
      out_.series.resize(Timeline::kSeriesMoments / 2);
      out_.series_every *= 2;
      if ((out_.events & (out_.series_every - 1)) != 0) return;
    }
    Take(&out_.series.emplace_back());
  }

  void EndStep(const Event& e, uint32_t optimizer, uint64_t number) {
    if (!out_.has_steps && number == 0) return;  // before the first forward
    StepSummary s;
    s.number = number;
    s.optimizer = Text(optimizer);
    s.end_ns = e.time_ns;
    s.peak = step_peak_;
    s.phase_peaks = std::exchange(step_phase_peaks_, {});
    s.floor_bytes = now_.total.rounded;
    s.reserved_bytes = now_.reserved_bytes;
    out_.steps.push_back(std::move(s));
    leaks_.EndStep(step_);
    step_ = static_cast<uint32_t>(number) + 1;
    table_.set_step(step_);
    step_peak_ = Moment{};
    Raise(&step_peak_);
  }

  void Failed(const Event& e) {
    ++out_.failures_total;
    if (out_.failures.size() >= kKeptFailures) return;
    FailedRequest f;
    f.time_ns = e.time_ns;
    f.step = step_;
    f.phase = e.phase != Phase::kUnknown ? e.phase : table_.marks().current();
    f.request_bytes = e.requested_bytes;
    f.device_free_bytes = e.address;
    f.memory_fraction = memory_fraction_;
    Take(&f.moment);
    f.fragmentation = Measure();
    out_.failures.push_back(std::move(f));
    failure_waits_ = true;
  }

  void Sampled(const Event& e) {
    const uint64_t used = e.c > e.b ? e.c - e.b : 0;
    out_.device_sampled = true;
    out_.device_total_bytes = e.c;
    out_.used_peak_bytes = std::max(out_.used_peak_bytes, used);
    const Phase phase = e.phase != Phase::kUnknown ? e.phase : table_.marks().current();
    std::optional<size_t> failure;
    if (std::exchange(failure_waits_, false)) failure = out_.failures.size() - 1;
    outside_.Sampled(e, now_.reserved_bytes, step_, phase, failure);
    out_.outside_last_bytes = used > now_.reserved_bytes ? used - now_.reserved_bytes : 0;
    out_.outside_peak_bytes = std::max(out_.outside_peak_bytes, out_.outside_last_bytes);
  }

  void Finish() {
    if (step_peak_.total.rounded != 0 && !out_.has_steps) {
      StepSummary s;
      s.number = step_;
      s.end_ns = out_.duration_ns;
      s.peak = step_peak_;
      s.phase_peaks = step_phase_peaks_;
      s.floor_bytes = now_.total.rounded;
      s.reserved_bytes = now_.reserved_bytes;
      out_.steps.push_back(std::move(s));
    }
    out_.end = now_;
    out_.end.time_ns = out_.duration_ns;
    out_.end.step = step_;
    out_.end.phase = table_.marks().current();
    out_.at_end = Measure();
    out_.outside = outside_.Take();
    out_.own_phases = own_phases_.Take();
    for (const auto& [number, sample] : out_.outside.at_failures) out_.failures[number].outside = sample;
    out_.reserved_peak_bytes = mine_.reserved_peak;
    if (!reserved_measured_) out_.at_reserved_peak = out_.at_end;
    out_.unmatched_frees = table_.unmatched_frees();
    out_.unmatched_names = table_.unmatched_names();
    out_.leaks = leaks_.Suspects(table_, out_.device, step_, StepsOfARound(out_.steps),
                                 [this](uint32_t id) { return Text(id); });
  }

  EventSource& source_;
  const Hindsight& hindsight_;
  const DeviceHindsight& mine_;
  const Event* event_ = nullptr;
  Timeline out_;
  BlockTable table_;
  SiteIds sites_;
  AddressRanges reserved_;
  LeakWatch leaks_;
  OutsideFollower outside_;
  OwnPhaseWatch own_phases_;
  bool failure_waits_ = false;  // for the next sample of the device
  Moment now_;
  absl::flat_hash_set<uint64_t> peak_workspaces_;  // ordinals, until freed
  Moment step_peak_;                               // of the step under way
  std::array<uint64_t, kPhaseCount> step_phase_peaks_{};
  uint32_t step_ = 1;
  double memory_fraction_ = 1;
  bool reserved_measured_ = false;
};

}  // namespace

namespace {

// The step that a phase followed, where no step of its own came to be.
std::optional<uint64_t> StepBefore(const Timeline& t, Phase phase, uint64_t step) {
  const bool part_of_a_step =
      phase == Phase::kForward || phase == Phase::kBackward || phase == Phase::kRecompute || phase == Phase::kOptimizer;
  if (!t.has_steps || t.steps.empty() || part_of_a_step || step <= t.steps.back().number) return std::nullopt;
  return t.steps.back().number;
}

}  // namespace

std::string PhaseAndStep(const Timeline& t, Phase phase, uint64_t step) {
  if (const auto before = StepBefore(t, phase, step)) return Cat(PhaseName(phase), " after step ", *before);
  return Cat(PhaseName(phase), " of step ", step);
}

std::string InPhaseAndStep(const Timeline& t, Phase phase, uint64_t step) {
  const bool steps = step != 0 && NamesSteps(t);
  if (phase == Phase::kUnknown) return steps ? Cat(" in step ", step) : std::string();
  return Cat(" in ", steps ? PhaseAndStep(t, phase, step) : std::string(PhaseName(phase)));
}

std::string StepCell(const Timeline& t, Phase phase, uint64_t step) {
  if (const auto before = StepBefore(t, phase, step)) return Cat("after ", *before);
  return std::to_string(step);
}

Timeline BuildTimeline(EventSource& source, const Hindsight& hindsight, int device) {
  return Pass(source, hindsight, device).Run();
}

namespace {

// Blocks held at chosen moments, with the names that they get later on.
class GroupPass {
 public:
  GroupPass(EventSource& source, const Hindsight& hindsight, int device, const std::vector<GroupQuestion>& questions)
      : source_(source), hindsight_(hindsight), device_(device), questions_(questions), order_(questions.size()) {
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::sort(order_.begin(), order_.end(),
              [&](size_t a, size_t b) { return questions[a].sequence < questions[b].sequence; });
  }

  std::vector<std::vector<BlockGroup>> Run() {
    while (next_ < order_.size() || !held_.empty()) {
      const Event* e = source_.Next();
      if (e == nullptr) break;
      table_.Apply(*e, *this);
      for (; next_ < order_.size() && e->sequence >= questions_[order_[next_]].sequence; ++next_) Hold(order_[next_]);
    }
    for (const auto& entry : table_.live()) OnEnd(entry.second);
    std::vector<std::vector<BlockGroup>> out(questions_.size());
    for (const auto& [key, bytes] : groups_) {
      const auto& [question, module, node, stack, name, phase, requested] = key;
      out[question].push_back({Text(module), Text(node), Text(stack), Text(name), static_cast<Phase>(phase),
                               questions_[question].category, requested, bytes});
    }
    return out;
  }

  void OnBirth(const Block&) {}
  void OnRequest(const Block&) {}
  void OnEnd(const Block& b) {
    const auto it = held_.find(b.ordinal);
    if (it == held_.end()) return;
    for (const size_t question : it->second) {
      groups_[{question, b.module, b.node, b.stack, b.name, static_cast<uint8_t>(b.phase), b.requested}].Add(
          b.requested, b.rounded);
    }
    held_.erase(it);
  }

 private:
  void Hold(size_t question) {
    for (const auto& entry : table_.live()) {
      const Block& b = entry.second;
      const auto category = static_cast<Category>(hindsight_.categories[b.ordinal]);
      if (b.device == device_ && !b.pending && category == questions_[question].category)
        held_[b.ordinal].push_back(question);
    }
  }
  std::string Text(uint32_t id) const { return std::string(source_.String(id)); }

  EventSource& source_;
  const Hindsight& hindsight_;
  const int device_;
  const std::vector<GroupQuestion>& questions_;
  std::vector<size_t> order_;  // of the questions, by their moments
  size_t next_ = 0;
  BlockTable table_;
  absl::flat_hash_map<uint64_t, std::vector<size_t>> held_;  // ordinal of a block: the questions it belongs to
  std::map<std::tuple<size_t, uint32_t, uint32_t, uint32_t, uint32_t, uint8_t, uint64_t>, Bytes> groups_;
};

}  // namespace

std::vector<std::vector<BlockGroup>> GroupsAt(EventSource& source, const Hindsight& hindsight, int device,
                                              const std::vector<GroupQuestion>& questions) {
  return GroupPass(source, hindsight, device, questions).Run();
}

absl::StatusOr<Analysis> Analyze(const EventInput& input, std::optional<int> device, Hindsight* keep) {
  absl::StatusOr<std::unique_ptr<EventSource>> first = input.NewSource();
  if (!first.ok()) return first.status();
  Hindsight local;
  Hindsight& hindsight = keep != nullptr ? *keep : local;
  hindsight = LookThrough(**first);
  absl::StatusOr<std::unique_ptr<EventSource>> second = input.NewSource();
  if (!second.ok()) return second.status();
  Analysis out;
  for (int d = 0; d < 256; ++d) {
    const DeviceHindsight& h = hindsight.devices[static_cast<size_t>(d)];
    if (h.seen) out.device_peaks.emplace_back(d, h.peak_rounded);
  }
  if (device && !hindsight.devices[static_cast<size_t>(*device)].seen) {
    return absl::NotFoundError("nothing was recorded on device " + std::to_string(*device));
  }
  out.timeline = BuildTimeline(**second, hindsight, device.value_or(hindsight.BusiestDevice()));
  out.source = {input.path(), std::string((*second)->format()),
                WithDeviceReport(input.path(), (*second)->metadata_json()), (*second)->health()};
  return out;
}

}  // namespace vramledger
