// What the core tells about its work. Every call is made under the lock of the device concerned, in the order of truth:
// the calls for one device, read in order, are its history. An observer must be quick, must not call the allocator and
// must not throw.
#ifndef VRAMLEDGER_ALLOCATOR_CORE_ALLOCATOR_OBSERVER_H_
#define VRAMLEDGER_ALLOCATOR_CORE_ALLOCATOR_OBSERVER_H_

#include "allocator/core/allocator_types.h"

namespace vramledger {

// A free that waits for no stream is told once, as OnFree with deferred = false. One that waits is told twice: as
// OnFreeRequested when the program frees, and as OnFree with deferred = true when the last awaited stream has passed.
// Both are told before they are carried out: the address cannot be handed out again before OnFree has returned.
class AllocatorObserver {
 public:
  virtual ~AllocatorObserver() = default;

  // The block has been taken. `tag` may be changed.
  virtual void OnAlloc(const BlockView& block, BlockTag& tag) = 0;
  virtual void OnFreeRequested(const BlockView& block, BlockTag& tag) = 0;
  virtual void OnFree(const BlockView& block, BlockTag& tag, bool deferred) = 0;

  // Told after memory was taken from the device, and before it is given back.
  virtual void OnSegmentAlloc(const SegmentView& segment) = 0;
  virtual void OnSegmentFree(const SegmentView& segment) = 0;
  // The same for parts of an expandable segment. The address range itself is not memory and is not told.
  virtual void OnSegmentMap(const SegmentView& part) = 0;
  virtual void OnSegmentUnmap(const SegmentView& part) = 0;

  // Told after everything was tried, before Allocate returns.
  virtual void OnOutOfMemory(const OutOfMemoryInfo& info) = 0;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_CORE_ALLOCATOR_OBSERVER_H_
