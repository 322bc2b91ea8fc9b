#include "tools/estimate/onnx_model.h"

#ifdef VRAMLEDGER_WITH_ONNX

#include <onnx/onnx-ml.pb.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "tools/estimate/memory_estimate.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

using Shape = std::vector<uint64_t>;
using Numbers = std::vector<int64_t>;

constexpr uint64_t kMostElements = uint64_t{1} << 48;
constexpr size_t kMostNumbers = 4096;  // of a tensor that is read for its values: shapes and axes

std::string_view DtypeOf(int type) {
  using onnx::TensorProto;
  switch (type) {
    case TensorProto::FLOAT16:
      return "float16";
    case TensorProto::BFLOAT16:
      return "bfloat16";
    case TensorProto::DOUBLE:
      return "float64";
    case TensorProto::INT64:
    case TensorProto::UINT64:
      return "int64";
    case TensorProto::INT32:
    case TensorProto::UINT32:
      return "int32";
    case TensorProto::INT16:
    case TensorProto::UINT16:
      return "int16";
    case TensorProto::INT8:
      return "int8";
    case TensorProto::UINT8:
      return "uint8";
    case TensorProto::BOOL:
      return "bool";
    default:
      return "float32";
  }
}

// Operators that go from one tensor to one of the same shape, or of the shapes broadcast; what autograd calls them.
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

class Reader {
 public:
  explicit Reader(std::vector<std::string>* assumptions) : assumptions_(*assumptions) {}

  absl::StatusOr<OperatorList> Run(const onnx::GraphProto& graph) {
    if (graph.node_size() == 0) return absl::InvalidArgumentError("is no ONNX model: it has no nodes");
    for (const onnx::TensorProto& t : graph.initializer()) {
      const std::optional<Shape> shape = DimsOf(t.dims());
      if (!shape) return TooLarge(t.name());
      Define(t.name(), list_.NewTensor(*shape, std::string(DtypeOf(t.data_type())), TensorRole::kParameter,
                                       IsFloat(t.data_type())));
      if (t.data_type() == onnx::TensorProto::INT64) RememberNumbers(t.name(), t);
    }
    for (const auto* infos : {&graph.value_info(), &graph.output()}) {
      for (const onnx::ValueInfoProto& v : *infos) infos_[v.name()] = &v;
    }
    for (const onnx::ValueInfoProto& v : graph.input()) {
      if (tensors_.contains(v.name())) continue;  // older files list initializers as inputs
      const std::optional<Shape> shape = ShapeOf(v, /*open_is_one=*/true);
      if (!shape) return absl::InvalidArgumentError(Cat("has an input, \"", v.name(), "\", without a usable shape"));
      Define(v.name(), list_.NewTensor(*shape, std::string(DtypeOf(v.type().tensor_type().elem_type())),
                                       TensorRole::kInput, false));
    }
    for (const onnx::NodeProto& node : graph.node()) {
      const absl::Status status = Node(node);
      if (!status.ok()) return status;
    }
    for (const onnx::ValueInfoProto& v : graph.output()) {
      const auto it = tensors_.find(v.name());
      if (it != tensors_.end()) list_.held.push_back(list_.tensors[static_cast<size_t>(it->second)].storage);
    }
    if (opened_ != 0) assumptions_.push_back(Cat(opened_, " dimensions that the file leaves open are taken as 1"));
    assumptions_.push_back("the file's nodes as PyTorch's operators of the same meaning; no loss, no random masks");
    return std::move(list_);
  }

 private:
  static absl::Status TooLarge(std::string_view name) {
    return absl::InvalidArgumentError(Cat("has a tensor, \"", name, "\", with impossible dimensions"));
  }
  static bool IsFloat(int type) { return DtypeOf(type).find("float") != std::string_view::npos; }
  static std::optional<Shape> Checked(Shape shape) {
    uint64_t numel = 1;
    for (const uint64_t d : shape) {
      if (d > kMostElements || (d != 0 && numel > kMostElements / d)) return std::nullopt;
      numel *= std::max<uint64_t>(d, 1);
    }
    return shape;
  }
  template <typename Dims>
  static std::optional<Shape> DimsOf(const Dims& dims) {
    Shape shape;
    for (const int64_t d : dims) {
      if (d < 0) return std::nullopt;
      shape.push_back(static_cast<uint64_t>(d));
    }
    return Checked(std::move(shape));
  }
  std::optional<Shape> ShapeOf(const onnx::ValueInfoProto& v, bool open_is_one) {
    if (!v.type().has_tensor_type() || !v.type().tensor_type().has_shape()) return std::nullopt;
    Shape shape;
    for (const auto& d : v.type().tensor_type().shape().dim()) {
      if (d.has_dim_value() && d.dim_value() >= 0) {
        shape.push_back(static_cast<uint64_t>(d.dim_value()));
      } else if (open_is_one) {
        shape.push_back(1);
        ++opened_;
      } else {
        return std::nullopt;
      }
    }
    return Checked(std::move(shape));
  }

  void Define(const std::string& name, int32_t tensor) { tensors_[name] = tensor; }
  const Shape& Dims(int32_t t) const { return list_.tensors[static_cast<size_t>(t)].shape; }

  // Whole numbers that a node reads as a shape, axes or pads.
  void RememberNumbers(const std::string& name, const onnx::TensorProto& t) {
    Numbers values(t.int64_data().begin(), t.int64_data().end());
    if (values.empty() && t.has_raw_data() && t.raw_data().size() % 8 == 0) {
      values.resize(t.raw_data().size() / 8);
      if (values.size() > kMostNumbers) return;
      if (!values.empty()) std::memcpy(values.data(), t.raw_data().data(), t.raw_data().size());
    }
    if (values.size() <= kMostNumbers) numbers_[name] = std::move(values);
  }
  const Numbers* NumbersOf(const onnx::NodeProto& n, int input) const {
    if (input >= n.input_size()) return nullptr;
    const auto it = numbers_.find(n.input(input));
    return it == numbers_.end() ? nullptr : &it->second;
  }
  static const onnx::AttributeProto* Attribute(const onnx::NodeProto& n, std::string_view name) {
    for (const onnx::AttributeProto& a : n.attribute()) {
      if (a.name() == name) return &a;
    }
    return nullptr;
  }
  static int64_t Integer(const onnx::NodeProto& n, std::string_view name, int64_t fallback) {
    const auto* a = Attribute(n, name);
    return a == nullptr ? fallback : a->i();
  }
  static Numbers Integers(const onnx::NodeProto& n, std::string_view name) {
    const auto* a = Attribute(n, name);
    return a == nullptr ? Numbers() : Numbers(a->ints().begin(), a->ints().end());
  }

  absl::Status Node(const onnx::NodeProto& n) {
    std::vector<int32_t> in;
    for (const std::string& name : n.input()) {
      const auto it = tensors_.find(name);
      if (!name.empty() && it == tensors_.end())
        return absl::InvalidArgumentError(
            Cat("has a node, \"", n.name(), "\", that reads \"", name, "\" before it is made"));
      in.push_back(name.empty() ? -1 : it->second);
    }
    if (n.output_size() == 0) return absl::OkStatus();
    FoldNumbers(n, in);
    std::optional<Shape> shape;
    if (const auto it = infos_.find(n.output(0)); it != infos_.end()) shape = ShapeOf(*it->second, false);
    if (!shape) shape = InferShape(n, in);
    if (!shape)
      return absl::InvalidArgumentError(
          Cat("has a node, \"", n.name(), "\" (", n.op_type(),
              "), whose output has no known shape: export it with fixed shapes, or run ONNX shape inference on it"));
    shape = Checked(*std::move(shape));
    if (!shape) return TooLarge(n.output(0));
    Apply(n, in, *shape);
    return absl::OkStatus();
  }

  void Apply(const onnx::NodeProto& n, std::vector<int32_t> in, const Shape& shape) {
    static const std::unordered_set<std::string_view> kViews = {"Reshape",  "Flatten", "Squeeze",  "Unsqueeze",
                                                                "Identity", "Dropout", "Transpose"};
    const std::string& type = n.op_type();
    std::string dtype;
    if (const auto it = infos_.find(n.output(0)); it != infos_.end())
      dtype = DtypeOf(it->second->type().tensor_type().elem_type());
    if (kViews.contains(type) && !in.empty() && in[0] >= 0) {
      const int32_t out = list_.View(in[0], shape);
      Define(n.output(0), out);
      return;
    }
    std::string name;
    for (const Elementwise& e : kElementwise) {
      if (type == e.onnx) name = e.aten;
    }
    if (name == "aten::_prelu_kernel" || name == "aten::pow.Tensor_Scalar" || name == "aten::clamp")
      in.resize(std::min<size_t>(in.size(), name == "aten::_prelu_kernel" ? 2 : 1));
    if (type == "Conv" || type == "ConvTranspose") name = "aten::convolution";
    if (type == "Gemm") {
      name = "aten::addmm";
      in = {in.size() > 2 ? in[2] : -1, in[0], in[1]};
    }
    if (type == "MatMul") name = "aten::bmm";
    if (type == "BatchNormalization") name = "aten::cudnn_batch_norm";
    if (type == "LayerNormalization") name = "aten::native_layer_norm";
    if (type == "MaxPool") name = "aten::max_pool2d_with_indices";
    if (type == "AveragePool") name = "aten::avg_pool2d";
    if (type == "GlobalAveragePool" || type == "ReduceMean") name = "aten::mean.dim";
    if (type == "ReduceSum") name = "aten::sum.dim_IntList";
    if (type == "ReduceMax" || type == "GlobalMaxPool") name = "aten::amax";
    if (type == "Concat") name = "aten::cat";
    if (type == "Gather") name = "aten::embedding";
    if (type == "Cast" || type == "CastLike") {
      name = "aten::_to_copy";
      if (type == "Cast") dtype = DtypeOf(static_cast<int>(Integer(n, "to", onnx::TensorProto::FLOAT)));
    }
    if (type == "Slice" || type == "Split" || type == "Expand" || type == "Tile") name = "aten::slice";
    if (type == "Pad") name = "aten::constant_pad_nd";
    if (type == "Resize" || type == "Upsample") name = "aten::upsample_nearest2d";
    if (type == "Shape" || type == "Constant" || type == "ConstantOfShape" || type == "Range" || type == "Size") {
      name = "aten::full";
      if (type != "ConstantOfShape" && dtype.empty()) dtype = "int64";
      if (dtype.empty()) dtype = "float32";
      in.clear();
    }
    if (name.empty()) name = "onnx::" + type;  // not in the table: named as not covered
    if (in.empty() && dtype.empty()) dtype = "float32";
    const int32_t out = list_.Apply(name, n.name(), in, shape, dtype);
    Define(n.output(0), out);
    if (name == "aten::max_pool2d_with_indices") list_.AddOutput(shape, "int64");
    if (name == "aten::native_layer_norm" || name == "aten::cudnn_batch_norm") {
      Shape statistics = {1};
      if (name == "aten::cudnn_batch_norm" && shape.size() > 1) statistics = {shape[1]};
      if (name == "aten::native_layer_norm" && !shape.empty()) statistics.assign(shape.begin(), shape.end() - 1);
      list_.AddOutput(statistics, "float32");
      list_.AddOutput(statistics, "float32");
    }
    for (int i = 1; i < n.output_size(); ++i) {
      if (n.output(i).empty()) continue;
      std::optional<Shape> more;
      if (const auto it = infos_.find(n.output(i)); it != infos_.end()) more = ShapeOf(*it->second, false);
      Define(n.output(i),
             list_.AddOutput(more.value_or(shape),
                             dtype.empty() ? std::string(list_.tensors[static_cast<size_t>(out)].dtype) : dtype));
    }
  }

  // ---- shapes ----

  static std::optional<Shape> Broadcast(const Shape& a, const Shape& b) {
    Shape out(std::max(a.size(), b.size()));
    for (size_t i = 0; i < out.size(); ++i) {
      const uint64_t x = i < out.size() - a.size() ? 1 : a[i - (out.size() - a.size())];
      const uint64_t y = i < out.size() - b.size() ? 1 : b[i - (out.size() - b.size())];
      if (x != y && x != 1 && y != 1) return std::nullopt;
      out[i] = x == 1 ? y : x;
    }
    return out;
  }
  static uint64_t Axis(int64_t axis, size_t rank) {
    if (axis < 0) axis += static_cast<int64_t>(rank);
    return axis < 0 ? rank : static_cast<uint64_t>(axis);
  }
  static int64_t At(const Numbers& numbers, size_t i, int64_t fallback) {
    return i < numbers.size() ? numbers[i] : fallback;
  }

  std::optional<Shape> Window(const onnx::NodeProto& n, const Shape& in, Numbers kernel, uint64_t channels) {
    if (in.size() < 3) return std::nullopt;
    const Numbers strides = Integers(n, "strides"), pads = Integers(n, "pads"), dilations = Integers(n, "dilations");
    const size_t spatial = in.size() - 2;
    const auto* automatic = Attribute(n, "auto_pad");
    const bool same = automatic != nullptr && automatic->s().starts_with("SAME");
    Shape out = {in[0], channels};
    for (size_t d = 0; d < spatial; ++d) {
      const int64_t stride = At(strides, d, 1), k = (At(kernel, d, 1) - 1) * At(dilations, d, 1) + 1;
      const int64_t padded = static_cast<int64_t>(in[d + 2]) + At(pads, d, 0) + At(pads, d + spatial, 0);
      if (stride <= 0 || k <= 0 || padded < k) return std::nullopt;
      const int64_t rest = Integer(n, "ceil_mode", 0) != 0 ? stride - 1 : 0;
      out.push_back(same ? static_cast<uint64_t>((static_cast<int64_t>(in[d + 2]) + stride - 1) / stride)
                         : static_cast<uint64_t>((padded - k + rest) / stride + 1));
    }
    return out;
  }

  std::optional<Shape> InferShape(const onnx::NodeProto& n, const std::vector<int32_t>& in) {
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
    if (in.empty() || in[0] < 0) return std::nullopt;
    const Shape a = Dims(in[0]);
    const Shape b = in.size() > 1 && in[1] >= 0 ? Dims(in[1]) : Shape();
    if (type == "Shape") return Shape{a.size()};
    if (type == "Identity" || type == "Dropout" || type == "Cast" || type == "BatchNormalization" ||
        type == "LayerNormalization" || type == "InstanceNormalization" || type == "Clip" || type == "Softmax" ||
        type == "LogSoftmax")
      return a;
    for (const Elementwise& e : kElementwise) {
      if (type != e.onnx) continue;
      std::optional<Shape> out = a;
      for (size_t i = 1; i < in.size() && out; ++i) {
        if (in[i] >= 0) out = Broadcast(*out, Dims(in[i]));
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
        if (in[i] < 0 || Dims(in[i]).size() != a.size()) return std::nullopt;
        out[axis] += Dims(in[i])[axis];
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

  Numbers AxesOf(const onnx::NodeProto& n) const {
    const Numbers* given = NumbersOf(n, 1);
    return given != nullptr ? *given : Integers(n, "axes");
  }
  std::optional<Shape> Reduced(const onnx::NodeProto& n, const Shape& a) const {
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
  std::optional<Shape> Reshaped(const onnx::NodeProto& n, const Shape& a) const {
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
  std::optional<Shape> Squeezed(const onnx::NodeProto& n, const Shape& a) const {
    Numbers axes = AxesOf(n);
    if (n.op_type() == "Squeeze") {
      Shape out;
      for (size_t d = 0; d < a.size(); ++d) {
        const bool gone =
            axes.empty() ? a[d] == 1
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

  // Shapes that the file computes: Shape, then picking, joining and arithmetic on whole numbers.
  void FoldNumbers(const onnx::NodeProto& n, const std::vector<int32_t>& in) {
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
    if (type == "Shape" && !in.empty() && in[0] >= 0) {
      const Shape& shape = Dims(in[0]);
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

  std::vector<std::string>& assumptions_;
  OperatorList list_;
  std::unordered_map<std::string, int32_t> tensors_;
  std::unordered_map<std::string, const onnx::ValueInfoProto*> infos_;
  std::unordered_map<std::string, Numbers> numbers_;
  uint64_t opened_ = 0;
};

}  // namespace

absl::StatusOr<OperatorList> ReadOnnx(std::string_view bytes, std::vector<std::string>* assumptions) {
  onnx::ModelProto model;
  if (bytes.size() > static_cast<size_t>(std::numeric_limits<int>::max()) ||
      !model.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) || !model.has_graph())
    return absl::InvalidArgumentError("is neither JSON nor an ONNX model");
  return Reader(assumptions).Run(model.graph());
}

}  // namespace vramledger

#else

namespace vramledger {

absl::StatusOr<OperatorList> ReadOnnx(std::string_view, std::vector<std::string>*) {
  return absl::UnimplementedError("is not JSON, and this build reads no ONNX files (libonnx-dev was not there)");
}

}  // namespace vramledger

#endif
