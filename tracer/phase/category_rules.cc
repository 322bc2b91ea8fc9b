#include "tracer/phase/category_rules.h"

#include "tracer/format/record.h"

namespace vramledger {
namespace {

bool RunsKernels(Phase phase) {
  return phase == Phase::kForward || phase == Phase::kRecompute || phase == Phase::kBackward || phase == Phase::kEval;
}

// A library's workspace is taken once per thread and handle, at the first product, and never given back.
bool IsWorkspace(const BlockFacts& f) {
  if (f.workspace_hint || (f.flags & kFlagLibrary) != 0) return true;
  if (!IsCublasWorkspaceSize(f.requested_bytes) || !RunsKernels(f.birth_phase) || !f.first_of_size_on_thread)
    return false;
  return f.alive_at_end || f.alive_at_later_backward;
}

// Not recorded as autograd's: inference mode, or signals that say grad mode was off outside a custom Function.
bool KeepsNoGraph(const BlockFacts& f) {
  return (f.flags & kFlagSignals) != 0 && (f.flags & kFlagInference) != 0;
}

// Without names: whatever outlives two backwards was no activation of either; made before the first one ended, it is
// the model's.
bool BelongsToTheModel(const BlockFacts& f) {
  return !f.names_known && f.alive_at_later_backward && f.before_first_backward_end;
}

Category FromForward(const BlockFacts& f) {
  if (KeepsNoGraph(f)) return Category::kTemporary;
  if (BelongsToTheModel(f)) return Category::kParameter;
  if (f.alive_at_backward_start) return Category::kActivation;
  // The trace stops inside the forward (a crash, a failed request): what is still there waits for a backward.
  if (f.alive_at_end) return Category::kActivation;
  return Category::kTemporary;
}

Category FromSetup(const BlockFacts& f) {
  if (!f.alive_at_forward_start && !f.alive_at_backward_start && !f.alive_at_end) return Category::kTemporary;
  if (!f.names_known) return Category::kParameter;
  // No module's: the first batch and its labels, or a constant of the program (a table, averaged weights in a list).
  return f.alive_at_later_backward ? Category::kBuffer : Category::kInput;
}

Category FromBackward(const BlockFacts& f) {
  // A recording that ends in its backward, or right after it, never sees that end.
  if (!f.alive_after_backward && !f.left_in_size_of_parameter) return Category::kTemporary;
  // Under create_graph a backward saves for the one that goes through it.
  return (f.flags & kFlagGradMode) != 0 ? Category::kActivation : Category::kGradient;
}

// Its birth was not seen, but where the program gave it up says what it had been.
Category FromItsEnd(const BlockFacts& f) {
  if (f.workspace_hint) return Category::kWorkspace;
  switch (f.free_phase) {
    case Phase::kBackward:
      return Category::kActivation;
    case Phase::kZeroGrad:
      return Category::kGradient;
    case Phase::kOptimizer:
      return Category::kOptimizerState;
    default:
      return Category::kUnknown;
  }
}

}  // namespace

Role StrongerRole(Role a, Role b) {
  if (a == Role::kNone) return b;
  if (b == Role::kNone) return a;
  return static_cast<uint8_t>(a) < static_cast<uint8_t>(b) ? a : b;
}

Category Categorize(const BlockFacts& f) {
  switch (f.role) {
    case Role::kParameter:
      return Category::kParameter;
    case Role::kBuffer:
      return Category::kBuffer;
    case Role::kGradient:
      return Category::kGradient;
    case Role::kOptimizerState:
      return Category::kOptimizerState;
    case Role::kInput:
      return Category::kInput;
    case Role::kOutput:
    case Role::kNone:
      break;
  }
  if (f.before_trace) return FromItsEnd(f);
  if (IsWorkspace(f)) return Category::kWorkspace;
  if (f.cast_of_parameter) return Category::kCastCache;
  switch (f.birth_phase) {
    case Phase::kForward:
    case Phase::kRecompute:
      return FromForward(f);
    case Phase::kBackward:
      return FromBackward(f);
    case Phase::kOptimizer:
      return f.alive_after_optimizer ? Category::kOptimizerState : Category::kTemporary;
    case Phase::kLoad:
      return FromSetup(f);
    case Phase::kData:
      return Category::kInput;
    case Phase::kIdle:
      // Made between the phases by the script itself: what a forward then sees is its input.
      if (BelongsToTheModel(f)) return Category::kParameter;
      return f.alive_at_forward_start || f.alive_at_backward_start ? Category::kInput : Category::kTemporary;
    case Phase::kCommunication:
      return Category::kCommunication;
    case Phase::kEval:
    case Phase::kZeroGrad:
    case Phase::kSave:
      return Category::kTemporary;
    case Phase::kUnknown:
      break;
  }
  return Category::kUnknown;
}

void PhaseMarks::Enter(Phase phase, uint64_t sequence) {
  switch (phase) {
    case Phase::kUnknown:
    case Phase::kData:
    case Phase::kCommunication:
      return;
    case Phase::kRecompute:
      if (current_ == Phase::kBackward || current_ == Phase::kRecompute) {
        current_ = phase;
        return;
      }
      break;
    default:
      break;
  }
  if (phase == current_) return;
  const bool was_backward = current_ == Phase::kBackward || current_ == Phase::kRecompute;
  const bool is_backward = phase == Phase::kBackward || phase == Phase::kRecompute;
  if (was_backward && !is_backward) {
    last_backward_end_ = sequence;
    if (first_backward_end_ == 0) first_backward_end_ = sequence;
  }
  if (is_backward) {
    // Back from a recompute is the same backward, but what the recompute saved is now needed by it.
    if (!was_backward) {
      previous_backward_start_ = last_backward_start_;
      ++backwards_;
      last_backward_start_ = sequence;
    } else {
      last_recompute_end_ = sequence;
    }
  }
  if (current_ == Phase::kOptimizer) last_optimizer_end_ = sequence;
  if (phase == Phase::kForward || phase == Phase::kEval) {
    last_forward_start_ = sequence;
    ++forwards_;
  }
  current_ = phase;
}

void PhaseMarks::Fill(uint64_t birth, BlockFacts* facts) const {
  facts->before_first_backward_end = first_backward_end_ == 0 || birth < first_backward_end_;
  facts->alive_at_forward_start = last_forward_start_ > birth;
  facts->alive_at_backward_start = last_backward_start_ > birth || last_recompute_end_ > birth;
  facts->alive_at_later_backward = previous_backward_start_ > birth;
  facts->alive_after_backward = last_backward_end_ > birth;
  facts->alive_after_optimizer = (steps_expected_ ? last_step_ : last_optimizer_end_) > birth;
}

}  // namespace vramledger
