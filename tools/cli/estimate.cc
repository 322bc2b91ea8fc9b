// vramledger estimate: memory from a model's description, with no trace and no GPU.
#include <memory>

#include "tools/analysis/format_text.h"
#include "tools/analysis/text_table.h"
#include "tools/cli/command.h"
#include "tools/cli/output.h"
#include "tools/estimate/memory_estimate.h"
#include "tools/foreign/text.h"

namespace vramledger::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::pair<const char*, uint64_t> kTypes[] = {{"float32", 4}, {"bfloat16", 2}, {"float16", 2}, {"float64", 8}};

Json OrNull(const std::optional<uint64_t>& n) {
  return n ? Json(*n) : Json(nullptr);
}

Json ColumnJson(const EstimateColumn& c) {
  return {{"parameter", OrNull(c.parameter)},
          {"buffer", OrNull(c.buffer)},
          {"gradient", OrNull(c.gradient)},
          {"optimizer_state", OrNull(c.optimizer_state)},
          {"activation", OrNull(c.activation)}};
}

std::string Text(const ModelConfig& model, const MemoryEstimate& e, const EstimateSettings& s) {
  std::string out = e.peak ? Cat("A training step of ", model.name, " (batch ", s.batch, ", sequence ", s.sequence,
                                 ") peaks at about ", HumanBytes(*e.peak), ", between ", HumanBytes(*e.low), " and ",
                                 HumanBytes(*e.high), ".\n")
                           : Cat("The peak of ", model.name, " is not known by this method; its parameters are.\n");
  out += Cat("\n", Grouped(e.parameters), " parameters\n");
  TextTable table;
  table.Row({"category", "textbook B", "analytic B"});
  const auto row = [&](const char* name, const std::optional<uint64_t>& a, const std::optional<uint64_t>& b) {
    table.Row({name, a ? Grouped(*a) : "-", b ? Grouped(*b) : "-"});
  };
  row("parameter", e.textbook.parameter, e.analytic.parameter);
  row("gradient", e.textbook.gradient, e.analytic.gradient);
  row("optimizer_state", e.textbook.optimizer_state, e.analytic.optimizer_state);
  row("activation", e.textbook.activation, e.analytic.activation);
  out += table.Text();
  out += "\nAssumed\n";
  for (const std::string& a : e.assumptions) out += Cat("  - ", a, "\n");
  return out;
}

}  // namespace

void RegisterEstimate(CLI::App& app) {
  struct Options {
    std::string model, optimizer = "adamw", type = "float32";
    EstimateSettings settings;
    bool json = false;
  };
  const auto o = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("estimate", "Textbook and analytic memory of a training step, from a model's description");
  command->add_option("MODEL", o->model, "a config.json (Hugging Face style), or torchvision:NAME")->required();
  command->add_option("--batch", o->settings.batch, "samples in a step (default 1)")->check(CLI::Range(1, 1 << 24));
  command->add_option("--sequence", o->settings.sequence, "tokens in a sample (default 128)")
      ->check(CLI::Range(1, 1 << 24));
  command->add_option("--optimizer", o->optimizer, "adamw, adam, sgd, momentum or none (default adamw)")
      ->check(CLI::IsMember({"adamw", "adam", "sgd", "momentum", "none"}));
  command->add_option("--dtype", o->type, "float32, bfloat16, float16 or float64 (default float32)")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16", "float64"}));
  command->add_flag("--json", o->json, "print JSON (schema vramledger.estimate/1)");
  command->footer("Example: vramledger estimate config.json --batch 32 --sequence 128 --optimizer adamw");
  command->callback([o] {
    const absl::StatusOr<ModelConfig> model = LoadModelConfig(o->model);
    RequireReadable(model.status());
    o->settings.optimizer = *OptimizerFromName(o->optimizer);
    for (const auto& [name, bytes] : kTypes) {
      if (o->type == name) o->settings.element_bytes = bytes;
    }
    const MemoryEstimate e = EstimateMemory(*model, o->settings);
    if (!o->json) return Write("", Text(*model, e, o->settings));
    WriteJson("", {{"schema", "vramledger.estimate/1"},
                   {"model", model->name},
                   {"type", model->type},
                   {"batch", o->settings.batch},
                   {"sequence", o->settings.sequence},
                   {"optimizer", o->optimizer},
                   {"dtype", o->type},
                   {"parameters", e.parameters},
                   {"textbook", ColumnJson(e.textbook)},
                   {"analytic", ColumnJson(e.analytic)},
                   {"peak_bytes", OrNull(e.peak)},
                   {"low_bytes", OrNull(e.low)},
                   {"high_bytes", OrNull(e.high)},
                   {"assumptions", e.assumptions}});
  });
}

}  // namespace vramledger::cli
