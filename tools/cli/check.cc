// vramledger check: is this a possible history, and do its sums close?
#include <memory>

#include "tools/analysis/format_text.h"
#include "tools/analysis/report.h"
#include "tools/cli/load.h"
#include "tools/foreign/text.h"
#include "tracer/format/checker.h"

namespace vramledger::cli {

void RegisterCheck(CLI::App& app) {
  struct Options {
    std::string input;
    bool json = false;
  };
  const auto o = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("check", "Verify that a trace is a possible history of an allocator and that its sums close");
  command->add_option("TRACE", o->input, "a .vlt trace or a PyTorch memory snapshot")->required();
  command->add_flag("--json", o->json, "print JSON (schema vramledger.check/1)");
  command->footer("Example: vramledger check out/bert_b32.vlt\nExit code 1 when something is wrong with the history.");
  command->callback([o] {
    const Progress progress("checking " + o->input);
    const EventInput input = OpenOrFail(o->input);
    absl::StatusOr<std::unique_ptr<EventSource>> source = input.NewSource();
    RequireReadable(source.status());
    const CheckResult r = CheckEvents(**source);
    const SourceHealth& health = (*source)->health();
    if (o->json) {
      WriteJson("", {{"schema", "vramledger.check/1"},
                     {"source", o->input},
                     {"format", (*source)->format()},
                     {"events", r.events},
                     {"allocations", r.allocations},
                     {"live_at_end", r.live_at_end},
                     {"live_at_end_bytes", r.live_bytes_at_end},
                     {"counters_verified", r.counters_verified},
                     {"violations", r.violations},
                     {"sentences", r.sentences},
                     {"ended_early", health.ended_early},
                     {"lost_records", health.lost_records},
                     {"notes", health.notes}});
    } else {
      std::string text = !health.damage.empty() ? "Damaged; as far as it reads, " : "";
      text += r.violations != 0 ? Cat(Grouped(r.violations), " violations") : text.empty() ? "Sound" : "sound";
      text += Cat(": ", Grouped(r.events), " events, ", Grouped(r.allocations), " allocations, ",
                  Grouped(r.live_at_end), " blocks (", Grouped(r.live_bytes_at_end), " B) alive at the end, ",
                  Grouped(r.counters_verified), " recorded totals agree.\n");
      for (const std::string& s : r.sentences) text += Cat("  ", s, "\n");
      if (health.ended_early) text += Cat("  ", EarlyEndSentence(health), "\n");
      if (health.lost_records != 0) text += Cat("  ", Grouped(health.lost_records), " records were lost.\n");
      for (const std::string& note : health.notes) text += Cat("  Note: ", note, ".\n");
      Write("", text);
    }
    FailIfDamaged(health);
    if (r.violations != 0) throw Failure{kExitCheckFailed, Cat(o->input, ": ", r.violations, " violations")};
  });
}

}  // namespace vramledger::cli
