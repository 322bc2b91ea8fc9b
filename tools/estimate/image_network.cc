#include "tools/estimate/image_network.h"

#include <utility>

#include "tools/estimate/memory_estimate.h"

namespace vramledger {
namespace {

constexpr uint64_t kImage = 224;

}  // namespace

ImageNetwork::ImageNetwork(uint64_t batch, Precision precision)
    : batch_(batch), precision_(precision), b_(Settings(batch, precision)) {
  x_ = b_.Input({batch, 3, kImage, kImage}, ParameterType(precision));
}

void ImageNetwork::Convolution(uint64_t out, uint64_t kernel, uint64_t stride, uint64_t pad, uint64_t groups,
                               bool bias) {
  const std::vector<uint64_t> in = b_.ShapeOf(x_);
  const std::string_view compute = ComputeType(precision_);
  const int32_t weight = b_.Cast(b_.Parameter({out, in[1] / groups, kernel, kernel}), compute);
  const int32_t bias_tensor = bias ? b_.Cast(b_.Parameter({out}), compute) : -1;
  x_ = b_.Apply(
      "aten::convolution", {b_.Cast(x_, compute), weight, bias_tensor},
      {in[0], out, ConvolutionOutput(in[2], kernel, stride, pad), ConvolutionOutput(in[3], kernel, stride, pad)},
      compute);
}

void ImageNetwork::BatchNorm() {
  const uint64_t channels = b_.ShapeOf(x_)[1];
  const int32_t weight = b_.Parameter({channels}), bias = b_.Parameter({channels});
  const int32_t mean = Buffer(channels), variance = Buffer(channels);
  b_.list().NewTensor({1}, "int64", TensorRole::kBuffer);  // how many batches were seen
  x_ = b_.Apply("aten::cudnn_batch_norm", {x_, weight, bias, mean, variance}, b_.ShapeOf(x_));
  b_.list().AddOutput({channels}, "float32");
  b_.list().AddOutput({channels}, "float32");
}

void ImageNetwork::InPlace(const char* name) {
  OperatorList& list = b_.list();
  const int32_t out = list.View(x_, b_.ShapeOf(x_));
  list.tensors[static_cast<size_t>(out)].requires_grad = true;
  Operator op;
  op.name = name;
  op.inputs = {{x_}};
  op.outputs = {out};
  op.autocast = IsAutocast(precision_);
  list.operators.push_back(std::move(op));
  x_ = out;
}

void ImageNetwork::Activation(std::string_view name) {
  if (name == "relu") return InPlace("aten::relu_");
  if (name == "relu6") return SavedCopyActivation("aten::hardtanh");
  x_ = b_.Activation(x_, name);
}

void ImageNetwork::MaxPool(uint64_t kernel, uint64_t stride, uint64_t pad) {
  const std::vector<uint64_t> in = b_.ShapeOf(x_);
  const std::vector<uint64_t> out = {in[0], in[1], ConvolutionOutput(in[2], kernel, stride, pad),
                                     ConvolutionOutput(in[3], kernel, stride, pad)};
  x_ = b_.Apply("aten::max_pool2d_with_indices", {x_}, out);
  b_.AddIndices(out);
}

void ImageNetwork::AveragePool(uint64_t kernel) {
  const std::vector<uint64_t> in = b_.ShapeOf(x_);
  x_ = b_.Apply("aten::avg_pool2d", {x_}, {in[0], in[1], in[2] / kernel, in[3] / kernel});
}

void ImageNetwork::AdaptivePool(uint64_t side) {
  const std::vector<uint64_t> in = b_.ShapeOf(x_);
  const std::vector<uint64_t> out = {in[0], in[1], side, side};
  x_ = b_.Apply(side == 1 ? "aten::mean.dim" : "aten::_adaptive_avg_pool2d", {x_}, out);
}

void ImageNetwork::Flatten() {
  const uint64_t n = b_.Numel(x_) / batch_;
  x_ = b_.list().View(x_, {batch_, n});
}

void ImageNetwork::Linear(uint64_t out) {
  const uint64_t in = b_.ShapeOf(x_).back();
  std::vector<uint64_t> shape = b_.ShapeOf(x_);
  shape.back() = out;
  x_ = b_.list().View(b_.Linear(x_, in, out, true), shape);
}

void ImageNetwork::ConvBnAct(uint64_t out, uint64_t kernel, uint64_t stride, uint64_t groups,
                             std::string_view activation) {
  Convolution(out, kernel, stride, (kernel - 1) / 2, groups);
  BatchNorm();
  if (activation == "silu") return SavedCopyActivation("aten::silu");
  if (activation == "hardswish") return SavedCopyActivation("aten::hardswish");
  if (!activation.empty()) Activation(activation);
}

void ImageNetwork::Excite(uint64_t squeezed, const char* inner, const char* gate) {
  const int32_t x = x_;
  const uint64_t channels = b_.ShapeOf(x)[1];
  AdaptivePool(1);
  Convolution(squeezed, 1, 1, 0, 1, true);
  x_ = b_.Apply(inner, {x_}, b_.ShapeOf(x_));
  Convolution(channels, 1, 1, 0, 1, true);
  x_ = b_.Multiply(x, b_.Apply(gate, {x_}, b_.ShapeOf(x_)));
}

void ImageNetwork::StochasticDepth(double p) {
  if (p <= 0) return;
  const int32_t noise = b_.Apply("aten::bernoulli_", {}, {batch_, 1, 1, 1}, ComputeType(precision_));
  x_ = b_.Apply("aten::mul.Tensor", {x_, noise}, b_.ShapeOf(x_));
}

void ImageNetwork::Close() {
  const size_t end = b_.list().operators.size();
  if (end != begin_) ranges_.push_back({begin_, end, static_cast<int64_t>(ranges_.size()), false});
  begin_ = end;
}

ForwardGraph ImageNetwork::Finish() {
  b_.list().held.push_back(b_.list().tensors[static_cast<size_t>(x_)].storage);
  const int32_t loss = b_.CrossEntropy(x_, false);
  b_.list().held.push_back(b_.list().tensors[static_cast<size_t>(loss)].storage);
  Close();
  return {std::move(b_.list()), std::move(ranges_)};
}

LayerSettings ImageNetwork::Settings(uint64_t batch, Precision precision) {
  LayerSettings s;
  s.batch = batch;
  s.precision = precision;
  return s;
}

}  // namespace vramledger
