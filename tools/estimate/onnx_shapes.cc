#include "tools/estimate/onnx_shapes.h"

#include <cstring>

namespace vramledger {
namespace {

using Shape = OnnxShapes::Shape;
using Numbers = OnnxShapes::Numbers;

constexpr size_t kMostNumbers = 4096;  // of a tensor that is read for its values: shapes and axes

struct Elementwise {
  const char* onnx;
  const char* aten;
};
constexpr Elementwise kElementwise[] = {{"Add", "aten::add.Tensor"},
                                        {"Sub", "aten::sub.Tensor"},
                                        {"Mul", "aten::mul.Tensor"},
                                        {"Div", "aten::div.Tensor"},
                                        {"Relu", "aten::relu"},
                                        {"Sigmoid", "aten::sigmoid"},
                                        {"Tanh", "aten::tanh"},
                                        {"Erf", "aten::erf"},
                                        {"Exp", "aten::exp"},
                                        {"Log", "aten::log"},
                                        {"Sqrt", "aten::sqrt"},
                                        {"Neg", "aten::neg"},
                                        {"Abs", "aten::abs"},
                                        {"Clip", "aten::clamp"},
                                        {"LeakyRelu", "aten::leaky_relu"},
                                        {"Elu", "aten::elu"},
                                        {"HardSwish", "aten::hardswish"},
                                        {"HardSigmoid", "aten::hardsigmoid"},
                                        {"Gelu", "aten::gelu"},
                                        {"Softplus", "aten::softplus"},
                                        {"Softmax", "aten::_softmax"},
                                        {"Pow", "aten::pow.Tensor_Scalar"},
                                        {"LogSoftmax", "aten::_log_softmax"},
                                        {"Where", "aten::where"},
                                        {"Mish", "aten::mish"},
                                        {"PRelu", "aten::_prelu_kernel"},
                                        {"Reciprocal", "aten::reciprocal"},
                                        {"Selu", "aten::elu"},
                                        {"Sin", "aten::sin"},
                                        {"Cos", "aten::cos"},
                                        {"Equal", "aten::eq"},
                                        {"Less", "aten::lt"},
                                        {"Greater", "aten::gt"},
                                        {"And", "aten::logical_and"},
                                        {"Or", "aten::logical_or"},
                                        {"Not", "aten::logical_not"},
                                        {"Min", "aten::minimum"},
                                        {"Max", "aten::maximum"},
                                        {"Floor", "aten::floor"},
                                        {"Ceil", "aten::ceil"},
                                        {"Sign", "aten::sign"},
                                        {"Mod", "aten::remainder.Tensor"}};

std::optional<Shape> Broadcast(const Shape& a, const Shape& b) {
  Shape out(std::max(a.size(), b.size()));
  for (size_t i = 0; i < out.size(); ++i) {
    const uint64_t x = i < out.size() - a.size() ? 1 : a[i - (out.size() - a.size())];
    const uint64_t y = i < out.size() - b.size() ? 1 : b[i - (out.size() - b.size())];
    if (x != y && x != 1 && y != 1) return std::nullopt;
    out[i] = x == 1 ? y : x;
  }
  return out;
}
uint64_t Axis(int64_t axis, size_t rank) {
  if (axis < 0) axis += static_cast<int64_t>(rank);
  return axis < 0 ? rank : static_cast<uint64_t>(axis);
}
int64_t At(const Numbers& numbers, size_t i, int64_t fallback) {
  return i < numbers.size() ? numbers[i] : fallback;
}

Numbers Integers(const onnx::NodeProto& n, std::string_view name) {
  const auto* a = OnnxShapes::Attribute(n, name);
  return a == nullptr ? Numbers() : Numbers(a->ints().begin(), a->ints().end());
}

// Beyond these no window is real, and sums and products of three stay in 64 bits.
constexpr int64_t kMostWindow = int64_t{1} << 20;
constexpr uint64_t kMostSide = uint64_t{1} << 40;

bool IsWindowNumber(int64_t n) {
  return n >= 0 && n <= kMostWindow;
}

std::optional<Shape> Window(const onnx::NodeProto& n, const Shape& in, Numbers kernel, uint64_t channels) {
  if (in.size() < 3) return std::nullopt;
  const Numbers strides = Integers(n, "strides"), pads = Integers(n, "pads"), dilations = Integers(n, "dilations");
  const size_t spatial = in.size() - 2;
  const auto* automatic = OnnxShapes::Attribute(n, "auto_pad");
  const bool same = automatic != nullptr && automatic->s().starts_with("SAME");
  Shape out = {in[0], channels};
  for (size_t d = 0; d < spatial; ++d) {
    for (const int64_t number :
         {At(strides, d, 1), At(kernel, d, 1), At(dilations, d, 1), At(pads, d, 0), At(pads, d + spatial, 0)}) {
      if (!IsWindowNumber(number)) return std::nullopt;
    }
    if (in[d + 2] > kMostSide) return std::nullopt;
    const int64_t stride = At(strides, d, 1), k = (At(kernel, d, 1) - 1) * At(dilations, d, 1) + 1;
    const int64_t padded = static_cast<int64_t>(in[d + 2]) + At(pads, d, 0) + At(pads, d + spatial, 0);
    if (stride <= 0 || k <= 0 || padded < k) return std::nullopt;
    const int64_t rest = OnnxShapes::Integer(n, "ceil_mode", 0) != 0 ? stride - 1 : 0;
    out.push_back(same ? static_cast<uint64_t>((static_cast<int64_t>(in[d + 2]) + stride - 1) / stride)
                       : static_cast<uint64_t>((padded - k + rest) / stride + 1));
  }
  return out;
}

}  // namespace

const char* ElementwiseOperator(std::string_view onnx_type) {
  for (const Elementwise& e : kElementwise) {
    if (onnx_type == e.onnx) return e.aten;
  }
  return nullptr;
}

const onnx::AttributeProto* OnnxShapes::Attribute(const onnx::NodeProto& n, std::string_view name) {
  for (const onnx::AttributeProto& a : n.attribute()) {
    if (a.name() == name) return &a;
  }
  return nullptr;
}

int64_t OnnxShapes::Integer(const onnx::NodeProto& n, std::string_view name, int64_t fallback) {
  const auto* a = Attribute(n, name);
  return a == nullptr ? fallback : a->i();
}

void OnnxShapes::RememberNumbers(const std::string& name, const onnx::TensorProto& t) {
  Numbers values(t.int64_data().begin(), t.int64_data().end());
  if (values.empty() && t.has_raw_data() && t.raw_data().size() % 8 == 0) {
    values.resize(t.raw_data().size() / 8);
    if (values.size() > kMostNumbers) return;
    if (!values.empty()) std::memcpy(values.data(), t.raw_data().data(), t.raw_data().size());
  }
  if (values.size() <= kMostNumbers) numbers_[name] = std::move(values);
}

const OnnxShapes::Numbers* OnnxShapes::NumbersOf(const onnx::NodeProto& n, int input) const {
  if (input >= n.input_size()) return nullptr;
  const auto it = numbers_.find(n.input(input));
  return it == numbers_.end() ? nullptr : &it->second;
}

std::optional<Shape> OnnxShapes::Infer(const onnx::NodeProto& n, const std::vector<const Shape*>& in) const {
  const std::string& type = n.op_type();
  if (type == "Constant") {
    const auto* value = Attribute(n, "value");
    if (value != nullptr && value->has_t()) return DimsOf(value->t().dims());
    const auto it = numbers_.find(n.output(0));
    return it != numbers_.end() && it->second.size() != 1 ? Shape{it->second.size()} : Shape{};
  }
  if (type == "ConstantOfShape") {
    const Numbers* numbers = NumbersOf(n, 0);
    return numbers == nullptr ? std::nullopt : DimsOf(*numbers);
  }
  if (in.empty() || in[0] == nullptr) return std::nullopt;
  const Shape a = *in[0];
  const Shape b = in.size() > 1 && in[1] != nullptr ? *in[1] : Shape();
  if (type == "Shape") return Shape{a.size()};
  if (type == "Identity" || type == "Dropout" || type == "Cast" || type == "BatchNormalization" ||
      type == "LayerNormalization" || type == "InstanceNormalization" || type == "Clip" || type == "Softmax" ||
      type == "LogSoftmax")
    return a;
  if (ElementwiseOperator(type) != nullptr) {
    std::optional<Shape> out = a;
    for (size_t i = 1; i < in.size() && out; ++i) {
      if (in[i] != nullptr) out = Broadcast(*out, *in[i]);
    }
    return out;
  }
  if (type == "Conv" && b.size() == a.size() && a.size() > 2)
    return Window(n, a, Numbers(b.begin() + 2, b.end()), b[0]);
  if (type == "MaxPool" || type == "AveragePool")
    return a.size() < 2 ? std::nullopt : Window(n, a, Integers(n, "kernel_shape"), a[1]);
  if (type == "GlobalAveragePool" || type == "GlobalMaxPool") {
    Shape out(a.size(), 1);
    std::copy_n(a.begin(), std::min<size_t>(2, a.size()), out.begin());
    return out;
  }
  if (type == "Gemm" && a.size() == 2 && b.size() == 2)
    return Shape{a[Integer(n, "transA", 0) != 0 ? 1 : 0], b[Integer(n, "transB", 0) != 0 ? 0 : 1]};
  if (type == "MatMul" && a.size() >= 2 && b.size() >= 2) {
    std::optional<Shape> out = Broadcast(Shape(a.begin(), a.end() - 2), Shape(b.begin(), b.end() - 2));
    if (out) out->insert(out->end(), {a[a.size() - 2], b.back()});
    return out;
  }
  if (type == "Flatten") {
    const uint64_t axis = std::min<uint64_t>(Axis(Integer(n, "axis", 1), a.size()), a.size());
    Shape out = {1, 1};
    for (size_t i = 0; i < a.size(); ++i) out[i < axis ? 0 : 1] *= a[i];
    return out;
  }
  if (type == "Transpose") {
    const Numbers order = Integers(n, "perm");
    Shape out(a.rbegin(), a.rend());
    for (size_t i = 0; i < order.size() && i < out.size(); ++i) {
      if (order[i] < 0 || static_cast<uint64_t>(order[i]) >= a.size()) return std::nullopt;
      out[i] = a[static_cast<size_t>(order[i])];
    }
    return out;
  }
  if (type == "Concat") {
    const uint64_t axis = Axis(Integer(n, "axis", 0), a.size());
    if (axis >= a.size()) return std::nullopt;
    Shape out = a;
    for (size_t i = 1; i < in.size(); ++i) {
      if (in[i] == nullptr || in[i]->size() != a.size()) return std::nullopt;
      out[axis] += (*in[i])[axis];
    }
    return out;
  }
  if (type == "Gather") {
    const uint64_t axis = Axis(Integer(n, "axis", 0), a.size());
    if (axis >= a.size()) return std::nullopt;
    Shape out(a.begin(), a.begin() + static_cast<int64_t>(axis));
    out.insert(out.end(), b.begin(), b.end());
    out.insert(out.end(), a.begin() + static_cast<int64_t>(axis) + 1, a.end());
    return out;
  }
  if (type.starts_with("Reduce")) return Reduced(n, a);
  if (type == "Reshape") return Reshaped(n, a);
  if (type == "Squeeze" || type == "Unsqueeze") return Squeezed(n, a);
  return std::nullopt;
}

OnnxShapes::Numbers OnnxShapes::AxesOf(const onnx::NodeProto& n) const {
  const Numbers* given = NumbersOf(n, 1);
  return given != nullptr ? *given : Integers(n, "axes");
}
std::optional<Shape> OnnxShapes::Reduced(const onnx::NodeProto& n, const Shape& a) const {
  const Numbers axes = AxesOf(n);
  const bool keep = Integer(n, "keepdims", 1) != 0;
  Shape out;
  for (size_t d = 0; d < a.size(); ++d) {
    const bool gone =
        axes.empty() || std::any_of(axes.begin(), axes.end(), [&](int64_t x) { return Axis(x, a.size()) == d; });
    if (!gone) out.push_back(a[d]);
    if (gone && keep) out.push_back(1);
  }
  return out;
}
std::optional<Shape> OnnxShapes::Reshaped(const onnx::NodeProto& n, const Shape& a) const {
  const Numbers* wanted = NumbersOf(n, 1);
  if (wanted == nullptr) return std::nullopt;
  uint64_t numel = 1, known = 1;
  for (const uint64_t d : a) numel *= d;
  Shape out;
  size_t open = wanted->size();
  for (size_t i = 0; i < wanted->size(); ++i) {
    const int64_t w = (*wanted)[i];
    out.push_back(w > 0 ? static_cast<uint64_t>(w) : w == 0 && i < a.size() ? a[i] : 1);
    if (w == -1) open = i;
    if (out.back() > kMostElements || (out.back() != 0 && known > kMostElements / out.back())) return std::nullopt;
    known *= std::max<uint64_t>(out.back(), 1);
  }
  if (open < out.size()) out[open] = numel / known;
  return out;
}
std::optional<Shape> OnnxShapes::Squeezed(const onnx::NodeProto& n, const Shape& a) const {
  Numbers axes = AxesOf(n);
  if (n.op_type() == "Squeeze") {
    Shape out;
    for (size_t d = 0; d < a.size(); ++d) {
      const bool gone = axes.empty()
                            ? a[d] == 1
                            : std::any_of(axes.begin(), axes.end(), [&](int64_t x) { return Axis(x, a.size()) == d; });
      if (!gone) out.push_back(a[d]);
    }
    return out;
  }
  Shape out = a;
  const size_t rank = a.size() + axes.size();
  for (int64_t& x : axes) x = static_cast<int64_t>(Axis(x, rank));
  std::sort(axes.begin(), axes.end());
  for (const int64_t x : axes) {
    if (static_cast<size_t>(x) > out.size()) return std::nullopt;
    out.insert(out.begin() + x, 1);
  }
  return out;
}

void OnnxShapes::FoldNumbers(const onnx::NodeProto& n, const std::vector<const Shape*>& in) {
  const std::string& type = n.op_type();
  const std::string& out = n.output(0);
  if (type == "Constant") {
    const auto* value = Attribute(n, "value");
    if (value != nullptr && value->has_t() && value->t().data_type() == onnx::TensorProto::INT64)
      RememberNumbers(out, value->t());
    if (const auto* ints = Attribute(n, "value_ints"))
      numbers_[out] = Numbers(ints->ints().begin(), ints->ints().end());
    if (const auto* one = Attribute(n, "value_int")) numbers_[out] = {one->i()};
    return;
  }
  if (type == "Shape" && !in.empty() && in[0] != nullptr) {
    const Shape& shape = *in[0];
    numbers_[out] = Numbers(shape.begin(), shape.end());
    return;
  }
  const Numbers* a = NumbersOf(n, 0);
  if (a == nullptr) return;
  if (type == "Unsqueeze" || type == "Squeeze" || type == "Cast" || type == "Identity" || type == "Reshape") {
    numbers_[out] = Numbers(*a);
    return;
  }
  const Numbers* b = NumbersOf(n, 1);
  if (type == "Gather" && b != nullptr) {
    Numbers picked;
    for (const int64_t i : *b) {
      const uint64_t at = Axis(i, a->size());
      if (at >= a->size()) return;
      picked.push_back((*a)[at]);
    }
    numbers_[out] = std::move(picked);
  } else if (type == "Concat") {
    Numbers all;
    for (int i = 0; i < n.input_size(); ++i) {
      const Numbers* part = NumbersOf(n, i);
      if (part == nullptr || all.size() + part->size() > kMostNumbers) return;
      all.insert(all.end(), part->begin(), part->end());
    }
    numbers_[out] = std::move(all);
  } else if ((type == "Mul" || type == "Add" || type == "Div" || type == "Sub") && b != nullptr) {
    if (a->empty() || b->empty()) return;
    Numbers result;
    for (size_t i = 0; i < std::max(a->size(), b->size()); ++i) {
      const int64_t x = At(*a, i, a->back()), y = At(*b, i, b->back());
      constexpr int64_t kMost = int64_t{1} << 31;  // keeps every result representable
      if (x > kMost || x < -kMost || y > kMost || y < -kMost || (type == "Div" && y == 0)) return;
      result.push_back(type == "Mul" ? x * y : type == "Add" ? x + y : type == "Sub" ? x - y : x / y);
    }
    numbers_[out] = std::move(result);
  } else if (type == "Slice") {
    const Numbers *starts = b, *ends = NumbersOf(n, 2);
    if (starts == nullptr || ends == nullptr || starts->size() != 1 || ends->size() != 1) return;
    const auto clamp = [&](int64_t x) {
      if (x < 0) x += static_cast<int64_t>(a->size());
      return std::clamp<int64_t>(x, 0, static_cast<int64_t>(a->size()));
    };
    const int64_t first = clamp((*starts)[0]), last = clamp((*ends)[0]);
    if (first <= last) numbers_[out] = Numbers(a->begin() + first, a->begin() + last);
  }
}

}  // namespace vramledger
