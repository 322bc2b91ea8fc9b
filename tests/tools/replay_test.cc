// Public snapshots through the allocator core: the native policy gives every recorded address, and the policy vmm is
// held to its promise. Writes tests/results/replay.md (VRAMLEDGER_UPDATE_GOLDEN=1), which is compared otherwise.
#include "tools/analysis/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/str_format.h"
#include "tools/analysis/format_text.h"
#include "tools/analysis/replay_events.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> Files(const std::string& folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(std::string(VRAMLEDGER_TEST_DATA) + "/" + folder)) {
    if (entry.path().extension() != ".md") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::string NameOf(const fs::path& path) {
  return path.stem().stem().string();
}

ReplayReport Played(const EventInput& input, const ReplayQuestion& question = {}) {
  const auto report = Replay(input, question);
  EXPECT_TRUE(report.ok()) << report.status();
  return report.ok() ? *report : ReplayReport();
}

void CompareFile(const std::string& path, const std::string& text) {
  if (std::getenv("VRAMLEDGER_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path, std::ios::binary) << text;
    return;
  }
  std::ostringstream want;
  want << std::ifstream(path, std::ios::binary).rdbuf();
  EXPECT_EQ(text, want.str()) << path;
}

// How the driver placed the segments, all that the snapshot shows.
std::string Placement(const EventInput& input) {
  const auto history = ReadReplayHistory(input, std::nullopt);
  if (!history.ok()) return "";
  std::map<uint64_t, uint64_t> segments;
  for (const auto& [address, segment] : history->segments) segments[address] = segment.bytes;
  std::vector<uint64_t> taken;
  for (const ReplayEvent& e : history->events) {
    if (e.kind != ReplayEvent::kTake) continue;
    segments[e.address] = e.bytes;
    taken.push_back(e.address);
  }
  if (segments.size() < 9) return "";
  size_t adjacent = 0, large = 0, aligned = 0;
  uint64_t end = 0;
  for (const auto& [address, bytes] : segments) {
    adjacent += address == end ? 1 : 0;
    end = address + bytes;
    if (bytes <= uint64_t{2} << 20) continue;
    ++large;
    aligned += address % (uint64_t{32} << 20) == 0 ? 1 : 0;
  }
  const char* order = "";
  if (taken.size() > 1) {
    size_t rises = 0;
    for (size_t i = 1; i < taken.size(); ++i) rises += taken[i] > taken[i - 1] ? 1 : 0;
    order = rises * 2 > taken.size() ? ", rising" : ", falling";
  }
  return absl::StrFormat("%d bits, %d of %d adjacent, %d of %d large ones at 32 MiB%s",
                         std::bit_width(segments.begin()->first), adjacent, segments.size() - 1, aligned, large, order);
}

double Ratio(const ReplayReport& r) {
  return static_cast<double>(r.peak_reserved_bytes) / static_cast<double>(std::max<uint64_t>(1, r.peak_live_bytes));
}

// Both policies side by side, with the memory that each needs and how often it asks the device.
std::string PolicyRow(const std::string& name, const EventInput& input) {
  ReplayQuestion question;
  question.policy = AllocatorSettings::Policy::kNative;
  const ReplayReport native = Played(input, question);
  question.policy = AllocatorSettings::Policy::kVmm;
  const ReplayReport vmm = Played(input, question);
  const auto reserved = [](const ReplayReport& r) {
    return r.out_of_memory ? absl::StrFormat("out of memory: %s live, %s reserved",
                                             HumanBytes(r.out_of_memory->info.allocated_bytes),
                                             HumanBytes(r.out_of_memory->info.reserved_bytes))
                           : absl::StrFormat("%s (%.4f)", HumanBytes(r.peak_reserved_bytes), Ratio(r));
  };
  return absl::StrFormat("| `%s` | %s | %s | %s | %d, %d | %d, %d |\n", name, HumanBytes(vmm.peak_live_bytes),
                         reserved(native), reserved(vmm), native.segment_events, native.late_segment_events,
                         vmm.segment_events, vmm.late_segment_events);
}

TEST(Replay, EverySnapshotComesOutTheSame) {
  std::string table =
      "| snapshot | in place at the start | allocations | addresses equal | segment events equal | peak live | peak "
      "reserved | reserved / live | segments' addresses |\n"
      "|---|---|---|---|---|---|---|---|---|\n";
  std::string reasons;
  std::string policies =
      "| input | peak live | reserved under `native` | reserved under `vmm` | segments taken and given back, native: "
      "all, second half | pages "
      "mapped and unmapped, vmm: all, second half |\n|---|---|---|---|---|---|\n";
  for (const fs::path& path : Files("snapshots")) {
    const auto input = EventInput::Open(path.string());
    ASSERT_TRUE(input.ok()) << input.status();
    const ReplayReport r = Played(*input);
    const std::string name = NameOf(path);
    if (r.allocations != 0 && name != "mosaic_output") {  // the one that no PyTorch wrote
      EXPECT_EQ(r.not_compared, "") << name;
      EXPECT_EQ(r.first_difference, "") << name;
      EXPECT_EQ(r.addresses_compared, r.allocations) << name;
      EXPECT_EQ(r.addresses_equal, r.addresses_compared) << name;
      EXPECT_EQ(r.segments_equal, r.segments_compared) << name;
      EXPECT_EQ(r.restored, r.initial_segments != 0) << name;
    }
    const auto share = [](uint64_t equal, uint64_t compared) {
      return compared == 0 ? std::string("-")
                           : absl::StrFormat("%s of %s (%.2f %%)", Grouped(equal), Grouped(compared),
                                             100.0 * static_cast<double>(equal) / static_cast<double>(compared));
    };
    table += absl::StrFormat("| `%s` | %s | %s | %s | %s | %s | %s | %.3f | %s |\n", name,
                             r.initial_segments == 0 ? std::string("nothing")
                                                     : absl::StrFormat("%d segments, %d blocks, %s", r.initial_segments,
                                                                       r.initial_blocks, HumanBytes(r.initial_bytes)),
                             Grouped(r.allocations), share(r.addresses_equal, r.addresses_compared),
                             share(r.segments_equal, r.segments_compared), HumanBytes(r.peak_live_bytes),
                             HumanBytes(r.peak_reserved_bytes), Ratio(r), Placement(*input));
    const std::string reason = !r.first_difference.empty() ? Cat("first difference: ", r.first_difference)
                               : r.not_compared.empty()    ? ""
                                                           : Cat("not compared: ", r.not_compared);
    if (!reason.empty()) reasons += Cat("- `", name, "`: ", reason, ".\n");
    if (r.allocations != 0) policies += PolicyRow(name, *input);
  }
  for (const char* folder : {"traces", "cases"}) {
    for (const fs::path& path : Files(folder)) {
      const auto input = EventInput::Open(path.string());
      ASSERT_TRUE(input.ok()) << input.status();
      policies += PolicyRow(NameOf(path), *input);
    }
  }
  CompareFile(std::string(VRAMLEDGER_RESULTS) + "/replay.md",
              Cat("# Replay of public snapshots\n\n"
                  "Made by `tests/tools/replay_test.cc`: each snapshot of `tests/data/snapshots` through the policy "
                  "`native` on the simulated device. Segments are compared by "
                  "address and size, blocks by segment and offset. Where the recording began with memory in place, "
                  "that state was put back first; the sizes of "
                  "blocks that were freed later, which a snapshot does not keep, follow from what was handed out "
                  "behind them.\n\n",
                  table, reasons.empty() ? "" : Cat("\n", reasons),
                  "\n## The two policies\n\nThe same requests under each (blocks that were in place at the start are "
                  "requested first), on a device with room; "
                  "the cases on the device that they name. In brackets: reserved / live, at their peaks. Memory under "
                  "`vmm` comes in granules of 2 MiB, which is "
                  "what is left where little is live.\n\n",
                  policies));
}

}  // namespace
}  // namespace vramledger
