// vramledger estimate: memory from a model's description, with no trace and no GPU.
#include <map>
#include <memory>

#include "tools/analysis/format_text.h"
#include "tools/analysis/text_table.h"
#include "tools/cli/command.h"
#include "tools/cli/output.h"
#include "tools/estimate/memory_estimate.h"
#include "tools/estimate/model_source.h"
#include "tools/foreign/text.h"

namespace vramledger::cli {
namespace {

using Json = nlohmann::ordered_json;

const std::map<std::string, Precision> kPrecisions = {
    {"fp32", Precision::kFloat32},
    {"fp64", Precision::kFloat64},
    {"bf16", Precision::kBfloat16},
    {"fp16", Precision::kFloat16},
    {"amp-bf16", Precision::kAutocastBfloat16},
    {"amp-fp16", Precision::kAutocastFloat16},
};
// What --dtype takes: names as PyTorch writes them.
const std::map<std::string, std::string> kDtypes = {
    {"float32", "fp32"}, {"float64", "fp64"}, {"bfloat16", "bf16"}, {"float16", "fp16"}};
const std::map<std::string, AttentionKernel> kAttention = {{"eager", AttentionKernel::kEager},
                                                           {"math", AttentionKernel::kMath},
                                                           {"flash", AttentionKernel::kFlash},
                                                           {"memory-efficient", AttentionKernel::kMemoryEfficient},
                                                           {"cudnn", AttentionKernel::kCudnn}};
const std::map<std::string, OptimizerLoop> kLoops = {
    {"foreach", OptimizerLoop::kForeach}, {"fused", OptimizerLoop::kFused}, {"single", OptimizerLoop::kSingle}};
// Of --outputs.
const std::map<std::string, bool> kOutputs = {{"kept", true}, {"dropped", false}};
const std::map<std::string, uint64_t> kGradients = {{"fp32", 4}, {"bf16", 2}, {"fp16", 2}};

struct Options {
  std::string model, optimizer = "adamw", precision = "fp32", attention = "auto", loop = "foreach", checkpoint = "none",
                     gradient, kernels = "pytorch", capability = "9.0", cublas, dtype, buckets = "copy", outputs;
  EstimateSettings settings;
  bool json = false, deployment = false;
};

template <typename T>
std::vector<std::string> Names(const std::map<std::string, T>& table) {
  std::vector<std::string> out;
  for (const auto& [name, value] : table) out.push_back(name);
  return out;
}

struct NamedPart {
  const char* name;
  std::optional<uint64_t> EstimateColumn::*part;
};
constexpr NamedPart kParts[] = {
    {"parameter", &EstimateColumn::parameter},         {"buffer", &EstimateColumn::buffer},
    {"gradient", &EstimateColumn::gradient},           {"optimizer_state", &EstimateColumn::optimizer_state},
    {"activation", &EstimateColumn::activation},       {"input", &EstimateColumn::input},
    {"temporary", &EstimateColumn::temporary},         {"workspace", &EstimateColumn::workspace},
    {"communication", &EstimateColumn::communication}, {"cast_cache", &EstimateColumn::cast_cache},
};

Json OrNull(const std::optional<uint64_t>& n) {
  return n ? Json(*n) : Json(nullptr);
}

Json ColumnJson(const EstimateColumn& c) {
  Json out;
  for (const NamedPart& p : kParts) out[p.name] = OrNull(c.*p.part);
  return out;
}

// Recorded operators have the batch that they were recorded with.
std::optional<uint64_t> BatchOf(const ModelSource& model, const EstimateSettings& s) {
  return model.config ? s.batch : model.graph_batch;
}

std::string ShapeText(const ModelSource& model, const EstimateSettings& s) {
  const std::optional<uint64_t> batch = BatchOf(model, s);
  const std::optional<uint64_t> sequence = model.has_sequence() ? s.sequence : model.graph_sequence;
  if (!batch && !sequence) return "";
  return Cat(" (", batch ? Cat("batch ", *batch) : "", batch && sequence ? ", " : "",
             sequence ? Cat("sequence ", *sequence) : "", ")");
}

Json EstimateJson(const ModelSource& model, const MemoryEstimate& e, const Options& o) {
  Json phases = Json::array();
  for (const PhasePeak& p : e.phases)
    phases.push_back(
        {{"phase", p.phase}, {"peak_bytes", p.bytes}, {"at", p.at}, {"categories", ColumnJson(p.categories)}});
  const DeploymentSizes& d = e.deployment;
  return {{"schema", "vramledger.estimate/1"},
          {"model", model.name()},
          {"type", model.type()},
          {"batch", OrNull(BatchOf(model, o.settings))},
          {"sequence", OrNull(model.config ? o.settings.sequence : model.graph_sequence)},
          {"optimizer", o.optimizer},
          {"dtype", std::string(ParameterType(o.settings.precision))},
          {"precision", o.precision},
          {"parameters", e.parameters},
          {"rank_parameters", e.rank_parameters},
          {"textbook", ColumnJson(e.textbook)},
          {"analytic", ColumnJson(e.analytic)},
          {"phases", phases},
          {"peak_bytes", OrNull(e.peak)},
          {"low_bytes", OrNull(e.low)},
          {"high_bytes", OrNull(e.high)},
          {"paged_bytes", e.paged},
          {"deployment",
           {{"weights_fp16_bytes", d.weights_fp16},
            {"weights_int8_bytes", d.weights_int8},
            {"arena_fp16_bytes", d.arena_fp16},
            {"arena_int8_bytes", d.arena_int8},
            {"kv_cache_fp16_bytes", d.kv_cache_fp16}}},
          {"assumptions", e.assumptions}};
}

std::string DeploymentText(const ModelSource& model, const MemoryEstimate& e, const Options& o) {
  const DeploymentSizes& d = e.deployment;
  std::string out = Cat("An engine for ", model.name(), ShapeText(model, o.settings), " needs at least ",
                        HumanBytes(d.weights_fp16 + d.arena_fp16 + d.kv_cache_fp16), " in fp16 and ",
                        HumanBytes(d.weights_int8 + d.arena_int8 + d.kv_cache_fp16), " in int8.\n\n");
  TextTable table;
  table.Row({"part", "fp16 B", "int8 B"});
  table.Row({"weights", Grouped(d.weights_fp16), Grouped(d.weights_int8)});
  table.Row({"activation arena", Grouped(d.arena_fp16), Grouped(d.arena_int8)});
  if (d.kv_cache_fp16 != 0)
    table.Row({"keys and values of the sequence", Grouped(d.kv_cache_fp16), Grouped(d.kv_cache_fp16)});
  return out + table.Text() +
         "\nThe arena is what of the activations lives at once at most, each operator by itself; an engine that fuses\n"
         "operators needs less of it, its tactics' workspaces come on top. int8 weights have one fp32 scale an output "
         "row.\n";
}

std::string Text(const ModelSource& model, const MemoryEstimate& e, const Options& o) {
  const EstimateSettings& s = o.settings;
  const bool trains = s.optimizer != OptimizerKind::kNone;
  std::string out = Cat(trains ? "A training step of " : "A forward of ", model.name(), ShapeText(model, s),
                        " peaks at about ", HumanBytes(e.peak.value_or(0)), ", between ", HumanBytes(e.low.value_or(0)),
                        " and ", HumanBytes(e.high.value_or(0)));
  const PhasePeak* highest = nullptr;
  for (const PhasePeak& p : e.phases) {
    if (highest == nullptr || p.bytes > highest->bytes) highest = &p;
  }
  if (highest != nullptr) out += Cat(", in ", highest->phase, " (", highest->at, ")");
  out += Cat(".\n\n", Grouped(e.parameters), " parameters");
  if (e.rank_parameters != e.parameters) out += Cat(", ", Grouped(e.rank_parameters), " of them on this rank");
  out += "\n\nEach category at its own peak, and at the peak of each phase, in bytes\n";
  TextTable table;
  std::vector<std::string> head = {"category", "textbook", "analytic"};
  for (const PhasePeak& p : e.phases) head.push_back(p.phase);
  table.Row(head);
  for (const NamedPart& part : kParts) {
    const auto cell = [&](const EstimateColumn& c) {
      return c.*part.part ? Grouped(*(c.*part.part)) : std::string("-");
    };
    std::vector<std::string> row = {part.name, cell(e.textbook), cell(e.analytic)};
    for (const PhasePeak& p : e.phases) row.push_back(cell(p.categories));
    table.Row(row);
  }
  std::vector<std::string> sum = {"= in use", "", ""};
  for (const PhasePeak& p : e.phases) sum.push_back(Grouped(p.bytes));
  table.Row(sum);
  out += table.Text();
  if (e.paged != 0) out += Cat("\nPaged optimizer state outside the allocator: ", Grouped(e.paged), " B\n");
  out += "\nAssumed\n";
  for (const std::string& a : e.assumptions) out += Cat("  - ", a, "\n");
  return out;
}

void AddOptions(CLI::App* command, Options* o) {
  const auto count = CLI::Range(uint64_t{1}, uint64_t{1} << 24);
  EstimateSettings* s = &o->settings;
  Parallelism* p = &s->parallel;
  command
      ->add_option("MODEL", o->model,
                   "a config.json (Hugging Face style), torchvision:NAME, an ONNX file, or recorded operators")
      ->required();
  command->add_option("--batch", s->batch, "samples in a micro-batch of one rank (default 1)")->check(count);
  command->add_option("--sequence", s->sequence, "tokens in a sample (default 128)")->check(count);
  command->add_option("--decoder-sequence", s->decoder_sequence, "of an encoder-decoder model (default: as --sequence)")
      ->check(count);
  command->add_option("--micro-batches", s->micro_batches, "micro-batches a step: accumulated, or through the pipeline")
      ->check(count);
  command->add_option("--optimizer", o->optimizer, Cat("default adamw; ", CLI::detail::join(OptimizerNames(), ", ")));
  command->add_option("--optimizer-loop", o->loop, "foreach, fused or single (default foreach)")
      ->check(CLI::IsMember(Names(kLoops)));
  command
      ->add_option("--outputs", o->outputs,
                   "kept: the program holds the model's outputs until the next step's replace them; dropped: "
                   "it gives them up before the backward (default kept, with --kernels of Megatron-LM dropped)")
      ->check(CLI::IsMember(Names(kOutputs)));
  command->add_flag("--weight-decay", s->weight_decay, "decay added to the gradient, as SGD and RMSprop do it");
  command->add_option("--precision", o->precision, "fp32, bf16, fp16, amp-bf16, amp-fp16 or fp64 (default fp32)")
      ->check(CLI::IsMember(Names(kPrecisions)));
  command->add_option("--dtype", o->dtype, "the same in PyTorch's names")->check(CLI::IsMember(Names(kDtypes)));
  command->add_flag("--master-weights", s->master_weights, "float32 copies of 16-bit parameters for the optimizer");
  command->add_option("--gradient-dtype", o->gradient, "fp32, bf16 or fp16 (default: as the parameters)")
      ->check(CLI::IsMember(Names(kGradients)));
  command->add_option("--attention", o->attention, "auto, eager, math, flash, memory-efficient or cudnn (default auto)")
      ->check(CLI::IsMember([] {
        std::vector<std::string> names = Names(kAttention);
        names.push_back("auto");
        return names;
      }()));
  command->add_option("--checkpoint", o->checkpoint, "none, all, every:K, sqrt or selective (default none)");
  command
      ->add_option("--kernels", o->kernels,
                   "pytorch, megatron or transformer-engine: whose layers run, the latter two in Megatron-LM")
      ->check(CLI::IsMember({"pytorch", "megatron", "transformer-engine"}));
  command->add_option("--cublas-workspace", o->cublas, "CUBLAS_WORKSPACE_CONFIG, as :4096:8 (default: PyTorch's)");
  command->add_option("--capability", o->capability, "of the device, for cuBLAS's workspace (default 9.0)");
  command->add_option("--data-parallel", p->data, "ranks that share the batch")->check(count);
  command->add_option("--zero", p->zero, "ZeRO stage over the data ranks: 1, 2 or 3")->check(CLI::Range(0, 3));
  command->add_flag("--fsdp", p->fsdp, "PyTorch's fully sharded data parallel");
  command->add_option("--ddp-buckets", o->buckets, "copy, or view: gradients lie in the buckets (default copy)")
      ->check(CLI::IsMember({"copy", "view"}));
  command->add_option("--tensor-parallel", p->tensor, "ranks that share each layer")->check(count);
  command->add_flag("--sequence-parallel", p->sequence, "norms and dropout on a share of the sequence");
  command->add_option("--context-parallel", p->context, "ranks that share the sequence")->check(count);
  command->add_option("--pipeline-parallel", p->pipeline, "stages")->check(count);
  command->add_option("--pipeline-stage", p->stage, "the stage to answer for, from 0 (default 0)");
  command->add_option("--virtual-stages", p->virtual_stages, "model chunks of a rank (interleaved 1F1B)")->check(count);
  command->add_option("--virtual-group", p->warmup_group, "micro-batches a chunk takes at once (default: the stages)")
      ->check(count);
  command->add_option("--first-stage-layers", p->first_layers, "where the first stage differs")->check(count);
  command->add_option("--last-stage-layers", p->last_layers, "where the last stage differs")->check(count);
  command->add_option("--expert-parallel", p->expert, "ranks that share the experts")->check(count);
  command->add_option("--expert-tensor-parallel", p->expert_tensor,
                      "ranks that share each expert (default: as tensor)");
  command->add_flag("--deployment", o->deployment, "what an inference engine needs at least, in fp16 and int8");
  command->add_flag("--json", o->json, "print JSON (schema vramledger.estimate/1)");
  command->footer(
      "Example: vramledger estimate config.json --batch 32 --sequence 128 --optimizer adamw --precision amp-bf16");
}

void Wrong(std::string sentence) {
  throw Failure{kExitUsage, std::move(sentence)};
}

void Interpret(Options* o) {
  EstimateSettings& s = o->settings;
  const std::optional<OptimizerKind> optimizer = OptimizerFromName(o->optimizer);
  if (!optimizer) Wrong(Cat("--optimizer ", o->optimizer, " is not known; see --help for the names"));
  s.optimizer = *optimizer;
  if (!o->dtype.empty()) o->precision = kDtypes.at(o->dtype);
  s.precision = kPrecisions.at(o->precision);
  s.loop = kLoops.at(o->loop);
  if (!o->outputs.empty()) s.keeps_outputs = kOutputs.at(o->outputs);
  if (o->attention != "auto") s.attention = kAttention.at(o->attention);
  if (!o->gradient.empty()) s.gradient_bytes = kGradients.at(o->gradient);
  s.kernels = o->kernels == "megatron"             ? KernelSet::kMegatron
              : o->kernels == "transformer-engine" ? KernelSet::kTransformerEngine
                                                   : KernelSet::kPytorch;
  if (!o->cublas.empty()) {
    s.cublas_workspace = ParseCublasWorkspace(o->cublas);
    if (!s.cublas_workspace) Wrong(Cat("--cublas-workspace ", o->cublas, " is no setting such as :4096:8"));
  }
  s.parallel.buckets = o->buckets == "copy";
  constexpr std::string_view kEvery = "every:";
  const std::string_view checkpoint = o->checkpoint;
  if (checkpoint.starts_with(kEvery)) {
    s.checkpointing = Checkpointing::kEvery;
    if (!ParseInteger(checkpoint.substr(kEvery.size()), &s.checkpoint_every) || s.checkpoint_every == 0)
      Wrong(Cat("--checkpoint ", checkpoint, ": a number of layers from 1 on must follow every:"));
  } else if (checkpoint == "all") {
    s.checkpointing = Checkpointing::kAll;
  } else if (checkpoint == "sqrt") {
    s.checkpointing = Checkpointing::kSqrt;
  } else if (checkpoint == "selective") {
    s.checkpointing = Checkpointing::kSelective;
  } else if (checkpoint != "none") {
    Wrong(Cat("--checkpoint ", checkpoint, " is none of none, all, every:K, sqrt, selective"));
  }
  const size_t dot = o->capability.find('.');
  uint32_t major = 0, minor = 0;
  if (dot == std::string::npos || !ParseInteger(o->capability.substr(0, dot), &major) ||
      !ParseInteger(o->capability.substr(dot + 1), &minor) || minor > 9 || major > 99)
    Wrong(Cat("--capability ", o->capability, " is no compute capability such as 9.0"));
  s.capability = major * 10 + minor;
}

bool Given(const CLI::App& command, const char* option) {
  return command.count(option) != 0;
}

void Contradictions(const CLI::App& command, const Options& o) {
  if (Given(command, "--precision") && Given(command, "--dtype") && kDtypes.at(o.dtype) != o.precision)
    Wrong(Cat("--precision ", o.precision, " and --dtype ", o.dtype, " contradict each other"));
  const Parallelism& p = o.settings.parallel;
  if (p.zero != 0 && p.data_ranks() == 1 && p.expert_data_ranks() == 1)
    Wrong(Cat("--zero ", p.zero, " shares over data-parallel ranks, and there is one: give --data-parallel too"));
  if (p.sequence && p.tensor == 1)
    Wrong("--sequence-parallel shares over the tensor-parallel ranks, and there is one: give --tensor-parallel too");
}

// What has an effect on some models only.
void Unfit(const CLI::App& command, const ModelSource& model, const Options& o) {
  for (const char* option : {"--sequence", "--decoder-sequence"}) {
    if (Given(command, option) && model.config && !model.has_sequence())
      Wrong(Cat(option, " has no effect on ", model.name(), ", which takes images"));
  }
  if (Given(command, "--decoder-sequence") && model.config && model.config->decoder_layers == 0)
    Wrong(Cat("--decoder-sequence has no effect on ", model.name(), ", which is not an encoder with a decoder"));
  const Precision precision = o.settings.precision;
  if (o.settings.master_weights && model.config && precision != Precision::kBfloat16 &&
      precision != Precision::kFloat16)
    Wrong(Cat("--master-weights are copies of 16-bit parameters, and with --precision ", o.precision,
              " the parameters have ", precision == Precision::kFloat64 ? 64 : 32,
              " bits: give --precision bf16 or fp16"));
}

// A list of operators has its shapes and types already.
void OptionsOfDescriptions(const CLI::App& command, const ModelSource& model) {
  for (const char* option :
       {"--batch", "--sequence", "--decoder-sequence", "--precision", "--dtype", "--attention", "--kernels"}) {
    if (Given(command, option))
      Wrong(Cat(option, " has no effect on ", model.name(),
                ": its operators have their batch, sequence, precision and kernels; record or export it with others"));
  }
}

}  // namespace

void RegisterEstimate(CLI::App& app) {
  const auto o = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("estimate", "Textbook and analytic memory of a training step, from a model's description");
  AddOptions(command, o.get());
  command->callback([o, command] {
    Contradictions(*command, *o);
    Interpret(o.get());
    const absl::StatusOr<ModelSource> model = LoadModel(o->model);
    RequireReadable(model.status());
    if (model->graph) OptionsOfDescriptions(*command, *model);
    Unfit(*command, *model, *o);
    if (const absl::Status fits = CheckSettings(*model, o->settings); !fits.ok()) Wrong(std::string(fits.message()));
    const MemoryEstimate e = EstimateMemory(*model, o->settings);
    if (o->json) return WriteJson("", EstimateJson(*model, e, *o));
    Write("", o->deployment ? DeploymentText(*model, e, *o) : Text(*model, e, *o));
  });
}

}  // namespace vramledger::cli
