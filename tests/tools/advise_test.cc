#include "tools/analysis/advise.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/tools/advise_cases.h"
#include "tools/analysis/batch_model.h"
#include "tools/analysis/timeline.h"
#include "tools/foreign/text.h"
#include "tools/foreign/text_events.h"

namespace vramledger {
namespace {

using testing::Events;
using testing::Find;
using testing::Input;
using testing::kCard;
using testing::Padded;

TEST(Advise, LargestBatchFromOneTraceAndFromTwoAgree) {
  AdviceQuestion question;
  question.capacity = uint64_t{1} << 30;
  question.headroom_share = 0;
  const auto one = Advise(Input(4), nullptr, question);
  ASSERT_TRUE(one.ok()) << one.status();
  const EventInput second = Input(8);
  const auto two = Advise(Input(4), &second, question);
  ASSERT_TRUE(two.ok()) << two.status();
  for (const Advice* a : {&*one, &*two}) {
    const Suggestion* s = Find(*a, "LARGEST_BATCH");
    ASSERT_NE(s, nullptr);
    EXPECT_TRUE(s->fits);
    const auto largest = s->settings["batch_size"].get<int>();
    // The prediction is what a run at that batch gives, and one sample more would not fit.
    const auto run = Analyze(Input(largest));
    EXPECT_NEAR(static_cast<double>(run->timeline.peak.total.rounded), static_cast<double>(s->predicted_peak), 1 << 20);
    EXPECT_GT(Analyze(Input(largest + 1))->timeline.peak.total.rounded, question.capacity);
  }
  EXPECT_FALSE(Advise(Input(4), &second, question)->suggestions.empty());
  const EventInput same = Input(4);
  EXPECT_FALSE(Advise(Input(4), &same, question).ok());
}

TEST(Advise, CheckpointingKeepsInputsAndOneBlock) {
  AdviceQuestion question;
  question.capacity = uint64_t{1} << 30;
  const auto a = Advise(Input(8), nullptr, question);
  ASSERT_TRUE(a.ok());
  const Suggestion* s = Find(*a, "CHECKPOINTING");
  ASSERT_NE(s, nullptr);
  // 2 blocks x 64 MiB become 2 inputs of 8 MiB and 64 MiB: 48 MiB less, in the backward.
  EXPECT_EQ(a->baseline_peak - s->predicted_peak, uint64_t{48} << 20);
  EXPECT_GT(s->time_factor, 1.0);
  EXPECT_EQ(s->modules, (std::vector<std::string>{"Net.layer.0", "Net.layer.1"}));
  EXPECT_NE(AdviceText(*a, false).find("modules: Net.layer.0 to .1"), std::string::npos);
}

TEST(Advise, AccumulationWhenItDoesNotFit) {
  AdviceQuestion question;
  question.capacity = uint64_t{130} << 20;
  question.headroom_share = 0;
  const auto a = Advise(Input(8), nullptr, question);
  ASSERT_TRUE(a.ok());
  EXPECT_FALSE(a->baseline_fits);
  const Suggestion* s = Find(*a, "ACCUMULATION");
  ASSERT_NE(s, nullptr);
  EXPECT_EQ(s->settings["accumulation_steps"], 2);
  EXPECT_TRUE(s->fits);
}

TEST(Advise, ReservedBytesDecide) {
  AdviceQuestion question;
  question.capacity = uint64_t{2} << 30;
  question.headroom_share = 0;
  const auto a = Advise(Events(Padded(20)), nullptr, question);
  ASSERT_TRUE(a.ok());
  EXPECT_EQ(a->baseline_reserved, uint64_t{450} << 20);
  const Suggestion *plain = Find(*a, "LARGEST_BATCH"), *expandable = Find(*a, "EXPANDABLE_SEGMENTS");
  ASSERT_NE(plain, nullptr);
  ASSERT_NE(expandable, nullptr);
  ASSERT_TRUE(plain->predicted_reserved.has_value());
  EXPECT_TRUE(plain->fits);
  EXPECT_LE(*plain->predicted_reserved, question.capacity);
  // 2048 MiB / 1.5 / 1.05, less the weights, at 10 MiB a sample.
  EXPECT_NEAR(plain->settings["batch_size"].get<int>(), 120, 1);
  // The replay's 302 MiB (2 of them for what is small) for 300, and a twentieth more.
  EXPECT_NEAR(expandable->settings["batch_size"].get<int>(), 183, 1);
  EXPECT_LE(*expandable->predicted_reserved, question.capacity);
  EXPECT_GT(*expandable->predicted_reserved, expandable->predicted_peak);
  EXPECT_FALSE(expandable->verified.has_value());
  EXPECT_EQ(AdviceJson(*a)["suggestions"][0]["predicted_reserved_bytes"], *plain->predicted_reserved);
  const auto already =
      Advise(Events(Padded(20, R"(,"allocator":{"settings":"expandable_segments:True"})")), nullptr, question);
  EXPECT_EQ(Find(*already, "EXPANDABLE_SEGMENTS"), nullptr);
  // The worse ratio of two traces counts.
  std::string worse = Padded(10);
  ReplaceAll(&worse, "segment b 100M", "segment b 200M");
  const EventInput second = Events(worse);
  const auto two = Advise(Events(Padded(20)), &second, question);
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_LT(Find(*two, "LARGEST_BATCH")->settings["batch_size"].get<int>(), 100);
}

// 500 MiB are in segment c, all free, when the most is reserved.
TEST(Advise, IdleSegmentsAreToldApartWhereTheNumberStands) {
  AdviceQuestion question;
  question.capacity = uint64_t{2} << 30;
  question.headroom_share = 0;
  const std::string plain = AdviceText(*Advise(Events(Padded(20)), nullptr, question), false);
  EXPECT_NE(plain.find("peaks at 300.0 MiB allocated, 450.0 MiB reserved, and fits"), std::string::npos) << plain;
  const std::string idle = AdviceText(*Advise(Events(Padded(20) + "segment c 500M\n"), nullptr, question), false);
  EXPECT_NE(idle.find("peaks at 300.0 MiB allocated, 450.0 MiB reserved without idle segments (950.0 MiB with them), and fits"), std::string::npos)
      << idle;
  const size_t batch = idle.find("LARGEST_BATCH"), expandable = idle.find("EXPANDABLE_SEGMENTS");
  ASSERT_NE(batch, std::string::npos);
  ASSERT_NE(expandable, std::string::npos);
  const auto line = [&](size_t at) { return idle.substr(at, idle.find('\n', at) - at); };
  EXPECT_NE(line(batch).find("GiB reserved without idle segments, time"), std::string::npos) << idle;
  EXPECT_NE(line(expandable).find("GiB reserved, time"), std::string::npos) << idle;
}

TEST(Advise, ABatchThatFitsAsRecordedIsNotAdvisedAgainst) {
  bool said = false;
  for (uint64_t mib = 400; mib < 1000; ++mib) {
    AdviceQuestion question;
    question.capacity = mib << 20;
    const auto a = Advise(Events(Padded(40)), nullptr, question);
    ASSERT_TRUE(a.ok()) << a.status();
    const Suggestion* s = Find(*a, "LARGEST_BATCH");
    if (a->baseline_fits && s != nullptr) {
      EXPECT_GE(s->settings["batch_size"], 40) << mib << " MiB";
    }
    for (const std::string& note : a->notes) said |= note.starts_with("batch 40 fits as it was recorded, and is the largest");
  }
  EXPECT_TRUE(said);
}

TEST(Advise, MoreEventsThanAReplayHoldsAreNotReplayed) {
  AdviceQuestion question;
  question.capacity = uint64_t{2} << 30;
  question.headroom_share = 0;
  const uint64_t events = Analyze(Events(Padded(20)))->timeline.events;
  for (const bool within : {true, false}) {
    question.most_replayed = within ? events : events - 1;
    const auto a = Advise(Events(Padded(20)), nullptr, question);
    ASSERT_TRUE(a.ok());
    const Suggestion* s = Find(*a, "EXPANDABLE_SEGMENTS");
    ASSERT_NE(s, nullptr);
    EXPECT_EQ(Contains(s->method, "not replayed"), !within) << s->method;
    // Without the replay's 2 MiB for what is small: (2048 MiB / 1.05 - 100) / 10 in place of 183.
    EXPECT_EQ(s->settings["batch_size"].get<int>(), within ? 183 : 185);
  }
}

TEST(Advise, ARunThatFragmentationKeepsOutIsReplayedWithExpandableSegments) {
  AdviceQuestion question;
  question.capacity = uint64_t{400} << 20;
  question.headroom_share = 0;
  const auto a = Advise(Events(Padded(20)), nullptr, question);
  ASSERT_TRUE(a.ok());
  EXPECT_FALSE(a->baseline_fits);  // 450 MiB
  const nlohmann::ordered_json j = AdviceJson(*a);
  bool seen = false;
  for (const auto& entry : j["suggestions"]) {
    if (entry["id"] != "EXPANDABLE_SEGMENTS" || entry["settings"].contains("batch_size")) continue;
    seen = true;
    EXPECT_TRUE(entry["fits"].get<bool>());
    EXPECT_EQ(entry["verified"]["by"], "a replay of the recorded requests");
    EXPECT_EQ(entry["verified"]["reserved_bytes"], uint64_t{302} << 20);
    EXPECT_NEAR(entry["verified"]["error_share"].get<double>(), 0, 0.01);
  }
  EXPECT_TRUE(seen);
  EXPECT_NE(AdviceText(*a, false).find("verified: 300.0 MiB allocated, 302.0 MiB reserved by a replay"),
            std::string::npos)
      << AdviceText(*a, false);
}

// The states (200 MiB) come at the end of the first step; the second one's backward holds them beside its 500 MiB.
TEST(Advise, OneStepDoesNotShowWhatTheNextOneHolds) {
  const std::string start = Cat("meta {\"batch_size\":40,", kCard,
                                "}\nsegment a 500M\nsegment s 200M\nphase load\nalloc w 100M in=a\nname w parameter w\n");
  const auto step = [](bool first) {
    return Cat("phase forward\nalloc x 400M in=a at=100M\nphase backward\nfree x\nphase optimizer\n",
               first ? "alloc m 200M in=s\nname m optimizer_state w.m\n" : "", "step Adam\n");
  };
  AdviceQuestion question;
  question.capacity = uint64_t{600} << 20;
  question.headroom_share = 0;
  const auto one = Advise(Events(start + step(true)), nullptr, question);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_FALSE(one->baseline_fits);
  ASSERT_EQ(one->cautions.size(), 1u);
  EXPECT_NE(one->cautions[0].find("would need 200.0 MiB more"), std::string::npos) << one->cautions[0];
  question.capacity = uint64_t{800} << 20;
  EXPECT_TRUE(Advise(Events(start + step(true)), nullptr, question)->baseline_fits);
  const auto two = Advise(Events(start + step(true) + step(false)), nullptr, question);
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_TRUE(two->cautions.empty());
}

TEST(Advise, ATraceWithoutAllocationsGetsNone) {
  AdviceQuestion question;
  question.capacity = uint64_t{1} << 30;
  const auto a = Advise(Events("phase load\nsegment a 2M\n"), nullptr, question);
  EXPECT_EQ(a.status().message(), "test: no allocation could be read, so there is nothing to advise on");
}

TEST(Advise, ALeakIsSaidBeforeAnySetting) {
  std::string text = "meta {\"batch_size\":4}\nphase load\nalloc w 100M\nname w parameter w\n";
  for (int i = 0; i < 12; ++i)
    text += Cat("phase forward\nalloc x", i,
                " 10M module=Net.loss\nalloc y 20M\nphase backward\nfree y\nphase optimizer\nstep SGD\n");
  AdviceQuestion question;
  question.capacity = uint64_t{1} << 30;
  const auto a = Advise(Events(text), nullptr, question);
  ASSERT_TRUE(a.ok()) << a.status();
  const std::string out = AdviceText(*a, false);
  const size_t caution = out.find("LEAK_STEADY: "), first = out.find("LARGEST_BATCH");
  ASSERT_NE(caution, std::string::npos) << out;
  EXPECT_NE(out.find("No setting helps against a leak"), std::string::npos);
  EXPECT_LT(caution, first);
  EXPECT_EQ(AdviceJson(*a)["cautions"].size(), 1u);
}

// A replay on a card without room for anything must not be one on a card without limit.
TEST(Advise, ACardThatIsFullWithoutTheAllocatorFitsNothing) {
  AdviceQuestion question;
  question.capacity = uint64_t{100} << 20;
  question.headroom_share = 0;
  const auto a = Advise(Events(Padded(20) + "used 300M 1000M\n"), nullptr, question);
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_EQ(a->usable, 0u);
  EXPECT_FALSE(a->baseline_fits);
  for (const Suggestion& s : a->suggestions) EXPECT_FALSE(s.fits) << s.id;
}

// The optimizer's step stands above the backward by so much; without its temporaries the backward is the peak.
TEST(Advise, WhatSavesLessThanAHundredthIsNotListed) {
  const auto fused = [](int above) {
    std::string text = "meta {\"batch_size\":8}\nphase load\nalloc w 100M\nname w parameter w\n";
    for (int i = 0; i < 2; ++i)
      text += Cat("phase forward\nalloc x 100M\nphase backward\nalloc g 100M\nfree x\nphase optimizer\nalloc t ",
                  100 + above, "M\nfree t\nstep AdamW\nphase zero_grad\nfree g\n");
    AdviceQuestion question;
    question.capacity = uint64_t{1} << 30;
    const auto a = Advise(Events(text), nullptr, question);
    EXPECT_EQ(a->baseline_peak, static_cast<uint64_t>(300 + above) << 20);
    return Find(*a, "OPTIMIZER_FUSED") != nullptr;
  };
  EXPECT_FALSE(fused(2));
  EXPECT_TRUE(fused(10));
}

// A workspace that passes with its operator is made for the batch; one that stays is not.
TEST(Advise, PassingWorkspacesGrowWithTheBatch) {
  const auto list = ReadTextEvents(Cat(R"(vramledger events 1
meta {"batch_size":10}
phase forward
alloc kept 50M flags=)",
                                       uint32_t{kFlagLibrary}, R"(
alloc x 100M
phase backward
alloc w 100M flags=)",
                                       uint32_t{kFlagLibrary}, R"(
free w
free x
phase optimizer
alloc m 1M
step SGD
)"));
  ASSERT_TRUE(list.ok()) << list.status();
  const auto a = Analyze(EventInput::FromList("test", *list));
  ASSERT_TRUE(a.ok());
  EXPECT_EQ(BatchModel::FromOne(a->timeline, 10).Peak(20), uint64_t{450} << 20);
}

TEST(Advise, TheSecondTraceMustBeOfTheSameModel) {
  AdviceQuestion question;
  question.capacity = uint64_t{1} << 30;
  const EventInput other = Events(
      R"(meta {"batch_size":8,"models":[{"name":"Net","class":"Other","parameters":[{"name":"w","numel":7,"element_bytes":4}]}]}
phase forward
alloc x 1M
)");
  const auto a = Advise(Input(4), &other, question);
  EXPECT_FALSE(a.ok());
  EXPECT_NE(std::string(a.status().message()).find("Other with 7 parameters"), std::string::npos);
}

TEST(Advise, HalfPrecisionOfOldCards) {
  const std::string text =
      R"(meta {"batch_size":8,"devices":[{"index":0,"name":"NAME","total_bytes":16000000000}],"models":[{"name":"Net","class":"Net","parameters":[{"name":"fc.weight","numel":1000,"element_bytes":4}],"layers":[{"name":"fc","class":"Linear","in_shape":[8,1000],"element_bytes":4}]}]}
phase forward
alloc x SIZE module=Net.fc
alloc z 100M module=Net.Loss
phase backward
free x
free z
)";
  AdviceQuestion question;
  question.capacity = uint64_t{1} << 30;
  const auto with = [&](const char* name, const char* size) {
    std::string t = text;
    ReplaceAll(&t, "NAME", name);
    ReplaceAll(&t, "SIZE", size);
    return *Advise(Events(t), nullptr, question);
  };
  EXPECT_NE(Find(with("h100-80gb", "100M"), "AMP_BF16"), nullptr);
  EXPECT_NE(Find(with("Tesla T4", "100M"), "AMP_FP16"), nullptr);
  EXPECT_EQ(Find(with("t4", "100M"), "AMP_BF16"), nullptr);
  EXPECT_EQ(Find(with("h100-80gb", "1M"), "AMP_BF16"), nullptr) << "what changes nothing is no advice";
}

TEST(Advise, WithoutABatchSizeItSaysSo) {
  const auto list = ReadTextEvents("vramledger events 1\nphase forward\nalloc a 1M\n");
  AdviceQuestion question;
  question.capacity = uint64_t{1} << 30;
  const auto a = Advise(EventInput::FromList("test", *list), nullptr, question);
  ASSERT_TRUE(a.ok());
  EXPECT_FALSE(a->notes.empty());
}

TEST(Advise, BatchesOfSeveralSizesGetNoAdviceOnTheBatch) {
  const auto list = ReadTextEvents(
      "vramledger events 1\nmeta {\"batch_size\": 64, \"batch_size_varies\": true}\nphase forward\nalloc a 1M\nphase "
      "backward\nfree a\nphase "
      "optimizer\nstep SGD\n");
  AdviceQuestion question;
  question.capacity = uint64_t{1} << 30;
  const auto a = Advise(EventInput::FromList("test", *list), nullptr, question);
  ASSERT_TRUE(a.ok());
  EXPECT_FALSE(a->batch.has_value());
  for (const Suggestion& s : a->suggestions) EXPECT_NE(s.id, "LARGEST_BATCH");
  EXPECT_TRUE(std::any_of(a->notes.begin(), a->notes.end(),
                          [](const std::string& n) { return n.find("several sizes") != std::string::npos; }));
}

TEST(Advise, JsonContract) {
  AdviceQuestion question;
  question.capacity = uint64_t{1} << 30;
  const nlohmann::ordered_json j = AdviceJson(*Advise(Input(4), nullptr, question));
  EXPECT_EQ(j["schema"], "vramledger.advise/1");
  for (const char* key : {"capacity_bytes", "headroom_share", "baseline_peak_bytes", "suggestions"})
    EXPECT_TRUE(j.contains(key)) << key;
  for (const auto& s : j["suggestions"]) {
    for (const char* key : {"id", "settings", "predicted_peak_bytes", "predicted_time_factor", "method", "verified"})
      EXPECT_TRUE(s.contains(key)) << key;
    EXPECT_TRUE(s["verified"].is_null());
  }
}

}  // namespace
}  // namespace vramledger
