// ONNX files: shapes, what autograd would keep, and hostile bytes.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <limits>
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

// ---- a file made by hand ----

std::string Varint(uint64_t n) {
  std::string out;
  for (; n >= 128; n >>= 7) out.push_back(static_cast<char>(n | 128));
  return out + static_cast<char>(n);
}
std::string Number(uint32_t field, int64_t value) {
  return Varint(uint64_t{field} << 3) + Varint(static_cast<uint64_t>(value));
}
std::string Text(uint32_t field, const std::string& bytes) {
  return Varint(uint64_t{field} << 3 | 2) + Varint(bytes.size()) + bytes;
}
std::string Attribute(const char* name, int64_t value) {
  return Text(5, Text(1, name) + Number(20, 7) + Number(8, value) + Number(8, value));
}

// One pooling of an image of 3 x 32 x 32.
std::string Pooling(int64_t kernel, int64_t stride, int64_t dilation, int64_t pad) {
  std::string dims;
  for (const int64_t d : {1, 3, 32, 32}) dims += Text(1, Number(1, d));
  const std::string pads =
      Text(5, Text(1, "pads") + Number(20, 7) + Number(8, pad) + Number(8, pad) + Number(8, pad) + Number(8, pad));
  const std::string node = Text(1, "x") + Text(2, "y") + Text(4, "MaxPool") + Attribute("kernel_shape", kernel) +
                           Attribute("strides", stride) + Attribute("dilations", dilation) + pads;
  const std::string input = Text(1, "x") + Text(2, Text(1, Number(1, 1) + Text(2, dims)));
  return Text(7, Text(1, node) + Text(11, input) + Text(12, Text(1, "y")));
}

TEST(EstimateOnnx, AWindowOfAnImpossibleSizeHasNoShape) {
  std::vector<std::string> assumptions;
  ASSERT_TRUE(ReadOnnx(Pooling(2, 2, 1, 0), &assumptions).ok()) << ReadOnnx(Pooling(2, 2, 1, 0), &assumptions).status();
  constexpr int64_t kHuge = int64_t{1} << 62, kMost = std::numeric_limits<int64_t>::max();
  // The first three wrap around to windows that would fit.
  for (const std::string& bytes :
       {Pooling(kHuge + 1, 2, 4, 0), Pooling(2, 1, 1, kHuge), Pooling(2, 2, 1, kMost), Pooling(kMost, 1, 1, 0),
        Pooling(2, kMost, 1, 0), Pooling(2, 0, 1, 0), Pooling(2, 1, -1, 0), Pooling(2, 1, 1, -kMost)}) {
    const auto list = ReadOnnx(bytes, &assumptions);
    EXPECT_NE(std::string(list.status().message()).find("has no known shape"), std::string::npos) << list.status();
  }
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
