// An image classifier built layer by layer: what torchvision's models are made of.
#ifndef VRAMLEDGER_TOOLS_ESTIMATE_IMAGE_NETWORK_H_
#define VRAMLEDGER_TOOLS_ESTIMATE_IMAGE_NETWORK_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "tools/estimate/architectures.h"
#include "tools/estimate/layer_builder.h"

namespace vramledger {

class ImageNetwork {
 public:
  ImageNetwork(uint64_t batch, Precision precision);

  // ---- one operator each; x_ is what flows ----

  void Convolution(uint64_t out, uint64_t kernel, uint64_t stride, uint64_t pad, uint64_t groups = 1,
                   bool bias = false);

  void BatchNorm();

  // Written over its input, as torchvision asks for with inplace=True.
  void InPlace(const char* name);
  void Activation(std::string_view name);
  // hardtanh_, silu_ and hardswish_ overwrite what they need: autograd keeps a copy made before, as much as a new
  // tensor.
  void SavedCopyActivation(const char* name) { x_ = b_.Apply(name, {x_}, b_.ShapeOf(x_)); }

  void MaxPool(uint64_t kernel, uint64_t stride, uint64_t pad);
  void AveragePool(uint64_t kernel);
  // To 1 x 1 by a mean; to another size by pooling, which is a copy where the size is that already.
  void AdaptivePool(uint64_t side);
  void Flatten();
  void Linear(uint64_t out);
  void Dropout(double p) { x_ = b_.Dropout(x_, p); }
  void Add(int32_t other) { x_ = b_.Add(x_, other); }

  void ConvBnAct(uint64_t out, uint64_t kernel, uint64_t stride, uint64_t groups, std::string_view activation);

  // Squeeze and excitation (arXiv:1709.01507).
  void Excite(uint64_t squeezed, const char* inner, const char* gate);

  // Drops whole samples in training: a random number a sample, and a new tensor.
  void StochasticDepth(double p);

  void LayerNorm2d() { x_ = b_.LayerNorm(x_, b_.ShapeOf(x_)[1]); }
  int32_t x() const { return x_; }
  void Take(int32_t x) { x_ = x; }
  uint64_t channels() const { return b_.ShapeOf(x_)[1]; }
  uint64_t side() const { return b_.ShapeOf(x_)[2]; }
  LayerBuilder& builder() { return b_; }

  void Close();

  ForwardGraph Finish();

 private:
  static LayerSettings Settings(uint64_t batch, Precision precision);
  int32_t Buffer(uint64_t n) { return b_.list().NewTensor({n}, "float32", TensorRole::kBuffer); }

  uint64_t batch_;
  Precision precision_;
  LayerBuilder b_;
  int32_t x_ = -1;
  size_t begin_ = 0;
  std::vector<LayerRange> ranges_;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ESTIMATE_IMAGE_NETWORK_H_
