#include "tools/analysis/advise.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tools/analysis/batch_model.h"
#include "tools/analysis/reconcile.h"
#include "tools/analysis/timeline.h"
#include "tools/foreign/text.h"
#include "tools/foreign/text_events.h"

namespace vramledger {
namespace {

// Two blocks of a list, 10 MiB of weights, 1 MiB of input and 8 MiB of activations a sample and block.
EventInput Input(int batch) {
  const std::string layers =
      Cat(R"([{"name":"layer.0.fc","class":"Linear","in_shape":[)", batch, R"(,262144],"out_shape":[)", batch,
          R"(,262144],"element_bytes":4},)"
          R"({"name":"layer.1.fc","class":"Linear","in_shape":[)",
          batch, R"(,262144],"out_shape":[)", batch, R"(,262144],"element_bytes":4}])");
  const std::string text = Cat(
      "vramledger events 1\nmeta {\"batch_size\":", batch,
      R"(,"models":[{"name":"Net","class":"Net","parameters":[)"
      R"({"name":"layer.0.fc.weight","numel":2621440,"element_bytes":4,"trainable":true},{"name":"layer.1.fc.weight","numel":2621440,"element_bytes":4,"trainable":true}],)"
      R"("layers":)",
      layers,
      R"(}],"optimizers":[{"name":"AdamW#1","class":"AdamW","state_keys":["step","exp_avg","exp_avg_sq"],"param_count":5242880,"tensor_count":2}]})",
      R"(
phase load
alloc w0 10M
name w0 parameter Net.layer.0.fc.weight
alloc w1 10M
name w1 parameter Net.layer.1.fc.weight
phase data
alloc in )",
      batch, R"(M
repeat 2
phase forward
alloc a0 )",
      8 * batch, R"(M module=Net.layer.0.fc
alloc a1 )",
      8 * batch, R"(M module=Net.layer.1.fc
phase backward
alloc g1 10M
free a1
alloc g0 10M
free a0
name g0 gradient Net.layer.0.fc.weight.grad
name g1 gradient Net.layer.1.fc.weight.grad
phase optimizer
alloc m{i} 20M
alloc v{i} 20M
free m{i}
free v{i}
step AdamW#1
phase zero_grad
free g0
free g1
end
)");
  const auto list = ReadTextEvents(text);
  EXPECT_TRUE(list.ok()) << list.status();
  return EventInput::FromList("test", *list);
}

const Suggestion* Find(const Advice& a, const std::string& id) {
  for (const Suggestion& s : a.suggestions) {
    if (s.id == id) return &s;
  }
  return nullptr;
}

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

EventInput Events(const std::string& text) {
  const auto list = ReadTextEvents("vramledger events 1\n" + text);
  EXPECT_TRUE(list.ok()) << list.status();
  return EventInput::FromList("test", *list);
}

constexpr char kCard[] = R"("devices":[{"index":0,"name":"card","total_bytes":1073741824}])";

// A step of 100 MiB of weights and 10 MiB a sample, in segments that hold half as much again.
std::string Step(int batch) {
  return Cat("phase forward\nalloc x ", 10 * batch,
             "M in=a at=100M\nphase backward\nfree x\nphase optimizer\nstep SGD\n");
}
std::string Padded(int batch, const std::string& settings = "") {
  return Cat("meta {\"batch_size\":", batch, settings, ",", kCard, "}\nsegment a ", 100 + 10 * batch, "M\nsegment b ",
             (100 + 10 * batch) / 2, "M\nalloc small 512 in=b\nphase load\nalloc w 100M in=a\nname w parameter w\n",
             Step(batch), Step(batch));
}

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
  for (const Suggestion& s : a->suggestions) EXPECT_FALSE(s.fits) << s.id;
  question.capacity = uint64_t{24} << 30;
  const auto larger =
      Advise(Events(Cat("meta {\"batch_size\":8,", kCard, "}\nphase forward\nalloc x 900M\noom 300M 100M\n")), nullptr,
             question);
  EXPECT_FALSE(larger->baseline_fits);
  EXPECT_NE(AdviceText(*larger, false).find("is not known to fit"), std::string::npos);
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
  // In the second of two runs it counts as little as in the first.
  const EventInput two = Events(Padded(40) + refused + Step(40)), plain = Events(Padded(40) + Step(40));
  EXPECT_EQ(Find(*Advise(Events(Padded(20)), &two, question), "LARGEST_BATCH")->settings,
            Find(*Advise(Events(Padded(20)), &plain, question), "LARGEST_BATCH")->settings);
  // Nothing after it: it was the end.
  EXPECT_FALSE(Advise(Events(Padded(20) + refused), nullptr, question)->baseline_fits);
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

TEST(Reconcile, RowsAndDifferencesClose) {
  const auto r = Reconcile(Input(4), std::nullopt);
  ASSERT_TRUE(r.ok()) << r.status();
  const nlohmann::ordered_json j = ReconcileJson(*r);
  EXPECT_EQ(j["schema"], "vramledger.reconcile/1");
  EXPECT_EQ(j["unexplained_bytes"], 0);
  bool parameter = false, gradient = false;
  for (const auto& row : j["rows"]) {
    if (row["category"] == "parameter") {
      parameter = true;
      EXPECT_EQ(row["textbook_bytes"], 20971520);
      EXPECT_EQ(row["analytic_bytes"], 20971520);
      EXPECT_EQ(row["requested_bytes"], 20971520);
    }
    if (row["category"] == "gradient") {
      gradient = true;
      EXPECT_EQ(row["textbook_bytes"], 20971520);
      EXPECT_EQ(row["requested_bytes"], 20971520);
    }
    if (row["category"] == "optimizer_state") {
      EXPECT_EQ(row["textbook_bytes"], 2 * 20971520);
    }
    // The named differences lead from the textbook to the rounded bytes.
    if (row["textbook_bytes"].is_null()) continue;
    int64_t sum = row["textbook_bytes"].get<int64_t>();
    for (const auto& d : row["differences"]) sum += d["bytes"].get<int64_t>();
    EXPECT_EQ(sum, row["rounded_bytes"].get<int64_t>()) << row;
  }
  EXPECT_TRUE(parameter && gradient);
}

// A share of a textbook without activations would mislead.
TEST(Reconcile, NoShareWithoutTheActivations) {
  const auto r = Reconcile(Input(4), std::nullopt);
  ASSERT_TRUE(r.ok());
  const std::string text = ReconcileText(*r, false);
  EXPECT_EQ(text.find("of the textbook's"), std::string::npos) << text;
  EXPECT_NE(text.find("without activations"), std::string::npos);
  EXPECT_NE(text.find("Gradients are not part of it"), std::string::npos);
}

TEST(Reconcile, WithoutHooksItSaysSo) {
  const auto r =
      Reconcile(Events("meta {\"allocator\":{\"mode\":\"plugin\"}}\nphase forward\nalloc a 1M\n"), std::nullopt);
  ASSERT_TRUE(r.ok());
  EXPECT_NE(ReconcileText(*r, false).find("Recorded without hooks"), std::string::npos);
}

// (in + 2 pad - kernel) / stride + 1, for convolutions described in the metadata.
TEST(Reconcile, TextbookConvolutions) {
  const auto list = ReadTextEvents(
      "vramledger events 1\nmeta "
      "{\"batch_size\":2,\"models\":[{\"name\":\"Net\",\"class\":\"Net\",\"parameters\":[{\"name\":\"c.weight\","
      "\"numel\":9408,\"element_bytes\":4}],"
      "\"layers\":[{\"name\":\"c\",\"class\":\"Conv2d\",\"in_shape\":[2,3,224,224],\"out_shape\":[2,64,112,112],"
      "\"kernel\":[7,7],\"stride\":[2,2],\"padding\":[3,3],\"element_bytes\":4}]}]}\n"
      "phase forward\nalloc a 1M\n");
  ASSERT_TRUE(list.ok());
  const auto r = Reconcile(EventInput::FromList("test", *list), std::nullopt);
  ASSERT_TRUE(r.ok());
  for (const ReconcileRow& row : r->rows) {
    if (row.category != "activation") continue;
    EXPECT_EQ(row.textbook, 112u * 112 * 64 * 2 * 4);
    EXPECT_FALSE(row.analytic.has_value());
  }
}

}  // namespace
}  // namespace vramledger
