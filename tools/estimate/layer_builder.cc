#include "tools/estimate/layer_builder.h"

#include <numeric>
#include <utility>

#include "tools/foreign/text.h"

namespace vramledger {
namespace {

std::string_view Wider(std::string_view a, std::string_view b) {
  if (a == "float64" || b == "float64") return "float64";
  return a == "float32" || b == "float32" ? std::string_view("float32") : a;
}

}  // namespace

bool IsAutocast(Precision p) {
  return p == Precision::kAutocastBfloat16 || p == Precision::kAutocastFloat16;
}

std::string_view ParameterType(Precision p) {
  switch (p) {
    case Precision::kFloat64:
      return "float64";
    case Precision::kBfloat16:
      return "bfloat16";
    case Precision::kFloat16:
      return "float16";
    default:
      return "float32";
  }
}

std::string_view ComputeType(Precision p) {
  if (p == Precision::kAutocastBfloat16) return "bfloat16";
  if (p == Precision::kAutocastFloat16) return "float16";
  return ParameterType(p);
}

uint64_t ParameterBytes(Precision p) {
  return DtypeBytes(ParameterType(p));
}

int32_t LayerBuilder::Parameter(std::initializer_list<uint64_t> shape) {
  return list_.NewTensor(shape, std::string(ParameterType(s_.precision)), TensorRole::kParameter, true);
}

int32_t LayerBuilder::Input(std::vector<uint64_t> shape, std::string_view dtype) {
  return list_.NewTensor(std::move(shape), std::string(dtype), TensorRole::kInput, false);
}

int32_t LayerBuilder::Received(std::vector<uint64_t> shape) {
  const int32_t x = Apply("vramledger::receive", {}, std::move(shape), ComputeType(s_.precision));
  list_.tensors[static_cast<size_t>(x)].requires_grad = true;
  return x;
}

const std::vector<uint64_t>& LayerBuilder::ShapeOf(int32_t tensor) const {
  return list_.tensors[static_cast<size_t>(tensor)].shape;
}

uint64_t LayerBuilder::Numel(int32_t tensor) const {
  const std::vector<uint64_t>& shape = ShapeOf(tensor);
  return std::accumulate(shape.begin(), shape.end(), uint64_t{1}, std::multiplies<>());
}

std::string_view LayerBuilder::TypeOf(int32_t tensor) const {
  return list_.tensors[static_cast<size_t>(tensor)].dtype;
}

int32_t LayerBuilder::Apply(std::string_view name, const std::vector<int32_t>& inputs, std::vector<uint64_t> shape,
                            std::string_view dtype) {
  const int32_t out = list_.Apply(std::string(name), module_, inputs, std::move(shape), std::string(dtype));
  list_.operators.back().autocast = IsAutocast(s_.precision);
  return out;
}

int32_t LayerBuilder::Fused(std::string_view name, const std::vector<int32_t>& saved, int32_t input,
                            std::vector<uint64_t> shape, std::string_view dtype) {
  const std::string type(dtype.empty() ? TypeOf(input) : dtype);
  const int32_t out = Apply(Cat("autograd::", name), saved, std::move(shape), type);
  list_.tensors[static_cast<size_t>(out)].requires_grad = true;
  return out;
}

int32_t LayerBuilder::Cast(int32_t x, std::string_view dtype) {
  if (TypeOf(x) == dtype) return x;
  return Apply("aten::_to_copy", {x}, ShapeOf(x), dtype);
}

// What autocast does to an argument of a matrix product: copies of parameters are kept until the region ends, copies of
// anything else are made anew each time.
int32_t LayerBuilder::LowPrecision(int32_t x) {
  if (!IsAutocast(s_.precision) || TypeOf(x) == ComputeType(s_.precision)) return x;
  const int32_t storage = list_.tensors[static_cast<size_t>(x)].storage;
  if (list_.storages[static_cast<size_t>(storage)].role != TensorRole::kParameter)
    return Cast(x, ComputeType(s_.precision));
  const auto [it, fresh] = casts_.try_emplace(x, -1);
  if (fresh) it->second = Cast(x, ComputeType(s_.precision));
  return it->second;
}

int32_t LayerBuilder::Linear(int32_t x, uint64_t in, uint64_t out, bool bias) {
  const uint64_t n = Numel(x) / in;
  const int32_t weight = LowPrecision(Parameter({out, in}));
  const int32_t b = bias ? LowPrecision(Parameter({out})) : -1;
  const int32_t flat = list_.View(LowPrecision(x), {n, in});
  const int32_t transposed = list_.View(weight, {in, out});
  if (bias) return Apply("aten::addmm", {b, flat, transposed}, {n, out}, TypeOf(flat));
  return Apply("aten::mm", {flat, transposed}, {n, out}, TypeOf(flat));
}

int32_t LayerBuilder::Grouped(int32_t x, uint64_t experts, uint64_t in, uint64_t out) {
  const int32_t low = LowPrecision(x), weight = LowPrecision(Parameter({experts, in, out}));
  return Apply("aten::_grouped_mm", {low, weight}, {Numel(x) / in, out}, TypeOf(low));
}

int32_t LayerBuilder::LayerNorm(int32_t x, uint64_t width) {
  // Autocast runs it in float32; its statistics are in float32 for 16-bit inputs too.
  if (IsAutocast(s_.precision)) x = Cast(x, "float32");
  const int32_t weight = Parameter({width}), bias = Parameter({width});
  const int32_t out = Apply("aten::native_layer_norm", {x, weight, bias}, ShapeOf(x));
  const std::string stats(TypeOf(x) == "float64" ? "float64" : "float32");
  list_.AddOutput({Numel(x) / width, 1}, stats);
  list_.AddOutput({Numel(x) / width, 1}, stats);
  return out;
}

int32_t LayerBuilder::RmsNorm(int32_t x, uint64_t width, RmsForm form) {
  const std::string own(TypeOf(x));
  const std::vector<uint64_t> shape = ShapeOf(x);
  const std::vector<uint64_t> each = {Numel(x) / width, 1};
  const int32_t wide = own == "float64" ? x : Cast(x, "float32");
  const int32_t square = Apply("aten::pow.Tensor_Scalar", {wide}, shape);
  const int32_t mean = Apply("aten::mean.dim", {square}, each);
  const int32_t scale = Apply("aten::rsqrt", {Apply("aten::add.Scalar", {mean}, each)}, each);
  const int32_t normal = Apply("aten::mul.Tensor", {form == RmsForm::kT5 ? x : wide, scale}, shape, TypeOf(wide));
  if (form == RmsForm::kGemma) {
    const int32_t weight = Apply("aten::add.Scalar", {Cast(Parameter({width}), TypeOf(wide))}, {width});
    return Cast(Apply("aten::mul.Tensor", {normal, weight}, shape), own);
  }
  const int32_t weight = Parameter({width});
  return Apply("aten::mul.Tensor", {weight, Cast(normal, own)}, shape, Wider(TypeOf(weight), own));
}

int32_t LayerBuilder::Softcap(int32_t x) {
  const std::vector<uint64_t> shape = ShapeOf(x);
  const int32_t capped = Apply("aten::tanh", {Apply("aten::div.Scalar", {x}, shape)}, shape);
  return Apply("aten::mul.Scalar", {capped}, shape);
}

int32_t LayerBuilder::Dropout(int32_t x, double probability) {
  if (probability <= 0) return x;
  const int32_t out = Apply("aten::native_dropout", {x}, ShapeOf(x));
  list_.AddOutput(ShapeOf(x), "bool");
  return out;
}

int32_t LayerBuilder::Add(int32_t a, int32_t b) {
  return Apply("aten::add.Tensor", {a, b}, ShapeOf(a), Wider(TypeOf(a), TypeOf(b)));
}

int32_t LayerBuilder::Multiply(int32_t a, int32_t b) {
  return Apply("aten::mul.Tensor", {a, b}, ShapeOf(a), Wider(TypeOf(a), TypeOf(b)));
}

int32_t LayerBuilder::Activation(int32_t x, std::string_view name) {
  const std::vector<uint64_t> shape = ShapeOf(x);
  if (name.starts_with("silu") || name == "swish" || name == "swiglu") return Apply("aten::silu", {x}, shape);
  if (name == "relu2" || name == "squared_relu") {
    const int32_t r = Apply("aten::relu", {x}, shape);
    return Apply("aten::pow.Tensor_Scalar", {r}, shape);
  }
  if (name.starts_with("relu")) return Apply("aten::relu", {x}, shape);
  if (name == "tanh") return Apply("aten::tanh", {x}, shape);
  if (name != "gelu_new") return Apply("aten::gelu", {x}, shape);
  // 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), operator by operator. Autocast computes the power in float32.
  const int32_t base = IsAutocast(s_.precision) ? Cast(x, "float32") : x;
  const int32_t cube = Apply("aten::mul.Scalar", {Apply("aten::pow.Tensor_Scalar", {base}, shape)}, shape);
  const int32_t inner = Apply("aten::mul.Scalar", {Add(x, cube)}, shape);
  const int32_t one = Apply("aten::add.Scalar", {Apply("aten::tanh", {inner}, shape)}, shape);
  return Multiply(Apply("aten::mul.Scalar", {x}, shape), one);
}

int32_t LayerBuilder::Rotary(int32_t x) {
  // The product with the cosine and that of the rotated half with the sine: both save the tables, which are small, and
  // neither saves x.
  const std::vector<uint64_t> shape = ShapeOf(x);
  const int32_t a = Apply("aten::mul.Scalar", {x}, shape);
  const int32_t b = Apply("aten::mul.Scalar", {Apply("aten::cat", {x}, shape)}, shape);
  return Add(a, b);
}

int32_t LayerBuilder::Attention(int32_t q, int32_t k, int32_t v, const Heads& h, int32_t bias) {
  q = LowPrecision(q), k = LowPrecision(k), v = LowPrecision(v);
  BeginCore();
  const bool composed = s_.attention == AttentionKernel::kEager || s_.attention == AttentionKernel::kMath;
  const int32_t out = composed ? EagerAttention(q, k, v, h, bias) : FusedAttention(q, k, v, h, bias);
  EndCore();
  return out;
}

int32_t LayerBuilder::FusedAttention(int32_t q, int32_t k, int32_t v, const Heads& h, int32_t bias) {
  const uint64_t queries = h.queries != 0 ? h.queries : s_.sequence;
  const uint64_t keys = h.keys != 0 ? h.keys : s_.sequence;
  const int32_t q4 = list_.View(q, {s_.batch, h.heads, queries, h.dim});
  const int32_t k4 = list_.View(k, {s_.batch, h.kv_heads, keys, h.dim});
  const int32_t v4 = list_.View(v, {s_.batch, h.kv_heads, keys, h.v_dim});
  const bool flash = s_.attention == AttentionKernel::kFlash, cudnn = s_.attention == AttentionKernel::kCudnn;
  const std::vector<uint64_t> shape = {s_.batch, h.heads, queries, h.v_dim};
  int32_t out;
  if (flash) {
    out = Apply("aten::_scaled_dot_product_flash_attention", {q4, k4, v4}, shape);
  } else {
    out = Apply(cudnn ? "aten::_scaled_dot_product_cudnn_attention" : "aten::_scaled_dot_product_efficient_attention",
                {q4, k4, v4, bias}, shape);
  }
  // Row sums in float32; the memory-efficient kernel pads a row to 32 queries.
  const uint64_t padded = flash || cudnn ? queries : (queries + 31) / 32 * 32;
  list_.AddOutput({s_.batch, h.heads, padded}, "float32");
  return list_.View(out, {s_.batch * queries, h.heads * h.v_dim});
}

int32_t LayerBuilder::EagerAttention(int32_t q, int32_t k, int32_t v, const Heads& h, int32_t bias) {
  const uint64_t queries = h.queries != 0 ? h.queries : s_.sequence;
  const uint64_t keys = h.keys != 0 ? h.keys : s_.sequence;
  const uint64_t n = s_.batch * h.heads;
  // [batch, heads, ...] of a projection's output is no plain stack of matrices: products copy it first. So do grouped
  // keys and values, which are repeated for each query head.
  const int32_t qc = Apply("aten::clone", {q}, {n, queries, h.dim});
  const int32_t kc = Apply("aten::clone", {k}, {n, h.dim, keys});
  const int32_t vc = Apply("aten::clone", {v}, {n, keys, h.v_dim});
  const std::vector<uint64_t> matrix = {n, queries, keys};
  const bool math = s_.attention == AttentionKernel::kMath;
  int32_t scores;
  if (math) {
    // Both factors are scaled before the product.
    scores =
        Apply("aten::bmm", {Apply("aten::mul.Scalar", {qc}, ShapeOf(qc)), Apply("aten::mul.Scalar", {kc}, ShapeOf(kc))},
              matrix);
  } else {
    scores = Apply("aten::mul.Scalar", {Apply("aten::bmm", {qc, kc}, matrix)}, matrix);
  }
  if (s_.attention_softcap) scores = Softcap(scores);
  if (bias >= 0) scores = Apply("aten::add.Tensor", {scores, bias}, matrix);
  const std::string own(TypeOf(scores));
  // Softmax in float32 where the model or autocast asks for it; a model that asks takes its own type back.
  const bool upcast = s_.softmax_float32 && !math;
  if (own != "float64" && (upcast || IsAutocast(s_.precision))) scores = Cast(scores, "float32");
  int32_t weights = Apply("aten::_softmax", {scores}, matrix);
  if (upcast) weights = Cast(weights, own);
  weights = Dropout(weights, s_.attention_dropout);
  const int32_t out = Apply("aten::bmm", {LowPrecision(weights), vc}, {n, queries, h.v_dim});
  return Apply("aten::clone", {out}, {s_.batch * queries, h.heads * h.v_dim});
}

int32_t LayerBuilder::CrossEntropy(int32_t logits, bool upcast) {
  const uint64_t classes = ShapeOf(logits).back();
  const uint64_t n = Numel(logits) / classes;
  const int32_t wide = upcast && TypeOf(logits) != "float64" ? Cast(logits, "float32") : logits;
  int32_t scores = Apply("aten::_log_softmax", {wide}, {n, classes});
  // Autocast raises the loss's input, not the softmax's.
  if (IsAutocast(s_.precision)) scores = Cast(scores, "float32");
  const int32_t loss = Apply("aten::nll_loss_forward", {scores, Input({n}, "int64")}, {1});
  list_.AddOutput({1}, std::string(TypeOf(scores)));
  return loss;
}

}  // namespace vramledger
