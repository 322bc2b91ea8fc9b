// The allocator settings as PyTorch itself has parsed them, at the start and when the program changes them
// (torch.cuda.memory._set_allocator_settings).
#ifndef VRAMLEDGER_ALLOCATOR_TORCH_TORCH_SETTINGS_H_
#define VRAMLEDGER_ALLOCATOR_TORCH_TORCH_SETTINGS_H_

#include <string>

namespace vramledger {

// What our allocator is called. PyTorch compares the setting `backend` with the name of the current allocator: while
// the settings are parsed, ours goes by the name of the one that it has replaced.
std::string AllocatorName();
// Before ours takes the place of the allocator of this name.
void RememberReplaced(std::string name);

// Has PyTorch read its settings from the environment if it has not yet, so that its own error comes first. Throws it.
void ReadTorchSettings();

// Takes PyTorch's settings as they are, and from now on every change of them, to the core and to the trace. Once per
// process. A text that PyTorch refuses changes nothing here.
void FollowTorchSettings();

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_TORCH_TORCH_SETTINGS_H_
