#include "tools/analysis/outside.h"

#include <algorithm>
#include <utility>

#include "tools/analysis/format_text.h"
#include "tools/analysis/ledger.h"
#include "tools/analysis/metadata.h"
#include "tools/analysis/text_table.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

// How late a record of CUPTI's can be; the recorder asks every 100 ms, and waits for a processor.
constexpr uint64_t kLatestNs = 1000000000;
// Under one constant time (a damaged trace) nothing would ever be late.
constexpr size_t kMostWaiting = 1 << 16;

using Json = nlohmann::ordered_json;

uint64_t Less(uint64_t a, uint64_t b) {
  return a > b ? a - b : 0;
}

uint64_t Apart(uint64_t a, uint64_t b) {
  return a > b ? a - b : b - a;
}

Json OrNull(const std::optional<uint64_t>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// What a tool of the recording said of itself: "on", or a sentence; empty in traces that do not say.
std::string ToolState(const Metadata& metadata, const char* tool) {
  const auto it = metadata.root().find("outside");
  return it == metadata.root().end() ? "" : JsonText(*it, tool);
}

std::string Cell(const std::optional<OutsideSample>& s, const std::optional<uint64_t> OutsideSample::*field) {
  if (!s) return "-";
  const std::optional<uint64_t>& value = (*s).*field;
  return value ? Grouped(*value) : "not told";
}

}  // namespace

void OutsideFollower::Wait(Waiting waiting) {
  const uint64_t now = waiting.event.time_ns;
  waiting_.emplace(now, std::move(waiting));
  while (!waiting_.empty() && (waiting_.begin()->first + kLatestNs < now || waiting_.size() > kMostWaiting)) {
    Count(waiting_.begin()->second);
    waiting_.erase(waiting_.begin());
  }
}

OutsideLedger OutsideFollower::Take() {
  for (const auto& [time, waiting] : waiting_) Count(waiting);
  waiting_.clear();
  return std::move(ledger_);
}

void OutsideFollower::Alloc(const Event& event, std::string library, bool own) {
  if (own) return;
  if (library.empty()) library = "(unknown library)";
  Wait({Waiting::kAlloc, event, std::move(library), 0, 0, Phase::kUnknown, {}});
}

void OutsideFollower::Free(const Event& event) {
  Wait({Waiting::kFree, event, "", 0, 0, Phase::kUnknown, {}});
}

void OutsideFollower::Processes(const Event& event, uint64_t reserved_bytes) {
  Wait({Waiting::kProcesses, event, "", reserved_bytes, 0, Phase::kUnknown, {}});
}

void OutsideFollower::Sampled(const Event& event, uint64_t reserved_bytes, uint64_t step, Phase phase,
                              std::optional<size_t> failure) {
  Wait({Waiting::kSample, event, "", reserved_bytes, step, phase, failure});
}

void OutsideFollower::AtPeak(uint64_t time_ns) {
  Waiting waiting;
  waiting.event.time_ns = time_ns;
  Wait(std::move(waiting));
}

void OutsideFollower::Count(const Waiting& waiting) {
  const Event& e = waiting.event;
  switch (waiting.kind) {
    case Waiting::kAlloc:
      Forget(e.b);
      held_[e.b] = {waiting.library, e.c};
      by_library_[waiting.library] += e.c;
      libraries_bytes_ += e.c;
      ledger_.libraries_peak_bytes = std::max(ledger_.libraries_peak_bytes, libraries_bytes_);
      break;
    case Waiting::kFree:
      Forget(e.b);
      break;
    case Waiting::kProcesses:
      CountProcesses(waiting);
      break;
    case Waiting::kSample:
      CountSample(waiting);
      break;
    case Waiting::kPeak:
      ledger_.at_peak = last_;
      peak_ns_ = e.time_ns;
      break;
  }
}

void OutsideFollower::Forget(uint64_t address) {
  const auto it = held_.find(address);
  if (it == held_.end()) return;
  by_library_[it->second.library] -= it->second.bytes;
  libraries_bytes_ -= it->second.bytes;
  held_.erase(it);
}

void OutsideFollower::CountProcesses(const Waiting& waiting) {
  const Event& e = waiting.event;
  context_bytes_ = Less(e.b, waiting.reserved_bytes + libraries_bytes_);
  others_bytes_ = e.c;
  others_count_ = e.a;
  ledger_.context_peak_bytes = std::max(ledger_.context_peak_bytes, *context_bytes_);
  if (e.c >= ledger_.others_peak_bytes) {
    ledger_.others_peak_bytes = e.c;
    ledger_.others_peak_count = e.a;
  }
}

void OutsideFollower::CountSample(const Waiting& waiting) {
  const Event& e = waiting.event;
  OutsideSample s;
  s.time_ns = e.time_ns;
  s.step = waiting.step;
  s.phase = waiting.phase;
  s.device_used_bytes = Less(e.c, e.b);
  s.reserved_bytes = waiting.reserved_bytes;
  s.outside_bytes = Less(s.device_used_bytes, s.reserved_bytes);
  for (const auto& [name, bytes] : by_library_) {
    if (bytes != 0) s.libraries.push_back({name, bytes});
  }
  std::stable_sort(s.libraries.begin(), s.libraries.end(),
                   [](const LibraryBytes& a, const LibraryBytes& b) { return a.bytes > b.bytes; });
  s.libraries_bytes = libraries_bytes_;
  // The parts are of moments a little apart; none may be larger than what is left.
  uint64_t left = Less(s.outside_bytes, s.libraries_bytes);
  if (others_bytes_) {
    s.others_bytes = std::min(*others_bytes_, left);
    s.others_count = others_count_;
    left -= *s.others_bytes;
    s.context_bytes = std::min(*context_bytes_, left);
    left -= *s.context_bytes;
  }
  s.unexplained_bytes = left;
  if (last_ && Less(s.outside_bytes, last_->outside_bytes) > ledger_.jump_bytes) {
    ledger_.jump_bytes = s.outside_bytes - last_->outside_bytes;
    ledger_.jump_step = s.step;
    ledger_.jump_phase = s.phase;
  }
  ++ledger_.samples;
  if (peak_ns_) {
    const bool nearer = !ledger_.at_peak || Apart(s.time_ns, *peak_ns_) < Apart(ledger_.at_peak->time_ns, *peak_ns_);
    if (nearer) ledger_.at_peak = s;
    peak_ns_.reset();
  }
  if (!ledger_.most || s.outside_bytes > ledger_.most->outside_bytes) ledger_.most = s;
  if (waiting.failure) ledger_.at_failures[*waiting.failure] = s;
  last_ = std::move(s);
}

Json OutsideSampleJson(const std::optional<OutsideSample>& s) {
  if (!s) return nullptr;
  Json libraries = Json::array();
  for (const LibraryBytes& l : s->libraries) libraries.push_back({{"name", l.name}, {"bytes", l.bytes}});
  return {{"time_ns", s->time_ns},
          {"step", s->step},
          {"phase", PhaseName(s->phase)},
          {"device_used_bytes", s->device_used_bytes},
          {"reserved_bytes", s->reserved_bytes},
          {"outside_bytes", s->outside_bytes},
          {"context_bytes", OrNull(s->context_bytes)},
          {"libraries_bytes", s->libraries_bytes},
          {"libraries", std::move(libraries)},
          {"other_processes_bytes", OrNull(s->others_bytes)},
          {"other_processes", s->others_count},
          {"unexplained_bytes", s->unexplained_bytes}};
}

Json OutsideJson(const Analysis& a) {
  const OutsideLedger& o = a.timeline.outside;
  const Metadata metadata(a.source.metadata_json);
  const auto state = [&](const char* tool) {
    const std::string text = ToolState(metadata, tool);
    return text.empty() ? Json(nullptr) : Json(text);
  };
  return {{"samples", o.samples},
          {"cupti", state("cupti")},
          {"nvml", state("nvml")},
          {"at_peak", OutsideSampleJson(o.at_peak)},
          {"most", OutsideSampleJson(o.most)},
          {"peaks",
           {{"context_bytes", o.context_peak_bytes},
            {"libraries_bytes", o.libraries_peak_bytes},
            {"other_processes_bytes", o.others_peak_bytes}}},
          {"largest_rise", {{"bytes", o.jump_bytes}, {"step", o.jump_step}, {"phase", PhaseName(o.jump_phase)}}}};
}

std::string OutsideText(const Analysis& a) {
  const OutsideLedger& o = a.timeline.outside;
  if (!o.split()) return "";
  const bool is_virtual = Metadata(a.source.metadata_json).virtual_device();
  TextTable table;
  table.Row({"owner", "near the peak B", "when it is most B"});
  table.Row({is_virtual ? "context and modules (assumed: the device is virtual)" : "context and modules",
             Cell(o.at_peak, &OutsideSample::context_bytes), Cell(o.most, &OutsideSample::context_bytes)});
  std::vector<std::string> names;
  for (const auto* sample : {&o.at_peak, &o.most}) {
    if (!*sample) continue;
    for (const LibraryBytes& l : (*sample)->libraries) {
      if (std::find(names.begin(), names.end(), l.name) == names.end()) names.push_back(l.name);
    }
  }
  const auto held = [](const std::optional<OutsideSample>& s, const std::string& name) {
    if (!s) return std::string("-");
    for (const LibraryBytes& l : s->libraries) {
      if (l.name == name) return Grouped(l.bytes);
    }
    return std::string("0");
  };
  for (const std::string& name : names) table.Row({Cat("taken by ", name), held(o.at_peak, name), held(o.most, name)});
  table.Row({o.others_peak_count == 1 ? "another process" : Cat(o.others_peak_count, " other processes"),
             Cell(o.at_peak, &OutsideSample::others_bytes), Cell(o.most, &OutsideSample::others_bytes)});
  const auto number = [](const std::optional<OutsideSample>& s, uint64_t OutsideSample::*field) {
    return s ? Grouped((*s).*field) : std::string("-");
  };
  table.Row({"unexplained", number(o.at_peak, &OutsideSample::unexplained_bytes),
             number(o.most, &OutsideSample::unexplained_bytes)});
  table.Row({"= outside the allocator", number(o.at_peak, &OutsideSample::outside_bytes),
             number(o.most, &OutsideSample::outside_bytes)});
  return table.Text();
}

std::vector<std::string> OutsideNotes(const Analysis& a) {
  const Metadata metadata(a.source.metadata_json);
  std::vector<std::string> notes;
  const std::string cupti = ToolState(metadata, "cupti"), nvml = ToolState(metadata, "nvml");
  if (!cupti.empty() && cupti != "on") {
    notes.push_back(Cat("what libraries took from CUDA themselves is missing or not complete: ", cupti));
  }
  if (!nvml.empty() && nvml != "on")
    notes.push_back(Cat("other processes are not told from this one's context: ", nvml));
  return notes;
}

}  // namespace vramledger
