// What a model's description becomes: parameters, operators, the time line of a step.
#include <gtest/gtest.h>

#include <fstream>

#include "tools/estimate/model_source.h"
#include "tools/estimate/parameter_list.h"

namespace vramledger {
namespace {

using nlohmann::json;

ModelConfig Tiny(json more = {}) {
  json c = {{"model_type", "transformer"}, {"hidden_size", 64},           {"num_hidden_layers", 4},
            {"num_attention_heads", 4},    {"intermediate_size", 256},    {"vocab_size", 512},
            {"hidden_act", "gelu"},        {"position_embedding", "rope"}};
  if (!more.is_null()) c.update(more);
  const auto model = ReadModelConfig(c);
  EXPECT_TRUE(model.ok()) << model.status();
  return *model;
}

ForwardGraph Forward(const ModelConfig& m, LayerSettings s) {
  return BuildForward(m, CountParts(m), s, {});
}

uint64_t Saved(const ModelConfig& m, const LayerSettings& s) {
  return FindSavedActivations(Forward(m, s).list).bytes;
}

// Layers alone: the difference of two depths.
uint64_t SavedOfLayer(json more, const LayerSettings& s) {
  more["num_hidden_layers"] = 5;
  const uint64_t five = Saved(Tiny(more), s);
  more["num_hidden_layers"] = 4;
  return five - Saved(Tiny(more), s);
}

// By hand, float32, pre-norm, no bias, flash-like attention: the residual stream's two tensors that norms read, the two
// norms' outputs and statistics, q, k, v, the attention's output and its row sums, both ends of the activation.
TEST(EstimateModels, LayerByHand) {
  LayerSettings s;
  s.batch = 2, s.sequence = 32;
  const uint64_t n = 2 * 32, h = 64, state = n * h * 4;
  const uint64_t statistics = 2 * 2 * n * 4, sums = 2 * 4 * 32 * 4;
  // Rotated queries and keys are new tensors; v stays a part of the fused projection, which is kept for it (3 states).
  const uint64_t qkv = 2 * state + 3 * state;
  EXPECT_EQ(SavedOfLayer({{"norm", "layernorm"}}, s), 4 * state + statistics + qkv + state + sums + 2 * 4 * state);
}

TEST(EstimateModels, DropoutKeepsMasks) {
  LayerSettings s;
  s.batch = 2, s.sequence = 32;
  const uint64_t without = SavedOfLayer({}, s);
  s.dropout = 0.1;
  EXPECT_EQ(SavedOfLayer({}, s), without + 2 * (2 * 32 * 64));  // two masks of a byte an element
}

TEST(EstimateModels, EagerAttentionKeepsScores) {
  LayerSettings s;
  s.batch = 2, s.sequence = 128, s.attention_dropout = 0.1;
  const uint64_t fused = SavedOfLayer({}, s);
  s.attention = AttentionKernel::kEager;
  const uint64_t matrix = 2 * 4 * 128 * 128;
  // Softmax, dropped softmax and mask; contiguous copies of q, k and v in place of the projection; no row sums.
  const uint64_t state = 2 * 128 * 64 * 4;
  EXPECT_EQ(SavedOfLayer({}, s), fused + matrix * (4 + 4 + 1) - 2 * state - 2 * 4 * 128 * 4);
}

TEST(EstimateModels, AutocastCopies) {
  LayerSettings s;
  s.batch = 2, s.sequence = 32, s.precision = Precision::kAutocastBfloat16;
  const SavedActivations saved = FindSavedActivations(Forward(Tiny(), s).list);
  uint64_t matrices = 0;
  const ModelConfig m = Tiny();
  const PartCounts counts = CountParts(m);
  for (const ParameterGroup& g : ListParameters(m)) {
    if (g.columns != 0 && g.name != "embedding.word") matrices += g.numel() * g.copies * counts.Of(g.part);
  }
  EXPECT_EQ(saved.cast_bytes, 2 * matrices);
}

TEST(EstimateModels, GroupedQueriesAndExperts) {
  LayerSettings s;
  s.batch = 1, s.sequence = 64;
  const uint64_t all = SavedOfLayer({}, s), grouped = SavedOfLayer({{"num_key_value_heads", 1}}, s);
  EXPECT_LT(grouped, all);
  const json experts = {{"gated", true}, {"num_local_experts", 8}};
  json one = experts, two = experts;
  one["num_experts_per_tok"] = 1, two["num_experts_per_tok"] = 2;
  const uint64_t first = SavedOfLayer(one, s), second = SavedOfLayer(two, s);
  // Each further expert a token is sent to: gathered input, gate and up, silu's output, their product, the expert's
  // output.
  const uint64_t n = 64, routed = n * (64 + 2 * 256 + 256 + 256 + 64) * 4;
  EXPECT_GE(second - first, routed);
  EXPECT_LE(second - first, routed + n * 32);
}

TEST(EstimateModels, TensorParallelDividesLayers) {
  LayerSettings s;
  s.batch = 1, s.sequence = 64;
  const uint64_t whole = SavedOfLayer({}, s);
  s.tensor = 4;
  const uint64_t quarter = SavedOfLayer({}, s);
  EXPECT_LT(quarter, whole);
  EXPECT_GT(4 * quarter, whole);  // norms and the residual stream are whole
}

// Megatron-LM's account, arXiv:2205.05198 equations 1, 2 and 4: s b h (34 + 5 a s / h), with tensor parallelism
// s b h (10 + 24 / t + 5 a s / (h t)), with sequence parallelism all of it over t.
TEST(EstimateModels, MegatronLayerIsThePapersFormula) {
  json c = {{"hidden_size", 512},  {"num_attention_heads", 8},        {"intermediate_size", 2048},
            {"norm", "layernorm"}, {"position_embedding", "learned"}, {"max_position_embeddings", 1024}};
  LayerSettings s;
  s.batch = 4, s.sequence = 1024, s.precision = Precision::kBfloat16, s.kernels = KernelSet::kMegatron;
  s.dropout = s.attention_dropout = 0.1;
  s.attention = AttentionKernel::kEager;
  const double sbh = 1024.0 * 4 * 512;
  const auto expect = [&](double by) {
    const double statistics = 4 * 4 * 1024 * 4.0;  // of two norms, which the paper leaves out
    EXPECT_NEAR(static_cast<double>(SavedOfLayer(c, s)), sbh * by, statistics);
  };
  expect(34 + 5 * 8 * 1024 / 512.0);
  s.tensor = 2;
  expect(10 + 24 / 2.0 + 5 * 8 * 1024 / 512.0 / 2);
  s.sequence_parallel = true;
  expect((34 + 5 * 8 * 1024 / 512.0) / 2);
}

// ---- the time line ----

TEST(EstimateModels, StepWalkByHand) {
  // y = relu(x w) twice: 1 KiB each; relu keeps its output, mm its input.
  ForwardGraph g;
  OperatorList& l = g.list;
  const int32_t x = l.NewTensor({16, 16}, "float32", TensorRole::kInput);
  const int32_t w = l.NewTensor({16, 16}, "float32", TensorRole::kParameter, true);
  const int32_t a = l.Apply("aten::mm", "m", {x, w}, {16, 16});
  const int32_t b = l.Apply("aten::relu", "m", {a}, {16, 16});
  const int32_t c = l.Apply("aten::mm", "m", {b, w}, {16, 16});
  const int32_t d = l.Apply("aten::relu", "m", {c}, {16, 16});
  l.held.push_back(l.tensors[static_cast<size_t>(d)].storage);
  g.ranges = {{0, 4, -1, false}};
  const StepWalk step = WalkStep(g, {});
  EXPECT_EQ(step.saved, 2048u);          // both relu outputs
  EXPECT_EQ(step.forward.bytes, 3072u);  // the last: b, c and d
  // The second mm: b, d (held), the gradient of c, that of b, and that of w.
  EXPECT_EQ(step.backward.bytes, 5120u);
  EXPECT_EQ(step.backward.phase, "backward");
}

TEST(EstimateModels, CheckpointingKeepsInputsAndComputesAgain) {
  const ModelConfig m = Tiny({{"num_hidden_layers", 16}});
  EstimateSettings s;
  s.batch = 8, s.sequence = 128;
  const auto activation = [&](Checkpointing kind, uint64_t every = 1) {
    s.checkpointing = kind, s.checkpoint_every = every;
    return *EstimateMemory(m, s).analytic.activation;
  };
  const uint64_t none = activation(Checkpointing::kNone), all = activation(Checkpointing::kAll);
  const uint64_t every4 = activation(Checkpointing::kEvery, 4), root = activation(Checkpointing::kSqrt);
  EXPECT_EQ(every4, root);  // 16 layers
  EXPECT_LT(all, none / 4);
  EXPECT_LT(every4, all);
  const uint64_t state = 8 * 128 * 64 * 4;
  EXPECT_EQ(all - every4, 12 * state);  // 16 inputs against 4
  s.attention = AttentionKernel::kEager;
  EXPECT_LT(activation(Checkpointing::kSelective), activation(Checkpointing::kNone));
  EXPECT_GT(activation(Checkpointing::kSelective), activation(Checkpointing::kAll));
  s.checkpointing = Checkpointing::kAll;
  const MemoryEstimate e = EstimateMemory(m, s);
  EXPECT_LT(*e.peak, [&] {
    s.checkpointing = Checkpointing::kNone;
    return *EstimateMemory(m, s).peak;
  }());
}

TEST(EstimateModels, PipelineHoldsMicroBatches) {
  Parallelism p;
  p.pipeline = 4;
  EXPECT_EQ(ChunksInFlight(p, 8), 4u);
  EXPECT_EQ(ChunksInFlight(p, 2), 2u);
  p.stage = 3;
  EXPECT_EQ(ChunksInFlight(p, 8), 1u);
  p.virtual_stages = 3;
  EXPECT_EQ(ChunksInFlight(p, 8), 9u);
  const ModelConfig m = Tiny({{"num_hidden_layers", 8}});
  Parallelism q;
  q.pipeline = 4;
  EstimateSettings s;
  s.micro_batches = 8;
  s.parallel = q;
  const uint64_t first = *EstimateMemory(m, s).analytic.activation;
  s.parallel.stage = 3;
  EXPECT_GT(first, 0u);
  EXPECT_EQ(StageParts(m, s.parallel).dense, 2u);
  EXPECT_EQ(StageParts(m, s.parallel).head, 1u);
  EXPECT_EQ(StageParts(m, s.parallel).embedding, 0u);
  q.first_layers = 1, q.last_layers = 1, q.stage = 1;
  EXPECT_EQ(StageParts(m, q).dense, 3u);
}

// 16 bytes a parameter with Adam in mixed precision; over 64 ranks 4 + 12/64, 2 + 14/64 and 16/64 of them
// (arXiv:1910.02054, figure 1: 7.5 billion parameters, 120 -> 31.4 -> 16.6 -> 1.9 GB).
TEST(EstimateModels, ZeroStages) {
  const ModelConfig m = Tiny();
  const auto held = [&](uint64_t zero) {
    EstimateSettings s;
    s.precision = Precision::kFloat16;
    s.master_weights = true;
    s.parallel.data = 64;
    s.parallel.zero = zero;
    const MemoryEstimate e = EstimateMemory(m, s);
    return static_cast<double>(*e.analytic.parameter + *e.analytic.gradient + *e.analytic.optimizer_state) /
           static_cast<double>(e.parameters);
  };
  EXPECT_NEAR(held(0), 16, 0.2);
  EXPECT_NEAR(held(1), 31.4 / 7.5, 0.1);
  EXPECT_NEAR(held(2), 16.6 / 7.5, 0.1);
  EXPECT_NEAR(held(3), 1.9 / 7.5, 0.01);
}

TEST(EstimateModels, RankSharesAddUp) {
  const ModelConfig m = Tiny({{"num_local_experts", 8}, {"num_experts_per_tok", 2}, {"bias", true}});
  EstimateSettings s;
  s.parallel.expert = 4, s.parallel.data = 4;
  const MemoryEstimate one = EstimateMemory(m, {}), split = EstimateMemory(m, s);
  uint64_t experts = 0;
  for (const ParameterGroup& g : ListParameters(m)) {
    if (g.split == TensorSplit::kExpert || g.split == TensorSplit::kExpertWhole)
      experts += g.numel() * g.copies * m.layers;
  }
  EXPECT_EQ(one.rank_parameters - split.rank_parameters, experts / 4 * 3);
  uint64_t stages = 0;
  for (uint64_t stage = 0; stage < 2; ++stage) {
    EstimateSettings pipeline;
    pipeline.parallel.pipeline = 2, pipeline.parallel.stage = stage;
    stages += EstimateMemory(m, pipeline).rank_parameters;
  }
  EXPECT_EQ(stages, one.parameters);
  Parallelism odd;
  odd.tensor = 3;
  EXPECT_FALSE(CheckParallelism(m, odd).ok());
}

TEST(EstimateModels, TorchvisionParameters) {
  // As the documentation of torchvision publishes them.
  const std::pair<const char*, uint64_t> kCounts[] = {{"alexnet", 61100840},
                                                      {"convnext_base", 88591464},
                                                      {"convnext_tiny", 28589128},
                                                      {"densenet121", 7978856},
                                                      {"efficientnet_b0", 5288548},
                                                      {"mobilenet_v2", 3504872},
                                                      {"resnet101", 44549160},
                                                      {"resnet152", 60192808},
                                                      {"resnet18", 11689512},
                                                      {"resnet34", 21797672},
                                                      {"resnet50", 25557032},
                                                      {"vgg16", 138357544},
                                                      {"vgg19", 143667240},
                                                      {"mobilenet_v3_large", 5483032},
                                                      {"mobilenet_v3_small", 2542856},
                                                      {"densenet169", 14149480},
                                                      {"densenet201", 20013928},
                                                      {"resnext50_32x4d", 25028904},
                                                      {"vgg11", 132863336},
                                                      {"vgg13", 133047848},
                                                      {"wide_resnet50_2", 68883240},
                                                      {"convnext_small", 50223688},
                                                      {"convnext_large", 197767336},
                                                      {"vit_b_16", 86567656}};
  for (const auto& [name, count] : kCounts) {
    const auto model = LoadModel(std::string("torchvision:") + name);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(EstimateMemory(*model, {}).parameters, count) << name;
  }
  EXPECT_FALSE(LoadModel("torchvision:nonet").ok());
}

TEST(EstimateModels, Deployment) {
  const MemoryEstimate e = EstimateMemory(*LoadModel("torchvision:resnet50"), {});
  EXPECT_EQ(e.deployment.weights_fp16, 2u * 25557032);
  EXPECT_LT(e.deployment.weights_int8, e.deployment.weights_fp16 * 52 / 100);
  // The first block: its input, the widest convolution's input and output live at once.
  const uint64_t widest = 256 * 56 * 56 * 2;
  EXPECT_GE(e.deployment.arena_fp16, 2 * widest);
  EXPECT_LE(e.deployment.arena_fp16, 4 * widest);
  EXPECT_EQ(e.deployment.arena_int8, e.deployment.arena_fp16 / 2);
}

TEST(EstimateModels, OptimizerState) {
  const auto bytes = [](OptimizerKind kind, uint64_t rows, uint64_t columns) {
    const StateTensors t = StateOfTensor(kind, rows, columns, 4, false);
    uint64_t sum = 0;
    for (uint64_t i = 0; i < t.count; ++i) sum += t.bytes[i];
    return sum;
  };
  EXPECT_EQ(bytes(OptimizerKind::kAdam, 100, 200), 2u * 4 * 20000);
  EXPECT_EQ(bytes(OptimizerKind::kAmsgrad, 100, 200), 3u * 4 * 20000);
  EXPECT_EQ(bytes(OptimizerKind::kAdafactor, 100, 200), 4u * 300);
  EXPECT_EQ(bytes(OptimizerKind::kAdafactor, 100, 0), 4u * 100);
  EXPECT_EQ(bytes(OptimizerKind::kRmspropCenteredMomentum, 100, 0), 3u * 400);
  EXPECT_EQ(bytes(OptimizerKind::kAdam8bit, 1024, 1024), 2u * ((1 << 20) + (1 << 20) / 256 * 4));
  EXPECT_EQ(bytes(OptimizerKind::kAdam8bit, 1000, 0), 2u * 4000);
  EXPECT_EQ(bytes(OptimizerKind::kMuon, 64, 64), 4u * 4096);
  const StateTensors paged = StateOfTensor(OptimizerKind::kPagedAdam, 1024, 1024, 4, false);
  EXPECT_EQ(paged.count, 0u);
  EXPECT_EQ(paged.paged_bytes, 2u * 4 << 20);
  for (const std::string& name : OptimizerNames()) EXPECT_TRUE(OptimizerFromName(name)) << name;
  EXPECT_EQ(OptimizerFromName("PagedAdamW8bit"), OptimizerKind::kPagedAdam8bit);
  EXPECT_EQ(OptimizerFromName("zebra"), std::nullopt);
  EXPECT_EQ(TemporariesOfStep(OptimizerKind::kAdam, OptimizerLoop::kForeach, false).all, 1);
  EXPECT_EQ(TemporariesOfStep(OptimizerKind::kAdam, OptimizerLoop::kFused, false).all, 0);
  EXPECT_EQ(TemporariesOfStep(OptimizerKind::kSgd, OptimizerLoop::kForeach, true).all, 1);
}

}  // namespace
}  // namespace vramledger
