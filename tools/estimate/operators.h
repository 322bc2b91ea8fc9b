// The operators of one training forward, and what autograd keeps of their tensors for the backward.
//
// A list comes from a recorded run (tracer/python/vramledger/_operators.py), or is built from an architecture:
//
//   OperatorList list;
//   const int32_t x = list.NewTensor({32, 128, 768}, "float32", TensorRole::kInput);
//   const int32_t w = list.NewTensor({3072, 768}, "float32", TensorRole::kParameter, true);
//   const int32_t b = list.NewTensor({3072}, "float32", TensorRole::kParameter, true);
//   const int32_t y = list.Apply("aten::addmm", "mlp.up", {b, list.View(x, {4096, 768}), list.View(w, {768, 3072})},
//                                {4096, 3072});
//   list.held.push_back(list.tensors[y].storage);          // what the program still holds when the backward begins
//   const SavedActivations saved = FindSavedActivations(list);
//
// Sizes are bytes, shapes are in elements. Thread rule: none of this is shared between threads by itself.
#ifndef VRAMLEDGER_TOOLS_ESTIMATE_OPERATORS_H_
#define VRAMLEDGER_TOOLS_ESTIMATE_OPERATORS_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace vramledger {

enum class TensorRole : uint8_t { kNone, kParameter, kBuffer, kInput };

// Memory under one or more tensors.
struct OperatorStorage {
  uint64_t bytes = 0;
  TensorRole role = TensorRole::kNone;
};

struct OperatorTensor {
  int32_t storage = -1;
  std::vector<uint64_t> shape;
  std::string dtype;  // as PyTorch writes it, without "torch."
  bool requires_grad = false;
};

// How saved tensors are treated in a stretch of the forward.
enum class RegionKind : uint8_t {
  kCheckpoint,  // keeps what the stretch reads from outside it, and computes the rest again
  kHost,        // moves what is saved to the host
  kUnknown,     // hooks of the program's own: nothing is known of what they keep
};
struct OperatorRegion {
  RegionKind kind = RegionKind::kUnknown;
  std::string name;
};

// Tensors of one argument: none (not given), one, or those of a list.
using OperatorArgument = std::vector<int32_t>;

struct Operator {
  // With namespace, and the overload after a dot where there is one: "aten::mul.Tensor". A custom autograd function is
  // "autograd::NAME"; its inputs are what it saved.
  std::string name;
  int32_t module = -1;  // of OperatorList::modules
  // An operator in place ("aten::hardswish_") that needs what it overwrites saves the output of the "aten::clone"
  // just before it.
  std::vector<OperatorArgument> inputs;  // one for each argument of tensor type, in the order of the operator's schema
  std::vector<int32_t> outputs;          // tensors; -1 = undefined
  bool grad_enabled = true;
  bool autocast = false;
  int32_t region = -1;  // of OperatorList::regions
};

struct OperatorList {
  std::vector<OperatorStorage> storages;
  std::vector<OperatorTensor> tensors;
  std::vector<std::string> modules;  // paths, the model's name first: "BertModel.encoder.layer.0"
  std::vector<OperatorRegion> regions;
  std::vector<Operator> operators;  // in order of execution
  // Storages that the program holds when the backward begins: the model's outputs, the loss. Where there are none,
  // every operator counts as a part of the graph; else only those that these depend on.
  std::vector<int32_t> held;

  // ---- building ----

  // A tensor with a storage of its own. Returns its index.
  int32_t NewTensor(std::vector<uint64_t> shape, std::string dtype, TensorRole role = TensorRole::kNone,
                    bool requires_grad = false);
  // Another tensor on the same storage. Views need no operator of their own: they save nothing.
  int32_t View(int32_t tensor, std::vector<uint64_t> shape);
  // Appends an operator with one output, a new tensor of this shape; -1 among the inputs = an argument not given. The
  // dtype, where empty, is that of the first input; the output requires grad where an input does and the dtype is a
  // floating one.
  int32_t Apply(std::string name, std::string_view module, const std::vector<int32_t>& inputs,
                std::vector<uint64_t> shape, std::string dtype = "");
  // Another output of the operator appended last (a mask, a mean); it requires no grad. Returns its index.
  int32_t AddOutput(std::vector<uint64_t> shape, std::string dtype);
  int32_t ModuleId(std::string_view path);

  // Schema "vramledger.operators/1"; errors are one sentence with the place.
  static absl::StatusOr<OperatorList> FromJson(const nlohmann::json& json);
  nlohmann::ordered_json ToJson() const;

 private:
  std::map<std::string, int32_t, std::less<>> module_ids_;
};

// Sizes so large that sums of them would not fit. A list that FromJson gives has none.
bool HasImpossibleSizes(const OperatorList& list);

// Of one element; 0 for a dtype that is not known.
uint64_t DtypeBytes(std::string_view dtype);

// One storage that lives when the backward begins.
struct SavedStorage {
  int32_t storage = -1;
  int32_t producer = -1;    // operator that made it
  int32_t saver = -1;       // first operator that saves it; -1: held by the program alone
  bool cast_cache = false;  // autocast's copy of a parameter
};

struct SavedActivations {
  std::vector<SavedStorage> storages;  // distinct, in the order in which they are saved
  // Sums over `storages`, with and without rounding each up to 512 B. Casts of parameters are apart.
  uint64_t bytes = 0, rounded_bytes = 0;
  uint64_t cast_bytes = 0;
  // By the path of the module and by the name of the operator that made the storage; without casts.
  std::map<std::string, uint64_t> by_module, by_operator;
  // Operators that autograd tracks and the table does not have, and how many there were. What they save is not counted.
  std::map<std::string, uint64_t> not_covered;
};

// What of the list's tensors lives when the backward begins: saved by autograd, or held. Not counted: parameters,
// buffers, inputs, and storages that no operator of the list made.
SavedActivations FindSavedActivations(const OperatorList& list);

// ---- the table ----

// One tensor that an operator saves: an argument or an output, where one of the arguments `needed_for` requires grad
// (empty: always).
struct SavedTensorRule {
  bool output = false;
  uint32_t index = 0;
  std::vector<uint32_t> needed_for;
};
// What an operator saves for its backward; null when the table does not have it. An overload that the table does not
// list is looked up by its base name, an in-place operator by the name without underscore.
// Source of the facts: PyTorch's published definitions of derivatives (tools/autograd/derivatives.yaml of 2.11), with
// the conditions that its generator of autograd code derives from them.
const std::vector<SavedTensorRule>* FindSavedTensorRules(std::string_view name);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ESTIMATE_OPERATORS_H_
