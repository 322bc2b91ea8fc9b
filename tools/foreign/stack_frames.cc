#include "tools/foreign/stack_frames.h"

#include <algorithm>
#include <array>

#include "tools/foreign/event_list.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

template <size_t N>
bool IsOneOf(std::string_view name, const std::array<std::string_view, N>& words) {
  return std::find(words.begin(), words.end(), name) != words.end();
}

constexpr std::array<std::string_view, 5> kBackwardFunctions = {"backward", "_engine_run_backward", "_make_grads",
                                                                "grad", "backward_function"};
constexpr std::array<std::string_view, 8> kLoadFunctions = {
    "load_state_dict", "_load_from_state_dict", "from_pretrained", "deepcopy",
    "__deepcopy__",    "reset_parameters",      "_rebuild_tensor", "_load"};
constexpr std::array<std::string_view, 4> kForwardFunctions = {"forward", "_call_impl", "_wrapped_call_impl",
                                                               "wrapped_func"};

std::string_view BaseName(std::string_view path) {
  const size_t slash = path.find_last_of("/\\");
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

bool IsPython(const StackFrame& f) {
  return f.file.ends_with(".py");
}

bool InFolder(std::string_view path, std::string_view folder) {
  const size_t at = path.find(folder);
  if (at == std::string_view::npos || at == 0) return false;
  const size_t after = at + folder.size();
  return (path[at - 1] == '/' || path[at - 1] == '\\') && after < path.size() &&
         (path[after] == '/' || path[after] == '\\');
}

bool InPyTorch(const StackFrame& f) {
  return InFolder(f.file, "torch") || Contains(f.file, "<");
}

bool IsWorkspaceCall(std::string_view name) {
  return Contains(name, "getNewWorkspace") || Contains(name, "BlasLtWorkspace") || Contains(name, "run_conv_plan");
}

// "MmBackward0" from "torch::autograd::generated::MmBackward0::apply(...)".
std::string_view AutogradNode(std::string_view name) {
  constexpr std::string_view kPrefix = "torch::autograd::generated::";
  if (!name.starts_with(kPrefix)) return {};
  name.remove_prefix(kPrefix.size());
  const size_t end = name.find("::apply(");
  return end == std::string_view::npos ? std::string_view() : name.substr(0, end);
}

struct Signs {
  bool engine = false, backward = false, checkpoint = false, optimizer = false, zero_grad = false, load = false,
       forward = false, no_grad = false, distributed = false, save = false;
};

void ReadPython(const StackFrame& f, Signs* s) {
  const std::string_view base = BaseName(f.file);
  if (f.name == "zero_grad") s->zero_grad = true;
  if (InFolder(f.file, "optim") && InPyTorch(f)) s->optimizer = true;
  if (IsOneOf(f.name, kBackwardFunctions) &&
      (InFolder(f.file, "autograd") || base == "_tensor.py" || base == "graph.py" || base == "runtime_wrappers.py")) {
    s->backward = true;
  }
  if (base == "checkpoint.py" && InPyTorch(f)) s->checkpoint = true;
  if (IsOneOf(f.name, kLoadFunctions) || f.name.starts_with("init_weight") || f.name.starts_with("init_all_weights"))
    s->load = true;
  if (base == "module.py" && (f.name == "_apply" || f.name == "convert")) s->load = true;
  if (IsOneOf(f.name, kForwardFunctions) || (base == "functional.py" && InPyTorch(f))) s->forward = true;
  if (f.name == "decorate_context") s->no_grad = true;
  if (base == "distributed_c10d.py") s->distributed = true;
  if (f.name == "save" && base == "serialization.py") s->save = true;
}

Phase Decide(const Signs& s) {
  if (s.zero_grad) return Phase::kZeroGrad;
  if (s.engine || s.backward) return s.checkpoint && s.forward ? Phase::kRecompute : Phase::kBackward;
  if (s.optimizer) return Phase::kOptimizer;
  if (s.distributed) return Phase::kCommunication;
  if (s.save) return Phase::kSave;
  if (s.forward && !s.load) return s.no_grad ? Phase::kEval : Phase::kForward;
  if (s.load) return Phase::kLoad;
  return Phase::kUnknown;
}

}  // namespace

StackFacts ReadStack(const std::vector<StackFrame>& frames) {
  StackFacts facts;
  facts.empty = frames.empty();
  Signs signs;
  std::string_view node;
  const StackFrame* user = nullptr;
  const StackFrame* innermost = nullptr;
  bool workspace = false;
  for (const StackFrame& f : frames) {
    if (IsPython(f)) {
      facts.python = true;
      ReadPython(f, &signs);
      if (innermost == nullptr) innermost = &f;
      if (user == nullptr && !InPyTorch(f)) user = &f;
      continue;
    }
    if (Contains(f.name, "torch::autograd::Engine::") || Contains(f.name, "PythonEngine::")) signs.engine = true;
    if (node.empty()) node = AutogradNode(f.name);
    workspace |= IsWorkspaceCall(f.name);
    facts.makes_tensor |= Contains(f.name, "empty_");
  }
  facts.phase = Decide(signs);
  facts.engine = signs.engine;
  if (workspace) {
    facts.site = kWorkspaceSite;
  } else if (!node.empty()) {
    facts.site = std::string(node);
  } else if (const StackFrame* f = user != nullptr ? user : innermost) {
    facts.site = Cat(f->name, " (", BaseName(f->file), ":", f->line, ")");
    // The PyTorch function that asked, when it is not the frame just named: "log_softmax < train_step (train.py:12)".
    if (innermost != f && innermost->name != f->name) facts.site = Cat(innermost->name, " < ", facts.site);
  }
  return facts;
}

}  // namespace vramledger
