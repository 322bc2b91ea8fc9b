// An observer that owns every byte a second time: it keeps which bytes are handed out and which are backed by memory,
// and fails the test when the allocator hands a byte out twice, hands out what the device does not have, gives back
// what is in use, or completes a free before the streams it waits for have passed.
#ifndef VRAMLEDGER_TESTS_ALLOCATOR_SHADOW_LEDGER_H_
#define VRAMLEDGER_TESTS_ALLOCATOR_SHADOW_LEDGER_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "allocator/core/allocator_observer.h"
#include "allocator/core/caching_allocator.h"
#include "allocator/simulated_device_memory.h"
#include "gtest/gtest.h"

namespace vramledger {

class ShadowLedger : public AllocatorObserver {
 public:
  explicit ShadowLedger(SimulatedDeviceMemory* device)
      : device_(device), devices_(static_cast<size_t>(device->device_count())) {}

  // To be called by the owner of the block before it tells the allocator.
  void WillUse(int device, void* address, StreamHandle stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    devices_[static_cast<size_t>(device)].owned.at(reinterpret_cast<uintptr_t>(address)).used_by.push_back(stream);
  }

  // The pool that a block in use was taken from.
  PoolId PoolOf(int device, void* address) {
    std::lock_guard<std::mutex> lock(mutex_);
    return devices_[static_cast<size_t>(device)].owned.at(reinterpret_cast<uintptr_t>(address)).pool_id;
  }

  void OnAlloc(const BlockView& block, BlockTag&) override {
    std::lock_guard<std::mutex> lock(mutex_);
    Device& d = devices_[static_cast<size_t>(block.device)];
    const uintptr_t end = block.address + block.block_bytes;
    EXPECT_EQ(block.address % 512, 0u);
    EXPECT_GE(block.block_bytes, block.requested_bytes);
    EXPECT_FALSE(Overlaps(d.owned, block.address, end)) << "bytes handed out twice";
    EXPECT_TRUE(Backed(d, block.address, end)) << "no memory behind a block";
    d.owned[block.address] = Owned{end, block.requested_bytes, block.stream, block.pool_id, {}, {}, false};
    Raise(d.allocated, block.block_bytes);
    Raise(d.active, block.block_bytes);
    Raise(d.requested, block.requested_bytes);
    ++d.allocations;
  }

  void OnFreeRequested(const BlockView& block, BlockTag&) override {
    std::lock_guard<std::mutex> lock(mutex_);
    Device& d = devices_[static_cast<size_t>(block.device)];
    Owned& owned = d.owned.at(block.address);
    EXPECT_FALSE(owned.freed);
    owned.freed = true;
    std::sort(owned.used_by.begin(), owned.used_by.end());
    owned.used_by.erase(std::unique(owned.used_by.begin(), owned.used_by.end()), owned.used_by.end());
    // Events are recorded under the lock that this call holds, so the next one on the stream is this block's or a later
    // one's.
    for (const StreamHandle stream : owned.used_by) {
      if (stream != owned.stream) owned.tickets.emplace_back(stream, device_->Submitted(block.device, stream) + 1);
    }
    EXPECT_FALSE(owned.tickets.empty()) << "a free waits for nothing";
    d.allocated.current -= static_cast<int64_t>(block.block_bytes);
  }

  void OnFree(const BlockView& block, BlockTag&, bool deferred) override {
    std::lock_guard<std::mutex> lock(mutex_);
    Device& d = devices_[static_cast<size_t>(block.device)];
    const Owned& owned = d.owned.at(block.address);
    EXPECT_EQ(owned.freed, deferred);
    EXPECT_EQ(owned.end, block.address + block.block_bytes);
    EXPECT_EQ(owned.requested, block.requested_bytes);
    for (const auto& [stream, ticket] : owned.tickets) {
      EXPECT_GE(device_->Done(block.device, stream), ticket) << "reuse before the awaited stream has passed";
    }
    if (!deferred) {
      for (const StreamHandle stream : owned.used_by)
        EXPECT_EQ(stream, owned.stream) << "a recorded stream was not awaited";
      d.allocated.current -= static_cast<int64_t>(block.block_bytes);
    }
    d.active.current -= static_cast<int64_t>(block.block_bytes);
    d.requested.current -= static_cast<int64_t>(block.requested_bytes);
    d.owned.erase(block.address);
  }

  void OnSegmentAlloc(const SegmentView& segment) override { Back(segment); }
  void OnSegmentMap(const SegmentView& part) override { Back(part); }
  void OnSegmentFree(const SegmentView& segment) override { Unback(segment); }
  void OnSegmentUnmap(const SegmentView& part) override { Unback(part); }
  void OnOutOfMemory(const OutOfMemoryInfo& info) override {
    std::lock_guard<std::mutex> lock(mutex_);
    ++devices_[static_cast<size_t>(info.device)].out_of_memory;
  }

  // No other thread may be at work. Compares every counter with sums made anew.
  void Check(CachingAllocator& allocator) {
    for (int i = 0; i < device_->device_count(); ++i) CheckDevice(allocator, i);
  }

 private:
  struct Owned {
    uintptr_t end = 0;
    size_t requested = 0;
    StreamHandle stream = 0;
    PoolId pool_id;
    std::vector<StreamHandle> used_by;
    std::vector<std::pair<StreamHandle, uint64_t>> tickets;
    bool freed = false;
  };
  struct Level {
    int64_t current = 0;
    int64_t peak = 0;
  };
  struct Device {
    std::map<uintptr_t, Owned> owned;
    std::map<uintptr_t, uintptr_t> backed;  // start -> end, joined
    Level allocated, active, requested;
    int64_t allocations = 0;
    int64_t out_of_memory = 0;
  };

  static void Raise(Level& level, size_t by) {
    level.current += static_cast<int64_t>(by);
    level.peak = std::max(level.peak, level.current);
  }

  static bool Overlaps(const std::map<uintptr_t, Owned>& owned, uintptr_t start, uintptr_t end) {
    auto it = owned.lower_bound(start);
    if (it != owned.end() && it->first < end) return true;
    return it != owned.begin() && std::prev(it)->second.end > start;
  }

  static bool Backed(const Device& d, uintptr_t start, uintptr_t end) {
    auto it = d.backed.upper_bound(start);
    return it != d.backed.begin() && std::prev(it)->second >= end;
  }

  void Back(const SegmentView& s) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& backed = devices_[static_cast<size_t>(s.device)].backed;
    uintptr_t start = s.address;
    uintptr_t end = s.address + s.bytes;
    auto next = backed.lower_bound(start);
    EXPECT_TRUE(next == backed.end() || next->first >= end) << "memory taken twice";
    // Only parts of an expandable segment are joined; blocks never reach over separate segments.
    if (s.expandable && next != backed.end() && next->first == end) {
      end = next->second;
      next = backed.erase(next);
    }
    if (next != backed.begin()) {
      auto before = std::prev(next);
      EXPECT_LE(before->second, start) << "memory taken twice";
      if (s.expandable && before->second == start) {
        before->second = end;
        return;
      }
    }
    backed[start] = end;
  }

  void Unback(const SegmentView& s) {
    std::lock_guard<std::mutex> lock(mutex_);
    Device& d = devices_[static_cast<size_t>(s.device)];
    const uintptr_t end = s.address + s.bytes;
    EXPECT_FALSE(Overlaps(d.owned, s.address, end)) << "memory in use was given back";
    EXPECT_TRUE(Backed(d, s.address, end)) << "memory given back twice";
    auto it = std::prev(d.backed.upper_bound(s.address));
    const uintptr_t range_end = it->second;
    if (it->first == s.address) {
      d.backed.erase(it);
    } else {
      it->second = s.address;
    }
    if (range_end > end) d.backed[end] = range_end;
  }

  void CheckDevice(CachingAllocator& allocator, int index) {
    const Device& d = devices_[static_cast<size_t>(index)];
    int64_t blocks = 0, allocated = 0, active = 0, requested = 0, split_blocks = 0, split_bytes = 0, mapped = 0,
            segments = 0;
    uintptr_t segment = 0;
    uintptr_t next = 0;
    allocator.ForEachBlock(index, [&](const SegmentView& s, const BlockView& b, BlockState state, const BlockTag&) {
      const int64_t bytes = static_cast<int64_t>(b.block_bytes);
      if (s.address != segment) {
        segment = next = s.address;
        segments += s.expandable ? 0 : 1;
      }
      EXPECT_EQ(b.address, next) << "blocks do not tile their segment";
      next = b.address + b.block_bytes;
      if (state != BlockState::kUnmapped) mapped += bytes;
      if (state == BlockState::kAllocated) {
        ++blocks;
        allocated += bytes;
      }
      if (state == BlockState::kAllocated || state == BlockState::kAwaitingFree) {
        active += bytes;
        requested += static_cast<int64_t>(b.requested_bytes);
        EXPECT_EQ(d.owned.count(b.address), 1u);
      }
      if (state == BlockState::kFree && !s.expandable && b.block_bytes < s.bytes) {
        ++split_blocks;
        split_bytes += bytes;
      }
    });
    const Statistics s = allocator.GetStatistics(index);
    EXPECT_EQ(s.allocation[kAllPools].current, blocks);
    EXPECT_EQ(s.allocation[kAllPools].allocated, d.allocations);
    EXPECT_EQ(s.allocated_bytes[kAllPools].current, allocated);
    EXPECT_EQ(s.allocated_bytes[kAllPools].current, d.allocated.current);
    EXPECT_EQ(s.allocated_bytes[kAllPools].peak, d.allocated.peak);
    EXPECT_EQ(s.active[kAllPools].current, static_cast<int64_t>(d.owned.size()));
    EXPECT_EQ(s.active_bytes[kAllPools].current, active);
    EXPECT_EQ(s.active_bytes[kAllPools].peak, d.active.peak);
    EXPECT_EQ(s.requested_bytes[kAllPools].current, requested);
    EXPECT_EQ(s.requested_bytes[kAllPools].peak, d.requested.peak);
    EXPECT_EQ(s.inactive_split[kAllPools].current, split_blocks);
    EXPECT_EQ(s.inactive_split_bytes[kAllPools].current, split_bytes);
    EXPECT_EQ(s.reserved_bytes[kAllPools].current, mapped);
    EXPECT_EQ(s.reserved_bytes[kAllPools].current, static_cast<int64_t>(device_->used_bytes(index)));
    EXPECT_EQ(s.segment[kAllPools].current, segments);
    EXPECT_EQ(s.num_ooms, d.out_of_memory);
    for (const StatByPool* stat : {&s.allocation, &s.segment, &s.active, &s.inactive_split, &s.allocated_bytes,
                                   &s.reserved_bytes, &s.active_bytes, &s.inactive_split_bytes, &s.requested_bytes}) {
      const Stat& small = (*stat)[kSmallPool];
      const Stat& large = (*stat)[kLargePool];
      const Stat& all = (*stat)[kAllPools];
      EXPECT_EQ(all.current, small.current + large.current);
      EXPECT_EQ(all.allocated, small.allocated + large.allocated);
      EXPECT_EQ(all.current, all.allocated - all.freed);
      EXPECT_GE(all.peak, std::max(small.peak, large.peak));
      EXPECT_GE(small.peak + large.peak, all.peak);
    }
  }

  SimulatedDeviceMemory* const device_;
  std::mutex mutex_;
  std::vector<Device> devices_;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TESTS_ALLOCATOR_SHADOW_LEDGER_H_
