// What the stack frames of a snapshot's event tell: the phase of the program and the place in it.
#ifndef VRAMLEDGER_TOOLS_FOREIGN_STACK_FRAMES_H_
#define VRAMLEDGER_TOOLS_FOREIGN_STACK_FRAMES_H_

#include <string>
#include <string_view>
#include <vector>

#include "tracer/format/vocabulary.h"

namespace vramledger {

struct StackFrame {
  std::string_view name;
  std::string_view file;
  int64_t line = 0;
};

struct StackFacts {
  Phase phase = Phase::kUnknown;  // kUnknown: the frames do not say
  std::string site;               // innermost place outside PyTorch, or the autograd node, or ""
  bool python = false;            // has at least one Python frame
  bool empty = true;              // has no frame at all
  bool engine = false;            // on a thread of autograd's own
  bool makes_tensor = false;      // for a tensor's storage; what asks without it takes a workspace
};

// Frames innermost first, as PyTorch stores them.
StackFacts ReadStack(const std::vector<StackFrame>& frames);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_FOREIGN_STACK_FRAMES_H_
