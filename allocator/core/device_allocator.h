// The caching policy for one device: PyTorch's native policy, to the byte.
//
// Rules, all of them visible in behaviour:
// - sizes are rounded up to 512 bytes (or to a division of a power of two, if set); up to 1 MiB comes from the small
// pool,
//   more from the large one;
// - a request takes the smallest free block of its stream and pool that is large enough, and of equals the lowest (or
// that of
//   the oldest segment, see AllocatorSettings); the rest of the block is split off and stays free if it is at least 512
//   B (small pool) or more than 1 MiB (large pool);
// - else a segment is taken from the device: 2 MiB for small requests, 20 MiB for those under 10 MiB, else a multiple
// of 2 MiB;
// - a freed block is joined with its free neighbours; segments go back to the device only when it has run out of
// memory,
//   by garbage collection, or on request;
// - a block that other streams use becomes free when events recorded on them at its free have passed.
#ifndef VRAMLEDGER_ALLOCATOR_CORE_DEVICE_ALLOCATOR_H_
#define VRAMLEDGER_ALLOCATOR_CORE_DEVICE_ALLOCATOR_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "allocator/core/allocator_observer.h"
#include "allocator/core/allocator_settings.h"
#include "allocator/core/allocator_types.h"
#include "allocator/core/block.h"
#include "allocator/core/block_index.h"
#include "allocator/core/counters.h"
#include "allocator/core/device_memory.h"
#include "allocator/core/free_set.h"
#include "allocator/core/small_mutex.h"
#include "allocator/core/statistics.h"
#include "allocator/core/vmm_policy.h"

namespace vramledger {

struct Pool;
struct PoolRoute;
struct PoolState;
class SegmentSource;
enum class PoolStatus : uint8_t;

// What one stream owns of a pool.
struct StreamPool {
  StreamPool(Pool* owner, StreamHandle s, AllocatorSettings::EqualSizeOrder equal_order)
      : pool(owner), stream(s), free(equal_order) {}
  Pool* pool;
  StreamHandle stream;
  FreeSet free;
  std::map<uintptr_t, Block*> unmapped;  // of expandable segments, by address
};

struct PrivatePool;

// A small or a large pool: the default ones, and two for each private pool.
struct Pool {
  explicit Pool(bool is_small, PoolId pool_id = {}, PrivatePool* private_pool = nullptr)
      : small(is_small), id(pool_id), owner(private_pool) {}
  const bool small;
  const PoolId id;
  PrivatePool* const owner;                          // null for the default pools
  int64_t calls = 0;                                 // searches made, the clock of garbage collection
  std::vector<std::unique_ptr<StreamPool>> streams;  // sorted by stream handle
};

class DeviceAllocator {
 public:
  DeviceAllocator(DeviceMemory& memory, const AllocatorSettings& settings, AllocatorObserver* observer, int device);
  ~DeviceAllocator();
  DeviceAllocator(const DeviceAllocator&) = delete;
  DeviceAllocator& operator=(const DeviceAllocator&) = delete;

  // As the methods of CachingAllocator of the same names. Free and those that look up an address answer kForeign or
  // false for addresses of other devices.
  AllocationResult Allocate(StreamHandle stream, size_t bytes, const BlockTag& tag, uint8_t likeness,
                            OutOfMemoryInfo* out_of_memory);
  FreeStatus Free(uintptr_t address);
  bool RecordStream(uintptr_t address, StreamHandle stream);
  void EmptyCache();
  void UpdateSettings(const AllocatorSettings& settings);
  bool SetMemoryFraction(double fraction);
  double MemoryFraction();
  void* BaseAllocation(uintptr_t address, size_t* bytes);
  void BeginCapture();
  void EndCapture();
  PoolStatus SharePool(PoolId id, std::shared_ptr<SegmentSource> source);
  PoolStatus BeginAllocateToPool(PoolId id, std::function<bool(StreamHandle)> filter);
  PoolStatus EndAllocateToPool(PoolId id);
  PoolStatus ReleasePool(PoolId id);
  int PoolUseCount(PoolId id);
  PoolStatus SetPoolUseWhenOut(PoolId id, bool use);
  PoolStatus SetPoolNoSplit(PoolId id);
  void EmptyPool(PoolId id);
  PoolStatus LivePoolBlocks(PoolId id, std::vector<void*>* addresses);
  PoolStatus GetPoolState(PoolId id, PoolState* state);
  PoolStatus SetPoolState(const PoolState& state, const BlockTag& tag, std::vector<void*>* freed,
                          std::vector<void*>* allocated);
  void BeginFollowing();
  bool FollowSegmentAlloc(const SegmentView& segment);
  bool FollowSegmentFree(uintptr_t address);
  bool FollowMap(const SegmentView& part);
  bool FollowUnmap(uintptr_t address);
  size_t FollowAlloc(uintptr_t address, size_t bytes, const BlockTag& tag);
  bool FollowFreeRequested(uintptr_t address);
  bool FollowFree(uintptr_t address);
  void FollowOutOfMemory(StreamHandle stream, size_t bytes, size_t device_free_bytes);
  void AddFreeMemoryCallback(bool (*callback)(void*), void* context);
  Statistics GetStatistics();
  void ResetPeakStatistics();
  void ResetAccumulatedStatistics();
  size_t LargestFreeBlock();
  void ForEachBlock(absl::FunctionRef<void(const SegmentView&, const BlockView&, BlockState, const BlockTag&)> fn);
  void WhileLocked(absl::FunctionRef<void()> fn);
  bool UpdateTag(uintptr_t address, absl::FunctionRef<void(const BlockView&, BlockTag&)> fn);
  bool UsesExpandableSegments();
  bool Restore(const std::vector<SegmentImage>& segments);
  // Empty if the address was never ours.
  std::string DescribeAddress(uintptr_t address);

 private:
  struct Request {
    StreamPool* pool;
    size_t bytes;          // rounded
    size_t segment_bytes;  // to ask of the device
  };
  enum class Supply { kOk, kOutOfMemory, kFailed };

  // device_allocator.cc: taking and freeing blocks.
  size_t RoundSize(size_t bytes) const;
  size_t SegmentSize(size_t rounded) const;
  StreamPool* StreamPoolFor(Pool& pool, StreamHandle stream);
  // The pool that serves a request of `bytes`, rounded; `kind` as policy vmm's lifetimes tell it.
  StreamPool* PoolOfRequest(size_t bytes, StreamHandle stream, uint16_t kind);
  Block* TakeFreeBlock(const Request& request);
  Supply FindBlock(const Request& request, Block** block);
  bool ShouldSplit(const Block& block, size_t bytes) const;
  Block* Split(Block* block, size_t bytes);
  void Activate(Block* block, size_t requested, const BlockTag& tag, bool was_split, Block* rest);
  void RequestFree(Block* block);
  void CompleteFree(Block* block, bool deferred);
  // Joins `right` into `left`, its neighbour; neither is in a free set. Returns `left`.
  Block* Join(Block* left, Block* right);
  void InsertFree(Block* block);
  bool RunFreeMemoryCallbacks();
  FreeStatus ExplainBadFree(uintptr_t address);

  // device_segments.cc: memory taken from and given back to the device.
  Supply SupplyBlock(const Request& request, bool retry, Block** block);
  Supply AllocateSegment(const Request& request, Block** block);
  bool ReleaseAvailableBlocks(const Request& request);
  void ReleaseCachedBlocks();
  void ReleaseBlocks(Pool& pool);
  void ReleaseBlock(Block* block);
  void CollectGarbage();
  void CountReserved(const Pool& pool, bool grows, size_t bytes);
  Segment* NewSegment(uintptr_t address, size_t bytes, StreamPool* pool, size_t page_bytes);
  void ForgetSegment(Segment* segment);
  Supply SupplyExpandableBlock(const Request& request, Block** block);
  Block* FindExpandableBlock(const Request& request, Supply* failure);
  Supply MapBlock(Block* block, size_t bytes, Block** mapped);
  void UnmapBlock(Block* block);
  // `first` and `last` are the borders of whole pages inside the free block.
  void UnmapPart(Block* block, uintptr_t first, uintptr_t last);

  // vmm_policy.cc
  struct VmmPlace {
    Block* first = nullptr;  // free or unmapped; the request begins at it
    size_t unmapped_bytes = 0;
  };
  bool UsesVmm(const Pool& pool) const;
  size_t VmmGranule();
  Pool& VmmPool(size_t bytes, uint16_t kind);
  FreeSet::Cursor VmmFit(const Request& request, FreeSet::Cursor smallest) const;
  void NoteHighestLive();
  size_t VmmAllowance(size_t requested);
  Supply NewArena(StreamPool* pool, size_t least);
  VmmPlace FindVmmPlace(const Request& request) const;
  Supply MapPlace(const Request& request, const VmmPlace& place, Block** block);
  size_t ReclaimGranules(size_t bytes, uintptr_t keep, uintptr_t keep_end);
  Block* TakeBlockOfOtherClass(const Request& request);
  Supply SupplyVmmBlock(const Request& request, Block** block);

  // device_pools.cc: private pools.
  PrivatePool* FindPool(PoolId id);
  PoolStatus SharePoolLocked(PoolId id, std::shared_ptr<SegmentSource> source);
  Pool& PoolFor(bool small, StreamHandle stream);
  Block* TakeLentBlock(const Request& request);
  void ReleaseReleasedPools();
  void ReleasePoolBlocks(PrivatePool* pool);
  void ForEachPoolBlock(const PrivatePool& pool, absl::FunctionRef<void(Block*)> fn);

  // device_following.cc: doing what another allocator did.
  StreamPool* FollowedPool(const SegmentView& piece);
  Block* BlockHolding(uintptr_t address);

  // device_streams.cc: blocks awaited by other streams.
  void ProcessEvents();
  // Waits for all of them, or for those of one private pool.
  void SynchronizeEvents(const PrivatePool* only = nullptr);
  void InsertEvents(Block* block, bool freed_in_capture);
  void InsertDeferredEvents();
  void ReleaseCapturedUses();
  EventHandle NewEvent();

  // device_introspection.cc: views.
  BlockView ViewOf(const Block& block) const;
  SegmentView ViewOf(const Segment& segment) const;
  Block* FindLive(uintptr_t address) const;
  const Segment* SegmentAt(uintptr_t address) const;
  void FillOutOfMemory(const Request& request, size_t requested, OutOfMemoryInfo* info);
  bool SetMemoryFractionLocked(double fraction);
  size_t ConfiguredLimit(size_t total_bytes) const;
  bool ExceedsConfiguredLimit(size_t segment_bytes);
  void Open();

  // Whether requests of the pool are served by expandable segments.
  bool UsesExpandable(const Pool& pool) const;
  bool collects_garbage() const { return has_limit_ && settings_.garbage_collection_threshold > 0; }
  size_t reserved_bytes() const { return static_cast<size_t>(counters_.Current(Metric::kReservedBytes)); }

  DeviceMemory& memory_;
  AllocatorObserver* const observer_;
  const int device_;
  const bool vmm_;  // the policy as set; without virtual memory management it has no effect

  SmallMutex mutex_;
  // Everything below is guarded by mutex_.
  AllocatorSettings settings_;
  const size_t first_max_split_size_;  // what the statistics show, as PyTorch's do
  bool opened_ = false;
  bool expandable_;  // as set, until the device turns out to lack virtual memory management
  bool lacks_vmm_ = false;
  VmmState vmm_state_;
  bool has_limit_ = false;
  size_t limit_bytes_ = 0;
  bool limited_by_fraction_ = false;  // the last failed supply never asked the device
  bool rejected_ = false;             // nor was anything given back for it
  bool follows_ = false;              // another allocator: the device is never asked
  size_t followed_total_bytes_ = 0;
  int captures_ = 0;  // graph captures and routes to private pools under way
  Pool small_{true};
  Pool large_{false};
  // Policy vmm, large blocks: those that are expected to be short-lived, and those of whole granules.
  Pool brief_{false};
  Pool whole_{false};
  // The pools that are nobody's own, in the order in which they are searched for what lies idle.
  const std::array<Pool*, 4> shared_pools_{&large_, &brief_, &small_, &whole_};
  std::map<PoolId, std::unique_ptr<PrivatePool>> private_pools_;
  std::vector<PoolRoute> routes_;  // the latest last
  BlockIndex index_;
  Arena<Block> blocks_;
  std::map<uintptr_t, std::unique_ptr<Segment>> segments_;
  uint32_t next_segment_age_ = 1;
  uint32_t next_block_order_ = 0;
  std::deque<std::pair<uintptr_t, size_t>> released_;  // the last ranges given back, to name late double frees

  struct StreamEvents {
    StreamHandle stream;
    std::deque<std::pair<EventHandle, Block*>> queue;
  };
  std::vector<StreamEvents> events_;  // outstanding, in order per stream
  std::vector<Block*> deferred_;      // freed during a capture, events still to be recorded
  std::vector<EventHandle> spare_events_;

  Counters counters_;
  Stat oversize_allocations_;
  Stat oversize_segments_;
  std::map<PoolId, StatByPool> private_reserved_;  // of pools that have gone too
  int64_t num_alloc_retries_ = 0;
  int64_t num_ooms_ = 0;
  int64_t num_oom_rejections_ = 0;
  int64_t num_sync_all_streams_ = 0;
  int64_t num_device_alloc_ = 0;
  int64_t num_device_free_ = 0;
  std::vector<std::pair<bool (*)(void*), void*>> callbacks_;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_CORE_DEVICE_ALLOCATOR_H_
