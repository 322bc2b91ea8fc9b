#include "absl/strings/str_format.h"
#include "tools/analysis/format_text.h"
#include "tools/analysis/replay.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

double Ratio(const ReplayReport& r) {
  return r.peak_live_bytes == 0 ? 0
                                : static_cast<double>(r.peak_reserved_bytes) / static_cast<double>(r.peak_live_bytes);
}

// One sentence for each thing that keeps a warm recording from coming out equal.
std::string WarmStart(const ReplayReport& r) {
  if (r.initial_segments == 0 && r.initial_blocks == 0) return "";
  return Cat("The recording began with ", Grouped(r.initial_segments), " segments and ", Grouped(r.initial_blocks),
             " blocks (", HumanBytes(r.initial_bytes), ") in place; ",
             r.restored ? "they were put back as they were." : "its blocks were requested anew.");
}

}  // namespace

nlohmann::ordered_json ReplayJson(const ReplayReport& r) {
  nlohmann::ordered_json j = {{"schema", "vramledger.replay/1"},
                              {"source", r.source},
                              {"format", r.format},
                              {"device", r.device},
                              {"policy", r.settings.policy_name()},
                              {"settings", r.settings.ToString()},
                              {"as_recorded", r.as_recorded},
                              {"capacity_bytes", r.capacity_bytes},
                              {"used_elsewhere_bytes", r.used_elsewhere_bytes},
                              {"allocations", r.allocations},
                              {"addresses_compared", r.addresses_compared},
                              {"addresses_equal", r.addresses_equal},
                              {"segments_compared", r.segments_compared},
                              {"segments_equal", r.segments_equal},
                              {"not_compared", r.not_compared},
                              {"first_difference", r.first_difference},
                              {"unknown_frees", r.unknown_frees},
                              {"initial",
                               {{"segments", r.initial_segments},
                                {"blocks", r.initial_blocks},
                                {"bytes", r.initial_bytes},
                                {"restored", r.restored}}},
                              {"peak_live_bytes", r.peak_live_bytes},
                              {"peak_allocated_bytes", r.peak_allocated_bytes},
                              {"peak_reserved_bytes", r.peak_reserved_bytes},
                              {"recorded_peak_reserved_bytes", r.recorded_peak_reserved_bytes},
                              {"reserved_over_live", Ratio(r)},
                              {"segment_events", r.segment_events},
                              {"late_segment_events", r.late_segment_events}};
  j["out_of_memory"] = nullptr;
  if (r.out_of_memory) {
    const ReplayOutOfMemory& o = *r.out_of_memory;
    j["out_of_memory"] = {{"event", o.sequence},
                          {"allocation", o.allocation},
                          {"phase", PhaseName(o.phase)},
                          {"site", o.site},
                          {"requested_bytes", o.info.requested_bytes},
                          {"live_bytes", o.info.allocated_bytes + o.info.awaiting_free_bytes},
                          {"reserved_bytes", o.info.reserved_bytes},
                          {"largest_hole_bytes", o.info.largest_free_block_bytes},
                          {"device_free_bytes", o.info.device_free_bytes}};
  }
  j["recorded_out_of_memory"] = {{"count", r.recorded_out_of_memory}, {"served_here", r.recorded_out_of_memory_served}};
  j["notes"] = r.notes;
  return j;
}

std::string ReplayText(const ReplayReport& r) {
  std::string text;
  if (r.out_of_memory) {
    const ReplayOutOfMemory& o = *r.out_of_memory;
    const uint64_t live = o.info.allocated_bytes + o.info.awaiting_free_bytes;
    text += Cat("Out of memory at event ", Grouped(o.sequence), " (allocation ", Grouped(o.allocation), ", phase ",
                PhaseName(o.phase), o.site.empty() ? "" : Cat(", ", o.site), "): ", HumanBytes(o.info.requested_bytes),
                " requested, ", HumanBytes(live), " live, ", HumanBytes(o.info.reserved_bytes),
                " reserved, largest hole ", HumanBytes(o.info.largest_free_block_bytes), ", ",
                HumanBytes(o.info.device_free_bytes), " free on the device.\n");
  } else if (!r.not_compared.empty()) {
    text += Cat("Served in full: ", Grouped(r.allocations), " allocations.\n");
  } else {
    const bool equal = r.addresses_equal == r.addresses_compared && r.segments_equal == r.segments_compared &&
                       r.first_difference.empty();
    text += Cat(equal ? "Equal to the recording: " : "Not equal to the recording: ", Grouped(r.addresses_equal), " of ",
                Grouped(r.addresses_compared), " addresses, ", Grouped(r.segments_equal), " of ",
                Grouped(r.segments_compared), " segment events.\n");
    if (!equal)
      text += "A trace does not say which requests went to a private pool (CUDA graphs, MemPool): with one, places differ.\n";
  }
  text += Cat("Policy ", r.settings.policy_name(),
              r.settings.ToString().empty() ? std::string(", default settings") : Cat(", ", r.settings.ToString()),
              r.as_recorded ? " (as recorded)" : "", ", device of ",
              r.capacity_bytes == 0 ? std::string("unknown size") : HumanBytes(r.capacity_bytes),
              r.capacity_bytes != 0 && r.used_elsewhere_bytes != 0
                  ? Cat(", ", HumanBytes(r.used_elsewhere_bytes),
                        " of it taken by others than the allocator (the CUDA context, other processes), as recorded")
                  : std::string(),
              ".\n\n");
  const auto row = [&text](const char* name, uint64_t bytes) {
    text += absl::StrFormat("  %-24s %12s  %20s B\n", name, HumanBytes(bytes), Grouped(bytes));
  };
  row("peak live", r.peak_live_bytes);
  row("peak allocated", r.peak_allocated_bytes);
  row("peak reserved", r.peak_reserved_bytes);
  if (r.recorded_peak_reserved_bytes != 0) row("peak reserved, recorded", r.recorded_peak_reserved_bytes);
  text += absl::StrFormat("  %-24s %12.3f\n\n", "reserved / live", Ratio(r));
  const auto line = [&text](const std::string& sentence) {
    if (!sentence.empty()) text += Cat(sentence, "\n");
  };
  line(WarmStart(r));
  if (!r.not_compared.empty()) line(Cat("Addresses were not compared: ", r.not_compared, "."));
  if (!r.first_difference.empty()) line(Cat("First difference: ", r.first_difference, "."));
  if (r.unknown_frees != 0)
    line(
        Cat(Grouped(r.unknown_frees), " frees of blocks that the recording never saw, or allocations over live ones."));
  if (r.recorded_out_of_memory != 0)
    line(Cat(Grouped(r.recorded_out_of_memory), " requests failed in the recording; ",
             Grouped(r.recorded_out_of_memory_served), " of them are served here."));
  for (const std::string& note : r.notes) line(Cat("Note: ", note, "."));
  return text;
}

}  // namespace vramledger
