#include "tools/estimate/onnx_model.h"

#ifdef VRAMLEDGER_WITH_ONNX

#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "tools/estimate/onnx_shapes.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

using Shape = OnnxShapes::Shape;

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

class Reader {
 public:
  explicit Reader(std::vector<std::string>* assumptions) : assumptions_(*assumptions) {}

  absl::StatusOr<OperatorList> Run(const onnx::GraphProto& graph) {
    if (graph.node_size() == 0) return absl::InvalidArgumentError("is no ONNX model: it has no nodes");
    for (const onnx::TensorProto& t : graph.initializer()) {
      const std::optional<Shape> shape = OnnxShapes::DimsOf(t.dims());
      if (!shape) return TooLarge(t.name());
      Define(t.name(), list_.NewTensor(*shape, std::string(DtypeOf(t.data_type())), TensorRole::kParameter,
                                       IsFloat(t.data_type())));
      if (t.data_type() == onnx::TensorProto::INT64) shapes_.RememberNumbers(t.name(), t);
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
    return OnnxShapes::Checked(std::move(shape));
  }

  void Define(const std::string& name, int32_t tensor) { tensors_[name] = tensor; }
  const Shape& Dims(int32_t t) const { return list_.tensors[static_cast<size_t>(t)].shape; }

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
    std::vector<const Shape*> given;
    for (const int32_t t : in) given.push_back(t < 0 ? nullptr : &Dims(t));
    shapes_.FoldNumbers(n, given);
    std::optional<Shape> shape;
    if (const auto it = infos_.find(n.output(0)); it != infos_.end()) shape = ShapeOf(*it->second, false);
    if (!shape) shape = shapes_.Infer(n, given);
    if (!shape)
      return absl::InvalidArgumentError(
          Cat("has a node, \"", n.name(), "\" (", n.op_type(),
              "), whose output has no known shape: export it with fixed shapes, or run ONNX shape inference on it"));
    shape = OnnxShapes::Checked(*std::move(shape));
    if (!shape) return TooLarge(n.output(0));
    if (n.op_type() == "Gemm" && in.size() < 2)
      return absl::InvalidArgumentError(Cat("has a node, \"", n.name(), "\" (Gemm), with fewer than two inputs"));
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
    if (const char* same = ElementwiseOperator(type)) name = same;
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
      if (type == "Cast") dtype = DtypeOf(static_cast<int>(OnnxShapes::Integer(n, "to", onnx::TensorProto::FLOAT)));
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

  std::vector<std::string>& assumptions_;
  OnnxShapes shapes_;
  OperatorList list_;
  std::unordered_map<std::string, int32_t> tensors_;
  std::unordered_map<std::string, const onnx::ValueInfoProto*> infos_;
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
