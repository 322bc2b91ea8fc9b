// Hand-made histories: each verdict on its case, and the negative controls, on which the analysis must stay quiet.
#include "tests/tools/verdict_histories.h"

namespace vramledger {
namespace {

// A well-behaved training: parameters, forward, backward, optimizer with its state, gradients freed after the step.
std::string Training(int steps, const std::string& in_forward = "", const std::string& after_step = "") {
  return R"(phase load
segment params 300M
segment acts 600M
segment state 310M
alloc p 300M in=params
name p parameter net.weight
repeat )" +
         std::to_string(steps) + R"(
phase forward
alloc x 300M in=acts module=net.0
alloc y 300M in=acts at=300M module=net.1
)" + in_forward +
         R"(
phase backward
alloc g 300M in=state
free y
free x
phase optimizer
alloc s{i} 4K
step AdamW#1
)" + after_step +
         R"(
phase zero_grad
free g
phase idle
end
)";
}

TEST(Verdicts, GoodTrainingIsQuiet) {
  EXPECT_EQ(Ids(Training(1)), "");
}

// §6 control 2: the optimizer's state appears once, at the first step.
TEST(Verdicts, OptimizerStateAppearingOnceIsNoLeak) {
  EXPECT_EQ(Ids(R"(phase load
segment a 100M
alloc p 20M in=a
name p parameter w
phase forward
alloc x 20M in=a at=20M
phase backward
free x
phase optimizer
alloc m 20M in=a at=40M
alloc v 20M in=a at=60M
step Adam
repeat 9
phase forward
alloc x 20M in=a at=20M
phase backward
free x
phase optimizer
step Adam
end
)"),
            "");
}

TEST(Verdicts, SteadyLeak) {
  const Analysis a = Replay(Training(10, "alloc loss{i} 512 module=train.loss\nalloc kept{i} 2M module=net.head\n"));
  const auto verdicts = Judge(a);
  ASSERT_FALSE(verdicts.empty());
  EXPECT_EQ(verdicts[0].id, "LEAK_STEADY");
  EXPECT_EQ(verdicts[0].evidence["site"], "net.head");
  EXPECT_EQ(verdicts[0].evidence["phase"], "forward");
  EXPECT_GT(verdicts[0].evidence["growth_per_step_bytes"].get<uint64_t>(), uint64_t{2} << 20);
}

// §6 control 8: cycles that a collection frees every fourth step. The floor returns, so it is no steady leak.
TEST(Verdicts, GarbageCollectedCyclesAreNoSteadyLeak) {
  std::string text = "segment a 100M\nphase forward\nalloc p 1M in=a\n";
  for (int step = 0; step < 16; ++step) {
    text += "phase forward\nalloc c" + std::to_string(step) +
            " 4M module=cycle\nphase backward\nphase optimizer\nstep Adam\n";
    if (step % 6 == 5) {
      for (int k = step - 5; k <= step; ++k) text += "free c" + std::to_string(k) + "\n";
    }
  }
  EXPECT_EQ(Ids(text).find("LEAK"), std::string::npos);
}

// §6 control 7: a cache that grows inside one generate call and is freed after it.
TEST(Verdicts, KeyValueCacheIsNoLeak) {
  EXPECT_EQ(Ids(R"(segment a 100M
alloc p 50M in=a phase=load
repeat 8
phase eval
repeat 20
alloc kv{j} 1M in=a at=50M module=attention
end
repeat 20
free kv{j}
end
phase idle
step
end
)")
                .find("LEAK"),
            std::string::npos);
}

// §6 control 1: the cache grows to the largest batch seen and stops.
TEST(Verdicts, HighWaterIsNoLeak) {
  EXPECT_EQ(Ids(R"(segment a 1000M
phase load
alloc p 900M in=a
name p parameter w
repeat 7
phase forward
segment s{i} 100M
alloc x 50M in=s{i}
phase backward
free x
phase optimizer
step Adam
end
repeat 6
phase forward
alloc x 90M in=s6
phase backward
free x
phase optimizer
step Adam
end
)"),
            "FRAG_IDLE HIGHWATER");
}

// Case 2 (R03): 36 remainders of 260 MiB, each behind one block of 270 MiB that stays.
TEST(Verdicts, PinnedRemainders) {
  const Analysis a = Replay(R"(repeat 36
segment s{i} 530M
alloc t 530M in=s{i}
free t
alloc k{i} 270M in=s{i} module=convert
end
)");
  const auto verdicts = Judge(a);
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].id, "FRAG_PINNED");
  EXPECT_EQ(verdicts[0].evidence["reserved_peak_bytes"], uint64_t{19080} << 20);
  EXPECT_EQ(a.timeline.end.total.rounded, uint64_t{9720} << 20);
  EXPECT_EQ(a.timeline.at_end.pinned_bytes, uint64_t{9360} << 20);
  EXPECT_EQ(a.timeline.at_end.largest_hole_bytes, uint64_t{260} << 20);
}

// Case 3 (R09): what a side stream set up serves nobody afterwards.
constexpr char kSideStream[] = R"(repeat 20
segment s{i} 1G stream=1
alloc a{i} 1G in=s{i} stream=1
end
repeat 20
free a{i}
end
repeat 30
segment m{i} 1G
alloc b{i} 1G in=m{i}
end
)";

TEST(Verdicts, StrandedStream) {
  const Analysis a = Replay(kSideStream);
  EXPECT_EQ(Ids(kSideStream), "FRAG_STREAM");
  EXPECT_EQ(a.timeline.reserved_peak_bytes, uint64_t{51200} << 20);
  EXPECT_EQ(a.timeline.peak.total.rounded, uint64_t{30720} << 20);
  EXPECT_EQ(a.timeline.at_reserved_peak.stream_bytes, uint64_t{20480} << 20);
}

// §6 control 6: one side stream that is used every step is not stranded.
TEST(Verdicts, AStreamInUseIsNotStranded) {
  EXPECT_EQ(Ids(R"(segment m 1000M
segment s 100M stream=1
alloc p 950M in=m
repeat 6
phase forward
alloc c 90M in=s stream=1
free c
phase backward
phase optimizer
step Adam
end
)"),
            "");
}

// Case 4 (R05): growing requests, each too large for what was left behind; falling ones fit.
TEST(Verdicts, IdleSegments) {
  EXPECT_EQ(Ids(R"(repeat 10
segment s{i} {i}4000256
alloc t 1000 in=s{i} rounded={i}4000256
free t
end
)"),
            "FRAG_IDLE");
  EXPECT_EQ(Ids("segment s 40M\nalloc t 40000000 in=s\nfree t\nalloc t 36000000 in=s\nfree t\nalloc t 4000000 "
                "in=s\nfree t\n"),
            "");
}

// The most is reserved in the third step, and of that the most in use in its backward; the peak and the end are elsewhere.
TEST(Verdicts, FragmentationNamesTheMomentOfItsFigures) {
  const Analysis a = Replay(R"(phase load
segment a 1000M
alloc p 1000M in=a
phase optimizer
free p
repeat 3
phase forward
segment s{i} {i}50M
phase backward
alloc x 10M in=s{i}
free x
phase optimizer
step Adam
end
phase save
)");
  const auto verdicts = Judge(a);
  ASSERT_FALSE(verdicts.empty());
  EXPECT_EQ(verdicts[0].id, "FRAG_IDLE");
  EXPECT_NE(verdicts[0].sentence.find("are reserved in backward of step 3 for a peak of 1000.0 MiB"), std::string::npos) << verdicts[0].sentence;
  EXPECT_EQ(verdicts[0].evidence["phase"], "backward");
  EXPECT_EQ(verdicts[0].evidence["step"], 3);
  // A run without steps has a phase and no step; one without phases, as of a snapshot, has neither.
  const std::string idle = "segment s 1000M\nalloc x 100M in=s\nfree x\nsegment r 500M\n";
  for (const bool phases : {true, false}) {
    const auto without = Judge(Replay((phases ? "phase eval\n" : "") + idle));
    ASSERT_FALSE(without.empty());
    EXPECT_EQ(without[0].id, "FRAG_IDLE");
    const std::string wanted = phases ? "are reserved in eval for a peak of 100.0 MiB" : "are reserved for a peak of 100.0 MiB";
    EXPECT_NE(without[0].sentence.find(wanted), std::string::npos) << without[0].sentence;
    EXPECT_EQ(without[0].evidence.contains("phase"), phases);
    EXPECT_FALSE(without[0].evidence.contains("step"));
  }
}

TEST(Verdicts, PendingFree) {
  EXPECT_EQ(Ids(R"(segment a 600M
segment b 100M
alloc x 600M in=a
alloc p 100M in=b
request x
oom 600M 10M
)"),
            "FRAG_PENDING");
}

// Case 6 (R27): parameters, gradients, two moments, and as much again in temporaries of a foreach step.
TEST(Verdicts, OptimizerPeak) {
  const Analysis a = Replay(R"(segment a 6600M
phase load
alloc p 1200M in=a
name p parameter w
phase forward
alloc x 400M in=a at=1200M
phase backward
alloc g 1200M in=a at=1600M
name g gradient w.grad
free x
phase optimizer
alloc m 1200M in=a at=3000M
alloc v 1200M in=a at=4200M
alloc t 1200M in=a at=5400M
free t
step Adam
phase idle
)");
  const auto verdicts = Judge(a);
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].id, "PEAK_OPTIM");
  EXPECT_EQ(verdicts[0].evidence["temporary_bytes"], uint64_t{1200} << 20);
  EXPECT_EQ(verdicts[0].evidence["peak_without_bytes"], uint64_t{4800} << 20);
  EXPECT_EQ(verdicts[0].evidence["next_peak_phase"], "backward");
}

TEST(Verdicts, StaleGradients) {
  const char* text = R"(segment a 750M
phase load
alloc p 100M in=a
name p parameter w
phase forward
alloc x 500M in=a at=200M
phase backward
alloc g 100M in=a at=100M
free x
phase optimizer
step SGD
phase forward
alloc y 550M in=a at=200M
phase zero_grad
free g
phase backward
free y
phase optimizer
step SGD
)";
  EXPECT_EQ(Ids(text), "PEAK_STALE_GRADS");
  EXPECT_EQ(Replay(text).timeline.peak_stale_gradients.rounded, uint64_t{100} << 20);
}

// Case 11 (R65): 8,192 tokens x 151,936 words in 32 bits.
TEST(Verdicts, Logits) {
  EXPECT_EQ(Ids(R"(meta {"config":{"vocab_size":151936}}
segment a 13G
phase forward
alloc h 2G in=a module=model
alloc l 4978638848 in=a at=3G module=lm_head
alloc s 4978638848 in=a at=8G module=loss
phase backward
free s
free l
free h
)"),
            "PEAK_LOGITS");
}

// Case 10 (R61): one bare Linear; a workspace that stays is no leak, and nothing that could go away.
TEST(Verdicts, AKeptWorkspaceIsNoFault) {
  EXPECT_EQ(Ids(R"(segment a 2M
segment b 20M
phase load
alloc w 4 in=a
alloc bias 4 in=a at=512
phase forward
alloc ws 8519680 in=b module=fc
alloc out 4 in=a at=1024 module=fc
phase idle
free out
free w
free bias
)"),
            "");
}

// A workspace that lives only inside its operator.
std::string PassingWorkspace(const std::string& layer, const std::string& phase) {
  return R"(meta {"models":[{"name":"net","class":"Net","layers":[{"name":"c","class":")" + layer + R"("}]}]}
segment a 200M
phase load
alloc w 20M in=a
phase )" +
         phase + R"(
alloc ws 60M in=a at=20M module=net.c flags=)" +
         std::to_string(kFlagLibrary) + R"(
free ws
alloc x 10M in=a at=20M
phase idle
free x
)";
}

TEST(Verdicts, Workspace) {
  const Analysis a = Replay(PassingWorkspace("Conv2d", "forward"));
  const auto verdicts = Judge(a);
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].id, "PEAK_WORKSPACE");
  EXPECT_NE(verdicts[0].suggestion.find("cudnn"), std::string::npos);
  const auto linear = Judge(Replay(PassingWorkspace("Linear", "forward")));
  ASSERT_EQ(linear.size(), 1u);
  EXPECT_EQ(linear[0].suggestion.find("cudnn"), std::string::npos);
  EXPECT_EQ(Ids(PassingWorkspace("Conv2d", "optimizer")).find("PEAK_WORKSPACE"), std::string::npos);
}

// Each optimizer's step counts as one, and the place leaks in every second.
TEST(Verdicts, ALeakBesideTwoOptimizersInTurns) {
  const auto rounds = [](const char* kept) {
    return Ids(std::string(R"(phase load
segment a 40M
alloc p 20M in=a
name p parameter w
repeat 8
phase forward
)") + kept + R"(
alloc x 20M in=a at=20M module=D
phase backward
free x
phase optimizer
step AdamD
phase forward
alloc y 20M in=a at=20M module=D
phase backward
free y
phase optimizer
step AdamG
end
)");
  };
  EXPECT_EQ(rounds("alloc kept{i} 2M module=D"), "LEAK_STEADY");
  EXPECT_EQ(rounds("alloc kept{i} 2M module=D\nfree kept{i}"), "");
}

// The list of kept outputs dies with the interpreter, after the last step.
TEST(Verdicts, ALeakThatEndsWithTheProgramIsALeak) {
  const Analysis a = Replay(Training(50, "alloc kept{i} 2M module=net.head\n") + R"(repeat 50
free kept{i}
end
)");
  const auto verdicts = Judge(a);
  ASSERT_FALSE(verdicts.empty());
  EXPECT_EQ(verdicts[0].id, "LEAK_STEADY");
  EXPECT_NE(verdicts[0].suggestion.find(".cpu()"), std::string::npos);
}

TEST(Verdicts, OptimizerAdviceKnowsTheSettings) {
  const auto suggestion = [](const std::string& settings) {
    const auto verdicts = Judge(Replay("meta {\"optimizers\":[{\"class\":\"Adam\"" + settings + R"(}]}
segment a 3000M
phase load
alloc p 400M in=a
name p parameter w
phase backward
alloc g 400M in=a at=400M
name g gradient w.grad
phase optimizer
alloc t1 100M in=a at=800M
alloc t2 100M in=a at=900M
alloc t3 100M in=a at=1000M
alloc t4 100M in=a at=1100M
free t1
free t2
free t3
free t4
step Adam
)"));
    return verdicts.empty() ? std::string() : verdicts[0].suggestion;
  };
  EXPECT_EQ(suggestion(""),
            "fused=True: the peak becomes about 800.0 MiB, then set by backward; foreach=False: the peak becomes about "
            "1000.0 MiB.");
  EXPECT_EQ(suggestion(",\"foreach\":false").find("foreach=False"), std::string::npos);
  EXPECT_NE(suggestion(",\"foreach\":false").find("fused=True"), std::string::npos);
  EXPECT_EQ(suggestion(",\"fused\":true").find("fused=True"), std::string::npos);
}

TEST(Verdicts, AfterTheLastStep) {
  const Analysis a = Replay(Training(3) + "phase eval\nalloc big 900M\nphase idle\nfree big\n");
  const std::string text = ReportText(a);
  EXPECT_NE(text.find("in eval after step 3"), std::string::npos) << text;
  EXPECT_NE(text.find("after 3"), std::string::npos);
}

TEST(Verdicts, NextPeakIsInAnotherPhase) {
  const Analysis a = Replay(Training(3));
  const Moment* next = NextPeak(a.timeline);
  ASSERT_NE(next, nullptr);
  EXPECT_NE(next->phase, a.timeline.peak.phase);
  EXPECT_LE(next->total.rounded, a.timeline.peak.total.rounded);
}

}  // namespace
}  // namespace vramledger
