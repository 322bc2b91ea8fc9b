// What differs between PyTorch versions: one thin file for each version that changed something, included from that
// version on.
#ifndef VRAMLEDGER_ALLOCATOR_TORCH_TORCH_COMPAT_H_
#define VRAMLEDGER_ALLOCATOR_TORCH_TORCH_COMPAT_H_

#if VRAMLEDGER_TORCH_VERSION < 211
#error "this version of PyTorch is not known; see allocator/torch/CMakeLists.txt"
#endif

// Which of equal free blocks is taken: measured with 3,000 random requests of few sizes
// (tests/python/random_requests.py), whose addresses all agree with this order and with no other.
#if VRAMLEDGER_TORCH_VERSION >= 213
#define VRAMLEDGER_TORCH_EQUAL_SIZE_ORDER kSegmentAge
#elif VRAMLEDGER_TORCH_VERSION == 212
#define VRAMLEDGER_TORCH_EQUAL_SIZE_ORDER kBlockAge
#else
#define VRAMLEDGER_TORCH_EQUAL_SIZE_ORDER kAddress
#endif

#include "allocator/torch/torch_compat_2_12.h"
#include "allocator/torch/torch_compat_2_13.h"
#include "allocator/torch/torch_compat_2_14.h"

#endif  // VRAMLEDGER_ALLOCATOR_TORCH_TORCH_COMPAT_H_
