// The proof of the native policy: histories recorded on real GPUs come out the same, address for address.
#include "tools/analysis/replay.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/allocator/replay_history.h"

namespace vramledger {
namespace {

void ExpectEqual(const ReplayReport& report) {
  EXPECT_EQ(report.not_compared, "");
  EXPECT_EQ(report.first_difference, "");
  EXPECT_EQ(report.addresses_compared, report.allocations);
  EXPECT_EQ(report.addresses_equal, report.allocations);
  EXPECT_EQ(report.segments_equal, report.segments_compared);
  EXPECT_EQ(report.unknown_frees, 0u);
}

void ExpectTheSame(const std::string& name, size_t allocations, size_t segments) {
  const auto history = ReadHistory(std::string(VRAMLEDGER_TEST_DATA) + "/replay/" + name);
  ASSERT_TRUE(history.ok()) << history.status();
  const auto report = Replay(*history, {});
  ASSERT_TRUE(report.ok()) << report.status();
  ExpectEqual(*report);
  EXPECT_EQ(report->allocations, allocations);
  EXPECT_EQ(report->segments_compared, segments);
}

TEST(Replay, AttentionForwardAndBackward) {
  ExpectTheSame("attention_fwd_bwd.txt.gz", 36, 9);
}
TEST(Replay, OptZerothOrderTraining) {
  ExpectTheSame("opt_zeroth_order.txt.gz", 7946, 61);
}

// Histories of the native allocator of torch 2.11 under load: every setting, out of memory, streams. Statistics too.
class RecordedNative : public testing::TestWithParam<const char*> {};

TEST_P(RecordedNative, ComesOutTheSame) {
  const std::string path = std::string(VRAMLEDGER_TEST_DATA) + "/replay/" + GetParam();
  const auto run = ReadRun(path + ".json");
  ASSERT_TRUE(run.ok()) << run.status();
  const auto history = ReadHistory(path + ".txt.gz", *run);
  ASSERT_TRUE(history.ok()) << history.status();
  const auto report = Replay(*history, {});
  ASSERT_TRUE(report.ok()) << report.status();
  ExpectEqual(*report);
  EXPECT_GT(report->allocations, 1000u);
  EXPECT_EQ(CompareStatistics(*run, report->statistics), std::vector<std::string>());
}

INSTANTIATE_TEST_SUITE_P(Replay, RecordedNative,
                         testing::Values("native_oom", "native_split_limit", "native_rounding",
                                         "native_garbage_collection", "native_expandable", "native_streams",
                                         "native_expandable_streams"),
                         [](const auto& param) { return std::string(param.param); });

TEST(Replay, UnreadableFilesAreErrors) {
  EXPECT_FALSE(ReadHistory("/no/such/file").ok());
  EXPECT_FALSE(ReadHistory(std::string(VRAMLEDGER_TEST_DATA) + "/replay/README.md").ok());
}

}  // namespace
}  // namespace vramledger
