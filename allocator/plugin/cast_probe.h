// Tells whether an allocation is made by autocast for a cast of its own. No signal of PyTorch says so, but the cast has a frame on
// the stack.
#ifndef VRAMLEDGER_ALLOCATOR_PLUGIN_CAST_PROBE_H_
#define VRAMLEDGER_ALLOCATOR_PLUGIN_CAST_PROBE_H_

#include <cstddef>
#include <cstdint>

#include "allocator/plugin/function_range.h"

namespace vramledger {

// Thread rule: Load() once before use; Casts() from any thread, never allocates but for its first call on a thread. A few ns while
// autocast is off.
class CastProbe {
 public:
  // Finds at::autocast in the loaded PyTorch; without it Casts() is false.
  void Load();
  // `context` says where the program is (module, phase, thread): equal sizes at equal places get the answer of the first of them,
  // found by walking the stack.
  bool Casts(size_t bytes, uint64_t context) const;

 private:
  bool WalkStack() const;

  int (*enter_)() = nullptr;
  int (*leave_)() = nullptr;
  FunctionRange cast_;  // at::autocast::cached_cast
};

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_PLUGIN_CAST_PROBE_H_
