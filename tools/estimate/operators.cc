#include "tools/estimate/operators.h"

#include <algorithm>

#include "tools/foreign/text.h"

namespace vramledger {
namespace {

constexpr uint64_t kBlock = 512;  // allocators round up to this
constexpr std::string_view kCustomFunction = "autograd::";

bool IsFloating(std::string_view dtype) {
  return dtype.starts_with("float") || dtype.starts_with("bfloat") || dtype.starts_with("complex");
}

// The walk over a list.
class Walker {
 public:
  explicit Walker(const OperatorList& list)
      : list_(list), producers_(list.storages.size()), found_(list.storages.size()) {
    for (size_t i = 0; i < list.operators.size(); ++i) {
      for (const int32_t t : list.operators[i].outputs) {
        if (t < 0) continue;
        std::vector<int32_t>& of_storage = producers_[Storage(t)];
        if (of_storage.empty() || of_storage.back() != static_cast<int32_t>(i))
          of_storage.push_back(static_cast<int32_t>(i));
      }
    }
  }

  SavedActivations Run() {
    const std::vector<bool> reached = Reached();
    for (size_t i = 0; i < list_.operators.size(); ++i) {
      if (reached[i] && Tracks(list_.operators[i])) Save(static_cast<int32_t>(i));
    }
    for (const int32_t s : list_.held) Keep(s, -1);
    for (const SavedStorage& s : out_.storages) {
      const uint64_t bytes = list_.storages[static_cast<size_t>(s.storage)].bytes;
      if (s.cast_cache) {
        out_.cast_bytes += bytes;
        continue;
      }
      out_.bytes += bytes;
      out_.rounded_bytes += (bytes + kBlock - 1) / kBlock * kBlock;
      const Operator& producer = list_.operators[static_cast<size_t>(s.producer)];
      out_.by_operator[producer.name] += bytes;
      out_.by_module[producer.module < 0 ? "" : list_.modules[static_cast<size_t>(producer.module)]] += bytes;
    }
    return std::move(out_);
  }

 private:
  const OperatorTensor& Tensor(int32_t t) const { return list_.tensors[static_cast<size_t>(t)]; }
  size_t Storage(int32_t t) const { return static_cast<size_t>(Tensor(t).storage); }

  bool RequiresGrad(const OperatorArgument& argument) const {
    return std::any_of(argument.begin(), argument.end(), [&](int32_t t) { return t >= 0 && Tensor(t).requires_grad; });
  }
  bool Tracks(const Operator& op) const {
    if (op.name.starts_with(kCustomFunction)) return true;
    return op.grad_enabled &&
           std::any_of(op.inputs.begin(), op.inputs.end(), [&](const OperatorArgument& a) { return RequiresGrad(a); });
  }

  // Whether an operator is a part of the graph under what the program holds. Along data, not nodes, within code that
  // runs without grad mode: that is the inside of a custom function.
  std::vector<bool> Reached() const {
    std::vector<bool> reached(list_.operators.size(), list_.held.empty());
    std::vector<bool> seen(list_.storages.size(), false);
    std::vector<size_t> queue;
    const auto reach = [&](size_t storage) {
      if (!seen[storage]) {
        seen[storage] = true;
        queue.push_back(storage);
      }
    };
    for (const int32_t s : list_.held) reach(static_cast<size_t>(s));
    while (!queue.empty()) {
      const size_t storage = queue.back();
      queue.pop_back();
      for (const int32_t i : producers_[storage]) {
        reached[static_cast<size_t>(i)] = true;
        const Operator& op = list_.operators[static_cast<size_t>(i)];
        for (const OperatorArgument& argument : op.inputs) {
          for (const int32_t t : argument) {
            if (t >= 0 && (!op.grad_enabled || Tensor(t).requires_grad)) reach(Storage(t));
          }
        }
      }
    }
    return reached;
  }

  void Save(int32_t index) {
    const Operator& op = list_.operators[static_cast<size_t>(index)];
    if (op.region >= 0) {
      SaveInRegion(op, index);
      return;
    }
    if (op.name.starts_with(kCustomFunction)) {
      for (const OperatorArgument& argument : op.inputs) {
        for (const int32_t t : argument) KeepTensor(t, index);
      }
      return;
    }
    const std::vector<SavedTensorRule>* rules = FindSavedTensorRules(op.name);
    if (rules == nullptr) {
      if (HasDifferentiableOutput(op)) ++out_.not_covered[op.name];
      return;
    }
    for (const SavedTensorRule& rule : *rules) {
      const auto needed = [&](uint32_t i) { return i < op.inputs.size() && RequiresGrad(op.inputs[i]); };
      if (!rule.needed_for.empty() && std::none_of(rule.needed_for.begin(), rule.needed_for.end(), needed)) continue;
      if (rule.output) {
        if (rule.index < op.outputs.size()) KeepTensor(op.outputs[rule.index], index);
      } else if (rule.index < op.inputs.size()) {
        for (const int32_t t : op.inputs[rule.index])
          KeepTensor(rule.index == 0 ? BeforeChange(op, index, t) : t, index);
      }
    }
  }

  // What an operator saves of the tensor that it changes in place: a copy that autograd makes just before.
  int32_t BeforeChange(const Operator& op, int32_t index, int32_t t) const {
    const std::string_view base = std::string_view(op.name).substr(0, op.name.find('.'));
    if (!base.ends_with('_') || index == 0 || t < 0) return t;
    const Operator& copy = list_.operators[static_cast<size_t>(index) - 1];
    const bool is_copy = copy.name == "aten::clone" && !copy.inputs.empty() && copy.inputs[0].size() == 1 &&
                         Storage(copy.inputs[0][0]) == Storage(t) && !copy.outputs.empty();
    return is_copy ? copy.outputs[0] : t;
  }

  void SaveInRegion(const Operator& op, int32_t index) {
    const OperatorRegion& region = list_.regions[static_cast<size_t>(op.region)];
    if (region.kind == RegionKind::kUnknown) ++out_.not_covered[region.name];
    if (region.kind != RegionKind::kCheckpoint) return;
    for (const OperatorArgument& argument : op.inputs) {
      for (const int32_t t : argument) {
        if (t < 0) continue;
        const std::vector<int32_t>& producers = producers_[Storage(t)];
        if (producers.empty() || list_.operators[static_cast<size_t>(producers.front())].region != op.region)
          KeepTensor(t, index);
      }
    }
  }

  bool HasDifferentiableOutput(const Operator& op) const {
    return std::any_of(op.outputs.begin(), op.outputs.end(),
                       [&](int32_t t) { return t >= 0 && IsFloating(Tensor(t).dtype); });
  }

  void KeepTensor(int32_t t, int32_t saver) {
    if (t >= 0) Keep(Tensor(t).storage, saver);
  }
  void Keep(int32_t storage, int32_t saver) {
    const auto s = static_cast<size_t>(storage);
    if (found_[s] || list_.storages[s].bytes == 0 || list_.storages[s].role != TensorRole::kNone) return;
    if (producers_[s].empty()) return;
    found_[s] = true;
    const int32_t producer = producers_[s].front();
    out_.storages.push_back(
        {storage, producer, saver, IsCastOfParameter(list_.operators[static_cast<size_t>(producer)])});
  }

  bool IsCastOfParameter(const Operator& op) const {
    return op.autocast && op.name.starts_with("aten::_to_copy") && !op.inputs.empty() && !op.inputs[0].empty() &&
           op.inputs[0][0] >= 0 && list_.storages[Storage(op.inputs[0][0])].role == TensorRole::kParameter;
  }

  const OperatorList& list_;
  std::vector<std::vector<int32_t>> producers_;  // by storage: operators that give it out, in order
  std::vector<bool> found_;
  SavedActivations out_;
};

}  // namespace

uint64_t DtypeBytes(std::string_view dtype) {
  static const std::map<std::string_view, uint64_t> kSizes = {
      {"float64", 8},        {"float32", 4},     {"float16", 2},         {"bfloat16", 2},
      {"float8_e4m3fn", 1},  {"float8_e5m2", 1}, {"float8_e4m3fnuz", 1}, {"float8_e5m2fnuz", 1},
      {"float8_e8m0fnu", 1}, {"int64", 8},       {"int32", 4},           {"int16", 2},
      {"int8", 1},           {"uint8", 1},       {"uint16", 2},          {"uint32", 4},
      {"uint64", 8},         {"bool", 1},        {"complex32", 4},       {"complex64", 8},
      {"complex128", 16}};
  const auto it = kSizes.find(dtype);
  return it == kSizes.end() ? 0 : it->second;
}

int32_t OperatorList::NewTensor(std::vector<uint64_t> shape, std::string dtype, TensorRole role, bool requires_grad) {
  uint64_t bytes = DtypeBytes(dtype);
  for (const uint64_t n : shape) bytes *= n;
  storages.push_back({bytes, role});
  tensors.push_back({static_cast<int32_t>(storages.size()) - 1, std::move(shape), std::move(dtype), requires_grad});
  return static_cast<int32_t>(tensors.size()) - 1;
}

int32_t OperatorList::View(int32_t tensor, std::vector<uint64_t> shape) {
  OperatorTensor view = tensors[static_cast<size_t>(tensor)];
  view.shape = std::move(shape);
  tensors.push_back(std::move(view));
  return static_cast<int32_t>(tensors.size()) - 1;
}

int32_t OperatorList::Apply(std::string name, std::string_view module, const std::vector<int32_t>& inputs,
                            std::vector<uint64_t> shape, std::string dtype) {
  Operator op;
  op.name = std::move(name);
  op.module = ModuleId(module);
  bool requires_grad = false;
  for (const int32_t t : inputs) {
    op.inputs.push_back(t < 0 ? OperatorArgument{} : OperatorArgument{t});
    if (t < 0) continue;
    const OperatorTensor& tensor = tensors[static_cast<size_t>(t)];
    if (dtype.empty()) dtype = tensor.dtype;
    requires_grad |= tensor.requires_grad;
  }
  requires_grad &= IsFloating(dtype);
  op.outputs.push_back(NewTensor(std::move(shape), std::move(dtype), TensorRole::kNone, requires_grad));
  operators.push_back(std::move(op));
  return operators.back().outputs[0];
}

int32_t OperatorList::AddOutput(std::vector<uint64_t> shape, std::string dtype) {
  const int32_t t = NewTensor(std::move(shape), std::move(dtype));
  operators.back().outputs.push_back(t);
  return t;
}

int32_t OperatorList::ModuleId(std::string_view path) {
  const auto [it, fresh] = module_ids_.try_emplace(std::string(path), static_cast<int32_t>(modules.size()));
  if (fresh) modules.emplace_back(path);
  return it->second;
}

SavedActivations FindSavedActivations(const OperatorList& list) {
  return Walker(list).Run();
}

}  // namespace vramledger
