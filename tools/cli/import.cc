// vramledger import: other tools' recordings as a trace.
#include <memory>

#include "tools/analysis/format_text.h"
#include "tools/cli/load.h"
#include "tools/foreign/event_writer.h"
#include "tools/foreign/text.h"

namespace vramledger::cli {

void RegisterImport(CLI::App& app) {
  struct Options {
    std::string input, output;
    bool json = false;
  };
  const auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("import", "Turn a PyTorch memory snapshot into a trace");
  command->add_option("SNAPSHOT", o->input, "a PyTorch memory snapshot (.pickle or .pickle.gz, any year since 2023)")
      ->required();
  command->add_option("-o,--out", o->output, "the trace to write")->required();
  command->add_flag("--json", o->json, "print JSON (schema vramledger.import/1)");
  command->footer(
      "Example: vramledger import snapshot.pickle -o snapshot.vlt\nThe pickle is read as data; nothing in it is "
      "executed.");
  command->callback([o] {
    const Progress progress("importing " + o->input);
    const EventInput input = OpenOrFail(o->input);
    OutputFile file(o->input, o->output);
    absl::StatusOr<std::unique_ptr<EventSource>> probe = input.NewSource();
    absl::StatusOr<std::unique_ptr<EventSource>> source = input.NewSource();
    RequireReadable(probe.status());
    RequireReadable(source.status());
    const absl::StatusOr<WrittenTrace> written = WriteTrace(**probe, **source, file.working_path());
    if (!written.ok()) {
      std::string sentence(written.status().message());
      ReplaceAll(&sentence, file.working_path(), o->output);
      throw Failure{kExitUnreadable, sentence};
    }
    file.Done();
    const SourceHealth& health = (*source)->health();
    if (o->json) {
      return WriteJson("", {{"schema", "vramledger.import/1"},
                            {"source", o->input},
                            {"format", (*source)->format()},
                            {"trace", o->output},
                            {"records", written->records},
                            {"addresses_moved", written->addresses_moved},
                            {"notes", health.notes}});
    }
    std::string text = Cat("Wrote ", o->output, ": ", Grouped(written->records), " records from the ",
                           (*source)->format(), " ", o->input, ".\n");
    if (written->addresses_moved)
      text += "  Note: its addresses are no multiples of 16 B; they were moved apart, in the same order.\n";
    for (const std::string& note : health.notes) text += Cat("  Note: ", note, ".\n");
    Write("", text);
  });
}

}  // namespace vramledger::cli
