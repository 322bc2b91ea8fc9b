// Picks what differs between PyTorch versions: one thin file for each difference, by the first version that has it.
#ifndef VRAMLEDGER_ALLOCATOR_TORCH_TORCH_COMPAT_H_
#define VRAMLEDGER_ALLOCATOR_TORCH_TORCH_COMPAT_H_

#if VRAMLEDGER_TORCH_VERSION == 211
#include "allocator/torch/torch_compat_2_11.h"
#else
#error "this version of PyTorch is not known yet; see allocator/torch/CMakeLists.txt"
#endif

#endif  // VRAMLEDGER_ALLOCATOR_TORCH_TORCH_COMPAT_H_
