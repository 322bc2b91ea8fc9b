// Recurrent layers. The size and layout of the weights follow from the shape (each layer's matrices, then all its
// biases); work and reserve space are nominal: what a plain implementation would keep, see Reserve below.
#include <map>
#include <mutex>

#include "tools/virtual_device/cudnn/cudnn_real.h"

namespace {

struct Shape {
  int gates = 1;          // matrices of each kind per layer
  int directions = 1;
  int input = 0, hidden = 0, projected = 0, layers = 1;
  bool biases = true;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  size_t element = 4;
};

struct Shapes {
  std::mutex lock;
  std::map<cudnnRNNDescriptor_t, Shape> shapes;
};
Shapes& TheShapes() {
  static auto* shapes = new Shapes;
  return *shapes;
}
bool Find(cudnnRNNDescriptor_t descriptor, Shape* shape) {
  Shapes& all = TheShapes();
  const std::lock_guard guard(all.lock);
  auto it = all.shapes.find(descriptor);
  if (it == all.shapes.end()) return false;
  *shape = it->second;
  return true;
}

size_t ElementSize(cudnnDataType_t type) {
  return type == CUDNN_DATA_DOUBLE ? 8 : type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16 ? 2 : 4;
}

int Output(const Shape& s) { return s.projected > 0 && s.projected < s.hidden ? s.projected : s.hidden; }
bool Projects(const Shape& s) { return Output(s) != s.hidden; }
int InputOf(const Shape& s, int pseudo_layer) {
  return pseudo_layer < s.directions ? s.input : Output(s) * s.directions;
}
// Elements of the matrices of one pseudo layer: input, recurrent, projection.
int64_t Matrices(const Shape& s, int pseudo_layer) {
  int64_t elements = int64_t{s.gates} * s.hidden * (InputOf(s, pseudo_layer) + Output(s));
  if (Projects(s)) elements += int64_t{s.projected} * s.hidden;
  return elements;
}
int64_t AllMatrices(const Shape& s, int before) {
  int64_t elements = 0;
  for (int layer = 0; layer < before; ++layer) elements += Matrices(s, layer);
  return elements;
}
int PseudoLayers(const Shape& s) { return s.layers * s.directions; }
int64_t BiasesPerLayer(const Shape& s) { return s.biases ? int64_t{2} * s.gates * s.hidden : 0; }

// What training must keep of one step of one sequence in every pseudo layer: the gates and the two states.
size_t KeptPerStep(const Shape& s) {
  return static_cast<size_t>(PseudoLayers(s)) * static_cast<size_t>(s.gates + 2) * static_cast<size_t>(s.hidden) * s.element;
}

}  // namespace

extern "C" {

cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t descriptor, cudnnRNNAlgo_t algorithm, cudnnRNNMode_t mode,
                                       cudnnRNNBiasMode_t bias, cudnnDirectionMode_t direction, cudnnRNNInputMode_t input_mode,
                                       cudnnDataType_t type, cudnnDataType_t math_precision, cudnnMathType_t math,
                                       int32_t input, int32_t hidden, int32_t projected, int32_t layers,
                                       cudnnDropoutDescriptor_t dropout, uint32_t flags) {
  const auto real = VD_REAL(cudnnSetRNNDescriptor_v8);
  if (real == nullptr) return CUDNN_STATUS_NOT_SUPPORTED;
  // The real library checks the arguments.
  const cudnnStatus_t status = real(descriptor, algorithm, mode, bias, direction, input_mode, type, math_precision, math,
                                    input, hidden, projected, layers, dropout, flags);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  Shape shape;
  shape.gates = mode == CUDNN_LSTM ? 4 : mode == CUDNN_GRU ? 3 : 1;
  shape.directions = direction == CUDNN_BIDIRECTIONAL ? 2 : 1;
  shape.input = input;
  shape.hidden = hidden;
  shape.projected = projected;
  shape.layers = layers;
  shape.biases = bias != CUDNN_RNN_NO_BIAS;
  shape.type = type;
  shape.element = ElementSize(type);
  Shapes& all = TheShapes();
  const std::lock_guard guard(all.lock);
  all.shapes[descriptor] = shape;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t, cudnnRNNDescriptor_t descriptor, size_t* size) {
  Shape s;
  if (!Find(descriptor, &s)) return CUDNN_STATUS_BAD_PARAM;
  const int64_t elements = AllMatrices(s, PseudoLayers(s)) + PseudoLayers(s) * BiasesPerLayer(s);
  *size = static_cast<size_t>(elements) * s.element;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t, cudnnRNNDescriptor_t descriptor, int32_t layer, size_t,
                                      const void* weights, int32_t id, cudnnTensorDescriptor_t matrix, void** matrix_at,
                                      cudnnTensorDescriptor_t bias, void** bias_at) {
  const auto set = VD_REAL(cudnnSetTensorNdDescriptor);
  Shape s;
  if (set == nullptr || !Find(descriptor, &s)) return CUDNN_STATUS_BAD_PARAM;
  // Either half of the answer may not be wanted.
  if (matrix_at != nullptr) *matrix_at = nullptr;
  if (bias_at != nullptr) *bias_at = nullptr;
  const auto base = reinterpret_cast<uintptr_t>(weights);
  const int gates = s.gates;
  int rows = 0, columns = 0;
  int64_t offset = AllMatrices(s, layer);
  if (id < gates) {
    rows = s.hidden;
    columns = InputOf(s, layer);
    offset += int64_t{id} * rows * columns;
  } else if (id < 2 * gates) {
    rows = s.hidden;
    columns = Output(s);
    offset += int64_t{gates} * s.hidden * InputOf(s, layer) + int64_t{id - gates} * rows * columns;
  } else if (Projects(s)) {
    rows = s.projected;
    columns = s.hidden;
    offset += int64_t{gates} * s.hidden * (InputOf(s, layer) + Output(s));
  }
  if (rows > 0 && matrix_at != nullptr) {
    const int shape[3] = {1, rows, columns}, strides[3] = {rows * columns, columns, 1};
    if (const cudnnStatus_t status = set(matrix, s.type, 3, shape, strides); status != CUDNN_STATUS_SUCCESS) return status;
    *matrix_at = reinterpret_cast<void*>(base + static_cast<uintptr_t>(offset) * s.element);
  }
  if (s.biases && id < 2 * gates && bias_at != nullptr) {
    const int shape[3] = {1, s.hidden, 1}, strides[3] = {s.hidden, 1, 1};
    if (const cudnnStatus_t status = set(bias, s.type, 3, shape, strides); status != CUDNN_STATUS_SUCCESS) return status;
    const int64_t at = AllMatrices(s, PseudoLayers(s)) + layer * BiasesPerLayer(s) + int64_t{id} * s.hidden;
    *bias_at = reinterpret_cast<void*>(base + static_cast<uintptr_t>(at) * s.element);
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t, cudnnRNNDescriptor_t descriptor, cudnnForwardMode_t mode,
                                        cudnnRNNDataDescriptor_t data, size_t* work, size_t* reserve) {
  VD_NOMINAL("cudnnGetRNNTempSpaceSizes");
  const auto get = VD_REAL(cudnnGetRNNDataDescriptor);
  Shape s;
  if (get == nullptr || !Find(descriptor, &s)) return CUDNN_STATUS_BAD_PARAM;
  cudnnDataType_t type{};
  cudnnRNNDataLayout_t layout{};
  int steps = 0, batch = 0, width = 0, lengths[1] = {0};  // the real library wants the last two even when none is read
  double padding = 0;
  if (const cudnnStatus_t status = get(data, &type, &layout, &steps, &batch, &width, 0, lengths, &padding);
      status != CUDNN_STATUS_SUCCESS) {
    return status;
  }
  const size_t kept = KeptPerStep(s) * static_cast<size_t>(steps) * static_cast<size_t>(batch);
  if (work != nullptr) *work = kept / static_cast<size_t>(s.layers);
  if (reserve != nullptr) *reserve = mode == CUDNN_FWD_MODE_TRAINING ? kept : 0;
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"
