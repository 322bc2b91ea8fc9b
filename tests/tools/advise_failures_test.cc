// Advice on runs in which a request failed.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/tools/advise_cases.h"

namespace vramledger {
namespace {

using testing::Events;
using testing::Find;
using testing::kCard;
using testing::Padded;
using testing::Step;

TEST(Advise, ARunThatRanOutOfMemoryDoesNotFit) {
  AdviceQuestion question;
  question.capacity = uint64_t{1} << 30;
  const std::string refused = "phase forward\nalloc y 600M in=a at=100M\noom 500M 100M\n";
  const auto a = Advise(Events(Padded(40) + refused), nullptr, question);
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_FALSE(a->baseline_fits);
  ASSERT_TRUE(a->ran_out.has_value());
  EXPECT_EQ(a->ran_out->request, uint64_t{500} << 20);
  EXPECT_EQ(a->ran_out->peak_at_least, (uint64_t{1200} << 20) + 512);
  const Suggestion* s = Find(*a, "LARGEST_BATCH");
  ASSERT_NE(s, nullptr);
  EXPECT_LT(s->settings["batch_size"].get<int>(), 40);
  EXPECT_NE(AdviceText(*a, false).find(
                "ran out of memory at a request of 500.0 MiB in forward of step 3; its true peak is at least 1.17 GiB"),
            std::string::npos)
      << AdviceText(*a, false);
  EXPECT_EQ(AdviceJson(*a)["ran_out_of_memory"]["request_bytes"], uint64_t{500} << 20);
}

TEST(Advise, AFailureInTheFirstStepForetellsNoBatch) {
  AdviceQuestion question;
  question.capacity = uint64_t{1} << 30;
  const auto a = Advise(Events(Cat("meta {\"batch_size\":8,", kCard,
                                   "}\nsegment a 900M\nphase forward\nalloc x 900M in=a\noom 300M 100M\n")),
                        nullptr, question);
  ASSERT_TRUE(a.ok());
  EXPECT_FALSE(a->baseline_fits);
  EXPECT_EQ(Find(*a, "LARGEST_BATCH"), nullptr);
  // Nothing was replayed into the card either: 1200 MiB do not fit.
  EXPECT_TRUE(a->suggestions.empty()) << AdviceText(*a, false);
  const auto says_why = [](const std::string& note) { return Contains(note, "such as 4) and ask again"); };
  EXPECT_EQ(std::count_if(a->notes.begin(), a->notes.end(), says_why), 1) << AdviceText(*a, false);
  question.capacity = uint64_t{24} << 30;
  const auto larger =
      Advise(Events(Cat("meta {\"batch_size\":8,", kCard, "}\nphase forward\nalloc x 900M\noom 300M 100M\n")), nullptr,
             question);
  ASSERT_TRUE(larger.ok()) << larger.status();
  EXPECT_FALSE(larger->baseline_fits);
  EXPECT_TRUE(larger->suggestions.empty()) << AdviceText(*larger, false);
  EXPECT_NE(AdviceText(*larger, false).find("is not known to fit"), std::string::npos);
}

// 400 MiB live of 750 reserved, 100 free on the device: fragmentation alone lets such a request fail.
std::string FailingRun(int request) {
  return Padded(40) + Cat("phase forward\nalloc y 300M in=a at=100M\noom ", request, "M 100M\n");
}
const Suggestion* ExpandableAlone(const Advice& a) {
  for (const Suggestion& s : a.suggestions) {
    if (s.id == "EXPANDABLE_SEGMENTS" && !s.settings.contains("batch_size")) return &s;
  }
  return nullptr;
}

TEST(Advise, ARunThatFragmentationEndedIsReplayedWithExpandableSegments) {
  AdviceQuestion question;
  question.capacity = uint64_t{1} << 30;
  const auto a = Advise(Events(FailingRun(400)), nullptr, question);
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_FALSE(a->baseline_fits);
  const Suggestion* s = ExpandableAlone(*a);
  ASSERT_NE(s, nullptr) << AdviceText(*a, false);
  EXPECT_TRUE(s->fits);
  // What was held and the request that failed; 2 MiB for what is small.
  EXPECT_EQ(s->predicted_peak, (uint64_t{800} << 20) + 512);
  ASSERT_TRUE(s->verified.has_value());
  EXPECT_EQ(s->verified->peak, (uint64_t{800} << 20) + 512);
  EXPECT_EQ(s->verified->reserved, uint64_t{802} << 20);
  EXPECT_NE(s->method.find("the recorded requests and the one that failed, replayed with them, fit"), std::string::npos) << s->method;
  // Batch 40 did not fail there, so that a larger one may be named, and no smaller one is. 17.5 MiB a sample as the request came.
  const auto with_batch = std::find_if(a->suggestions.begin(), a->suggestions.end(), [](const Suggestion& x) {
    return x.id == "EXPANDABLE_SEGMENTS" && x.settings.contains("batch_size");
  });
  ASSERT_NE(with_batch, a->suggestions.end());
  EXPECT_EQ(with_batch->settings["batch_size"], 47);
  EXPECT_LT(Find(*a, "LARGEST_BATCH")->settings["batch_size"].get<int>(), 40);
  const auto several = Advise(Events(FailingRun(400) + "oom 300M 100M\n"), nullptr, question);
  ASSERT_NE(ExpandableAlone(*several), nullptr) << AdviceText(*several, false);
  EXPECT_NE(ExpandableAlone(*several)->method.find("the recorded requests and the 2 that failed, replayed with them, fit"), std::string::npos)
      << ExpandableAlone(*several)->method;
  // The card is too small for what was asked: no setting of segments helps.
  EXPECT_EQ(ExpandableAlone(*Advise(Events(FailingRun(800)), nullptr, question)), nullptr);
}

// The run at batch 20 needs 300 MiB of 750, so that 27 samples are foretold as it is and 82 in free pages; batch 40 would have needed
// 1200 MiB in any segments.
TEST(Advise, ABatchThatFailedForWantOfMemoryFailsWithExpandableSegmentsToo) {
  AdviceQuestion question;
  question.capacity = uint64_t{1} << 30;
  std::string fragmented = Padded(20);
  ReplaceAll(&fragmented, "segment b 150M", "segment b 450M");
  const EventInput second = Events(fragmented);
  const auto a = Advise(Events(FailingRun(800)), &second, question);
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_EQ(ExpandableAlone(*a), nullptr);
  const Suggestion *plain = Find(*a, "LARGEST_BATCH"), *expandable = Find(*a, "EXPANDABLE_SEGMENTS");
  ASSERT_NE(plain, nullptr);
  EXPECT_EQ(plain->settings["batch_size"], 27);
  ASSERT_NE(expandable, nullptr);
  EXPECT_EQ(expandable->settings["batch_size"], 39);
}

TEST(Advise, ARunThatAMemoryFractionStoppedIsNotSaidToMissTheCard) {
  AdviceQuestion question;
  question.capacity = uint64_t{1} << 30;
  const std::string plain = FailingRun(150);
  std::string limited = plain;
  ReplaceAll(&limited, "phase forward\nalloc y", "mark memory fraction: 0.5\nphase forward\nalloc y");
  const auto without = Advise(Events(plain), nullptr, question), with = Advise(Events(limited), nullptr, question);
  ASSERT_TRUE(without.ok() && with.ok());
  EXPECT_FALSE(without->baseline_fits);
  EXPECT_TRUE(without->cautions.empty());
  EXPECT_TRUE(with->baseline_fits);
  ASSERT_EQ(with->cautions.size(), 1u);
  EXPECT_EQ(with->cautions[0].rfind("The program had set a memory fraction: 150.0 MiB were refused by that limit of 512.0 MiB, not by the device's 1.00 GiB", 0), 0u)
      << with->cautions[0];
}

TEST(Advise, ARunThatFillsTheCardWithExpandableSegmentsIsNamedAsWithoutHeadroom) {
  AdviceQuestion question;
  question.capacity = uint64_t{1} << 30;
  const auto a = Advise(Events(FailingRun(600)), nullptr, question);
  ASSERT_TRUE(a.ok()) << a.status();
  const Suggestion* s = ExpandableAlone(*a);
  ASSERT_NE(s, nullptr) << AdviceText(*a, false);
  EXPECT_FALSE(s->fits);
  EXPECT_EQ(s->predicted_reserved, uint64_t{1002} << 20);
  EXPECT_NE(s->method.find("fit in the capacity, but not with the headroom"), std::string::npos) << s->method;
  question.headroom_share = 0;
  EXPECT_TRUE(ExpandableAlone(*Advise(Events(FailingRun(600)), nullptr, question))->fits);
}

// The optimizer's states are there from the second step on: what a whole step needs beside them nobody has seen.
TEST(Advise, AFailureInTheSecondStepGetsExpandableSegmentsAsALowerBound) {
  AdviceQuestion question;
  question.capacity = uint64_t{1} << 30;
  const std::string text = Cat("meta {\"batch_size\":40,", kCard,
                               "}\nsegment a 500M\nsegment b 250M\nalloc small 512 in=b\nphase load\nalloc w 100M in=a\nname w parameter "
                               "w\nphase forward\nalloc x 300M in=a at=100M\nphase backward\nfree x\nphase optimizer\nalloc m 100M in=b "
                               "at=100M\nname m optimizer_state w.m\nstep Adam\nphase forward\nalloc y 300M in=a at=100M\noom 300M 100M\n");
  const auto a = Advise(Events(text), nullptr, question);
  ASSERT_TRUE(a.ok()) << a.status();
  const Suggestion* s = ExpandableAlone(*a);
  ASSERT_NE(s, nullptr) << AdviceText(*a, false);
  EXPECT_FALSE(s->fits);
  EXPECT_TRUE(s->not_known);
  EXPECT_EQ(s->verified->reserved, uint64_t{802} << 20);
  const auto json_of = [&](const Suggestion* suggestion, const Advice& of) {
    return AdviceJson(of)["suggestions"][static_cast<size_t>(suggestion - of.suggestions.data())];
  };
  EXPECT_EQ(json_of(s, *a)["fits"], false);
  EXPECT_EQ(json_of(s, *a)["not_known_to_fit"], true);
  const auto known = Advise(Events(FailingRun(400)), nullptr, question);
  EXPECT_EQ(json_of(ExpandableAlone(*known), *known)["fits"], true);
  EXPECT_EQ(json_of(ExpandableAlone(*known), *known)["not_known_to_fit"], false);
  EXPECT_NE(AdviceText(*a, false).find("EXPANDABLE_SEGMENTS {\"PYTORCH_CUDA_ALLOC_CONF\":\"expandable_segments:True\"}: is not known to fit, "
                                       "predicted 800.0 MiB allocated"),
            std::string::npos)
      << AdviceText(*a, false);
}

// Eight failures are kept: what the ninth asked for is in the replay alone.
TEST(Advise, MoreFailuresThanAreKeptAreNotReplayed) {
  AdviceQuestion question;
  question.capacity = uint64_t{1} << 30;
  std::string failures = "oom 400M 100M\n";
  for (int i = 1; i < 8; ++i) failures += "oom 10M 1M\n";
  const std::string run = Padded(40) + "phase forward\nalloc y 300M in=a at=100M\n";
  EXPECT_NE(ExpandableAlone(*Advise(Events(run + failures), nullptr, question)), nullptr);
  EXPECT_EQ(ExpandableAlone(*Advise(Events(run + failures + "oom 500M 100M\n"), nullptr, question)), nullptr);
}

TEST(Advise, ACaughtFailureThatTrainingWentOnAfterIsNotCounted) {
  AdviceQuestion question;
  question.capacity = uint64_t{1} << 30;
  question.headroom_share = 0;
  const std::string refused = "phase forward\noom 900M 100M\n";
  const auto a = Advise(Events(Padded(20) + refused + Step(20)), nullptr, question);
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_TRUE(a->baseline_fits);
  ASSERT_TRUE(a->ran_out.has_value());
  EXPECT_TRUE(a->ran_out->went_on);
  const Suggestion* s = Find(*a, "LARGEST_BATCH");
  ASSERT_NE(s, nullptr);
  EXPECT_GE(s->settings["batch_size"].get<int>(), 20);
  EXPECT_NE(AdviceText(*a, false).find("the program caught it and went on"), std::string::npos);
  // One that was got over, then one that was not: the latter is the end.
  const auto twice = Advise(Events(Padded(20) + refused + Step(20) + "phase eval\noom 50M 10M\n"), nullptr, question);
  ASSERT_TRUE(twice->ran_out.has_value());
  EXPECT_FALSE(twice->ran_out->went_on);
  EXPECT_EQ(twice->ran_out->request, uint64_t{50} << 20);
  // A replay would serve the 900 MiB too, which the run did without.
  EXPECT_EQ(Find(*twice, "EXPANDABLE_SEGMENTS"), nullptr) << AdviceText(*twice, false);
  ASSERT_EQ(twice->suggestions.size(), 2u) << AdviceText(*twice, false);
  EXPECT_EQ(twice->suggestions[0].settings, nlohmann::ordered_json({{"batch_size", 19}}));
  EXPECT_EQ(twice->suggestions[1].settings, nlohmann::ordered_json({{"batch_size", 10}, {"accumulation_steps", 2}}));
  // In the second of two runs it counts as little as in the first.
  const EventInput two = Events(Padded(40) + refused + Step(40)), plain = Events(Padded(40) + Step(40));
  EXPECT_EQ(Find(*Advise(Events(Padded(20)), &two, question), "LARGEST_BATCH")->settings,
            Find(*Advise(Events(Padded(20)), &plain, question), "LARGEST_BATCH")->settings);
  // Nothing after it: it was the end.
  EXPECT_FALSE(Advise(Events(Padded(20) + refused), nullptr, question)->baseline_fits);
}

}  // namespace
}  // namespace vramledger
