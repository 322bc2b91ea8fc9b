// The one rule set that turns recorded facts into categories. Pure functions over plain values, so that the plug-in
// (while training runs), the reader and any later tool decide alike, and an old trace can be categorised again by newer
// rules.
#ifndef VRAMLEDGER_TRACER_PHASE_CATEGORY_RULES_H_
#define VRAMLEDGER_TRACER_PHASE_CATEGORY_RULES_H_

#include <cstdint>

#include "tracer/format/vocabulary.h"

namespace vramledger {

// What is known of one block over its whole life (or its life so far; the more is known, the better the answer).
struct BlockFacts {
  Phase birth_phase = Phase::kUnknown;
  uint8_t flags = 0;        // MemoryFlags of the allocation
  Role role = Role::kNone;  // the strongest role that a name record gave it
  uint64_t requested_bytes = 0;
  bool names_known = false;                // modules were walked: what is a parameter has a name that says so
  bool before_trace = false;               // alive when the recording began: nothing is known of its birth
  Phase free_phase = Phase::kUnknown;      // where it was freed; used only for blocks from before the recording
  bool workspace_hint = false;             // a stack frame or a name says that a library took it as its workspace
  bool cast_of_parameter = false;          // autocast made it, in the size that a parameter has in lower precision
  bool first_of_size_on_thread = false;    // no earlier block of this size was made by this thread on this stream
  bool before_first_backward_end = false;  // born before the first backward of the program ended
  bool alive_at_forward_start = false;     // alive when a forward (or eval) phase began after its birth
  bool alive_at_backward_start = false;    // alive when a backward phase began after its birth
  bool alive_at_later_backward = false;    // alive when a second backward phase began after its birth
  bool alive_after_backward = false;       // alive when a backward that began before or after its birth ended
  bool alive_after_optimizer = false;      // alive when an optimizer's step ended after its birth
  bool alive_at_end = false;               // never freed
  bool left_in_size_of_parameter = false;  // the recording ends with it, in the size of one of the model's parameters
};

Category Categorize(const BlockFacts& facts);

// The stronger of two roles for one address: parameter > buffer > gradient > optimizer_state > input > output > none.
Role StrongerRole(Role a, Role b);

// True for the sizes that cuBLAS asks of PyTorch for its workspace: 2 x 4 MiB + 8 x 16 KiB by default, 32 MiB on
// compute capability 9 and newer.
constexpr bool IsCublasWorkspaceSize(uint64_t requested_bytes) {
  return requested_bytes == 8519680 || requested_bytes == 33554432;
}

// When phases of the program as a whole began and ended, in sequence numbers (0 = never). Feed it every phase seen, in
// order; a block's facts then follow from its birth's sequence number in constant time.
class PhaseMarks {
 public:
  // `sequence` must be > 0 and never fall. Phases that other threads enter beside the main flow (data, communication,
  // unknown) change nothing; recompute inside a backward belongs to that backward.
  void Enter(Phase phase, uint64_t sequence);

  // An optimizer's step is announced by name, and its end will be by Step(): what a closure inside it does is no end.
  void ExpectSteps() { steps_expected_ = true; }
  void Step(uint64_t sequence) { last_step_ = sequence; }

  Phase current() const { return current_; }
  uint64_t backwards() const { return backwards_; }  // how many have begun
  uint64_t forwards() const { return forwards_; }
  uint64_t last_optimizer_end() const { return last_optimizer_end_; }

  // The facts of a block that was born at `birth` and is freed (or looked at) now. Fills only what the marks decide.
  void Fill(uint64_t birth, BlockFacts* facts) const;

 private:
  Phase current_ = Phase::kUnknown;
  uint64_t backwards_ = 0;
  uint64_t forwards_ = 0;
  uint64_t last_forward_start_ = 0;
  uint64_t last_backward_start_ = 0;
  uint64_t previous_backward_start_ = 0;
  uint64_t last_recompute_end_ = 0;
  uint64_t first_backward_end_ = 0;
  uint64_t last_backward_end_ = 0;
  uint64_t last_optimizer_end_ = 0;
  bool steps_expected_ = false;
  uint64_t last_step_ = 0;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TRACER_PHASE_CATEGORY_RULES_H_
