#include "tracer/phase/phase_tracker.h"

#include "tracer/format/fast_tls.h"
#include "tracer/format/record.h"

namespace vramledger {
namespace {

struct Scope {
  Phase phase;
  uint32_t name;
  size_t module_depth;  // at its begin
  bool while_loading;   // it began before the first forward
  bool forward_inside = false;  // an optimizer's closure has begun a forward, whose backward has not come yet
};

struct ThreadState {
  uint16_t number;
  std::vector<Scope> scopes;
  std::vector<uint32_t> modules;
  uint64_t graph_nodes = 0;  // sequence number of autograd at this thread's last allocation
  GraphNode node;            // as last told
  std::atomic<uint64_t> torch_id{0};  // PyTorch's number of this thread, once it has entered a module
  ThreadState* next = nullptr;
};

std::atomic<uint32_t> next_thread{0};
// Keeps what is never freed reachable, for leak checkers.
std::atomic<ThreadState*> all_threads{nullptr};

ThreadState& State() {
  // Leaked: frees arrive on threads whose thread-locals are already gone.
  static VRAMLEDGER_FAST_TLS ThreadState* state = nullptr;
  if (state == nullptr) {
    state = new ThreadState();
    const uint32_t n = next_thread.fetch_add(1, std::memory_order_relaxed);
    state->number = static_cast<uint16_t>(n < 0xffff ? n : 0xffff);
    state->next = all_threads.load(std::memory_order_relaxed);
    while (!all_threads.compare_exchange_weak(state->next, state, std::memory_order_release)) {
    }
  }
  return *state;
}

uint16_t NumberOfTorchThread(uint64_t torch_id) {
  for (const ThreadState* t = all_threads.load(std::memory_order_acquire); t != nullptr; t = t->next) {
    if (t->torch_id.load(std::memory_order_relaxed) == torch_id) return t->number;
  }
  return PhaseTracker::kNoThread;
}

bool IsBackward(Phase phase) { return phase == Phase::kBackward || phase == Phase::kRecompute; }

}  // namespace

uint16_t PhaseTracker::ThreadNumber() { return State().number; }
size_t PhaseTracker::module_depth() const { return State().modules.size(); }

void PhaseTracker::Change(Phase to, uint32_t scope) {
  const Phase from = program_phase_.exchange(to, std::memory_order_relaxed);
  if (from != to && listener_ != nullptr) listener_->OnPhaseChange(from, to, scope);
}

Phase PhaseTracker::GuessWithoutHooks(const SignalReading& signals, Phase now) const {
  if (!signals.available) return now;
  if (signals.inference) return Phase::kEval;
  switch (now) {
    case Phase::kLoad:
      // Modules are moved to the device under no_grad; the first work with gradients is the first forward.
      return signals.grad_mode ? Phase::kForward : now;
    case Phase::kBackward:
    case Phase::kRecompute:
    case Phase::kIdle:
      // What follows a backward without gradients is the optimizer's (clipping and averaging of weights included).
      return signals.grad_mode ? Phase::kForward : Phase::kOptimizer;
    case Phase::kOptimizer:
    case Phase::kEval:
      return signals.grad_mode ? Phase::kForward : now;
    default:
      // Within a forward, grad mode off is a custom Function or compiled code, not its end.
      return now;
  }
}

void PhaseTracker::FollowGraph(const SignalReading& signals, bool graph_grew, bool after_backward) {
  const Phase now = program_phase();
  if (signals.inference) {
    Change(Phase::kEval);
  } else if (signals.grad_mode) {
    if (graph_grew) {
      Change(Phase::kForward);
    } else if (now == Phase::kOptimizer) {
      Change(Phase::kIdle);
    }
  } else if (after_backward) {
    Change(Phase::kOptimizer);  // written out by hand
  }
}

Phase PhaseTracker::Decide(const SignalReading& signals) {
  ThreadState& t = State();
  const Phase now = program_phase();
  if (signals.in_backward) {
    // Gradients are on inside a backward when a checkpoint recomputes, and under create_graph, which keeps the graph. A
    // recompute inside a kept graph is told by the modules that it enters.
    const bool again = signals.grad_mode && (!t.modules.empty() || !signals.keep_graph);
    // A backward without a forward: no module has told of it.
    if (now == Phase::kIdle || now == Phase::kLoad) functional_.store(true, std::memory_order_relaxed);
    const Phase phase = again ? Phase::kRecompute : Phase::kBackward;
    Change(phase);
    return phase;
  }
  const uint64_t nodes = signals_.SequenceNumber();
  const bool graph_grew = signals.grad_mode && nodes > t.graph_nodes;
  t.graph_nodes = nodes;
  if (!t.scopes.empty() && t.scopes.back().phase != Phase::kUnknown && t.scopes.back().module_depth == t.modules.size()) {
    Scope& scope = t.scopes.back();
    if (scope.phase != Phase::kOptimizer) return scope.phase;
    if (scope.forward_inside && IsBackward(now)) scope.forward_inside = false;
    if (graph_grew) scope.forward_inside = true;
    if (scope.forward_inside) {
      Change(Phase::kForward);
      return Phase::kForward;
    }
    Change(scope.phase, scope.name);
    return scope.phase;
  }
  uint32_t nobody = UINT32_MAX;
  main_thread_.compare_exchange_strong(nobody, t.number, std::memory_order_relaxed);
  // Helper threads (prefetching, user threads) do not move the program from one phase to the next.
  if (main_thread_.load(std::memory_order_relaxed) != t.number) return now;
  if (!hooks_active()) {
    Change(GuessWithoutHooks(signals, now));
    return program_phase();
  }
  if (IsBackward(now)) Change(t.modules.empty() ? Phase::kIdle : Phase::kForward);
  if (t.modules.empty() && functional_.load(std::memory_order_relaxed)) FollowGraph(signals, graph_grew, IsBackward(now));
  return program_phase();
}

PhaseTracker::Reading PhaseTracker::OnAllocation() {
  const SignalReading signals = signals_.Read();
  Reading reading;
  reading.phase = Decide(signals);
  ThreadState& t = State();
  reading.thread = t.number;
  reading.module = t.modules.empty() ? 0 : t.modules.back();
  if (signals.in_backward && t.modules.empty() && signals_.reads_nodes()) {
    const GraphNode node = signals_.CurrentNode();
    reading.node_changed = node != t.node;
    if (reading.node_changed) {
      t.node = reading.node = node;
      reading.forward_thread = node.type != nullptr ? NumberOfTorchThread(node.thread) : kNoThread;
    }
  }
  if (signals.available) {
    reading.flags = static_cast<uint8_t>(kFlagSignals | (signals.grad_mode ? kFlagGradMode : 0) | (signals.in_backward ? kFlagInBackwardTask : 0) |
                                         (signals.inference ? kFlagInference : 0) | (signals.keep_graph ? kFlagKeepGraph : 0));
  }
  return reading;
}

void PhaseTracker::BeginScope(Phase phase, uint32_t name) {
  ThreadState& t = State();
  if (!t.scopes.empty()) t.scopes.back().forward_inside = false;
  t.scopes.push_back({phase, name, t.modules.size(), program_phase() == Phase::kLoad});
  if (phase != Phase::kUnknown && t.modules.empty()) Change(phase, name);
}

uint32_t PhaseTracker::EndScope() {
  ThreadState& t = State();
  if (t.scopes.empty()) return 0;
  const Scope scope = t.scopes.back();
  t.scopes.pop_back();
  if (scope.phase == Phase::kUnknown) return scope.name;
  if (!t.modules.empty()) return 0;
  Phase outer = scope.while_loading ? Phase::kLoad : Phase::kIdle;
  for (size_t i = t.scopes.size(); i > 0; --i) {
    if (t.scopes[i - 1].phase != Phase::kUnknown) {
      outer = t.scopes[i - 1].phase;
      break;
    }
  }
  Change(outer);
  return 0;
}

std::vector<uint32_t> PhaseTracker::OpenScopeNames() const {
  std::vector<uint32_t> names;
  for (const Scope& scope : State().scopes) {
    if (scope.phase == Phase::kUnknown && scope.name != 0) names.push_back(scope.name);
  }
  return names;
}

void PhaseTracker::EnterModule(uint32_t name, bool training) {
  ThreadState& t = State();
  const bool root = t.modules.empty();
  t.modules.push_back(name);
  if (t.torch_id.load(std::memory_order_relaxed) == 0) t.torch_id.store(signals_.ThreadId(), std::memory_order_relaxed);
  if (!root) return;
  const SignalReading signals = signals_.Read();
  if (signals.in_backward) return;  // a recompute
  main_thread_.store(t.number, std::memory_order_relaxed);
  // A module in evaluation mode whose gradients are on is still trained through (a frozen or DCGAN-like part).
  const bool eval = signals.inference || (!training && !signals.grad_mode);
  if (!t.scopes.empty() && !eval) t.scopes.back().forward_inside = true;
  // A loss function that ends a functional forward is no sign that modules tell where forwards begin.
  if (program_phase() != Phase::kForward) functional_.store(false, std::memory_order_relaxed);
  Change(eval ? Phase::kEval : Phase::kForward);
}

void PhaseTracker::ExitModule() {
  ThreadState& t = State();
  if (t.modules.empty()) return;
  t.modules.pop_back();
  // The loss that follows a training forward belongs to it; an evaluation ends with its root module.
  if (t.modules.empty() && program_phase() == Phase::kEval) Change(Phase::kIdle);
}

void PhaseTracker::ForwardFailed() {
  const ThreadState& t = State();
  if (t.modules.empty() && main_thread_.load(std::memory_order_relaxed) == t.number && program_phase() == Phase::kForward) Change(Phase::kIdle);
}

}  // namespace vramledger
