#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tools/estimate/model_source.h"
#include "tools/estimate/parameter_list.h"
#include "tools/estimate/reduction_workspace.h"

namespace vramledger {
namespace {

std::string Folder() {
  return std::string(VRAMLEDGER_TEST_DATA) + "/model_configs";
}

// Every description of the data folder gives its published (or computed) count to the parameter.
TEST(Estimate, ParameterCountsAreExact) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(Folder())) {
    if (entry.path().extension() != ".json" || entry.path().filename() == "torchvision_param_counts.json") continue;
    std::ifstream in(entry.path());
    const nlohmann::json json = nlohmann::json::parse(in);
    const auto model = LoadModel(entry.path().string());
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(CountParameters(*model->config), json["num_parameters"]["computed_from_config"].get<uint64_t>())
        << entry.path();
    ++files;
  }
  EXPECT_EQ(files, 19);
}

TEST(Estimate, TorchvisionCounts) {
  std::ifstream in(Folder() + "/torchvision_param_counts.json");
  const nlohmann::json json = nlohmann::json::parse(in);
  for (const auto& [name, count] : json["params"].items()) {
    const auto model = LoadModel("torchvision:" + name);
    ASSERT_TRUE(model.ok()) << name;
    EXPECT_EQ(CountParameters(*model->config), count.get<uint64_t>()) << name;
  }
}

// Hugging Face's own key names, as its config.json files have them.
TEST(Estimate, HuggingFaceKeys) {
  const auto gpt2 = ReadModelConfig(nlohmann::json::parse(
      R"({"model_type":"gpt2","n_embd":768,"n_layer":12,"n_head":12,"n_positions":1024,"vocab_size":50257,"activation_function":"gelu_new"})"));
  ASSERT_TRUE(gpt2.ok()) << gpt2.status();
  EXPECT_EQ(CountParameters(*gpt2), 124439808u);
  const auto opt = ReadModelConfig(nlohmann::json::parse(
      R"({"model_type":"opt","hidden_size":768,"ffn_dim":3072,"num_hidden_layers":12,"num_attention_heads":12,"vocab_size":50272,"max_position_embeddings":2048})"));
  EXPECT_EQ(CountParameters(*opt), 125239296u);
  const auto bert = ReadModelConfig(nlohmann::json::parse(
      R"({"model_type":"bert","hidden_size":768,"intermediate_size":3072,"num_hidden_layers":12,"num_attention_heads":12,"vocab_size":30522,"max_position_embeddings":512,"type_vocab_size":2})"));
  EXPECT_EQ(CountParameters(*bert), 109482240u);
  // roberta-base and distilbert-base-uncased, as their model cards count the base models with pooler and without.
  const auto roberta = ReadModelConfig(nlohmann::json::parse(
      R"({"model_type":"roberta","hidden_size":768,"intermediate_size":3072,"num_hidden_layers":12,"num_attention_heads":12,"vocab_size":50265,"max_position_embeddings":514,"type_vocab_size":1})"));
  ASSERT_TRUE(roberta.ok()) << roberta.status();
  EXPECT_EQ(CountParameters(*roberta), 124645632u);
  const auto distilbert = ReadModelConfig(nlohmann::json::parse(
      R"({"model_type":"distilbert","dim":768,"hidden_dim":3072,"n_layers":6,"n_heads":12,"vocab_size":30522,"max_position_embeddings":512})"));
  ASSERT_TRUE(distilbert.ok()) << distilbert.status();
  EXPECT_EQ(CountParameters(*distilbert), 66362880u);
}

TEST(Estimate, TextbookColumn) {
  const auto bert = LoadModel(Folder() + "/bert-base-uncased.json");
  EstimateSettings s;
  s.batch = 32;
  s.sequence = 128;
  const MemoryEstimate e = EstimateMemory(*bert, s);
  EXPECT_EQ(e.textbook.parameter, 437928960u);
  EXPECT_EQ(e.textbook.gradient, 437928960u);
  EXPECT_EQ(e.textbook.optimizer_state, 875857920u);
  EXPECT_EQ(e.textbook.activation, 32u * 128 * 768 * 12 * 4);
  EXPECT_GT(*e.analytic.activation, 10 * *e.textbook.activation);
  EXPECT_LE(*e.low, *e.peak);
  EXPECT_LE(*e.peak, *e.high);
  s.batch = 64;
  EXPECT_NEAR(static_cast<double>(*EstimateMemory(*bert, s).analytic.activation),
              2 * static_cast<double>(*e.analytic.activation), 0.001 * static_cast<double>(*e.analytic.activation));
  s.optimizer = OptimizerKind::kMomentum;
  EXPECT_EQ(EstimateMemory(*bert, s).textbook.optimizer_state, 437928960u);
  s.optimizer = OptimizerKind::kSgd;
  EXPECT_EQ(EstimateMemory(*bert, s).textbook.optimizer_state, 0u);
}

// Rows, columns, and what torch.sum(x, 0) of PyTorch 2.11 took from the allocator besides its result on the virtual
// device (an H100's properties), of float32 as of bfloat16.
TEST(Estimate, RowSumWorkspaceIsPytorchs) {
  constexpr uint64_t kMeasured[][3] = {{64, 768, 0},
                                       {128, 768, 0},
                                       {256, 768, 0},
                                       {512, 768, 0},
                                       {1000, 768, 0},
                                       {1024, 768, 6291968},
                                       {2048, 768, 12583424},
                                       {2048, 3072, 50332160},
                                       {4096, 768, 25166336},
                                       {4096, 4096, 134218240},
                                       {8192, 1024, 67109376},
                                       {16384, 1024, 134218240},
                                       {65536, 256, 134218240},
                                       {2048, 64, 262656},
                                       {2048, 100, 410112},
                                       {2048, 130, 532992},
                                       {1576, 768, 9830912},
                                       {1576, 3072, 39846400},
                                       {2048, 30522, 23442944},
                                       {100000, 16, 201216},
                                       {32768, 12288, 201327104},
                                       {512, 2, 0},
                                       {16, 1000, 0},
                                       {2048, 1, 0}};
  for (const auto& [rows, columns, bytes] : kMeasured)
    EXPECT_EQ(RowSumWorkspace(rows, columns), bytes) << rows << " x " << columns;
  EXPECT_EQ(RowSumWorkspace(0, 768), 0u);
  EXPECT_EQ(RowSumWorkspace(2048, 0), 0u);
}

TEST(Estimate, OutputsThatTheProgramKeepsStandInTheOptimizersStep) {
  const auto gpt2 = LoadModel(Folder() + "/gpt2.json");
  EstimateSettings s;
  s.batch = 2;
  s.sequence = 1024;
  s.keeps_outputs = true;
  const MemoryEstimate kept = EstimateMemory(*gpt2, s);
  s.keeps_outputs = false;
  const MemoryEstimate dropped = EstimateMemory(*gpt2, s);
  constexpr uint64_t kLogits = uint64_t{2} * 1024 * 50257 * 4;
  EXPECT_EQ(*dropped.phases.back().categories.activation, 0u);
  EXPECT_GE(*kept.phases.back().categories.activation, kLogits);
  EXPECT_GE(kept.phases.front().bytes, dropped.phases.front().bytes + kLogits);
  s.keeps_outputs.reset();
  EXPECT_EQ(EstimateMemory(*gpt2, s).peak, kept.peak);
  s.kernels = KernelSet::kMegatron;
  EXPECT_EQ(*EstimateMemory(*gpt2, s).phases.back().categories.activation, 0u);
}

TEST(Estimate, ModelsWithoutAConfigAreShardedToo) {
  const auto resnet = LoadModel("torchvision:resnet50");
  ASSERT_TRUE(resnet.ok());
  EstimateSettings s;
  const MemoryEstimate whole = EstimateMemory(*resnet, s);
  s.parallel.data = 8;
  s.parallel.zero = 1;
  EXPECT_NEAR(static_cast<double>(*EstimateMemory(*resnet, s).analytic.optimizer_state),
              static_cast<double>(*whole.analytic.optimizer_state) / 8, 20000);
  s.parallel.zero = 3;
  const MemoryEstimate shared = EstimateMemory(*resnet, s);
  EXPECT_NEAR(static_cast<double>(*shared.analytic.parameter), static_cast<double>(*whole.analytic.parameter) / 8,
              5000);
  EXPECT_LT(*shared.peak, *whole.peak);
}

TEST(Estimate, HeadsAndLabelsOfAConfig) {
  nlohmann::json bert = nlohmann::json::parse(
      R"({"model_type":"bert","architectures":["BertForMaskedLM"],"hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,)"
      R"("intermediate_size":3072,"vocab_size":30522,"max_position_embeddings":512})");
  const auto base = ReadModelConfig(bert);
  ASSERT_TRUE(base.ok());
  EXPECT_EQ(CountParameters(*base), 109482240u);
  EXPECT_TRUE(std::any_of(base->assumptions.begin(), base->assumptions.end(), [](const std::string& text) {
    return text.find("names BertForMaskedLM: its head is not counted") != std::string::npos;
  }));
  bert["masked_head"] = true;
  EXPECT_EQ(CountParameters(*ReadModelConfig(bert)), 109514298u);  // as transformers counts BertForMaskedLM
  const auto vit = ReadModelConfig(nlohmann::json::parse(
      R"({"model_type":"vit","hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,"intermediate_size":3072,)"
      R"("id2label":{"0":"no","1":"yes"},"pooler":false})"));
  ASSERT_TRUE(vit.ok()) << vit.status();
  EXPECT_EQ(CountParameters(*vit), 85800194u);  // as transformers counts ViTForImageClassification
}

TEST(Estimate, ConvolutionOutput) {
  EXPECT_EQ(ConvolutionOutput(224, 7, 2, 3), 112u);
  EXPECT_EQ(ConvolutionOutput(64, 4, 2, 1), 32u);
  EXPECT_EQ(ConvolutionOutput(3, 5, 1, 0), 0u);
}

TEST(Estimate, BadConfigsAreOneSentence) {
  for (
      const char* text :
      {"[]", "{}", R"({"model_type":"zebra"})", R"({"model_type":"bert"})", R"({"model_type":"bert","hidden_size":-1})",
       R"({"model_type":"llama","hidden_size":16777216,"num_hidden_layers":90000,"num_attention_heads":64,"vocab_size":16777216,"intermediate_size":16777216,"num_local_experts":16777216})"}) {
    EXPECT_FALSE(ReadModelConfig(nlohmann::json::parse(text)).ok()) << text;
  }
  EXPECT_FALSE(LoadModel("/nonexistent/config.json").ok());
}

TEST(Estimate, ANumberThatIsNoCountIsNamed) {
  const nlohmann::json good = {{"model_type", "bert"}, {"hidden_size", 768}, {"num_hidden_layers", 12}, {"num_attention_heads", 12}, {"vocab_size", 30522}};
  ASSERT_TRUE(ReadModelConfig(good).ok());
  const auto refusal = [&](const nlohmann::json& change) {
    nlohmann::json c = good;
    c.update(change);
    return std::string(ReadModelConfig(c).status().message());
  };
  EXPECT_EQ(refusal({{"hidden_size", -768}}), R"(has "hidden_size": -768, which is no count)");
  EXPECT_EQ(refusal({{"num_hidden_layers", 1.5}}), R"(has "num_hidden_layers": 1.5, which is no count)");
  EXPECT_EQ(refusal({{"type_vocab_size", -2}}), R"(has "type_vocab_size": -2, which is no count)");
  EXPECT_EQ(refusal({{"intermediate_size", 1e300}}), R"(has "intermediate_size": 1e+300, which is no count)");
  EXPECT_EQ(refusal({{"num_attention_heads", 7}}), R"(has 7 heads, which do not divide the hidden size 768, and no "head_dim")");
  EXPECT_EQ(refusal({{"num_attention_heads", 7}, {"head_dim", 64}}), "");
  EXPECT_EQ(refusal({{"hidden_size", 768.0}, {"n_inner", nullptr}, {"patch_size", {16, 16}}}), "");
}

TEST(Estimate, SizesThatDoNotFitAreRefused) {
  const auto model = LoadModel(Folder() + "/gpt2.json");
  EstimateSettings s;
  EXPECT_TRUE(CheckSettings(*model, s).ok());
  s.batch = s.sequence = 1 << 24;
  EXPECT_FALSE(CheckSettings(*model, s).ok());
  s = {};
  s.parallel.pipeline = 13;
  EXPECT_FALSE(CheckSettings(*model, s).ok());
}

}  // namespace
}  // namespace vramledger
