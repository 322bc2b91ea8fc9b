// Hand-made histories as the verdicts see them.
#ifndef VRAMLEDGER_TESTS_TOOLS_VERDICT_HISTORIES_H_
#define VRAMLEDGER_TESTS_TOOLS_VERDICT_HISTORIES_H_

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tools/analysis/report.h"
#include "tools/analysis/timeline.h"
#include "tools/analysis/verdicts.h"
#include "tools/foreign/text_events.h"

namespace vramledger {

inline Analysis Replay(const std::string& text) {
  const auto list = ReadTextEvents(std::string("vramledger events 1\n") + text);
  EXPECT_TRUE(list.ok()) << list.status();
  auto analysis = Analyze(EventInput::FromList("test", *list));
  EXPECT_TRUE(analysis.ok()) << analysis.status();
  return *std::move(analysis);
}

// The verdicts, by name; each says all that a verdict has to.
inline std::string Ids(const std::string& text) {
  std::string ids;
  for (const Verdict& v : Judge(Replay(text))) {
    if (!ids.empty()) ids.push_back(' ');
    ids += v.id;
    EXPECT_FALSE(v.sentence.empty());
    EXPECT_FALSE(v.suggestion.empty());
    EXPECT_FALSE(v.price.empty());
    EXPECT_FALSE(v.evidence.empty());
  }
  return ids;
}

}  // namespace vramledger

#endif  // VRAMLEDGER_TESTS_TOOLS_VERDICT_HISTORIES_H_
