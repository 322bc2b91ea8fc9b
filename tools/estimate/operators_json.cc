// The JSON form of a list of operators, schema "vramledger.operators/1":
//   names, modules, dtypes   texts that the numbers below count, from 0
//   storages    [[bytes, role], ...]            role: 0 none, 1 parameter, 2 buffer, 3 input
//   tensors     [[storage, dtype, requires_grad (0 or 1), [size, ...]], ...]
//   regions     [[kind, name], ...]             kind: 0 checkpoint, 1 host, 2 unknown
//   operators   [[name, module, flags, region, [argument, ...], [tensor, ...]], ...]
//               module and region: -1 none; flags: 1 grad mode on, 2 under autocast; argument: a tensor, -1 not given,
//               or a list of those; tensors given out: -1 undefined
//   held        [storage, ...]
// and, of a list that was recorded without a run: name of the model, batch and sequence of its inputs.
#include "tools/estimate/operators.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

using nlohmann::json;
using Ordered = nlohmann::ordered_json;

constexpr std::string_view kSchema = "vramledger.operators/1";

class Reader {
 public:
  explicit Reader(const json& root) : root_(root) {}

  absl::StatusOr<OperatorList> Run() {
    if (!root_.is_object()) return Error("a list of operators is not an object");
    const auto schema = root_.find("schema");
    if (schema == root_.end() || !schema->is_string() || schema->get<std::string>() != kSchema)
      return Error(Cat("a list of operators is not of schema ", kSchema));
    Texts("names", &names_);
    Texts("dtypes", &dtypes_);
    Texts("modules", &out_.modules);
    Each("storages", [&](const json& j) {
      OperatorStorage s;
      if (!j.is_array() || j.size() != 2 || !j[0].is_number_unsigned()) return false;
      s.bytes = j[0].get<uint64_t>();
      int32_t role = 0;
      if (!Index(j[1], 0, 4, &role)) return false;
      s.role = static_cast<TensorRole>(role);
      out_.storages.push_back(s);
      return true;
    });
    Each("tensors", [&](const json& j) {
      OperatorTensor t;
      int32_t dtype = 0, grad = 0;
      if (!j.is_array() || j.size() != 4 || !Index(j[0], 0, out_.storages.size(), &t.storage) ||
          !Index(j[1], 0, dtypes_.size(), &dtype) || !Index(j[2], 0, 2, &grad) || !j[3].is_array())
        return false;
      t.dtype = dtypes_[static_cast<size_t>(dtype)];
      t.requires_grad = grad != 0;
      for (const json& n : j[3]) {
        if (!n.is_number_unsigned()) return false;
        t.shape.push_back(n.get<uint64_t>());
      }
      out_.tensors.push_back(std::move(t));
      return true;
    });
    Each("regions", [&](const json& j) {
      int32_t kind = 0;
      if (!j.is_array() || j.size() != 2 || !Index(j[0], 0, 3, &kind) || !j[1].is_string()) return false;
      out_.regions.push_back({static_cast<RegionKind>(kind), j[1].get<std::string>()});
      return true;
    });
    Each("operators", [&](const json& j) { return ReadOperator(j); });
    Each("held", [&](const json& j) { return Index(j, 0, out_.storages.size(), &out_.held.emplace_back()); });
    if (!error_.empty()) return Error(error_);
    if (HasImpossibleSizes(out_)) return Error("a list of operators has a tensor of an impossible size");
    return std::move(out_);
  }

 private:
  static absl::Status Error(const std::string& text) { return absl::InvalidArgumentError(text); }

  static bool Index(const json& j, int32_t low, size_t end, int32_t* out) {
    if (!j.is_number_integer()) return false;
    const auto n = j.get<int64_t>();
    if (n < low || n >= static_cast<int64_t>(end)) return false;
    *out = static_cast<int32_t>(n);
    return true;
  }

  template <typename Function>
  void Each(const char* key, Function read) {
    const auto it = root_.find(key);
    if (!error_.empty() || it == root_.end()) return;
    if (!it->is_array()) {
      error_ = Cat("\"", key, "\" of a list of operators is not a list");
      return;
    }
    for (size_t i = 0; i < it->size(); ++i) {
      if (read((*it)[i])) continue;
      error_ = Cat("entry ", i, " of \"", key, "\" of a list of operators has another form than its schema says");
      return;
    }
  }

  void Texts(const char* key, std::vector<std::string>* out) {
    Each(key, [&](const json& j) {
      if (j.is_string()) out->push_back(j.get<std::string>());
      return j.is_string();
    });
  }

  bool ReadOperator(const json& j) {
    Operator op;
    int32_t name = 0, flags = 0;
    const size_t tensors = out_.tensors.size();
    if (!j.is_array() || j.size() != 6 || !Index(j[0], 0, names_.size(), &name) ||
        !Index(j[1], -1, out_.modules.size(), &op.module) || !Index(j[2], 0, 4, &flags) ||
        !Index(j[3], -1, out_.regions.size(), &op.region) || !j[4].is_array() || !j[5].is_array())
      return false;
    op.name = names_[static_cast<size_t>(name)];
    op.grad_enabled = (flags & 1) != 0;
    op.autocast = (flags & 2) != 0;
    for (const json& argument : j[4]) {
      OperatorArgument a;
      const json one = argument.is_array() ? argument : json::array({argument});
      for (const json& t : one) {
        int32_t tensor = -1;
        if (!Index(t, -1, tensors, &tensor)) return false;
        if (tensor >= 0) a.push_back(tensor);
      }
      op.inputs.push_back(std::move(a));
    }
    for (const json& t : j[5]) {
      if (!Index(t, -1, tensors, &op.outputs.emplace_back())) return false;
    }
    out_.operators.push_back(std::move(op));
    return true;
  }

  const json& root_;
  std::vector<std::string> names_, dtypes_;
  OperatorList out_;
  std::string error_;
};

// Numbers for texts in the order of their first use.
class Texts {
 public:
  size_t Id(const std::string& text) {
    const auto [it, fresh] = ids_.try_emplace(text, list_.size());
    if (fresh) list_.push_back(text);
    return it->second;
  }
  const std::vector<std::string>& list() const { return list_; }

 private:
  std::map<std::string, size_t> ids_;
  std::vector<std::string> list_;
};

}  // namespace

bool HasImpossibleSizes(const OperatorList& list) {
  constexpr uint64_t kMost = uint64_t{1} << 56;
  uint64_t sum = 0;
  for (const OperatorStorage& s : list.storages) {
    if (s.bytes > kMost || (sum += s.bytes) > kMost) return true;
  }
  // A tensor may be larger than its storage (expanded), and its gradient is as large as it.
  uint64_t elements = 0;
  for (const OperatorTensor& t : list.tensors) {
    uint64_t numel = 1;
    for (const uint64_t d : t.shape) {
      if (d != 0 && numel > kMost / 8 / d) return true;
      numel *= d;
    }
    if ((elements += numel) > kMost / 8) return true;
  }
  return false;
}

absl::StatusOr<OperatorList> OperatorList::FromJson(const json& root) {
  return Reader(root).Run();
}

nlohmann::ordered_json OperatorList::ToJson() const {
  Texts names, dtypes;
  Ordered storage_rows = Ordered::array(), tensor_rows = Ordered::array(), region_rows = Ordered::array(),
          operator_rows = Ordered::array();
  for (const OperatorStorage& s : storages) storage_rows.push_back({s.bytes, static_cast<int>(s.role)});
  for (const OperatorTensor& t : tensors)
    tensor_rows.push_back({t.storage, dtypes.Id(t.dtype), t.requires_grad ? 1 : 0, t.shape});
  for (const OperatorRegion& r : regions) region_rows.push_back({static_cast<int>(r.kind), r.name});
  for (const Operator& op : operators) {
    Ordered arguments = Ordered::array();
    for (const OperatorArgument& a : op.inputs) {
      if (a.size() == 1)
        arguments.push_back(a[0]);
      else
        arguments.push_back(a.empty() ? Ordered(-1) : Ordered(a));
    }
    const int flags = (op.grad_enabled ? 1 : 0) | (op.autocast ? 2 : 0);
    operator_rows.push_back({names.Id(op.name), op.module, flags, op.region, std::move(arguments), op.outputs});
  }
  return {{"schema", kSchema},
          {"names", names.list()},
          {"modules", modules},
          {"dtypes", dtypes.list()},
          {"storages", std::move(storage_rows)},
          {"tensors", std::move(tensor_rows)},
          {"regions", std::move(region_rows)},
          {"operators", std::move(operator_rows)},
          {"held", held}};
}

}  // namespace vramledger
