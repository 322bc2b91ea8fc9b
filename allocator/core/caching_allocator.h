// The caching allocator: one per process, over all devices. It follows the policy of PyTorch's native CUDA allocator to
// the byte and keeps its own ledger, so that sizes, streams and devices given at a free are never believed.
//
// Thread rule: every method may be called from any thread, except from inside an observer or a callback run under the
// lock. One mutex per device. Nothing throws. Nothing depends on static destructors: an instance that is never
// destroyed may be used while the process exits.
#ifndef VRAMLEDGER_ALLOCATOR_CORE_CACHING_ALLOCATOR_H_
#define VRAMLEDGER_ALLOCATOR_CORE_CACHING_ALLOCATOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "allocator/core/allocator_observer.h"
#include "allocator/core/allocator_settings.h"
#include "allocator/core/allocator_types.h"
#include "allocator/core/device_memory.h"
#include "allocator/core/pool_types.h"
#include "allocator/core/small_mutex.h"
#include "allocator/core/statistics.h"

namespace vramledger {

class DeviceAllocator;

class CachingAllocator {
 public:
  // `memory` and `observer` (may be null) must outlive this. Devices are opened at the first request for them.
  CachingAllocator(DeviceMemory& memory, AllocatorSettings settings, AllocatorObserver* observer);
  // Gives every segment back to the device. Blocks still in use become invalid.
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // A block of at least `bytes`, aligned to 512. 0 bytes: null and kOk. `out_of_memory`, if given, is filled when the
  // status is kOutOfMemory.
  // `likeness`: requests of one value and size are expected to live alike (a phase of the program, say); only the
  // policy vmm makes use of it.
  AllocationResult Allocate(int device, StreamHandle stream, size_t bytes, const BlockTag& tag,
                            OutOfMemoryInfo* out_of_memory = nullptr, uint8_t likeness = 0);

  // `device_hint` only says where to look first.
  FreeStatus Free(void* address, int device_hint = 0);

  // The block must not be reused before the work now queued on `stream` is done. False if the address is no block in
  // use.
  bool RecordStream(void* address, StreamHandle stream, int device_hint = 0);

  // Gives all unused segments back, after waiting for the streams that hold back frees (except while a capture is under
  // way).
  void EmptyCache();
  void EmptyCache(int device);

  // Takes settings that were changed while the program runs. They hold for what is asked from now on; segments that
  // exist stay what they are. Neither the policy nor the order of equal blocks can change, and the memory fraction of a
  // device in use is only changed by SetMemoryFraction, as in PyTorch.
  void UpdateSettings(const AllocatorSettings& settings);

  // `fraction` of the device's memory may be reserved; out of [0, 1] is ignored and false.
  bool SetMemoryFraction(double fraction, int device);
  // 1 when no limit is set.
  double MemoryFraction(int device);

  // Start of the segment that holds the block at `address`, and its size; null for an address that is no block in use.
  void* BaseAllocation(void* address, size_t* bytes);

  // Brackets a CUDA graph capture. While any is under way, events are neither recorded nor queried and no cached memory
  // is given back.
  void BeginCapture(int device);
  void EndCapture(int device);

  // Private pools, as PyTorch's graphs and MemPool use them. kUnknownPool also for a device that does not exist.
  // Makes the pool if there is none with this id, else counts one user more; `source` is used only when it is made.
  PoolStatus SharePool(int device, PoolId id, std::shared_ptr<SegmentSource> source = nullptr);
  // Counts a user more, as SharePool does, and routes requests that `filter` wants to the pool until EndAllocateToPool.
  // The latest route is asked first. Counts as a capture under way.
  PoolStatus BeginAllocateToPool(int device, PoolId id, StreamFilter filter);
  PoolStatus EndAllocateToPool(int device, PoolId id);
  // Takes one user away. Without users the pool's free segments go back with EmptyCache or when memory runs short.
  PoolStatus ReleasePool(int device, PoolId id);
  // -1 if there is no such pool.
  int PoolUseCount(int device, PoolId id);
  // Lets any request have the pool's free blocks when the device has no more.
  PoolStatus SetPoolUseWhenOut(int device, PoolId id, bool use);
  PoolStatus SetPoolNoSplit(int device, PoolId id);
  // Gives the unused segments of this pool back, if nobody uses it any more.
  void EmptyPool(int device, PoolId id);
  // Blocks of the pool that are in use.
  PoolStatus LivePoolBlocks(int device, PoolId id, std::vector<void*>* addresses);
  // Notes how the pool's blocks lie; puts them so again. `freed` gets the blocks that were in use, `allocated` those
  // that are now, with `tag`; an address may be in both.
  PoolStatus GetPoolState(int device, PoolId id, PoolState* state);
  PoolStatus SetPoolState(int device, const PoolState& state, const BlockTag& tag, std::vector<void*>* freed,
                          std::vector<void*>* allocated);

  // Following: instead of serving requests, the ledger does what another allocator says it did, event by event in its
  // order, and never asks the device. `address` and sizes are that one's; its policy is taken to be PyTorch's. False or
  // 0: the event does not fit the ledger and was left out.
  void BeginFollowing();
  bool FollowSegmentAlloc(const SegmentView& segment);
  bool FollowSegmentFree(int device, uintptr_t address);
  bool FollowMap(const SegmentView& part);
  bool FollowUnmap(int device, uintptr_t address);
  // Returns the size of the block that serves the request.
  size_t FollowAlloc(int device, uintptr_t address, size_t bytes, const BlockTag& tag);
  bool FollowFreeRequested(int device, uintptr_t address);
  bool FollowFree(int device, uintptr_t address);
  void FollowOutOfMemory(int device, StreamHandle stream, size_t bytes, size_t device_free_bytes);

  // A callback that may free memory when a request finds no block, run without any lock; true if it freed something.
  // Cannot be taken back.
  using FreeMemoryCallback = bool (*)(void* context);
  void AddFreeMemoryCallback(FreeMemoryCallback callback, void* context);

  Statistics GetStatistics(int device);
  void ResetPeakStatistics(int device);
  void ResetAccumulatedStatistics(int device);

  // False if not set, and from the first request on if the device has no virtual memory management: then plain segments
  // serve.
  bool UsesExpandableSegments(int device);

  // Largest free block of any stream and pool, and the memory the device has left: what a planner of workspaces may ask
  // for.
  size_t LargestFreeBlock(int device);

  // Under the device's lock; `fn` must not call the allocator. Every block of every segment, segments by address and
  // blocks by address within them. `segment` is the same for all
  // blocks of a segment. Free blocks have an empty tag.
  void ForEachBlock(
      int device,
      absl::FunctionRef<void(const SegmentView& segment, const BlockView&, BlockState, const BlockTag&)> fn);
  // Runs `fn` under the device's lock, so that what the observer keeps for that device stands still; `fn` must not call
  // the allocator.
  void WhileLocked(int device, absl::FunctionRef<void()> fn);
  // Runs `fn` on the tag of the block in use at `address` under the lock; false if there is none.
  bool UpdateTag(void* address, int device_hint, absl::FunctionRef<void(const BlockView&, BlockTag&)> fn);

  // Puts a device that was not used yet into a recorded state: takes the segments from it in this order, and hands out
  // the blocks in them; what lies between blocks is free. Peaks and sums begin there. The observer is told of all of
  // it. False, with the device as far as it came, if blocks overlap or leave their segment, or the device has no room.
  bool Restore(int device, const std::vector<SegmentImage>& segments);

  // One sentence on what the ledger knows of an address, for error messages.
  std::string DescribeAddress(const void* address);

  int device_count() const { return static_cast<int>(devices_.size()); }
  AllocatorSettings settings() const;
  DeviceMemory& memory() { return memory_; }

 private:
  DeviceAllocator* device(int index) const {
    return index >= 0 && index < device_count() ? devices_[static_cast<size_t>(index)].get() : nullptr;
  }

  DeviceMemory& memory_;
  mutable SmallMutex settings_mutex_;  // taken before a device's
  AllocatorSettings settings_;         // guarded by it
  std::vector<std::unique_ptr<DeviceAllocator>> devices_;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_CORE_CACHING_ALLOCATOR_H_
