#include "tools/foreign/snapshot_import.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "tests/tools/pickle_builder.h"
#include "tools/analysis/timeline.h"
#include "tools/foreign/event_writer.h"
#include "tools/foreign/file_bytes.h"
#include "tools/foreign/open_input.h"
#include "tracer/format/checker.h"

namespace vramledger {
namespace {

std::string Data(const std::string& name) {
  return std::string(VRAMLEDGER_TEST_DATA) + "/snapshots/" + name + ".pickle.gz";
}

struct Known {
  const char* name;
  uint64_t segment_mib;  // as the snapshot's own segments say
  uint64_t active_bytes_mib_tenths;
  uint64_t recorded_allocations;
};

// Facts counted once from the files with another reader.
constexpr Known kKnown[] = {
    {"medium_ctx128_training", 6900, 65011, 6526},   {"medium_ctx256_training", 8836, 65212, 6624},
    {"medium_ctx1024_training", 24012, 65560, 7591}, {"medium_ctx128_inference", 1682, 16244, 1280},
    {"medium_ctx1024_inference", 3056, 16248, 1280}, {"attention_fwd_bwd", 3606, 303, 36},
    {"lm_forward_bf16_ctx128", 822, 5010, 937},      {"mosaic_output", 250, 0, 520},
    {"lm_train_windows", 13524, 13139, 1721},        {"lm_train_torchcompile", 4042, 29305, 2162},
    {"lm_forward_mixed", 45046, 425411, 4138},       {"lm_fullstep", 22738, 152770, 6488},
    {"opt_zeroth_order", 1810, 9674, 7946},          {"flexgen_opt1.3b_old_format", 7256, 54202, 0},
    {"flexgen_oom_old_format", 11296, 112917, 0},    {"state_no_trace", 104, 867, 0}};

class PublicSnapshot : public ::testing::TestWithParam<Known> {};

// Ends with exactly the snapshot's own state: live blocks = active blocks, reserved = segments.
TEST_P(PublicSnapshot, EndsInItsOwnState) {
  const auto input = EventInput::Open(Data(GetParam().name));
  ASSERT_TRUE(input.ok()) << input.status();
  auto source = *input->NewSource();
  std::map<uint64_t, uint64_t> live;
  uint64_t reserved = 0, recorded = 0, last_time = 0;
  while (const Event* next = source->Next()) {
    const Event& e = *next;
    EXPECT_GE(e.time_ns, last_time);
    last_time = e.time_ns;
    if (e.kind == RecordKind::kAlloc) {
      EXPECT_GE(e.rounded_bytes, e.requested_bytes);
      live[e.address] = e.rounded_bytes;
      ++recorded;
    }
    if (e.kind == RecordKind::kFreeCompleted) live.erase(e.address);
    if (e.kind == RecordKind::kSegmentAlloc || e.kind == RecordKind::kSegmentMap) reserved += e.rounded_bytes;
    if (e.kind == RecordKind::kSegmentFree || e.kind == RecordKind::kSegmentUnmap) reserved -= e.rounded_bytes;
  }
  uint64_t active = 0;
  for (const auto& [address, size] : live) active += size;
  EXPECT_EQ(reserved, GetParam().segment_mib << 20);
  if (GetParam().active_bytes_mib_tenths != 0) {
    EXPECT_NEAR(static_cast<double>(active) / 104857.6, static_cast<double>(GetParam().active_bytes_mib_tenths), 1.0);
  }
  EXPECT_GE(recorded, GetParam().recorded_allocations);
}

// A trace written from it and read back is event for event the same.
TEST_P(PublicSnapshot, SurvivesTheTraceFormat) {
  const auto input = EventInput::Open(Data(GetParam().name));
  ASSERT_TRUE(input.ok()) << input.status();
  const std::string path = ::testing::TempDir() + "/" + GetParam().name + ".vlt";
  const auto written = WriteTrace(**input->NewSource(), **input->NewSource(), path);
  ASSERT_TRUE(written.ok()) << written.status();
  const auto trace = EventInput::Open(path);
  ASSERT_TRUE(trace.ok()) << trace.status();
  auto a = *input->NewSource();
  auto b = *trace->NewSource();
  while (const Event* of_a = a->Next()) {
    const Event* of_b = b->Next();
    ASSERT_NE(of_b, nullptr);
    const Event &x = *of_a, &y = *of_b;
    ASSERT_EQ(x.kind, y.kind);
    ASSERT_EQ(x.phase, y.phase);
    if (!IsMemoryRecord(x.kind)) continue;
    if (!written->addresses_moved) {
      ASSERT_EQ(x.address, y.address);
    }
    ASSERT_EQ(x.requested_bytes, y.requested_bytes);
    ASSERT_EQ(a->String(x.module), b->String(y.module));
  }
  EXPECT_EQ(b->Next(), nullptr);
  EXPECT_FALSE(b->health().ended_early);
  if (!written->addresses_moved) {
    const CheckResult check = CheckEvents(**trace->NewSource());
    EXPECT_EQ(check.violations, 0u) << (check.sentences.empty() ? "" : check.sentences[0]);
  }
  std::filesystem::remove(path);
}

INSTANTIATE_TEST_SUITE_P(All, PublicSnapshot, ::testing::ValuesIn(kKnown), [](const auto& param) {
  std::string name = param.param.name;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

std::string OpenError(const std::string& bytes) {
  const std::string path = ::testing::TempDir() + "/input.bin";
  std::ofstream(path, std::ios::binary) << bytes;
  const auto input = EventInput::Open(path);
  EXPECT_FALSE(input.ok());
  std::string message(input.status().message());
  EXPECT_EQ(message.find(path), 0u) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

TEST(BadInput, OneSentenceEach) {
  EXPECT_NE(OpenError("").find("empty"), std::string::npos);
  EXPECT_NE(OpenError("hello, this is no snapshot\n").find("text"), std::string::npos);
  EXPECT_NE(OpenError("{\"a\": 1}").find("text"), std::string::npos);
  EXPECT_NE(OpenError(std::string("\x7f"
                                  "ELF\0\1\2",
                                  7))
                .find("neither"),
            std::string::npos);
  EXPECT_NE(OpenError(testing::Pickle("N")).find("no PyTorch memory snapshot"), std::string::npos);
  EXPECT_NE(OpenError(testing::Pickle("cos\nsystem\n" + testing::PickleText("true") + "\x85R")).find("GLOBAL"),
            std::string::npos);
  const std::string gz = *ReadFile(Data("state_no_trace"));
  EXPECT_NE(OpenError(gz.substr(0, gz.size() / 2)).find("cut off"), std::string::npos);
  std::string flipped = gz;
  flipped[gz.size() / 2] = static_cast<char>(flipped[gz.size() / 2] ^ 0x10);
  EXPECT_NE(OpenError(flipped).find("gzip data is wrong at byte"), std::string::npos);
}

// A changed size, sum or state in one place is found by the snapshot's own sums.
TEST(BadInput, SumsFindDamage) {
  std::string bytes = *Gunzip(*ReadFile(Data("attention_fwd_bwd")));
  const size_t at = bytes.find("inactive");
  ASSERT_NE(at, std::string::npos);
  bytes[at] = 'j';
  EXPECT_NE(OpenError(bytes).find("state \"jnactive\" is not known"), std::string::npos);
}

// The history may begin with blocks alive: they come first, and the timeline balances.
TEST(SnapshotImport, ReconstructsWhatWasThereBefore) {
  const auto input = EventInput::Open(Data("medium_ctx128_training"));
  ASSERT_TRUE(input.ok());
  auto source = *input->NewSource();
  uint64_t before = 0, unmatched = 0;
  std::map<uint64_t, uint64_t> live;
  while (const Event* next = source->Next()) {
    const Event& e = *next;
    if (e.kind == RecordKind::kAlloc) {
      if (source->String(e.module) == kBeforeRecordingSite) ++before;
      live[e.address] = e.rounded_bytes;
    }
    if (e.kind == RecordKind::kFreeCompleted && live.erase(e.address) == 0) ++unmatched;
  }
  EXPECT_EQ(before, 664u);  // 226 that stay and 438 that the history frees
  EXPECT_EQ(unmatched, 0u);
}

// cuBLAS's workspace of the autograd thread is as large as the main thread's, and its stack names the same node as a
// gradient's; a gradient's storage is asked for by one of the functions that make empty tensors.
TEST(SnapshotImport, AWorkspaceOfBackwardIsNoGradient) {
  using testing::PickleDict, testing::PickleInt, testing::PickleList, testing::PickleText;
  constexpr uint64_t kBase = 0x7f0000000000, kSize = 33554432;
  const auto frame = [](const char* name, const char* file) {
    return PickleDict({{"name", PickleText(name)}, {"filename", PickleText(file)}, {"line", PickleInt(7)}});
  };
  const std::string forward = PickleList({frame("forward", "/site/torch/nn/modules/linear.py")});
  const std::string node = frame("torch::autograd::generated::AddmmBackward0::apply(...)", "??");
  const std::string engine = frame("torch::autograd::Engine::thread_main(...)", "??");
  const std::string workspace = PickleList({node, engine});
  const std::string gradient = PickleList({frame("at::detail::empty_generic(...)", "??"), node, engine});
  const std::string step = PickleList({frame("step", "/site/torch/optim/sgd.py")});
  const std::string* kinds[] = {&forward, &workspace, &gradient, &step, &forward, &gradient};
  std::string segments = "](", history = "](";
  for (uint64_t i = 0; i < 6; ++i) {
    const uint64_t size = i < 3 ? kSize : 1048576, address = kBase + i * 2 * kSize;
    segments += PickleDict({{"device", PickleInt(0)},
                            {"address", PickleInt(address)},
                            {"total_size", PickleInt(size)},
                            {"allocated_size", PickleInt(size)},
                            {"active_size", PickleInt(size)},
                            {"stream", PickleInt(0)},
                            {"segment_type", PickleText("large")},
                            {"blocks", PickleList({PickleDict({{"address", PickleInt(address)},
                                                               {"size", PickleInt(size)},
                                                               {"requested_size", PickleInt(size)},
                                                               {"state", PickleText("active_allocated")},
                                                               {"frames", PickleList({})}})})}});
    for (const char* action : {"segment_alloc", "alloc"})
      history += PickleDict({{"action", PickleText(action)},
                             {"addr", PickleInt(address)},
                             {"size", PickleInt(size)},
                             {"stream", PickleInt(0)},
                             {"time_us", PickleInt(1000 + i)},
                             {"frames", *kinds[i]}});
  }
  const std::string path = ::testing::TempDir() + "/workspace.pickle";
  std::ofstream(path, std::ios::binary) << testing::Pickle(
      PickleDict({{"segments", segments + "e"}, {"device_traces", PickleList({history + "e"})}}));
  const auto input = EventInput::Open(path);
  ASSERT_TRUE(input.ok()) << input.status();
  const auto analysis = Analyze(*input);
  ASSERT_TRUE(analysis.ok()) << analysis.status();
  const CategoryTable& peak = analysis->timeline.peak.categories;
  EXPECT_EQ(peak[static_cast<size_t>(Category::kWorkspace)].count, 2u);
  EXPECT_EQ(peak[static_cast<size_t>(Category::kWorkspace)].rounded, 2 * kSize);
  EXPECT_EQ(peak[static_cast<size_t>(Category::kGradient)].rounded, kSize);
}

}  // namespace
}  // namespace vramledger
