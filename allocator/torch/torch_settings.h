// The allocator settings as PyTorch itself has parsed them, at the start and when the program changes them
// (torch.cuda.memory._set_allocator_settings).
#ifndef VRAMLEDGER_ALLOCATOR_TORCH_TORCH_SETTINGS_H_
#define VRAMLEDGER_ALLOCATOR_TORCH_TORCH_SETTINGS_H_

namespace vramledger {

// Takes PyTorch's settings as they are, and from now on every change of them, to the core and to the trace. Once per
// process. A text that PyTorch refuses changes nothing here.
void FollowTorchSettings();

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_TORCH_TORCH_SETTINGS_H_
