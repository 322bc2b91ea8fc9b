// Picks what differs between PyTorch versions: one thin file for each difference, by the first version that has it.
#ifndef VRAMLEDGER_ALLOCATOR_TORCH_TORCH_COMPAT_H_
#define VRAMLEDGER_ALLOCATOR_TORCH_TORCH_COMPAT_H_

#if VRAMLEDGER_TORCH_VERSION >= 214
#include "allocator/torch/torch_compat_2_14.h"
#elif VRAMLEDGER_TORCH_VERSION >= 212
#include "allocator/torch/torch_compat_2_12.h"
#else
#include "allocator/torch/torch_compat_2_11.h"
#endif

#endif  // VRAMLEDGER_ALLOCATOR_TORCH_TORCH_COMPAT_H_
