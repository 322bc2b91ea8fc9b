// Mode observe: PyTorch's own allocator stays in place and tells us what it does. The same ledger, trace and
// categories.
#ifndef VRAMLEDGER_ALLOCATOR_TORCH_TORCH_OBSERVE_H_
#define VRAMLEDGER_ALLOCATOR_TORCH_TORCH_OBSERVE_H_

namespace vramledger {

// Begins to observe. Only after CUDA was initialised: before, PyTorch drops the request in silence. At most once per
// process; cannot be undone. What is in use already is taken over, with unknown phase. Throws c10::Error when it cannot
// be done.
//
// The sizes of blocks, which PyTorch does not tell, follow from its rules and the segments it names, and are exact.
void Observe();

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_TORCH_TORCH_OBSERVE_H_
