// What is offered must gain something: predictions that verdicts and advice share.
#include "tools/analysis/predictions.h"

#include <gtest/gtest.h>

#include "tools/analysis/advise.h"
#include "tools/analysis/report.h"
#include "tools/analysis/timeline.h"
#include "tools/analysis/verdicts.h"
#include "tools/foreign/text.h"
#include "tools/foreign/text_events.h"

namespace vramledger {
namespace {

EventInput Input(const std::string& text) {
  const auto list = ReadTextEvents(Cat("vramledger events 1\n", text));
  EXPECT_TRUE(list.ok()) << list.status();
  return EventInput::FromList("test", *list);
}

// Two steps whose optimizer has 100 MiB of temporaries beside 100 MiB of parameters; backward reaches `backward` MiB.
std::string Steps(int backward) {
  return Cat(R"(meta {"batch_size":1,"optimizers":[{"name":"AdamW#1","class":"AdamW"}]}
phase load
alloc p 100M
name p parameter w
repeat 2
phase forward
alloc x )",
             backward - 200, R"(M
phase backward
alloc g 100M
name g gradient w.grad
free x
phase optimizer
alloc t 100M
free t
step AdamW#1
phase zero_grad
free g
end
)");
}

Verdict OptimizerVerdict(const std::string& text) {
  const auto analysis = Analyze(Input(text));
  EXPECT_TRUE(analysis.ok()) << analysis.status();
  for (const Verdict& v : Judge(*analysis)) {
    if (v.id == "PEAK_OPTIM") return v;
  }
  ADD_FAILURE() << "no PEAK_OPTIM";
  return {};
}

TEST(Predictions, WhatLowersThePeakIsOfferedWithWhatItBecomes) {
  const Verdict v = OptimizerVerdict(Steps(250));
  EXPECT_EQ(v.evidence["peak_bytes"], 300 << 20);
  EXPECT_EQ(v.evidence["peak_without_bytes"], 250 << 20);
  EXPECT_NE(v.suggestion.find("fused=True: the peak becomes about 250.0 MiB, then set by backward"), std::string::npos)
      << v.suggestion;
}

TEST(Predictions, ASettingThatChangesNothingIsNoSuggestion) {
  for (const int backward : {298, 299}) {  // by less than a hundredth of 300
    const auto analysis = Analyze(Input(Steps(backward)));
    ASSERT_TRUE(analysis.ok());
    ASSERT_EQ(analysis->timeline.peak.phase, Phase::kOptimizer);
    const Verdict v = OptimizerVerdict(Steps(backward));
    EXPECT_FALSE(v.evidence.contains("peak_without_bytes")) << v.evidence.dump();
    EXPECT_FALSE(v.evidence.contains("peak_foreach_off_bytes")) << v.evidence.dump();
    EXPECT_EQ(v.suggestion, Cat("The optimizer's own settings do not lower the peak: backward comes to ", backward,
                                ".0 MiB too; look for what goes away in both."));
    AdviceQuestion question;
    question.capacity = uint64_t{1} << 30;
    const auto advice = Advise(Input(Steps(backward)), nullptr, question);
    ASSERT_TRUE(advice.ok()) << advice.status();
    for (const Suggestion& s : advice->suggestions) EXPECT_EQ(s.id.find("OPTIMIZER"), std::string::npos) << s.id;
  }
}

}  // namespace
}  // namespace vramledger
