#include "tools/analysis/metadata.h"
#include "tools/analysis/outside.h"
#include "tools/analysis/report.h"
#include "tools/analysis/verdicts.h"

namespace vramledger {
namespace {

using Json = nlohmann::ordered_json;

Json BytesJson(const Bytes& b) {
  return {{"requested_bytes", b.requested}, {"rounded_bytes", b.rounded}, {"count", b.count}};
}

Json CategoriesJson(const CategoryTable& table, bool all) {
  Json out = Json::object();
  for (int c = 0; c < kCategoryCount; ++c) {
    const Bytes& b = table[static_cast<size_t>(c)];
    if (all || b.count != 0) out[std::string(CategoryName(static_cast<Category>(c)))] = BytesJson(b);
  }
  return out;
}

Json RoundedJson(const CategoryTable& table) {
  Json out = Json::object();
  for (int c = 0; c < kCategoryCount; ++c) {
    const Bytes& b = table[static_cast<size_t>(c)];
    if (b.count != 0) out[std::string(CategoryName(static_cast<Category>(c)))] = b.rounded;
  }
  return out;
}

Json MomentJson(const Moment& m) {
  return {{"time_ns", m.time_ns},
          {"step", m.step},
          {"phase", PhaseName(m.phase)},
          {"requested_bytes", m.total.requested},
          {"rounded_bytes", m.total.rounded},
          {"reserved_bytes", m.reserved_bytes},
          {"pending_bytes", m.pending_bytes},
          {"blocks", m.total.count}};
}

Json FragmentationJson(const Fragmentation& f) {
  return {{"known", f.known},
          {"internal_bytes", f.internal_bytes},
          {"external_bytes", f.external()},
          {"external",
           {{"pinned_bytes", f.pinned_bytes},
            {"idle_bytes", f.idle_bytes},
            {"stream_bytes", f.stream_bytes},
            {"pending_bytes", f.pending_bytes}}},
          {"largest_hole_bytes", f.largest_hole_bytes},
          {"holes", f.holes},
          {"segments", f.segments},
          {"idle_segments", f.idle_segments}};
}

Json NamedJson(const std::vector<NamedBytes>& list, size_t top) {
  Json out = Json::array();
  for (size_t i = 0; i < list.size() && i < top; ++i) {
    Json row = {{"name", list[i].name}};
    row.update(BytesJson(list[i].bytes));
    out.push_back(std::move(row));
  }
  return out;
}

Json PeakJson(const Timeline& t, size_t top) {
  Json out = MomentJson(t.peak);
  out["categories"] = CategoriesJson(t.peak.categories, /*all=*/true);
  out["unexplained_bytes"] = t.peak.categories[0].rounded;
  out["unexplained_share"] = t.peak.total.rounded == 0 ? 0.0
                                                       : static_cast<double>(t.peak.categories[0].rounded) /
                                                             static_cast<double>(t.peak.total.rounded);
  out["before_recording"] = BytesJson(t.peak_before_recording);
  Json phases = Json::object();
  for (int p = 0; p < kPhaseCount; ++p) {
    const auto& row = t.peak_by_birth_phase[static_cast<size_t>(p)];
    Bytes sum;
    for (const Bytes& b : row) sum.Merge(b);
    if (sum.count == 0) continue;
    Json entry = BytesJson(sum);
    entry["categories"] = CategoriesJson(row, false);
    phases[std::string(PhaseName(static_cast<Phase>(p)))] = std::move(entry);
  }
  out["birth_phases"] = std::move(phases);
  out["modules"] = NamedJson(t.peak_modules, top);
  out["names"] = NamedJson(t.peak_names, top);
  Json groups = Json::array();
  for (size_t i = 0; i < t.peak_groups.size() && i < top; ++i) {
    const BlockGroup& g = t.peak_groups[i];
    groups.push_back({{"site", g.site},
                      {"node", g.node},
                      {"stack", g.stack},
                      {"name", g.tensor},
                      {"phase", PhaseName(g.phase)},
                      {"category", CategoryName(g.category)},
                      {"each_bytes", g.requested_each},
                      {"requested_bytes", g.bytes.requested},
                      {"rounded_bytes", g.bytes.rounded},
                      {"count", g.bytes.count}});
  }
  out["blocks_by_size"] = std::move(groups);
  return out;
}

Json StepsJson(const Timeline& t) {
  constexpr size_t kKept = 1000;  // the first and last of longer runs
  Json out = Json::array();
  for (size_t i = 0; i < t.steps.size(); ++i) {
    if (t.steps.size() > 2 * kKept && i >= kKept && i + kKept < t.steps.size()) continue;
    const StepSummary& s = t.steps[i];
    Json phases = Json::object();
    for (int p = 0; p < kPhaseCount; ++p) {
      const uint64_t bytes = s.phase_peaks[static_cast<size_t>(p)];
      if (bytes != 0) phases[std::string(PhaseName(static_cast<Phase>(p)))] = bytes;
    }
    out.push_back({{"step", s.number},
                   {"optimizer", s.optimizer},
                   {"end_ns", s.end_ns},
                   {"peak_requested_bytes", s.peak.total.requested},
                   {"peak_rounded_bytes", s.peak.total.rounded},
                   {"peak_phase", PhaseName(s.peak.phase)},
                   {"peak_categories", RoundedJson(s.peak.categories)},
                   {"phase_peaks", std::move(phases)},
                   {"floor_bytes", s.floor_bytes},
                   {"reserved_bytes", s.reserved_bytes}});
  }
  return out;
}

// Moments at even distances in events: {"every_events", "moments": [...]}, all sizes rounded bytes.
Json SeriesJson(const Timeline& t) {
  Json moments = Json::array();
  for (const Moment& m : t.series) {
    moments.push_back({{"sequence", m.sequence},
                       {"time_ns", m.time_ns},
                       {"step", m.step},
                       {"phase", PhaseName(m.phase)},
                       {"rounded_bytes", m.total.rounded},
                       {"reserved_bytes", m.reserved_bytes},
                       {"categories", RoundedJson(m.categories)}});
  }
  return {{"every_events", t.series_every}, {"moments", std::move(moments)}};
}

// The first failures; `failed_requests_total` counts all.
Json FailuresJson(const Timeline& t) {
  Json out = Json::array();
  for (const FailedRequest& f : t.failures) {
    out.push_back({{"time_ns", f.time_ns},
                   {"step", f.step},
                   {"phase", PhaseName(f.phase)},
                   {"request_bytes", f.request_bytes},
                   {"device_free_bytes", f.device_free_bytes},
                   {"rounded_bytes", f.moment.total.rounded},
                   {"reserved_bytes", f.moment.reserved_bytes},
                   {"largest_hole_bytes", f.fragmentation.largest_hole_bytes},
                   {"outside", OutsideSampleJson(f.outside)}});
  }
  return out;
}

Json ModelsJson(const Metadata& m) {
  Json out = Json::array();
  for (const ModelSize& size : m.model_sizes()) {
    out.push_back({{"name", size.name}, {"class", size.class_name}, {"parameters", size.parameters}, {"parameter_bytes", size.parameter_bytes}});
  }
  return out;
}

}  // namespace

nlohmann::ordered_json SourceJson(const Analysis& a) {
  const Metadata m(a.source.metadata_json);
  Json out = {{"path", a.source.path},
              {"format", a.source.format},
              {"events", a.timeline.events},
              {"allocations", a.timeline.allocations},
              {"duration_ns", a.timeline.duration_ns},
              {"ended_early", a.source.health.ended_early},
              {"virtual_device", m.virtual_device()}};
  for (const char* key : {"host_reads", "mode", "allocator_settings", "versions", "address_order"}) {
    if (m.root().contains(key)) out[key] = m.root()[key];
  }
  return out;
}

nlohmann::ordered_json DeviceJson(const Analysis& a) {
  const Timeline& t = a.timeline;
  const Metadata m(a.source.metadata_json);
  const DeviceInfo info = m.device(t.device);
  Json out = {{"index", t.device}, {"name", info.name}, {"virtual", m.virtual_device()}};
  const uint64_t total = t.device_total_bytes != 0 ? t.device_total_bytes : info.total_bytes;
  out["total_bytes"] = total != 0 ? Json(total) : Json(nullptr);
  out["used_peak_bytes"] = t.device_sampled ? Json(t.used_peak_bytes) : Json(nullptr);
  out["outside_bytes"] = t.device_sampled ? Json(t.outside_peak_bytes) : Json(nullptr);
  Json all = Json::array();
  for (const auto& [index, peak] : a.device_peaks) all.push_back({{"index", index}, {"peak_rounded_bytes", peak}});
  out["all"] = std::move(all);
  return out;
}

nlohmann::ordered_json LossJson(const Analysis& a) {
  Json notes = a.source.health.notes;
  const Metadata m(a.source.metadata_json);
  if (const auto it = m.root().find("import_notes"); it != m.root().end() && it->is_array()) {
    for (const auto& note : *it) {
      if (note.is_string()) notes.push_back(note.get<std::string>());
    }
  }
  return {{"lost_records", a.source.health.lost_records},
          {"ended_early", a.source.health.ended_early},
          {"unmatched_frees", a.timeline.unmatched_frees},
          {"unmatched_names", a.timeline.unmatched_names},
          {"counters_checked", a.timeline.counters_seen},
          {"counters_wrong", a.timeline.counters_wrong},
          {"notes", std::move(notes)}};
}

nlohmann::ordered_json ReportJson(const Analysis& a, size_t top) {
  const Timeline& t = a.timeline;
  Json out = {
      {"schema", "vramledger.report/1"}, {"source", SourceJson(a)}, {"device", DeviceJson(a)}, {"loss", LossJson(a)}};
  out["peak"] = PeakJson(t, top);
  Json categories = Json::object();
  for (int c = 0; c < kCategoryCount; ++c) {
    const Moment& m = t.category_peaks[static_cast<size_t>(c)];
    const Bytes& own = m.categories[static_cast<size_t>(c)];
    if (own.count == 0) continue;
    Json entry = BytesJson(own);
    entry["time_ns"] = m.time_ns;
    entry["step"] = m.step;
    entry["phase"] = PhaseName(m.phase);
    categories[std::string(CategoryName(static_cast<Category>(c)))] = std::move(entry);
  }
  out["category_peaks"] = std::move(categories);
  Json phases = Json::object();
  for (int p = 0; p < kPhaseCount; ++p) {
    const PhasePeak& peak = t.phase_peaks[static_cast<size_t>(p)];
    if (!peak.seen) continue;
    Json entry = MomentJson(peak.moment);
    entry["categories"] = CategoriesJson(peak.moment.categories, false);
    phases[std::string(PhaseName(static_cast<Phase>(p)))] = std::move(entry);
  }
  out["phase_peaks"] = std::move(phases);
  Json own = Json::array();
  for (const OwnPhase& p : t.own_phases)
    own.push_back({{"name", p.name},
                   {"times", p.times},
                   {"peak_bytes", p.peak_bytes},
                   {"peak_time_ns", p.peak_time_ns},
                   {"peak_step", p.peak_step},
                   {"rise_bytes", p.rise_bytes}});
  out["own_phases"] = std::move(own);
  const Moment* next = NextPeak(t);
  out["next_peak"] = next != nullptr ? MomentJson(*next) : Json(nullptr);
  out["steps"] = StepsJson(t);
  out["over_time"] = SeriesJson(t);
  out["models"] = ModelsJson(Metadata(a.source.metadata_json));
  out["failed_requests"] = FailuresJson(t);
  out["failed_requests_total"] = t.failures_total;
  out["outside"] = OutsideJson(a);
  Json fragmentation = FragmentationJson(t.at_reserved_peak);
  fragmentation["reserved_peak_bytes"] = t.reserved_peak_bytes;
  fragmentation["reserved_peak_time_ns"] = t.reserved_peak_time_ns;
  fragmentation["reserved_peak_phase"] = PhaseName(t.reserved_peak_phase);
  fragmentation["at_peak"] = FragmentationJson(t.at_peak);
  fragmentation["at_end"] = FragmentationJson(t.at_end);
  out["fragmentation"] = std::move(fragmentation);
  out["end"] = MomentJson(t.end);
  out["end"]["categories"] = CategoriesJson(t.end.categories, false);
  Json verdicts = Json::array();
  for (const Verdict& v : Judge(a)) {
    verdicts.push_back({{"id", v.id},
                        {"sentence", v.sentence},
                        {"evidence", v.evidence},
                        {"suggestion", v.suggestion},
                        {"price", v.price},
                        {"confidence", v.confidence}});
  }
  out["verdicts"] = std::move(verdicts);
  return out;
}

}  // namespace vramledger
