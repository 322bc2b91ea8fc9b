// ONNX files: shapes, what autograd would keep, and hostile bytes.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <random>

#include "tools/estimate/model_source.h"
#include "tools/estimate/onnx_model.h"

namespace vramledger {
namespace {

std::string Path(const std::string& name) {
  return std::string(VRAMLEDGER_TEST_DATA) + "/estimate/" + name;
}

std::string Bytes(const std::string& name) {
  std::ifstream in(Path(name), std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

TEST(EstimateOnnx, Convolutions) {
  const auto model = LoadModel(Path("small_cnn.onnx"));
  ASSERT_TRUE(model.ok()) << model.status();
  const MemoryEstimate e = EstimateMemory(*model, {});
  EXPECT_EQ(e.parameters, 8u * 27 + 8 + 4 * 8 + 16 * 72 + 160 + 10);
  // The first convolution's output for the norm (with its statistics), the relu's, the pooled and the indices, the
  // second relu's, the pooled 16 numbers, the output.
  const uint64_t wide = 8 * 32 * 32 * 4, pooled = 8 * 16 * 16 * 4;
  EXPECT_EQ(*e.analytic.activation, 2 * wide + 2 * 8 * 4 + pooled + 2 * pooled + 16 * 8 * 8 * 4 + 16 * 4 + 10 * 4);
  EXPECT_NE(
      std::find(e.assumptions.begin(), e.assumptions.end(), "1 dimensions that the file leaves open are taken as 1"),
      e.assumptions.end());
  EXPECT_EQ(e.deployment.weights_fp16, 2 * e.parameters);
  // A norm's input and output, and its statistics in a block each.
  EXPECT_EQ(e.deployment.arena_fp16, (2 * wide + 2 * 512) / 2);
}

TEST(EstimateOnnx, ComputedShapes) {
  const auto model = LoadModel(Path("small_attention.onnx"));
  ASSERT_TRUE(model.ok()) << model.status();
  const MemoryEstimate e = EstimateMemory(*model, {});
  const uint64_t state = 2 * 16 * 32 * 4, scores = 2 * 4 * 16 * 16 * 4;
  EXPECT_EQ(*e.analytic.activation, 3 * state + scores + state);
}

// Whatever the bytes are: an answer or a sentence, and no size that cannot be.
TEST(EstimateOnnx, HostileBytes) {
  const std::string good = Bytes("small_attention.onnx");
  ASSERT_FALSE(good.empty());
  std::vector<std::string> assumptions;
  for (size_t n = 0; n < good.size(); n += 7) (void)ReadOnnx(std::string_view(good).substr(0, n), &assumptions);
  std::mt19937 random(20240229);
  size_t answered = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string bad = good;
    for (int flips = 0; flips < 1 + round % 4; ++flips) {
      bad[random() % bad.size()] = static_cast<char>(random());
    }
    const auto list = ReadOnnx(bad, &assumptions);
    if (!list.ok()) {
      EXPECT_FALSE(list.status().message().empty());
      continue;
    }
    ++answered;
    (void)FindSavedActivations(*list);
  }
  EXPECT_GT(answered, 100u);
}

}  // namespace
}  // namespace vramledger
