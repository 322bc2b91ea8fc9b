// Text in, report out: every tests/golden/NAME.events against NAME.report.txt, and NAME.reconcile.txt, NAME.modules.txt
// (reconcile --by module) or NAME.advise.txt where there is one. VRAMLEDGER_UPDATE_GOLDEN=1 writes the expected files anew; read the difference
// before committing it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tools/analysis/advise.h"
#include "tools/analysis/reconcile.h"
#include "tools/analysis/report.h"
#include "tools/analysis/timeline.h"

namespace vramledger {
namespace {

namespace fs = std::filesystem;

void Compare(const fs::path& expected, const std::string& text) {
  if (std::getenv("VRAMLEDGER_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(expected, std::ios::binary) << text;
    return;
  }
  std::ostringstream want;
  want << std::ifstream(expected, std::ios::binary).rdbuf();
  EXPECT_EQ(text, want.str()) << expected;
}

TEST(Golden, Reports) {
  int files = 0;
  for (const auto& entry : fs::directory_iterator(VRAMLEDGER_GOLDEN)) {
    if (entry.path().extension() != ".events") continue;
    ++files;
    const auto input = EventInput::Open(entry.path().string());
    ASSERT_TRUE(input.ok()) << input.status();
    const auto analysis = Analyze(*input);
    ASSERT_TRUE(analysis.ok());
    fs::path expected = entry.path();
    Compare(expected.replace_extension(".report.txt"), ReportText(*analysis));
    expected = entry.path();
    if (fs::exists(expected.replace_extension(".reconcile.txt"))) {
      const auto r = Reconcile(*input, std::nullopt);
      ASSERT_TRUE(r.ok());
      Compare(expected, ReconcileText(*r, false));
    }
    expected = entry.path();
    if (fs::exists(expected.replace_extension(".modules.txt"))) {
      const auto r = Reconcile(*input, std::nullopt, 0);
      ASSERT_TRUE(r.ok());
      Compare(expected, ByModuleText(*r->by_module, 4));
    }
    expected = entry.path();
    if (fs::exists(expected.replace_extension(".advise.txt"))) {
      AdviceQuestion question;
      question.capacity = uint64_t{24} << 30;
      const auto a = Advise(*input, nullptr, question);
      ASSERT_TRUE(a.ok()) << a.status();
      Compare(expected, AdviceText(*a, false));
    }
  }
  EXPECT_GE(files, 3);
}

}  // namespace
}  // namespace vramledger
