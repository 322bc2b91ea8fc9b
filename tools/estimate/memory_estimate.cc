#include "tools/estimate/memory_estimate.h"

#include <algorithm>
#include <map>
#include <utility>

#include "tools/estimate/architectures.h"
#include "tools/estimate/block_size.h"
#include "tools/estimate/torchvision_models.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

// PyTorch gives each (handle, stream) a workspace: 32 MiB on Hopper, else 4,096 x 2 + 16 x 8 KiB
// (aten/src/ATen/cuda/CublasHandlePool.cpp). The thread of the forward and that of the backward have one each.
uint64_t CublasWorkspace(const EstimateSettings& s) {
  if (s.cublas_workspace) return *s.cublas_workspace;
  return s.capability == 90 ? uint64_t{32} << 20 : uint64_t{8519680};
}

// A product with a bias goes through cuBLASLt, in the forward only; its workspace is 1 MiB unless
// CUBLASLT_WORKSPACE_SIZE says another size (getCUDABlasLtWorkspaceSize in aten/src/ATen/cuda/CUDABlas.cpp).
constexpr uint64_t kCublasLtWorkspace = uint64_t{1} << 20;

// Transformer Engine has one of its own, and one for each of the four streams of its grouped products
// (get_cublas_workspace_size_bytes and get_multi_stream_cublas_workspace in its module/base.py).
uint64_t EngineWorkspace(const EstimateSettings& s, bool grouped) {
  if (s.kernels != KernelSet::kTransformerEngine) return 0;
  return (s.capability >= 90 ? uint64_t{32} << 20 : uint64_t{4} << 20) * (grouped ? 5 : 1);
}

// Bytes of tensors, each rounded to 512, and of the blocks that hold them (block_size.h), where each gets a segment of
// its own. What is made while there is cached memory (gradients, states) gets a block of its own about as often as one
// that is cut to size: `likely`.
struct Sized {
  uint64_t bytes = 0, blocks = 0;
  uint64_t likely() const { return bytes + (blocks - bytes) / 2; }

  Sized() = default;
  explicit Sized(uint64_t one) { Add(one); }
  void Add(uint64_t each, uint64_t count = 1) {
    bytes += RoundToUnit(each) * count;
    blocks += FreshBlock(each) * count;
  }
};

struct Held {
  Sized parameter, gradient, optimizer_state, master;
  uint64_t temporary = 0;      // of the optimizer's step
  uint64_t communication = 0;  // buffers that stand all the time
  uint64_t gathered = 0;       // parameters and gradients of a unit while it runs
  uint64_t paged = 0;
};

AttentionKernel ChooseAttention(const ModelConfig& m, const EstimateSettings& s) {
  if (s.attention) return *s.attention;
  if (m.type == "t5") return AttentionKernel::kEager;
  const std::string_view compute = ComputeType(s.precision);
  // The flash kernels take 16 bits only; the memory-efficient one takes float32 too.
  if (compute == "float64") return AttentionKernel::kMath;
  return compute == "float32" ? AttentionKernel::kMemoryEfficient : AttentionKernel::kFlash;
}

class Estimator {
 public:
  explicit Estimator(const EstimateSettings& s) : s_(s), e_(ParameterBytes(s.precision)) {}

  MemoryEstimate OfConfig(const ModelConfig& m) {
    model_ = &m;
    layer_ = Layers(m);
    out_.assumptions = m.assumptions;
    out_.parameters = CountParameters(m);
    tensors_ = ListRankTensors(m, s_.parallel);
    Textbook();
    const uint64_t sequence = m.type == "vit" ? layer_.sequence : s_.sequence;
    out_.textbook.activation = TextbookTransformerActivations(s_.batch, sequence, m.hidden, m.layers + m.decoder_layers,
                                                              DtypeBytes(ComputeType(s_.precision)));
    Account();
    WalkStages();
    Deployment();
    Assume();
    return std::move(out_);
  }

  MemoryEstimate OfGraph(ForwardGraph graph) {
    tensors_ = {};
    for (const OperatorStorage& storage : graph.list.storages) {
      if (storage.role == TensorRole::kBuffer) buffers_ += RoundToUnit(storage.bytes);
      if (storage.role == TensorRole::kInput) input_ += RoundToUnit(storage.bytes);
    }
    std::vector<bool> seen(graph.list.storages.size());
    for (const OperatorTensor& t : graph.list.tensors) {
      const auto storage = static_cast<size_t>(t.storage);
      if (graph.list.storages[storage].role != TensorRole::kParameter || seen[storage]) continue;
      seen[storage] = true;
      const uint64_t numel = graph.list.storages[storage].bytes / std::max<uint64_t>(1, DtypeBytes(t.dtype));
      // Factored optimizers see a matrix of the first dimension against the others.
      const uint64_t rows = t.shape.size() < 2 || t.shape[0] == 0 ? numel : t.shape[0];
      tensors_.push_back(
          {"", rows, t.shape.size() < 2 ? 0 : numel / rows, 1, s_.parallel.data_ranks(), ModelPart::kEmbedding});
      out_.parameters += numel;
    }
    Textbook();
    Account();
    walked_ = std::move(graph);
    Walk(walked_, nullptr, 0);
    DeploymentOf(walked_);
    Assume();
    return std::move(out_);
  }

 private:
  bool Trains() const { return s_.optimizer != OptimizerKind::kNone; }
  bool Megatron() const { return s_.kernels != KernelSet::kPytorch; }
  bool Shards(uint64_t stage) const { return s_.parallel.zero >= stage || s_.parallel.fsdp; }
  // Gradients stand through the whole step: accumulated over micro-batches, or in buffers of their own.
  bool StandingGradients() const { return Megatron() || s_.micro_batches > 1; }
  uint64_t GradientBytes() const {
    if (s_.gradient_bytes != 0) return s_.gradient_bytes;
    return Megatron() ? 4 : e_;
  }
  bool KeepsOutputs() const { return Trains() && s_.keeps_outputs.value_or(!Megatron()); }
  bool Master() const { return (s_.master_weights || Megatron()) && e_ < 4; }

  LayerSettings Layers(const ModelConfig& m) const {
    LayerSettings l;
    l.batch = s_.batch;
    l.sequence = std::max<uint64_t>(1, s_.sequence / s_.parallel.context);
    if (m.type == "vit") l.sequence = (m.image / m.patch) * (m.image / m.patch) + 1;
    l.decoder_sequence =
        s_.decoder_sequence == 0 ? 0 : std::max<uint64_t>(1, s_.decoder_sequence / s_.parallel.context);
    l.tensor = s_.parallel.tensor;
    l.sequence_parallel = s_.parallel.sequence && s_.parallel.tensor > 1;
    l.precision = s_.precision;
    l.attention = ChooseAttention(m, s_);
    l.kernels = s_.kernels;
    l.softmax_float32 = m.softmax_float32;
    l.attention_softcap = m.attention_softcap;
    l.dropout = m.dropout;
    l.attention_dropout = m.attention_dropout;
    return l;
  }

  void Textbook() {
    for (const RankTensor& t : tensors_) out_.rank_parameters += t.numel() * t.count;
    const uint64_t bytes = out_.rank_parameters * e_;
    out_.textbook.parameter = bytes;
    out_.textbook.gradient = Trains() ? bytes : 0;
    out_.textbook.buffer = 0;
    if (const auto copies = StateCopies(s_.optimizer)) out_.textbook.optimizer_state = *copies * bytes;
  }

  // Parameters, gradients, states and what moves them, by the sharding in force. ZeRO (arXiv:1910.02054, section 5):
  // stage 1 divides 12 of 16 bytes a parameter by the data ranks, stage 2 also the gradient's 2, stage 3 all.
  void Account() {
    struct Flat {
      uint64_t numel = 0, state = 0;
    };
    std::map<uint64_t, Flat> flats;  // by the number of data ranks that share them
    const uint64_t state_bytes = Master() ? 4 : e_;
    const bool on_device = s_.loop == OptimizerLoop::kFused;
    uint64_t largest = 0, unit = 0;
    Sized gradient, stepped_blocks;
    std::map<ModelPart, uint64_t> of_part;
    for (const RankTensor& t : tensors_) {
      const StateTensors state =
          Trains() ? StateOfTensor(s_.optimizer, t.rows, t.columns, state_bytes, on_device) : StateTensors{};
      Flat& flat = flats[t.data_ranks];
      flat.numel += t.numel() * t.count;
      for (uint64_t i = 0; i < state.count; ++i) {
        h_.optimizer_state.Add(state.bytes[i], t.count);
        flat.state += state.bytes[i] * t.count;
      }
      h_.paged += state.paged_bytes * t.count;
      h_.parameter.Add(t.numel() * e_, t.count);
      gradient.Add(t.numel() * GradientBytes(), t.count);
      stepped_blocks.Add(t.numel() * state_bytes, t.count);
      largest = std::max(largest, t.numel());
      of_part[t.part] += t.numel() * t.count;
    }
    if (model_ != nullptr) {
      const PartCounts counts = StageParts(*model_, s_.parallel);
      for (const auto& [part, numel] : of_part) unit = std::max(unit, numel / std::max<uint64_t>(1, counts.Of(part)));
    } else {
      unit = largest;
    }
    if (Trains()) h_.gradient = gradient;
    uint64_t numel = 0, share = 0, state_share = 0;
    for (const auto& [ranks, flat] : flats) {
      numel += flat.numel;
      share += ShareOf(flat.numel, ranks);
      state_share += ShareOf(flat.state, ranks);
    }
    if (Trains() && Master()) h_.master = Sized((Shards(1) ? share : numel) * 4);
    // With 16-bit gradients Megatron-LM's optimizer keeps float32 copies of them beside its parameters.
    if (Megatron() && Master() && GradientBytes() < 4) h_.gradient.Add(4 * numel);
    if (Shards(1)) h_.optimizer_state = Sized(state_share);
    if (Shards(2) && Trains()) h_.gradient = Sized(share * GradientBytes());
    if (Shards(3)) h_.parameter = Sized(share * e_);
    Communicate(numel, unit);
    if (!Trains()) return;
    const StepTemporaries t =
        TemporariesOfStep(s_.optimizer, Megatron() ? OptimizerLoop::kFused : s_.loop, s_.weight_decay);
    h_.temporary = static_cast<uint64_t>(
        t.all * static_cast<double>(Shards(1) ? share * state_bytes : stepped_blocks.blocks) +
        t.largest * static_cast<double>((Shards(1) ? std::min(share, largest) : largest) * state_bytes));
    // A sharded optimizer of whole-model kind steps on one flat tensor.
    if (Shards(1) && !Shards(2) && t.largest > 0)
      h_.temporary = static_cast<uint64_t>(t.largest * static_cast<double>(share * state_bytes));
  }

  void Communicate(uint64_t numel, uint64_t unit) {
    if (!Trains() || s_.parallel.data_ranks() <= 1 || Megatron()) {
      // Megatron's buckets are parts of its gradient buffer.
      if (Megatron() && Shards(3)) h_.gathered = 2 * RoundToUnit(unit * e_) + RoundToUnit(unit * GradientBytes());
      return;
    }
    const uint64_t compute = DtypeBytes(ComputeType(s_.precision));
    if (Shards(3)) {
      // FSDP gathers a unit and the next one, and holds one unit's whole gradient until it has been reduced
      // (arXiv:2304.11277, sections 4.2 and 3.3).
      h_.gathered = 2 * RoundToUnit(unit * compute) + RoundToUnit(unit * GradientBytes());
    } else if (Shards(2)) {
      // DeepSpeed's reduce_bucket_size: 5e8 elements at most.
      h_.communication = RoundToUnit(std::min<uint64_t>(numel, 500000000) * GradientBytes());
    } else if (s_.parallel.buckets) {
      // DistributedDataParallel's buckets hold every gradient once more, unless gradient_as_bucket_view.
      h_.communication = RoundToUnit(numel * GradientBytes());
    }
  }

  void WalkStages() {
    const Parallelism& p = s_.parallel;
    PartCounts parts = StageParts(*model_, p), body = parts;
    body.embedding = body.head = 0;
    if (p.virtual_stages > 1) {
      body.dense = ShareOf(parts.dense, p.virtual_stages);
      body.sparse = ShareOf(parts.sparse, p.virtual_stages);
      parts.dense = body.dense, parts.sparse = body.sparse;
    }
    ForwardGraph main = BuildForward(*model_, parts, layer_, p);
    for (const OperatorStorage& storage : main.list.storages) {
      if (storage.role == TensorRole::kInput) input_ += RoundToUnit(storage.bytes);
    }
    const uint64_t chunks = ChunksInFlight(p, s_.micro_batches);
    if (chunks > 1) {
      ForwardGraph others = BuildForward(*model_, body, layer_, p);
      Walk(main, &others, chunks - 1);
    } else {
      Walk(main, nullptr, 0);
    }
  }

  // `waiting` times what `other` keeps stands beside the step over `main`: micro-batches that wait for their backward.
  void Walk(ForwardGraph& main, ForwardGraph* other, uint64_t waiting) {
    WalkSettings walk;
    walk.keep_parameter_gradients = !StandingGradients() && !Shards(2);
    walk.forward_only = !Trains();
    if (!Trains()) {
      for (Operator& op : main.list.operators) op.grad_enabled = false;
    }
    walk.checkpointed = PlanCheckpoints(s_.checkpointing, s_.checkpoint_every, &main);
    if (s_.keeps_outputs == false) main.list.held.clear();
    has_bias_ = std::any_of(main.list.operators.begin(), main.list.operators.end(),
                            [](const Operator& op) { return BiasOf(op) >= 0; });
    const StepWalk step = WalkStep(main, walk);
    uint64_t beside = 0;
    if (other != nullptr) {
      walk.checkpointed = PlanCheckpoints(s_.checkpointing, s_.checkpoint_every, other);
      beside = WalkStep(*other, walk).saved * waiting;
    }
    for (const std::string& name : step.not_covered)
      out_.assumptions.push_back(Cat("what ", name, " keeps for its backward is not known and not counted"));
    Compose(step, beside);
  }

  EstimateColumn Standing(bool in_blocks) const {
    EstimateColumn c;
    c.parameter = in_blocks ? h_.parameter.blocks : h_.parameter.bytes;
    c.buffer = buffers_;
    c.optimizer_state =
        in_blocks ? h_.optimizer_state.likely() + h_.master.likely() : h_.optimizer_state.bytes + h_.master.bytes;
    c.gradient = 0;
    c.activation = 0;
    c.input = input_;
    c.temporary = 0;
    c.workspace =
        (Trains() ? 2 : 1) * CublasWorkspace(s_) + EngineWorkspace(s_, model_ != nullptr && model_->experts != 0);
    if (has_bias_ && !Megatron()) *c.workspace += kCublasLtWorkspace;
    c.communication = h_.communication;
    c.cast_cache = 0;
    return c;
  }
  static uint64_t Sum(const EstimateColumn& c) {
    uint64_t sum = 0;
    for (const auto& part : {c.parameter, c.buffer, c.gradient, c.optimizer_state, c.activation, c.input, c.temporary,
                             c.workspace, c.communication, c.cast_cache})
      sum += part.value_or(0);
    return sum;
  }

  void AddPhase(const WalkPoint& point, uint64_t beside, uint64_t standing_gradient) {
    EstimateColumn c = Standing(/*in_blocks=*/true);
    c.activation = point.activation + beside;
    c.temporary = point.temporary;
    c.cast_cache = point.cast_cache;
    // Sharded gradients have come to their share by the end of the backward.
    c.gradient = standing_gradient + point.parameter_gradient;
    if (Shards(3)) *c.communication += h_.gathered;
    out_.phases.push_back({point.phase, Sum(c), Cat(point.module, point.module.empty() ? "" : ", ", point.name), c});
  }

  void Compose(const StepWalk& step, uint64_t beside) {
    const uint64_t standing = StandingGradients() ? h_.gradient.likely() : 0;
    const uint64_t outputs = KeepsOutputs() ? step.held : 0;  // of the step before
    AddPhase(step.forward, beside + outputs, standing);
    if (Trains()) {
      AddPhase(step.backward, beside, StandingGradients() || Shards(2) ? h_.gradient.likely() : 0);
      EstimateColumn c = Standing(/*in_blocks=*/true);
      c.gradient = h_.gradient.likely();
      c.activation = outputs;
      c.temporary = h_.temporary;
      out_.phases.push_back({"optimizer", Sum(c), std::string(OptimizerName(s_.optimizer)), c});
    }
    const auto highest = std::max_element(out_.phases.begin(), out_.phases.end(),
                                          [](const PhasePeak& a, const PhasePeak& b) { return a.bytes < b.bytes; });
    out_.peak = highest->bytes;
    EstimateColumn& a = out_.analytic;
    a = Standing(/*in_blocks=*/false);
    a.gradient = h_.gradient.bytes;
    a.activation = step.requested_saved + beside;
    a.cast_cache = step.cast_cache;
    a.temporary = 0;
    for (const PhasePeak& p : out_.phases) {
      a.temporary = std::max(*a.temporary, p.categories.temporary.value_or(0));
      a.communication = std::max(*a.communication, p.categories.communication.value_or(0));
    }
    out_.paged = h_.paged;
    Bound(*highest, outputs);
  }

  // Low: no workspace has been asked for yet, the highest operator reuses its input's memory, no block keeps the rest
  // of its segment, and the program gives its outputs up unless it said that it keeps them. High: every block keeps the
  // rest of its segment, the workspaces of both cuBLAS libraries stand, an eighth of the activations is lost or not
  // accounted for (a quarter where tokens choose their experts, whose loads are uneven), and the program has 64 MiB of
  // its own: masks, metrics, what communication needs.
  void Bound(const PhasePeak& peak, uint64_t outputs) {
    const uint64_t temporary = peak.phase == "optimizer" ? 0 : peak.categories.temporary.value_or(0);
    uint64_t rests = h_.parameter.blocks - h_.parameter.bytes, further_rests = 0;
    std::vector<const Sized*> made = {&h_.optimizer_state, &h_.master};
    if (peak.phase == "optimizer") made.push_back(&h_.gradient);
    for (const Sized* sized : made) {
      rests += sized->likely() - sized->bytes;
      further_rests += sized->blocks - sized->likely();
    }
    const uint64_t given_up = s_.keeps_outputs || peak.phase == "backward" ? 0 : outputs;
    out_.low =
        peak.bytes - std::min(peak.bytes, peak.categories.workspace.value_or(0) + temporary / 2 + rests + given_up);
    const bool routes = model_ != nullptr && model_->experts != 0;
    out_.high = peak.bytes + further_rests + peak.categories.workspace.value_or(0) + (uint64_t{64} << 20) +
                (peak.categories.activation.value_or(0) + temporary) / (routes ? 4 : 8);
    // A backend that keeps the scores of its attention, where none was asked for.
    if (!s_.attention && model_ != nullptr && layer_.attention != AttentionKernel::kEager && Trains()) {
      const uint64_t scores = layer_.batch * model_->heads / layer_.tensor * layer_.sequence * layer_.sequence;
      const PartCounts parts = StageParts(*model_, s_.parallel);
      const uint64_t kept = s_.checkpointing == Checkpointing::kNone ? parts.dense + parts.sparse + parts.decoder : 1;
      const uint64_t element = DtypeBytes(ComputeType(s_.precision));
      *out_.high += scores * kept * (layer_.attention_dropout > 0 ? 2 * element + 1 : element);
    }
  }

  void Deployment() {
    EstimateSettings inference = s_;
    inference.parallel = {};
    inference.precision = Precision::kFloat16;
    LayerSettings layer = layer_;
    layer.tensor = 1, layer.sequence_parallel = false;
    layer.precision = Precision::kFloat16;
    layer.kernels = KernelSet::kPytorch;
    layer.sequence = model_->type == "vit" ? layer.sequence : s_.sequence;
    layer.attention = AttentionKernel::kFlash;
    layer.dropout = layer.attention_dropout = 0;
    ForwardGraph graph = BuildForward(*model_, CountParts(*model_), layer, inference.parallel);
    const PartCounts counts = CountParts(*model_);
    for (const ParameterGroup& g : ListParameters(*model_)) AddWeight(g.rows, g.columns, counts.Of(g.part) * g.copies);
    const bool decodes = model_->has_logits && !model_->masked_head;
    const uint64_t width = model_->kv_lora_rank != 0 ? model_->kv_lora_rank + model_->qk_rope_dim
                                                     : 2 * model_->kv_heads * model_->head_dim;
    if (decodes)
      out_.deployment.kv_cache_fp16 =
          2 * s_.batch * s_.sequence * width * (model_->decoder_layers != 0 ? model_->decoder_layers : model_->layers);
    Arena(graph);
  }
  void DeploymentOf(ForwardGraph& graph) {
    for (const RankTensor& t : tensors_) AddWeight(t.rows, t.columns, t.count);
    Arena(graph);
  }
  void AddWeight(uint64_t rows, uint64_t columns, uint64_t count) {
    DeploymentSizes& d = out_.deployment;
    const uint64_t numel = columns == 0 ? rows : rows * columns;
    d.weights_fp16 += 2 * numel * count;
    d.weights_int8 += (columns == 0 ? 2 * numel : numel + 4 * rows) * count;
  }
  void Arena(ForwardGraph& graph) {
    uint64_t widest = 1;
    for (Operator& op : graph.list.operators) op.grad_enabled = false;
    for (const OperatorTensor& t : graph.list.tensors) {
      if (graph.list.storages[static_cast<size_t>(t.storage)].role == TensorRole::kParameter)
        widest = std::max(widest, DtypeBytes(t.dtype));
    }
    WalkSettings walk;
    walk.forward_only = true;
    const uint64_t live = WalkStep(graph, walk).forward.bytes;
    out_.deployment.arena_fp16 = widest >= 2 ? live * 2 / widest : live;
    out_.deployment.arena_int8 = out_.deployment.arena_fp16 / 2;
  }

  void Assume() {
    std::vector<std::string>& a = out_.assumptions;
    a.push_back(
        "allocated bytes, not reserved ones: blocks are multiples of 512 B, those of 10 MiB or more keep a rest of "
        "their segment of up to 1 MiB; fragmentation and the context come on top");
    a.push_back(Cat("the device's compute capability is ", s_.capability / 10, ".", s_.capability % 10,
                    ", so cuBLAS takes ", CublasWorkspace(s_), " B a thread"));
    if (KeepsOutputs())
      a.push_back(
          "the program keeps the model's outputs until the next step's take their place (--outputs dropped: it does "
          "not)");
    if (Trains() && !StandingGradients()) a.push_back("gradients are set to None before the forward");
    if (StandingGradients() && Trains()) a.push_back("gradients stand while the forward runs");
    if (model_ == nullptr) return;
    if (model_->type != "vit") {
      constexpr const char* kKernels[] = {"eager (scores and their softmax are kept)", "PyTorch's composed form",
                                          "flash", "memory-efficient", "cuDNN's"};
      a.push_back(Cat("attention: ", kKernels[static_cast<size_t>(layer_.attention)],
                      s_.attention ? "" : ", as is usual for the precision; the high bound has eager attention"));
    }
    if (model_->has_logits) a.push_back("the loss is over all tokens: logits and their log-softmax are kept");
    if (!model_->has_logits && model_->labels == 0) a.push_back("the base model, without a task's head");
    if (model_->experts != 0) a.push_back("tokens are routed to experts in equal numbers");
    if (s_.parallel.pipeline > 1)
      a.push_back(Cat("stage ", s_.parallel.stage + 1, " of ", s_.parallel.pipeline, ", 1F1B schedule, ",
                      ChunksInFlight(s_.parallel, s_.micro_batches), " micro-batches of a chunk in flight"));
    if (h_.paged != 0) a.push_back("paged optimizer state lies in managed memory, outside PyTorch's allocator");
  }

  const EstimateSettings& s_;
  const uint64_t e_;
  const ModelConfig* model_ = nullptr;
  LayerSettings layer_;
  std::vector<RankTensor> tensors_;
  Held h_;
  uint64_t buffers_ = 0, input_ = 0;
  bool has_bias_ = false;  // a product of the model adds one
  ForwardGraph walked_;
  MemoryEstimate out_;
};

}  // namespace

std::optional<uint64_t> ParseCublasWorkspace(std::string_view config) {
  if (!config.starts_with(":")) return std::nullopt;
  uint64_t sum = 0;
  const std::vector<std::string_view> parts = Split(config.substr(1), ':');
  if (parts.size() % 2 != 0) return std::nullopt;
  for (size_t i = 0; i < parts.size(); i += 2) {
    uint64_t kib = 0, count = 0;
    constexpr uint64_t kMost = uint64_t{1} << 24;
    if (!ParseInteger(parts[i], &kib) || !ParseInteger(parts[i + 1], &count) || kib > kMost || count > kMost)
      return std::nullopt;
    constexpr uint64_t kMostBytes = uint64_t{1} << 40;
    if ((sum += (kib << 10) * count) > kMostBytes) return std::nullopt;
  }
  return sum;
}

uint64_t ConvolutionOutput(uint64_t in, uint64_t kernel, uint64_t stride, uint64_t pad) {
  if (stride == 0 || in + 2 * pad < kernel) return 0;
  return (in + 2 * pad - kernel) / stride + 1;
}

uint64_t TextbookTransformerActivations(uint64_t batch, uint64_t sequence, uint64_t hidden, uint64_t layers,
                                        uint64_t element_bytes) {
  return batch * sequence * hidden * layers * element_bytes;
}

MemoryEstimate EstimateMemory(const ModelConfig& model, const EstimateSettings& settings) {
  if (model.type == "torchvision")
    return EstimateMemory(BuildTorchvision(model.name, settings.batch, settings.precision), settings);
  return Estimator(settings).OfConfig(model);
}

MemoryEstimate EstimateMemory(ForwardGraph graph, const EstimateSettings& settings) {
  return Estimator(settings).OfGraph(std::move(graph));
}

}  // namespace vramledger
