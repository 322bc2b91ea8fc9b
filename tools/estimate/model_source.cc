#include "tools/estimate/model_source.h"

#include <algorithm>
#include <utility>

#include "tools/estimate/onnx_model.h"
#include "tools/foreign/file_bytes.h"
#include "tools/foreign/text.h"
#include "tracer/format/bounded_json.h"

namespace vramledger {
namespace {

using nlohmann::json;

constexpr uint64_t kLargestFile = uint64_t{2} << 30;  // what a protobuf message can hold

// The modules of the recorded operators are their units of checkpointing: each stretch under one numbered part of a
// stack ("encoder.layer.3") is a layer.
std::string LayerOf(const OperatorList& list, const Operator& op) {
  if (op.module < 0) return "";
  const std::string& path = list.modules[static_cast<size_t>(op.module)];
  size_t begin = 0;
  while (begin < path.size()) {
    const size_t end = std::min(path.find('.', begin), path.size());
    uint64_t number = 0;
    if (begin != 0 && ParseInteger(std::string_view(path).substr(begin, end - begin), &number))
      return path.substr(0, end);
    begin = end + 1;
  }
  return "";
}

ForwardGraph FromOperators(OperatorList list) {
  ForwardGraph graph;
  std::string current;
  int64_t layers = 0;
  for (size_t i = 0; i < list.operators.size(); ++i) {
    const std::string layer = LayerOf(list, list.operators[i]);
    if (graph.ranges.empty() || layer != current) {
      graph.ranges.push_back({i, i, layer.empty() ? -1 : layers++, false});
      current = layer;
    }
    graph.ranges.back().end = i + 1;
  }
  graph.list = std::move(list);
  return graph;
}

}  // namespace

absl::StatusOr<ModelSource> LoadModel(const std::string& name_or_path) {
  const auto bad = [&](std::string_view what) { return absl::InvalidArgumentError(Cat(name_or_path, ": ", what)); };
  ModelSource out;
  constexpr std::string_view kTorchvision = "torchvision:";
  if (name_or_path.starts_with(kTorchvision)) {
    absl::StatusOr<ModelConfig> m = TorchvisionConfig(name_or_path.substr(kTorchvision.size()));
    if (!m.ok()) return m.status();
    out.config = *std::move(m);
    return out;
  }
  absl::StatusOr<std::string> text = ReadFile(name_or_path, kLargestFile);
  if (!text.ok()) return absl::NotFoundError(Cat(name_or_path, ": ", std::string(text.status().message())));
  const size_t first = text->find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (name_or_path.ends_with(".onnx") ||
      (first != std::string::npos && (*text)[first] != '{' && (*text)[first] != '[')) {
    absl::StatusOr<OperatorList> list = ReadOnnx(*text, &out.assumptions);
    if (!list.ok()) return bad(std::string(list.status().message()));
    if (HasImpossibleSizes(*list)) return bad("has a tensor of an impossible size");
    out.graph = FromOperators(*std::move(list));
    out.graph_name = name_or_path;
    return out;
  }
  const std::optional<json> bounded = ParseBoundedJson(*text);
  if (!bounded) return bad(Cat("is no JSON, or nested deeper than ", kMaxJsonDepth, " levels"));
  const json& parsed = *bounded;
  const auto schema = parsed.is_object() ? parsed.find("schema") : parsed.end();
  if (parsed.is_object() && schema != parsed.end() && schema->is_string() &&
      schema->get<std::string>().starts_with("vramledger.operators/")) {
    absl::StatusOr<OperatorList> list = OperatorList::FromJson(parsed);
    if (!list.ok()) return bad(std::string(list.status().message()));
    if (list->operators.empty()) return bad("has no operators");
    out.graph = FromOperators(*std::move(list));
    const auto name = parsed.find("name");
    out.graph_name = name != parsed.end() && name->is_string() ? name->get<std::string>() : name_or_path;
    const auto size = [&](const char* key) -> std::optional<uint64_t> {
      const auto it = parsed.find(key);
      if (it == parsed.end() || !it->is_number_unsigned()) return std::nullopt;
      return it->get<uint64_t>();
    };
    out.graph_batch = size("batch");
    out.graph_sequence = size("sequence");
    return out;
  }
  absl::StatusOr<ModelConfig> m = ReadModelConfig(parsed);
  if (!m.ok()) return bad(std::string(m.status().message()));
  out.config = *std::move(m);
  return out;
}

namespace {

// Layers that a checkpoint can hold; 0 where the model's description does not tell.
uint64_t LayerCount(const ModelSource& model) {
  if (model.config) return std::max(model.config->layers, model.config->decoder_layers);
  int64_t layers = 0;
  for (const LayerRange& r : model.graph->ranges) layers = std::max(layers, r.layer + 1);
  return static_cast<uint64_t>(layers);
}

}  // namespace

absl::Status CheckSettings(const ModelSource& model, const EstimateSettings& s) {
  const Parallelism& p = s.parallel;
  if (const uint64_t layers = LayerCount(model);
      s.checkpointing == Checkpointing::kEvery && layers != 0 && s.checkpoint_every > layers)
    return absl::InvalidArgumentError(
        Cat("--checkpoint every:", s.checkpoint_every, " is more than the ", layers, " layers of ", model.name()));
  if (!model.config || model.config->type == "torchvision") {
    if (p.tensor * p.context * p.pipeline * p.expert != 1 || s.kernels != KernelSet::kPytorch)
      return absl::InvalidArgumentError(
          "tensor, context, pipeline and expert parallelism are known for models with a config alone");
    return absl::OkStatus();
  }
  // What is walked through has at most some millions of operators.
  if (const uint64_t layers = model.config->layers + model.config->decoder_layers; layers > 10000)
    return absl::InvalidArgumentError(Cat("the model has ", layers, " layers, more than 10,000"));
  // Keeps sums over all activations below 2^63.
  const ModelConfig& m = *model.config;
  if (m.kv_lora_rank == 0 && m.kv_heads != 0 && m.heads % m.kv_heads != 0)
    return absl::InvalidArgumentError(
        Cat(m.name, " has ", m.heads, " heads for queries, which ", m.kv_heads, " for keys and values do not divide"));
  const uint64_t patches = m.patch == 0 ? 0 : m.image / m.patch;
  const uint64_t sequence =
      m.type == "vit" ? patches * patches + 1 : std::max({s.sequence, s.decoder_sequence, uint64_t{1}});
  const double tokens = static_cast<double>(s.batch) * static_cast<double>(sequence);
  const double widest =
      std::max({static_cast<double>(m.hidden), 2 * static_cast<double>(m.intermediate),
                static_cast<double>(m.vocabulary), static_cast<double>(m.heads) * static_cast<double>(sequence),
                static_cast<double>(m.heads) * static_cast<double>(m.head_dim)});
  const double routed = static_cast<double>(std::max<uint64_t>(m.experts_per_token, 1));
  if (tokens * widest * routed * static_cast<double>(m.layers + m.decoder_layers + 1) > 1e16)
    return absl::InvalidArgumentError("the batch and the sequence are too large for this model");
  return CheckParallelism(m, p);
}

MemoryEstimate EstimateMemory(const ModelSource& model, const EstimateSettings& settings) {
  if (model.config) return EstimateMemory(*model.config, settings);
  MemoryEstimate out = EstimateMemory(*model.graph, settings);
  out.assumptions.insert(out.assumptions.begin(), model.assumptions.begin(), model.assumptions.end());
  return out;
}

}  // namespace vramledger
