// The report of one trace: as JSON (schema vramledger.report/1) and as text that begins with the verdict.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_REPORT_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_REPORT_H_

#include <string>

#include "nlohmann/json.hpp"
#include "tools/analysis/ledger.h"

namespace vramledger {

struct ReportTextOptions {
  bool color = false;
  size_t top = 8;  // rows of modules, names and groups
};

nlohmann::ordered_json ReportJson(const Analysis& analysis, size_t top = 20);
std::string ReportText(const Analysis& analysis, const ReportTextOptions& options = {});

// Why a trace that ends early does so: damage to the file, or a program that did not come to its end.
std::string EarlyEndSentence(const SourceHealth& health);
// Empty if no record was lost. Why they were lost, the notes say.
std::string LossSentence(const SourceHealth& health);

// Parts of JSON that other commands print too.
nlohmann::ordered_json SourceJson(const Analysis& analysis);
nlohmann::ordered_json DeviceJson(const Analysis& analysis);
nlohmann::ordered_json LossJson(const Analysis& analysis);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_REPORT_H_
