// vramledger reconcile: what the formulas say beside what was traced.
#include "tools/analysis/reconcile.h"

#include <memory>

#include "tools/cli/load.h"

namespace vramledger::cli {

void RegisterReconcile(CLI::App& app) {
  struct Options {
    std::string input;
    int device = -1;
    bool json = false;
    std::string by;
    size_t depth = 0;
    bool layers = false;
  };
  const auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "reconcile", "Textbook, analytic, requested, rounded and reserved bytes, and each difference by name");
  command->add_option("TRACE", o->input, "a .vlt trace or a PyTorch memory snapshot")->required();
  AddDeviceIndex(command, "--device", &o->device,
                 "a card is given to `vramledger dryrun` or `vramledger replay`, with their --device");
  CLI::Option* by =
      command->add_option("--by", o->by, "module: with a table by module (also of what backward made for it)")
          ->check(CLI::IsMember({"module"}));
  command->add_option("--depth", o->depth, "components of the module paths to tell apart (default: all)")
      ->needs(by)
      ->check(CLI::Range(1, 100));
  command->add_flag("--json", o->json, "print JSON (schema vramledger.reconcile/1)");
  command->add_flag("--layers", o->layers,
                    "with a table of layers: output size by the formula, textbook, analytic and traced bytes");
  command->footer("Example: vramledger reconcile out/bert_b32.vlt --by module --depth 5");
  command->callback([o] {
    const Progress progress("reading " + o->input);
    const EventInput input = OpenOrFail(o->input);
    const absl::StatusOr<Reconciliation> r =
        Reconcile(input, o->device < 0 ? std::nullopt : std::optional<int>(o->device),
                  o->by.empty() ? std::nullopt : std::optional<size_t>(o->depth));
    if (!r.ok()) FailAnalysis(o->input, r.status());
    if (o->json) {
      WriteJson("", ReconcileJson(*r, o->layers));
    } else {
      Write("", ReconcileText(*r, UseColor(), o->layers));
    }
    FailIfDamaged(r->analysis.source.health);
  });
}

}  // namespace vramledger::cli
