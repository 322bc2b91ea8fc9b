#include "tools/estimate/step_walk.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tools/estimate/block_size.h"
#include "tools/estimate/reduction_workspace.h"

namespace vramledger {
namespace {

// What an operator passes on unchanged: its output's gradient is its inputs' gradient, and no memory is asked for.
bool PassesGradient(std::string_view name) {
  return name == "aten::add.Tensor" || name == "aten::add_.Tensor" || name == "aten::add.Scalar";
}

// The gradient is written over what was saved.
bool OverwritesSaved(std::string_view name) {
  return name == "autograd::VocabParallelCrossEntropy";
}

uint64_t Numel(const OperatorTensor& tensor) {
  uint64_t numel = 1;
  for (const uint64_t d : tensor.shape) numel *= d;
  return numel;
}

class Walker {
 public:
  Walker(const ForwardGraph& graph, const WalkSettings& settings)
      : g_(graph), l_(graph.list), s_(settings), storages_(l_.storages.size()) {
    for (size_t i = 0; i < l_.operators.size(); ++i) {
      const Operator& op = l_.operators[i];
      for (const int32_t t : op.outputs) {
        if (t < 0) continue;
        Storage& s = At(t);
        if (s.producer < 0) s.producer = static_cast<int64_t>(i);
        s.last_use = std::max(s.last_use, static_cast<int64_t>(i));
      }
      for (const OperatorArgument& argument : op.inputs) {
        for (const int32_t t : argument) {
          if (t >= 0) At(t).last_use = static_cast<int64_t>(i);
        }
      }
    }
    for (size_t i = 0; i < storages_.size(); ++i) storages_[i].bytes = FreshBlock(l_.storages[i].bytes);
  }

  StepWalk Run() {
    MarkSaved();
    phase_ = "forward";
    for (size_t r = 0; r < g_.ranges.size(); ++r) Forward(r, IsCheckpointed(r));
    out_.forward = std::exchange(top_, {});
    if (s_.forward_only) return std::move(out_);
    for (size_t r = g_.ranges.size(); r-- > 0;) {
      if (IsCheckpointed(r)) {
        phase_ = "recompute";
        Forward(r, false);
      }
      phase_ = "backward";
      for (size_t i = g_.ranges[r].end; i-- > g_.ranges[r].begin;) Backward(i);
    }
    out_.backward = top_;
    return std::move(out_);
  }

 private:
  struct Storage {
    uint64_t bytes = 0;
    int64_t producer = -1, last_use = -1;
    int64_t saver = -1;  // the first operator that saves it: the last to need it in the backward
    bool saved = false;  // by any operator, recomputed ones too
    bool kept = false;   // lives when the backward begins
    bool held = false;   // by the program
    bool cast = false;
    bool alive = false;
    int32_t gradient = -1;  // of gradients_
  };
  struct Gradient {
    uint64_t bytes = 0;
    uint32_t holders = 0;
  };

  const OperatorTensor& Tensor(int32_t t) const { return l_.tensors[static_cast<size_t>(t)]; }
  Storage& At(int32_t t) { return storages_[static_cast<size_t>(Tensor(t).storage)]; }
  TensorRole RoleOf(int32_t t) const { return l_.storages[static_cast<size_t>(Tensor(t).storage)].role; }
  bool IsCheckpointed(size_t range) const { return range < s_.checkpointed.size() && s_.checkpointed[range]; }

  void MarkSaved() {
    const SavedActivations all = FindSavedActivations(l_);
    for (const SavedStorage& saved : all.storages) {
      Storage& s = storages_[static_cast<size_t>(saved.storage)];
      s.saved = true;
      s.saver = saved.saver;
      s.cast = saved.cast_cache;
    }
    for (const auto& [name, count] : all.not_covered) out_.not_covered.push_back(name);
    for (const int32_t h : l_.held) storages_[static_cast<size_t>(h)].held = true;
    SavedActivations kept = all;
    if (std::find(s_.checkpointed.begin(), s_.checkpointed.end(), true) != s_.checkpointed.end()) {
      OperatorList marked = l_;
      for (size_t r = 0; r < g_.ranges.size(); ++r) {
        if (!IsCheckpointed(r)) continue;
        const auto region = static_cast<int32_t>(marked.regions.size());
        marked.regions.push_back({RegionKind::kCheckpoint, "layer"});
        for (size_t i = g_.ranges[r].begin; i < g_.ranges[r].end; ++i) marked.operators[i].region = region;
      }
      kept = FindSavedActivations(marked);
    }
    for (const SavedStorage& saved : kept.storages) {
      Storage& s = storages_[static_cast<size_t>(saved.storage)];
      s.kept = true;
      s.cast = s.cast || saved.cast_cache;
      const uint64_t rounded = RoundToUnit(l_.storages[static_cast<size_t>(saved.storage)].bytes);
      (s.cast ? out_.cast_cache : out_.saved) += rounded;
      // What a checkpointed stretch reads goes when the stretch has been computed again and differentiated.
      if (s.saver < 0 || (saved.saver >= 0 && saved.saver < s.saver)) s.saver = saved.saver;
    }
    out_.requested_saved = kept.bytes;
    for (const Storage& s : storages_) {
      if (s.held && s.producer >= 0) out_.held += s.bytes;
    }
  }

  // `beside`: what the operator takes besides its results.
  void Note(size_t i, uint64_t beside = 0) {
    if (live_ + gradients_live_ + parameter_gradients_ + beside <= top_.bytes) return;
    top_.bytes = live_ + gradients_live_ + parameter_gradients_ + beside;
    top_.phase = phase_;
    const Operator& op = l_.operators[i];
    top_.module = op.module < 0 ? "" : l_.modules[static_cast<size_t>(op.module)];
    top_.name = op.name;
    top_.cast_cache = live_cast_;
    top_.activation = live_saved_;
    top_.parameter_gradient = parameter_gradients_;
    top_.temporary = top_.bytes - top_.cast_cache - top_.activation - top_.parameter_gradient;
  }

  void Start(Storage* s) {
    if (s->alive) return;
    s->alive = true;
    live_ += s->bytes;
    if (s->cast) {
      live_cast_ += s->bytes;
    } else if (s->saved || s->kept) {
      live_saved_ += s->bytes;
    }
  }
  void End(Storage* s) {
    if (!s->alive) return;
    s->alive = false;
    live_ -= s->bytes;
    if (s->cast) {
      live_cast_ -= s->bytes;
    } else if (s->saved || s->kept) {
      live_saved_ -= s->bytes;
    }
  }

  void Forward(size_t range, bool drop) {
    const auto stays = [&](const Storage& s) { return s.held || (drop ? s.kept : s.saved || s.kept); };
    const auto end = static_cast<int64_t>(g_.ranges[range].end);
    std::vector<size_t> passed;
    for (size_t i = g_.ranges[range].begin; i < g_.ranges[range].end; ++i) {
      const auto now = static_cast<int64_t>(i);
      const Operator& op = l_.operators[i];
      for (const int32_t t : op.outputs) {
        if (t >= 0 && RoleOf(t) == TensorRole::kNone && At(t).producer == now) Start(&At(t));
      }
      Note(i);
      const auto release = [&](int32_t t) {
        Storage& s = At(t);
        if (s.producer < 0 || stays(s)) return;
        // While computing again, nobody reads what a later stretch read.
        if (s.last_use <= now || (phase_ == std::string_view("recompute") && s.last_use >= end && now + 1 == end))
          End(&s);
      };
      for (const OperatorArgument& argument : op.inputs) {
        for (const int32_t t : argument) {
          if (t >= 0) release(t);
        }
      }
      for (const int32_t t : op.outputs) {
        if (t >= 0) release(t);
      }
    }
  }

  int32_t NewGradient(uint64_t bytes) {
    gradients_.push_back({bytes, 1});
    gradients_live_ += bytes;
    return static_cast<int32_t>(gradients_.size()) - 1;
  }
  void Drop(int32_t gradient) {
    if (gradient < 0) return;
    Gradient& g = gradients_[static_cast<size_t>(gradient)];
    if (--g.holders == 0) gradients_live_ -= g.bytes;
  }

  // Gradient `incoming` of an input: the first is taken as it is; another is added to it, in place where nobody else
  // holds it.
  void Accumulate(Storage* s, int32_t incoming, size_t i) {
    if (s->gradient < 0) {
      s->gradient = incoming;
      return;
    }
    if (gradients_[static_cast<size_t>(s->gradient)].holders > 1) {
      const int32_t sum = NewGradient(gradients_[static_cast<size_t>(s->gradient)].bytes);
      Note(i);
      Drop(s->gradient);
      s->gradient = sum;
    }
    Drop(incoming);
  }

  void Backward(size_t i) {
    const Operator& op = l_.operators[i];
    int32_t outer = -1;  // the gradient of the first output
    bool tracked = false;
    for (const int32_t t : op.outputs) {
      if (t < 0 || !Tensor(t).requires_grad) continue;
      tracked = true;
      if (outer < 0) outer = At(t).gradient;
    }
    if (tracked) {
      // The gradients of all inputs stand at once before they are handed on.
      std::vector<std::pair<Storage*, int32_t>> made;
      uint64_t of_parameters = 0;
      for (const OperatorArgument& argument : op.inputs) {
        for (const int32_t t : argument) {
          if (t < 0 || !Tensor(t).requires_grad) continue;
          const OperatorTensor& tensor = Tensor(t);
          Storage* s = &At(t);
          if (RoleOf(t) == TensorRole::kParameter) {
            of_parameters += s->bytes;
          } else if (PassesGradient(op.name) && outer >= 0) {
            ++gradients_[static_cast<size_t>(outer)].holders;
            made.emplace_back(s, outer);
          } else if (s->producer >= 0) {
            if (OverwritesSaved(op.name) && !s->held) End(s);
            made.emplace_back(s, NewGradient(FreshBlock(Numel(tensor) * DtypeBytes(tensor.dtype))));
          }
        }
      }
      parameter_gradients_ += of_parameters;
      uint64_t sum_workspace = 0;
      if (const int32_t bias = BiasOf(op);
          bias >= 0 && Tensor(bias).requires_grad && !op.outputs.empty() && op.outputs[0] >= 0) {
        const OperatorTensor& output = Tensor(op.outputs[0]);
        const uint64_t columns = output.shape.empty() ? 1 : output.shape.back();
        if (columns != 0) sum_workspace = RowSumWorkspace(Numel(output) / columns, columns);
      }
      Note(i, sum_workspace);
      out_.parameter_gradients += of_parameters;
      if (!s_.keep_parameter_gradients) parameter_gradients_ -= of_parameters;
      for (auto& [storage, gradient] : made) Accumulate(storage, gradient, i);
    }
    for (const int32_t t : op.outputs) {
      if (t < 0) continue;
      Drop(std::exchange(At(t).gradient, -1));
    }
    const auto now = static_cast<int64_t>(i);
    const auto release = [&](int32_t t) {
      Storage& s = At(t);
      if (!s.held && s.saver >= now) End(&s);
    };
    for (const OperatorArgument& argument : op.inputs) {
      for (const int32_t t : argument) {
        if (t >= 0) release(t);
      }
    }
    for (const int32_t t : op.outputs) {
      if (t >= 0) release(t);
    }
  }

  const ForwardGraph& g_;
  const OperatorList& l_;
  const WalkSettings& s_;
  std::vector<Storage> storages_;
  std::vector<Gradient> gradients_;
  uint64_t live_ = 0, live_saved_ = 0, live_cast_ = 0, gradients_live_ = 0, parameter_gradients_ = 0;
  std::string_view phase_;
  WalkPoint top_;
  StepWalk out_;
};

}  // namespace

int32_t BiasOf(const Operator& op) {
  return op.name == "aten::addmm" && !op.inputs.empty() && op.inputs[0].size() == 1 ? op.inputs[0][0] : -1;
}

std::vector<bool> PlanCheckpoints(Checkpointing kind, uint64_t every, ForwardGraph* graph) {
  std::vector<bool> out;
  if (kind == Checkpointing::kSelective) {
    for (const LayerRange& r : graph->ranges) out.push_back(r.core);
    return out;
  }
  int64_t layers = 0;
  for (const LayerRange& r : graph->ranges) layers = std::max(layers, r.layer + 1);
  auto stretch = static_cast<int64_t>(std::max<uint64_t>(every, 1));
  if (kind == Checkpointing::kAll) stretch = 1;
  if (kind == Checkpointing::kSqrt)
    stretch = std::max<int64_t>(1, static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(layers)))));
  std::vector<LayerRange> joined;
  for (const LayerRange& r : graph->ranges) {
    LayerRange next = r;
    next.core = false;
    if (next.layer >= 0 && kind != Checkpointing::kNone) next.layer /= stretch;
    if (!joined.empty() && joined.back().layer == next.layer && next.layer >= 0) {
      joined.back().end = next.end;
    } else {
      joined.push_back(next);
    }
  }
  graph->ranges = std::move(joined);
  for (const LayerRange& r : graph->ranges) out.push_back(kind != Checkpointing::kNone && r.layer >= 0);
  return out;
}

StepWalk WalkStep(const ForwardGraph& graph, const WalkSettings& settings) {
  return Walker(graph, settings).Run();
}

}  // namespace vramledger
