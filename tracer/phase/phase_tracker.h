// Decides in which phase of the program an allocation is made, from PyTorch's signals on the allocating thread and from what the
// Python hooks announce (module entered, optimizer step begun ...). Without hooks the signals alone decide.
#ifndef VRAMLEDGER_TRACER_PHASE_PHASE_TRACKER_H_
#define VRAMLEDGER_TRACER_PHASE_PHASE_TRACKER_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "tracer/format/vocabulary.h"
#include "tracer/phase/torch_signals.h"

namespace vramledger {

// Told when the program as a whole passes from one phase into another.
class PhaseListener {
 public:
  virtual ~PhaseListener() = default;
  // `scope` is the string id of the user's scope, 0 for none. Called on the thread that caused the change, without locks held.
  virtual void OnPhaseChange(Phase previous, Phase now, uint32_t scope) = 0;
};

// Thread rule: every method from any thread; scopes and modules are per thread and must be left on the thread that entered them.
class PhaseTracker {
 public:
  struct Reading {
    Phase phase = Phase::kUnknown;
    uint8_t flags = 0;      // MemoryFlags known here
    uint32_t module = 0;    // string id of the innermost module
    uint16_t thread = 0;
    // In backward, outside every module, where nodes can be read: the node that runs, if it is another than at this thread's last allocation.
    bool node_changed = false;
    GraphNode node;
    uint16_t forward_thread = 0;  // the number of the thread that made the node; kNoThread when it never entered a module
  };
  static constexpr uint16_t kNoThread = 0xffff;

  explicit PhaseTracker(PhaseListener* listener) : listener_(listener) {}

  // Reads the signals for an allocation about to be made on this thread; may announce a change of phase.
  Reading OnAllocation();
  // Notices a change of phase that no allocation has shown yet (a backward that has ended). For callers that are about to look.
  void Settle() { Decide(signals_.Read()); }
  // The phase of the program now, without reading any signal.
  Phase program_phase() const { return program_phase_.load(std::memory_order_relaxed); }
  // The number of the calling thread, in order of its first call here.
  static uint16_t ThreadNumber();

  // A stretch of code on this thread that is one phase (optimizer step, zero_grad, a user's phase("save")). `name` is a string id.
  // Work of another kind inside it (a backward, a module call: LBFGS closures) is still told apart. kUnknown names a scope
  // without changing the phase.
  void BeginScope(Phase phase, uint32_t name);
  // The string id of the scope that ended if it named no phase of the program (kUnknown), else 0.
  uint32_t EndScope();
  // The names of the calling thread's open scopes that are no phase, the outermost first.
  std::vector<uint32_t> OpenScopeNames() const;
  // A module's forward on this thread.
  void EnterModule(uint32_t name, bool training);
  void ExitModule();
  // The outermost module of this thread was left by an exception: no loss and no backward follow.
  void ForwardFailed();
  size_t module_depth() const;

  // The Python hooks are in place: optimizer steps and modules are announced, and need not be guessed from the signals.
  void SetHooksActive(bool active) { hooks_active_.store(active, std::memory_order_relaxed); }
  bool hooks_active() const { return hooks_active_.load(std::memory_order_relaxed); }

  TorchSignals& signals() { return signals_; }

 private:
  Phase Decide(const SignalReading& signals);
  Phase GuessWithoutHooks(const SignalReading& signals, Phase now) const;
  // For functional code in a program with hooks: a forward begins where autograd's graph grows.
  void FollowGraph(const SignalReading& signals, bool graph_grew, bool after_backward);
  void Change(Phase to, uint32_t scope = 0);

  PhaseListener* const listener_;
  TorchSignals signals_;
  std::atomic<Phase> program_phase_{Phase::kLoad};
  std::atomic<bool> hooks_active_{false};
  // Forwards begin outside modules (functional code), so that no hook tells of them. Learnt anew with every forward.
  std::atomic<bool> functional_{true};
  // The thread that drives the training: the last one to enter a root module, else the first to allocate.
  std::atomic<uint32_t> main_thread_{UINT32_MAX};
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TRACER_PHASE_PHASE_TRACKER_H_
