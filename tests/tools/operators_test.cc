// What autograd saves, against sizes worked out by hand.
#include "tools/estimate/operators.h"

#include <gtest/gtest.h>

#include <random>

namespace vramledger {
namespace {

constexpr auto kParameter = TensorRole::kParameter;
constexpr auto kInput = TensorRole::kInput;

int32_t Weight(OperatorList* list, std::vector<uint64_t> shape, bool trained = true) {
  return list->NewTensor(std::move(shape), "float32", kParameter, trained);
}

int32_t Linear(OperatorList* list, const char* module, int32_t x, uint64_t rows, uint64_t in, uint64_t out,
               bool trained = true) {
  const int32_t w = Weight(list, {out, in}, trained), b = Weight(list, {out}, trained);
  return list->Apply("aten::addmm", module, {b, list->View(x, {rows, in}), list->View(w, {in, out})}, {rows, out});
}

void Hold(OperatorList* list, int32_t tensor) {
  list->held.push_back(list->tensors[static_cast<size_t>(tensor)].storage);
}

// x[8, 64] -> 256, GELU, dropout, -> 32, mean.
OperatorList Mlp() {
  OperatorList list;
  const int32_t x = list.NewTensor({8, 64}, "float32", kInput);
  const int32_t up = Linear(&list, "Mlp.up", x, 8, 64, 256);
  const int32_t active = list.Apply("aten::gelu", "Mlp.act", {up}, {8, 256});
  const int32_t dropped = list.Apply("aten::native_dropout", "Mlp.dropout", {active}, {8, 256});
  list.AddOutput({8, 256}, "bool");
  const int32_t out = Linear(&list, "Mlp.down", dropped, 8, 256, 32);
  Hold(&list, list.Apply("aten::mean", "", {out}, {}));
  return list;
}

TEST(Operators, LinearGeluDropout) {
  const SavedActivations saved = FindSavedActivations(Mlp());
  // The input of GELU, the mask, the input of the second linear layer, the loss. Neither GELU's output nor the first
  // layer's input, which is the program's.
  EXPECT_EQ(saved.bytes, 8u * 256 * 4 + 8 * 256 + 8 * 256 * 4 + 4);
  EXPECT_EQ(saved.rounded_bytes, 8u * 256 * 4 + 8 * 256 + 8 * 256 * 4 + 512);
  EXPECT_EQ(saved.by_module.at("Mlp.up"), 8u * 256 * 4);
  EXPECT_EQ(saved.by_module.at("Mlp.dropout"), 8u * 256 * 5);
  EXPECT_EQ(saved.by_operator.at("aten::addmm"), 8u * 256 * 4);
  EXPECT_TRUE(saved.not_covered.empty());
}

TEST(Operators, NothingWithoutGradMode) {
  OperatorList list = Mlp();
  for (Operator& op : list.operators) op.grad_enabled = false;
  EXPECT_EQ(FindSavedActivations(list).bytes, 4u);  // the loss is held all the same
}

// Adapters over frozen weights: the frozen product needs the weight only, the adapter needs its inputs.
TEST(Operators, FrozenWeightsSaveNoInput) {
  OperatorList list;
  const int32_t x = list.NewTensor({16, 64}, "float32", kInput);
  const int32_t first = Linear(&list, "frozen", x, 16, 64, 64, false);  // nothing before it is trained: no graph
  const int32_t down = list.Apply("aten::mm", "down", {first, Weight(&list, {64, 4})}, {16, 4});
  const int32_t up = list.Apply("aten::mm", "up", {down, Weight(&list, {4, 64})}, {16, 64});
  const int32_t frozen = Linear(&list, "frozen2", up, 16, 64, 64, false);
  Hold(&list, list.Apply("aten::sum", "", {frozen}, {}));
  const SavedActivations saved = FindSavedActivations(list);
  EXPECT_EQ(saved.by_module.at("frozen"), 16u * 64 * 4);  // as the input of "down"
  EXPECT_EQ(saved.by_module.at("down"), 16u * 4 * 4);
  EXPECT_EQ(saved.by_module.count("up"), 0u);
  EXPECT_EQ(saved.bytes, 16u * 64 * 4 + 16 * 4 * 4 + 4);
}

TEST(Operators, Norms) {
  OperatorList list;
  const int32_t x = list.NewTensor({2, 64, 7, 7}, "float32", TensorRole::kNone, true);
  list.operators.push_back({"aten::add.Tensor", -1, {}, {x}});  // makes x
  const int32_t y =
      list.Apply("aten::cudnn_batch_norm", "bn", {x, Weight(&list, {64}), Weight(&list, {64})}, {2, 64, 7, 7});
  list.AddOutput({64}, "float32");
  list.AddOutput({64}, "float32");
  list.AddOutput({128}, "uint8");  // the reserve
  const int32_t z =
      list.Apply("aten::native_layer_norm", "ln", {y, Weight(&list, {7}), Weight(&list, {7})}, {2, 64, 7, 7});
  list.AddOutput({2, 64, 7, 1}, "float32");
  list.AddOutput({2, 64, 7, 1}, "float32");
  const int32_t u = list.Apply("aten::_fused_rms_norm", "rms", {z, Weight(&list, {7})}, {2, 64, 7, 7});
  list.AddOutput({2, 64, 7, 1}, "float32");
  Hold(&list, list.Apply("aten::relu_", "", {u}, {2, 64, 7, 7}));
  const uint64_t full = 2 * 64 * 49 * 4, row = 2 * 64 * 7 * 4;
  const SavedActivations saved = FindSavedActivations(list);
  EXPECT_EQ(saved.by_operator.at("aten::cudnn_batch_norm"), full + 2 * 64 * 4 + 128);
  EXPECT_EQ(saved.by_operator.at("aten::native_layer_norm"), full + 2 * row);
  EXPECT_EQ(saved.by_operator.at("aten::_fused_rms_norm"), row);
  EXPECT_EQ(saved.bytes, 4 * full + 3 * row + 2 * 64 * 4 + 128);
}

// Batch 2, 4 heads, 16 tokens, 8 a head.
TEST(Operators, AttentionFusedAndEager) {
  const uint64_t state = 2 * 4 * 16 * 8 * 4, matrix = 2 * 4 * 16 * 16 * 4;
  for (const bool fused : {true, false}) {
    OperatorList list;
    const int32_t x = list.NewTensor({2 * 16, 32}, "float32", kInput);
    int32_t qkv[3];
    for (int32_t& t : qkv) t = Linear(&list, "proj", x, 32, 32, 32);
    int32_t out = 0;
    if (fused) {
      out = list.Apply("aten::_scaled_dot_product_efficient_attention", "core", {qkv[0], qkv[1], qkv[2], -1},
                       {2, 4, 16, 8});
      list.AddOutput({2, 4, 32}, "float32");  // log of the sums, its rows rounded up to 32
      list.AddOutput({}, "int64");
      list.AddOutput({}, "int64");
    } else {
      const int32_t scores = list.Apply("aten::bmm", "core", {qkv[0], qkv[1]}, {8, 16, 16});
      const int32_t scaled = list.Apply("aten::div.Tensor", "core", {scores, -1}, {8, 16, 16});
      const int32_t shares = list.Apply("aten::_softmax", "core", {scaled}, {8, 16, 16});
      const int32_t dropped = list.Apply("aten::native_dropout", "core", {shares}, {8, 16, 16});
      list.AddOutput({8, 16, 16}, "bool");
      out = list.Apply("aten::bmm", "core", {dropped, qkv[2]}, {2, 4, 16, 8});
    }
    Hold(&list, Linear(&list, "out", out, 32, 32, 32));
    const SavedActivations saved = FindSavedActivations(list);
    EXPECT_EQ(saved.by_module.at("proj"), 3 * state);
    EXPECT_EQ(saved.by_module.at("core"), fused ? state + 2 * 4 * 32 * 4 + 16 : 2 * matrix + matrix / 4 + state);
    EXPECT_EQ(saved.by_module.at("out"), 2u * 16 * 32 * 4);  // held, not saved
  }
}

TEST(Operators, ConvolutionPoolingLoss) {
  OperatorList list;
  const int32_t image = list.NewTensor({4, 3, 32, 32}, "float32", kInput);
  const int32_t conv =
      list.Apply("aten::convolution", "conv", {image, Weight(&list, {8, 3, 3, 3}), -1}, {4, 8, 32, 32});
  const int32_t act = list.Apply("aten::relu", "act", {conv}, {4, 8, 32, 32});
  const int32_t pooled = list.Apply("aten::max_pool2d_with_indices", "pool", {act}, {4, 8, 16, 16});
  list.AddOutput({4, 8, 16, 16}, "int64");
  const int32_t logits = Linear(&list, "head", pooled, 4, 8 * 256, 10);
  const int32_t log_softmax = list.Apply("aten::_log_softmax", "", {logits}, {4, 10});
  const int32_t target = list.NewTensor({4}, "int64", kInput);
  const int32_t loss = list.Apply("aten::nll_loss_forward", "", {log_softmax, target, -1}, {});
  list.AddOutput({}, "float32");  // total weight
  Hold(&list, loss);
  const SavedActivations saved = FindSavedActivations(list);
  EXPECT_EQ(saved.by_module.count("conv"), 0u);  // ReLU keeps its output, not what it was given
  EXPECT_EQ(saved.by_module.at("act"), 4u * 8 * 32 * 32 * 4);
  EXPECT_EQ(saved.by_module.at("pool"), 4u * 8 * 16 * 16 * (4 + 8));
  EXPECT_EQ(saved.by_module.count("head"), 0u);
  EXPECT_EQ(saved.by_module.at(""), 4u * 10 * 4 + 4 + 4);
}

TEST(Operators, EmbeddingKeepsIndicesMadeOnTheWay) {
  OperatorList list;
  const int32_t ids = list.NewTensor({4, 16}, "int64", kInput);
  const int32_t shifted = list.Apply("aten::add.Tensor", "positions", {ids}, {4, 16});
  Hold(&list, list.Apply("aten::embedding", "embedding", {Weight(&list, {100, 8}), shifted}, {4, 16, 8}));
  EXPECT_EQ(FindSavedActivations(list).by_module.at("positions"), 4u * 16 * 8);
}

TEST(Operators, OneStorageCountsOnce) {
  OperatorList list;
  const int32_t x = list.NewTensor({8, 64}, "float32", kInput);
  const int32_t qkv = Linear(&list, "qkv", x, 8, 64, 192);
  const int32_t q = list.View(qkv, {8, 64}), k = list.View(qkv, {8, 64});
  Hold(&list, list.Apply("aten::mul.Tensor", "", {q, k}, {8, 64}));
  EXPECT_EQ(FindSavedActivations(list).by_module.at("qkv"), 8u * 192 * 4);  // all of it, through either view
}

// A checkpointed stretch keeps what it reads; what it makes is gone. One moved to the host keeps nothing.
TEST(Operators, Regions) {
  OperatorList list = Mlp();
  list.regions = {
      {RegionKind::kCheckpoint, "checkpoint"}, {RegionKind::kHost, "save_on_cpu"}, {RegionKind::kUnknown, "mine"}};
  for (size_t i = 1; i < 4; ++i) list.operators[i].region = 0;  // GELU to the second linear layer
  SavedActivations saved = FindSavedActivations(list);
  EXPECT_EQ(saved.bytes, 8u * 256 * 4 + 4);
  EXPECT_EQ(saved.by_module.at("Mlp.up"), 8u * 256 * 4);
  for (Operator& op : list.operators) op.region = 1;
  EXPECT_EQ(FindSavedActivations(list).bytes, 4u);
  for (Operator& op : list.operators) op.region = 2;
  EXPECT_EQ(FindSavedActivations(list).not_covered.at("mine"), 5u);
}

TEST(Operators, WhatTheLossDoesNotDependOnIsFreed) {
  OperatorList list = Mlp();
  const int32_t x = list.NewTensor({8, 64}, "float32", kInput);
  const int32_t unused = list.Apply("aten::tanh", "pooler", {Linear(&list, "pooler", x, 8, 64, 64)}, {8, 64});
  EXPECT_EQ(FindSavedActivations(list).by_module.count("pooler"), 0u);
  Hold(&list, unused);
  EXPECT_EQ(FindSavedActivations(list).by_module.at("pooler"), 8u * 64 * 4);
}

TEST(Operators, CastsOfParametersAreApart) {
  OperatorList list;
  const int32_t x = list.NewTensor({8, 64}, "float32", kInput), w = Weight(&list, {64, 64});
  const int32_t half = list.Apply("aten::_to_copy", "fc", {x}, {8, 64}, "bfloat16");
  const int32_t half_w = list.Apply("aten::_to_copy", "fc", {w}, {64, 64}, "bfloat16");
  for (Operator& op : list.operators) op.autocast = true;
  Hold(&list, list.Apply("aten::mm", "fc", {half, half_w}, {8, 64}));
  const SavedActivations saved = FindSavedActivations(list);
  EXPECT_EQ(saved.cast_bytes, 0u);  // the input needs no gradient: the weight is not kept
  EXPECT_EQ(saved.bytes, 8u * 64 * 2 * 2);
  list.tensors[static_cast<size_t>(half)].requires_grad = true;
  EXPECT_EQ(FindSavedActivations(list).cast_bytes, 64u * 64 * 2);
  EXPECT_EQ(FindSavedActivations(list).bytes, 8u * 64 * 2 * 2);
}

TEST(Operators, CustomFunctionsKeepTheirInputs) {
  OperatorList list;
  const int32_t x = list.NewTensor({8, 64}, "float32", kInput);
  const int32_t up = Linear(&list, "up", x, 8, 64, 64);
  const int32_t y = list.Apply("aten::mul.Tensor", "own", {up, up}, {8, 64});
  list.operators.back().grad_enabled = false;
  list.operators.push_back({"autograd::Square", -1, {{up}}, {y}});
  Hold(&list, y);
  EXPECT_EQ(FindSavedActivations(list).bytes, 2u * 8 * 64 * 4);
  EXPECT_TRUE(FindSavedActivations(list).not_covered.empty());
}

// What an operator in place needs of what it overwrites is copied before; some need only what they made.
TEST(Operators, InPlace) {
  for (const char* name : {"aten::hardswish_", "aten::leaky_relu_"}) {
    OperatorList list;
    const int32_t x = list.NewTensor({8, 64}, "float32", kInput);
    const int32_t up = Linear(&list, "up", x, 8, 64, 64);
    const int32_t copy = list.Apply("aten::clone", "act", {up}, {8, 64});
    Operator op{name, list.ModuleId("act"), {{up}}, {up}};
    list.operators.push_back(op);
    Hold(&list, Linear(&list, "down", up, 8, 64, 2));
    const SavedActivations saved = FindSavedActivations(list);
    EXPECT_EQ(saved.by_module.at("up"), 8u * 64 * 4) << name;
    EXPECT_EQ(saved.by_module.count("act"), std::string_view(name) == "aten::hardswish_" ? 1u : 0u);
    EXPECT_EQ(list.tensors[static_cast<size_t>(copy)].shape.size(), 2u);
  }
}

TEST(Operators, UnknownOperatorsAreNamed) {
  OperatorList list;
  const int32_t x = list.NewTensor({8, 64}, "float32", TensorRole::kNone, true);
  list.Apply("mine::fused", "", {x}, {8, 64});
  list.Apply("aten::argmax", "", {x}, {8}, "int64");  // has no derivative
  const SavedActivations saved = FindSavedActivations(list);
  EXPECT_EQ(saved.not_covered, (std::map<std::string, uint64_t>{{"mine::fused", 1}}));
}

TEST(Operators, TableLookups) {
  EXPECT_EQ(FindSavedTensorRules("aten::no_such_thing"), nullptr);
  EXPECT_EQ(FindSavedTensorRules("torchvision::nms"), nullptr);
  EXPECT_EQ(FindSavedTensorRules("aten::max.dim")->size(), 1u);
  EXPECT_EQ(FindSavedTensorRules("aten::max")->size(), 2u);
  EXPECT_TRUE(FindSavedTensorRules("aten::add_.Tensor")->empty());
  EXPECT_TRUE(FindSavedTensorRules("aten::mul.Scalar")->empty());
  EXPECT_EQ(FindSavedTensorRules("aten::mul_"), FindSavedTensorRules("aten::mul.Tensor"));
  const auto* addmm = FindSavedTensorRules("aten::addmm");
  ASSERT_EQ(addmm->size(), 2u);
  EXPECT_EQ((*addmm)[0].needed_for, std::vector<uint32_t>{2});
}

TEST(Operators, JsonAndBack) {
  OperatorList list = Mlp();
  list.regions = {{RegionKind::kHost, "save_on_cpu"}};
  list.operators[1].region = 0;
  list.operators[0].autocast = true;
  const nlohmann::json json = nlohmann::json::parse(list.ToJson().dump());
  const auto read = OperatorList::FromJson(json);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(nlohmann::json(read->ToJson()), json);
  EXPECT_EQ(FindSavedActivations(*read).bytes, FindSavedActivations(list).bytes);
}

TEST(Operators, DamagedJsonIsRefusedWithItsPlace) {
  const nlohmann::json good = Mlp().ToJson();
  nlohmann::json bad = good;
  bad["operators"][1][5] = {99999};
  EXPECT_EQ(OperatorList::FromJson(bad).status().message(),
            "entry 1 of \"operators\" of a list of operators has another form than its schema says");
  bad = good;
  bad["schema"] = "vramledger.operators/9";
  EXPECT_FALSE(OperatorList::FromJson(bad).ok());
  EXPECT_FALSE(OperatorList::FromJson(nlohmann::json::array()).ok());
  // Sizes whose sums would not fit: of one storage, and of a tensor.
  for (const char* place : {"/storages/0/0", "/tensors/0/3/0"}) {
    bad = good;
    bad[nlohmann::json::json_pointer(place)] = uint64_t{1} << 62;
    EXPECT_EQ(OperatorList::FromJson(bad).status().message(), "a list of operators has a tensor of an impossible size");
  }
  // None of them alone, but all of them together.
  bad = good;
  for (auto& tensor : bad["tensors"]) tensor[3] = {uint64_t{1} << 52};
  EXPECT_EQ(OperatorList::FromJson(bad).status().message(), "a list of operators has a tensor of an impossible size");
  // Any one value replaced by any other: read or refused, and what is read can be worked with.
  std::mt19937 random(7);
  const nlohmann::json values[] = {nullptr, -1, 3, 1e300, 18446744073709551615u, "x", nlohmann::json::array(), true};
  const nlohmann::json flat = good.flatten();
  std::vector<std::string> paths;
  for (const auto& [path, value] : flat.items()) paths.push_back(path);
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    bad = good;
    bad[nlohmann::json::json_pointer(paths[random() % paths.size()])] = values[random() % std::size(values)];
    const auto read = OperatorList::FromJson(bad);
    if (read.ok())
      FindSavedActivations(*read);
    else
      ++refused;
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace vramledger
