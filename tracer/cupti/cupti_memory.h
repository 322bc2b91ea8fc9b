// Memory that is taken from CUDA past the allocator, as CUPTI tells it: NVIDIA's libraries, extensions, other
// allocators.
#ifndef VRAMLEDGER_TRACER_CUPTI_CUPTI_MEMORY_H_
#define VRAMLEDGER_TRACER_CUPTI_CUPTI_MEMORY_H_

#include <cstdint>
#include <string>
#include <vector>

namespace vramledger {

// One cudaMalloc, cudaMallocManaged, cudaMallocAsync ... or its release, of any caller in the process.
struct MemoryOperation {
  bool allocates = false;
  uint8_t kind = 0;  // OutsideKind
  uint8_t device = 0;
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint64_t time_ns = 0;  // on CUPTI's clock, see CuptiMemory::Now
  std::string library;   // file name of the library that asked, empty if CUPTI could not say
};

// CUPTI's activity records of kind MEMORY2, with the library each comes from (cuptiActivityEnableAllocationSource).
//
// Note [One client of CUPTI]
// Up to CUDA 13.2 CUPTI serves one client: the buffers of whoever registered last get every record, and only one
// subscriber may exist. PyTorch's profiler (Kineto) is such a client and goes without CUDA rows when it cannot
// subscribe. So we never hold the subscription: Start() takes it only to see whether it is free (refused: Nsight or a
// profiler is there first, and we stay out), and Stop() must be called before a profiler starts. Limitation: CUPTI
// recommends to hold the subscription; a client that starts without our knowledge takes over the buffers, and what is
// allocated after that has no record of ours.
//
// Thread rule: any thread. One per process, as CUPTI's callbacks carry no context. Nothing is loaded before Start().
class CuptiMemory {
 public:
  // Empty = started; else one sentence that says why there will be no records.
  static std::string Start();
  // The operations reported since the last call, in the order of their times. Asks CUPTI for what it has; does not wait
  // for the device.
  static std::vector<MemoryOperation> Take();
  // CUPTI's clock, in ns.
  static uint64_t Now();
  // No record after this; what was recorded can still be taken. Idempotent.
  static void Stop();
  static bool running();
  // Operations that CUPTI had no room for.
  static uint64_t dropped();
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TRACER_CUPTI_CUPTI_MEMORY_H_
