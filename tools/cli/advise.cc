// vramledger advise: settings that fit a card.
#include "tools/analysis/advise.h"

#include <memory>

#include "tools/cli/load.h"

namespace vramledger::cli {

void RegisterAdvise(CLI::App& app) {
  struct Options {
    std::string input, second, capacity;
    double headroom = 0.05;
    int device = -1;
    bool json = false;
  };
  const auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("advise", "Settings that fit a card, each with predicted peak and price");
  command->add_option("TRACE", o->input, "a .vlt trace")->required();
  command->add_option(
      "--second", o->second,
      "a trace of the same script at another batch size: the peak becomes a measured line a + b x batch");
  command->add_option("--capacity", o->capacity, "memory of the card: 24GiB, 80GB or a number of bytes")->required();
  command->add_option("--headroom", o->headroom, "share of the capacity to leave free (default 0.05)")
      ->check(CLI::Range(0.0, 0.9));
  AddDeviceIndex(command, "--device", &o->device, "the card to advise for is given by its memory, as --capacity 24GiB");
  command->add_flag("--json", o->json, "print JSON (schema vramledger.advise/1)");
  command->footer("Example: vramledger advise out/bert_b32.vlt --second out/bert_b64.vlt --capacity 24GiB");
  command->callback([o] {
    const Progress progress("reading " + o->input);
    AdviceQuestion question;
    question.capacity = ParseCapacity(o->capacity);
    question.headroom_share = o->headroom;
    if (o->device >= 0) question.device = o->device;
    const EventInput input = OpenOrFail(o->input);
    std::unique_ptr<EventInput> second;
    if (!o->second.empty()) second = std::make_unique<EventInput>(OpenOrFail(o->second));
    const absl::StatusOr<Advice> advice = Advise(input, second.get(), question);
    if (!advice.ok()) throw Failure{kExitUsage, std::string(advice.status().message())};
    if (o->json) {
      WriteJson("", AdviceJson(*advice));
    } else {
      Write("", AdviceText(*advice, UseColor()));
    }
    FailIfDamaged(advice->analysis.source.health);
  });
}

}  // namespace vramledger::cli
