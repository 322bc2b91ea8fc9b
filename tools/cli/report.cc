// vramledger report: where the bytes are.
#include "tools/analysis/report.h"

#include <memory>

#include "tools/cli/load.h"

namespace vramledger::cli {

void RegisterReport(CLI::App& app) {
  struct Options {
    std::string input;
    int device = -1;
    size_t top = 8;
    bool json = false;
  };
  const auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "report", "Where the bytes are: ledger at the peak, per phase and category, fragmentation, verdicts");
  command->add_option("TRACE", o->input, "a .vlt trace or a PyTorch memory snapshot (.pickle, .pickle.gz)")->required();
  AddDeviceIndex(command, "--device", &o->device,
                 "a card is given to `vramledger dryrun` or `vramledger replay`, with their --device");
  command->add_option("--top", o->top, "rows of places and names (default 8, JSON 20)")->check(CLI::Range(1, 1000));
  command->add_flag("--json", o->json, "print JSON (schema vramledger.report/1)");
  command->footer("Example: vramledger report out/bert_b32.vlt");
  command->callback([o, command] {
    const Analysis analysis = AnalyzeOrFail(o->input, o->device);
    if (o->json) {
      WriteJson("", ReportJson(analysis, command->count("--top") != 0 ? o->top : 20));
    } else {
      ReportTextOptions options;
      options.color = UseColor();
      options.top = o->top;
      Write("", ReportText(analysis, options));
    }
    FailIfDamaged(analysis.source.health);
  });
}

}  // namespace vramledger::cli
