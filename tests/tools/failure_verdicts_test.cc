// Hand-made histories of runs in which a request failed: which verdict each gets, and what it suggests.
#include "tests/tools/verdict_histories.h"

namespace vramledger {
namespace {

TEST(FailureVerdicts, Shortage) {
  const Analysis a = Replay(R"(meta {"devices":[{"index":0,"total_bytes":1073741824}]}
segment a 900M
phase forward
alloc x 890M in=a
oom 500M 100M
)");
  const auto verdicts = Judge(a);
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].id, "SHORTAGE");
  EXPECT_EQ(verdicts[0].evidence["request_bytes"], uint64_t{500} << 20);
  EXPECT_EQ(verdicts[0].evidence["capacity_bytes"], uint64_t{1} << 30);
}

// Neither a smaller batch nor checkpointing makes room for what is there before the first forward.
TEST(FailureVerdicts, AShortageBeforeAnyModelRan) {
  const auto suggestion = [](const std::string& phase) {
    const auto verdicts = Judge(Replay(R"(meta {"devices":[{"index":0,"total_bytes":1073741824}]}
segment a 900M
)" + phase + R"(alloc x 890M in=a
oom 500M 100M
)"));
    EXPECT_EQ(verdicts.size(), 1u);
    EXPECT_EQ(verdicts.at(0).id, "SHORTAGE");
    return verdicts.at(0).suggestion;
  };
  EXPECT_EQ(suggestion("phase load\n").rfind("No model has run yet", 0), 0u);
  EXPECT_NE(suggestion("phase load\nphase eval\n").find("checkpointing saves nothing"), std::string::npos);
  for (const char* phase : {"phase forward\n", ""}) EXPECT_EQ(suggestion(phase).rfind("A smaller batch", 0), 0u) << phase;
}

TEST(FailureVerdicts, BadSize) {
  EXPECT_EQ(Ids("meta {\"devices\":[{\"index\":0,\"total_bytes\":1073741824}]}\nphase forward\nsegment a 2M\nalloc x "
                "1M in=a\noom 130674G 1G\n"),
            "BAD_SIZE");
}

// Case 1 (R02): the large segment is carved up by blocks that stay, and the same large request fails.
TEST(FailureVerdicts, PinnedAtFailure) {
  const Analysis a = Replay(R"(meta {"devices":[{"index":0,"total_bytes":17179869184}]}
segment big 11643387904
alloc t 11643387904 in=big
free t
repeat 8
alloc a{i} 16515072 in=big at={i}00M
alloc b{i} 16515072 in=big at={i}20M
alloc c{i} 11400192 in=big at={i}40M
alloc d{i} 18191360 in=big at={i}60M
end
oom 11643387904 5G
)");
  const auto verdicts = Judge(a);
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].id, "FRAG_PINNED");
  EXPECT_EQ(verdicts[0].evidence["pinning_blocks"], 32);
}

// set_per_process_memory_fraction(0.1) and a request that the device had room for.
TEST(FailureVerdicts, ARequestThatTheDeviceHadRoomForMetALimit) {
  const auto judge = [](const std::string& before) {
    return Judge(Replay(R"(meta {"devices":[{"index":0,"total_bytes":25386352640}]}
)" + before + R"(segment a 20M
phase forward
alloc x 16M in=a
oom 20G 23G
)"));
  };
  const auto told = judge("mark memory fraction: 0.5\nmark memory fraction: 0.1\n");
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].sentence.rfind("The memory fraction (10.0 % of the device) refused 20.00 GiB", 0), 0u) << told[0].sentence;
  EXPECT_EQ(told[0].evidence["memory_fraction"], 0.1);
  const auto verdicts = judge("");
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_FALSE(verdicts[0].evidence.contains("memory_fraction"));
  EXPECT_EQ(verdicts[0].id, "SHORTAGE");
  EXPECT_EQ(verdicts[0].sentence.rfind("A limit below the device's memory refused 20.00 GiB", 0), 0u);
  EXPECT_NE(verdicts[0].suggestion.find("set_per_process_memory_fraction"), std::string::npos);
}

constexpr char kCardOf16[] = R"("devices":[{"index":0,"total_bytes":17179869184}])";

// The cache's few bytes would not have helped: the card is too small.
TEST(FailureVerdicts, AFailureWithAnEmptyCacheIsAShortage) {
  const auto verdicts = Judge(Replay(std::string("meta {") + kCardOf16 + R"(}
segment a 14G
phase forward
alloc x 14323M in=a
oom 1613M 1606M
)"));
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].id, "SHORTAGE");
  EXPECT_NE(verdicts[0].sentence.find("1.57 GiB free on the device"), std::string::npos) << verdicts[0].sentence;
}

TEST(FailureVerdicts, NoAdviceThatTheRunFollowsAlready) {
  const std::string history = R"(segment a 10G
phase forward
alloc x 4G in=a
alloc y 1G in=a at=5G
oom 3G 100M
)";
  const std::string card = R"(meta {"devices":[{"index":0,"total_bytes":11811160064}])";
  const auto plain = Judge(Replay(card + "}\n" + history));
  const auto expandable = Judge(Replay(card +
                                       R"(,"allocator":{"settings":"expandable_segments:True"}})" + "\n" + history));
  ASSERT_EQ(plain.size(), 1u);
  ASSERT_EQ(expandable.size(), 1u);
  EXPECT_EQ(plain[0].id, "FRAG_PINNED");
  EXPECT_NE(plain[0].sentence.find("100.0 MiB on the device"), std::string::npos);
  EXPECT_NE(plain[0].suggestion.find("expandable_segments"), std::string::npos);
  EXPECT_EQ(expandable[0].suggestion.find("expandable_segments"), std::string::npos);
  // Recorded by the library, but of no model: nothing is sure.
  EXPECT_EQ(plain[0].confidence, "high");
  EXPECT_EQ(expandable[0].confidence, "low");
}

}  // namespace
}  // namespace vramledger
