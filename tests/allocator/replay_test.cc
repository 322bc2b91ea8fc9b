// The proof of the native policy: histories recorded on real GPUs come out the same, address for address.
#include <string>

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

TEST(Replay, AttentionForwardAndBackward) { ExpectTheSame("attention_fwd_bwd.txt.gz", 36, 9); }
TEST(Replay, OptZerothOrderTraining) { ExpectTheSame("opt_zeroth_order.txt.gz", 7946, 61); }

TEST(Replay, UnreadableFilesAreErrors) {
  EXPECT_FALSE(ReadHistory("/no/such/file").ok());
  EXPECT_FALSE(ReadHistory(std::string(VRAMLEDGER_TEST_DATA) + "/replay/README.md").ok());
}

}  // namespace
}  // namespace vramledger
