// The estimate against what was measured on real GPUs (tests/data/estimate/README.md).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "tools/estimate/memory_estimate.h"

namespace vramledger {
namespace {

using nlohmann::json;

struct MeasuredRow {
  std::string model, metric;
  json config;
  double bytes = 0;
};

// Quoted fields may hold commas and doubled quotes.
std::vector<std::string> Fields(const std::string& line) {
  std::vector<std::string> out(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"') {
      out.back() += line[++i];
    } else if (line[i] == '"') {
      quoted = !quoted;
    } else if (line[i] == ',' && !quoted) {
      out.emplace_back();
    } else if (line[i] != '\r') {
      out.back() += line[i];
    }
  }
  return out;
}

std::vector<MeasuredRow> ReadMeasured(const std::string& name) {
  std::ifstream in(std::string(VRAMLEDGER_TEST_DATA) + "/estimate/" + name);
  std::vector<MeasuredRow> out;
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    const std::vector<std::string> f = Fields(line);
    if (f.size() == 5) out.push_back({f[1], f[3], json::parse(f[2]), std::stod(f[4])});
  }
  return out;
}

void ExpectWithin(double share, double predicted, const MeasuredRow& row) {
  if (row.bytes == 0) {
    EXPECT_EQ(predicted, 0) << row.config << row.metric;
  } else {
    EXPECT_LE(std::abs(predicted - row.bytes), share * row.bytes)
        << row.metric << " " << row.config << ": predicted " << predicted << ", measured " << row.bytes;
  }
}

ModelConfig CourseModel(const json& c) {
  const auto model = ReadModelConfig({{"model_type", "transformer"},
                                      {"hidden_size", c["d_model"]},
                                      {"num_hidden_layers", c["num_layers"]},
                                      {"num_attention_heads", c["num_heads"]},
                                      {"intermediate_size", c["d_ff"]},
                                      {"vocab_size", c["vocab_size"]},
                                      {"norm", "rmsnorm"},
                                      {"hidden_act", "silu"},
                                      {"gated", true},
                                      {"fused_qkv", false},
                                      {"fused_gate", false},
                                      {"bias", false},
                                      {"position_embedding", "rope"}});
  EXPECT_TRUE(model.ok()) << model.status();
  return *model;
}

// 3.4 billion parameters on two ranks under autocast. The optimizer goes over the parameters one by one
// (foreach=False). `zero` 1 stands for the mode that shards the optimizer's state.
MemoryEstimate CourseEstimate(const json& c, uint64_t zero) {
  EstimateSettings s;
  s.batch = c["batch_size"].get<uint64_t>() / c["world_size"].get<uint64_t>();
  s.sequence = c["context_length"];
  s.precision = c["mixed_precision"].get<bool>() ? Precision::kAutocastBfloat16 : Precision::kFloat32;
  s.attention = AttentionKernel::kEager;
  s.loop = OptimizerLoop::kSingle;
  s.keeps_outputs = false;  // allocated bytes before the optimizer's step leave no room for logits
  s.parallel.data = c["world_size"];
  s.parallel.zero = zero;
  return EstimateMemory(CourseModel(c), s);
}

TEST(EstimateMeasured, ShardedOptimizerCategories) {
  const std::vector<MeasuredRow> rows = ReadMeasured("sharded_optimizer_categories.csv");
  ASSERT_EQ(rows.size(), 36u);
  for (const MeasuredRow& row : rows) {
    const MemoryEstimate e = CourseEstimate(row.config, row.config["mode"] == "sharded" ? 1 : 0);
    EXPECT_EQ(e.parameters, row.config["num_parameters"].get<uint64_t>());
    const std::string phase = row.config["phase"];
    const auto parameters = static_cast<double>(*e.analytic.parameter);
    const double gradients = phase == "after_model_init" ? 0 : static_cast<double>(*e.analytic.gradient);
    const double states = phase == "after_optimizer_step" ? static_cast<double>(*e.analytic.optimizer_state) : 0;
    if (row.metric == "parameters") ExpectWithin(0.005, parameters, row);
    if (row.metric == "gradients") ExpectWithin(0.005, gradients, row);
    if (row.metric == "optimizer_states") ExpectWithin(0.005, states, row);
    // Fresh segments of 26 MiB for tensors of 25 MiB: the rest of 1 MiB is not split off.
    const double unsplit = 4.0 * 32 * (1 << 20);
    if (row.metric == "allocated") ExpectWithin(0.005, parameters + gradients + states + unsplit, row);
    // While one parameter is stepped three temporaries of its size stand.
    if (row.metric == "phase_peak" && phase == "after_optimizer_step")
      ExpectWithin(0.005, static_cast<double>(e.phases.back().bytes), row);
    if (row.metric == "phase_peak" && phase == "before_optimizer_step") {
      // In the first step, before there is any state.
      const double backward =
          static_cast<double>(e.phases[1].bytes) - static_cast<double>(*e.phases[1].categories.optimizer_state);
      ExpectWithin(0.05, backward, row);
    }
  }
}

// The other mode of the same program shards the state over both ranks and leaves parameters and gradients whole: half
// of 8 bytes a parameter on each (arXiv:1910.02054, stage 1).
TEST(EstimateMeasured, ShardedModeHalvesTheStateAlone) {
  const json c = ReadMeasured("sharded_optimizer_categories.csv").front().config;
  const MemoryEstimate whole = CourseEstimate(c, 0), sharded = CourseEstimate(c, 1);
  EXPECT_EQ(*sharded.analytic.parameter, *whole.analytic.parameter);
  EXPECT_EQ(*sharded.analytic.gradient, *whole.analytic.gradient);
  EXPECT_EQ(*sharded.analytic.optimizer_state, 4 * c["num_parameters"].get<uint64_t>());
}

// One attention as a course writes it: products, a softmax from max, exp, sum and a division. What stands when it has
// run: q, k, v, the output's gradient made beforehand, the output, that of the warm-up, what autograd keeps, and two
// cuBLAS workspaces of 32 MiB.
double AttentionAfterForward(uint64_t batch, uint64_t sequence, uint64_t width) {
  LayerSettings s;
  s.batch = batch;
  s.sequence = sequence;
  LayerBuilder b(s);
  const std::vector<uint64_t> shape = {batch, sequence, width}, matrix = {batch, sequence, sequence},
                              each = {batch, sequence, 1};
  const auto leaf = [&] { return b.list().NewTensor(shape, "float32", TensorRole::kInput, true); };
  const int32_t q = leaf(), k = leaf(), v = leaf();
  const int32_t scores = b.Apply("aten::div.Scalar", {b.Apply("aten::bmm", {q, k}, matrix)}, matrix);
  const int32_t highest = b.Apply("aten::max.dim", {scores}, each);
  b.AddIndices(each);
  const int32_t e = b.Apply("aten::exp", {b.Apply("aten::sub.Tensor", {scores, highest}, matrix)}, matrix);
  const int32_t sum = b.Apply("aten::sum.dim_IntList", {e}, each);
  const int32_t p = b.Apply("aten::div.Tensor", {e, sum}, matrix);
  const int32_t out = b.Apply("aten::bmm", {p, v}, shape);
  b.list().held.push_back(b.list().tensors[static_cast<size_t>(out)].storage);
  const uint64_t inputs = 5 * 4 * batch * sequence * width;
  return static_cast<double>(FindSavedActivations(b.list()).bytes + inputs + 2 * (uint64_t{32} << 20));
}

TEST(EstimateMeasured, AttentionActivation) {
  const std::vector<MeasuredRow> rows = ReadMeasured("attention_activation.csv");
  ASSERT_EQ(rows.size(), 27u);
  double worst = 0;
  for (const MeasuredRow& row : rows) {
    const double predicted =
        AttentionAfterForward(row.config["batch_size"], row.config["seq_len"], row.config["d_model"]);
    worst = std::max(worst, std::abs(predicted / row.bytes - 1));
    ExpectWithin(0.02, predicted, row);
  }
  RecordProperty("largest_error_share", std::to_string(worst));
}

}  // namespace
}  // namespace vramledger
