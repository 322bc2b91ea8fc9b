// Shapes of an ONNX graph's tensors, where the file does not carry them.
#ifndef VRAMLEDGER_TOOLS_ESTIMATE_ONNX_SHAPES_H_
#define VRAMLEDGER_TOOLS_ESTIMATE_ONNX_SHAPES_H_

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace vramledger {

// What autograd calls an operator that goes from one tensor to one of the same shape, or of the shapes broadcast; null
// for any other.
const char* ElementwiseOperator(std::string_view onnx_type);

class OnnxShapes {
 public:
  using Shape = std::vector<uint64_t>;
  using Numbers = std::vector<int64_t>;
  static constexpr uint64_t kMostElements = uint64_t{1} << 48;

  // Absent where the sizes are impossible.
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

  static const onnx::AttributeProto* Attribute(const onnx::NodeProto& node, std::string_view name);
  static int64_t Integer(const onnx::NodeProto& node, std::string_view name, int64_t fallback);

  // Whole numbers that a later node reads as a shape, axes or pads.
  void RememberNumbers(const std::string& name, const onnx::TensorProto& tensor);
  // Shapes that the file computes: Shape, then picking, joining and arithmetic on whole numbers. `in`: the shapes of
  // the node's inputs, null for one not given.
  void FoldNumbers(const onnx::NodeProto& node, const std::vector<const Shape*>& in);
  // The first output's shape; absent where it cannot be told.
  std::optional<Shape> Infer(const onnx::NodeProto& node, const std::vector<const Shape*>& in) const;

 private:
  const Numbers* NumbersOf(const onnx::NodeProto& node, int input) const;
  Numbers AxesOf(const onnx::NodeProto& node) const;
  std::optional<Shape> Reduced(const onnx::NodeProto& node, const Shape& a) const;
  std::optional<Shape> Reshaped(const onnx::NodeProto& node, const Shape& a) const;
  std::optional<Shape> Squeezed(const onnx::NodeProto& node, const Shape& a) const;

  std::unordered_map<std::string, Numbers> numbers_;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ESTIMATE_ONNX_SHAPES_H_
