// The proof of the native policy: histories recorded on real GPUs come out the same, address for address.
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/allocator/replay_history.h"

namespace vramledger {
namespace {

void ExpectTheSame(const std::string& name, size_t allocations, size_t segments) {
  const auto history = ReadHistory(std::string(VRAMLEDGER_TEST_DATA) + "/replay/" + name);
  ASSERT_TRUE(history.ok()) << history.status();
  const ReplayResult result = ReplayHistory(*history, ReplayOptions());
  EXPECT_EQ(result.first_difference, "");
  EXPECT_EQ(result.allocations, allocations);
  EXPECT_EQ(result.addresses_equal, allocations);
  EXPECT_EQ(result.segment_events, segments);
  EXPECT_EQ(result.segment_events_equal, segments);
  EXPECT_EQ(result.unknown_frees, 0u);
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
  const auto history = ReadHistory(path + ".txt.gz");
  const auto run = ReadRun(path + ".json");
  ASSERT_TRUE(history.ok()) << history.status();
  ASSERT_TRUE(run.ok()) << run.status();
  const ReplayResult result = ReplayHistory(*history, run->options);
  EXPECT_EQ(result.first_difference, "");
  EXPECT_GT(result.allocations, 1000u);
  EXPECT_EQ(result.addresses_equal, result.allocations);
  EXPECT_EQ(result.segment_events_equal, result.segment_events);
  EXPECT_EQ(CompareStatistics(*run, result.statistics), std::vector<std::string>());
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
