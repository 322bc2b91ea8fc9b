// What the ledger shows: views, statistics, descriptions.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "allocator/core/device_allocator.h"
#include "allocator/core/private_pool.h"

namespace vramledger {

BlockView DeviceAllocator::ViewOf(const Block& block) const {
  BlockView view;
  view.device = device_;
  view.stream = block.pool->stream;
  view.address = block.address;
  view.requested_bytes = block.requested_bytes;
  view.block_bytes = block.bytes;
  view.segment_address = block.segment->address;
  view.segment_bytes = block.segment->bytes;
  view.pool_id = block.pool->pool->id;
  view.small_pool = block.pool->pool->small;
  return view;
}

SegmentView DeviceAllocator::ViewOf(const Segment& segment) const {
  SegmentView view;
  view.device = device_;
  view.stream = segment.pool->stream;
  view.address = segment.address;
  view.bytes = segment.bytes;
  view.pool_id = segment.pool->pool->id;
  view.small_pool = segment.pool->pool->small;
  view.expandable = segment.expandable();
  return view;
}

Block* DeviceAllocator::FindLive(uintptr_t address) const {
  Block* block = index_.Find(address);
  return block != nullptr && block->state == BlockState::kAllocated ? block : nullptr;
}

const Segment* DeviceAllocator::SegmentAt(uintptr_t address) const {
  auto it = segments_.upper_bound(address);
  if (it == segments_.begin()) return nullptr;
  const Segment& segment = *(--it)->second;
  return address - segment.address < segment.bytes ? &segment : nullptr;
}

bool DeviceAllocator::SetMemoryFraction(double fraction) {
  SmallMutexLock lock(mutex_);
  opened_ = true;  // an explicit value wins over the setting
  return SetMemoryFractionLocked(fraction);
}

// The setting's share of the device, which need not be what SetMemoryFraction said last.
size_t DeviceAllocator::ConfiguredLimit(size_t total_bytes) const {
  return static_cast<size_t>(settings_.per_process_memory_fraction * static_cast<double>(total_bytes));
}

bool DeviceAllocator::ExceedsConfiguredLimit(size_t segment_bytes) {
  DeviceMemoryInfo info;
  if (memory_.MemoryInfo(device_, &info) != DeviceResult::kOk) return false;
  return reserved_bytes() + segment_bytes > ConfiguredLimit(info.total_bytes);
}

void DeviceAllocator::Open() {
  opened_ = true;
  if (settings_.per_process_memory_fraction < 1) SetMemoryFractionLocked(settings_.per_process_memory_fraction);
}

void DeviceAllocator::UpdateSettings(const AllocatorSettings& settings) {
  SmallMutexLock lock(mutex_);
  settings_ = settings;
  expandable_ = !lacks_vmm_ && (settings_.expandable_segments || vmm_);
}

bool DeviceAllocator::SetMemoryFractionLocked(double fraction) {
  if (!(fraction >= 0 && fraction <= 1)) return false;
  // MemoryInfo would make a context on a device that may never be used.
  DeviceMemoryInfo info;
  if (fraction < 1) info.total_bytes = memory_.TotalBytes(device_);
  if (fraction < 1 && info.total_bytes == 0 && memory_.MemoryInfo(device_, &info) != DeviceResult::kOk) return false;
  has_limit_ = fraction < 1;
  limit_bytes_ = static_cast<size_t>(std::round(fraction * static_cast<double>(info.total_bytes)));
  return true;
}

double DeviceAllocator::MemoryFraction() {
  SmallMutexLock lock(mutex_);
  if (!opened_) Open();  // the setting's, where nothing was allocated yet
  DeviceMemoryInfo info;
  if (!has_limit_ || memory_.MemoryInfo(device_, &info) != DeviceResult::kOk || info.total_bytes == 0) return 1;
  return static_cast<double>(limit_bytes_) / static_cast<double>(info.total_bytes);
}

void* DeviceAllocator::BaseAllocation(uintptr_t address, size_t* bytes) {
  SmallMutexLock lock(mutex_);
  const Block* block = FindLive(address);
  if (block == nullptr) return nullptr;
  if (bytes != nullptr) *bytes = block->segment->bytes;
  return reinterpret_cast<void*>(block->segment->address);
}

void DeviceAllocator::AddFreeMemoryCallback(bool (*callback)(void*), void* context) {
  SmallMutexLock lock(mutex_);
  callbacks_.emplace_back(callback, context);
}

Statistics DeviceAllocator::GetStatistics() {
  SmallMutexLock lock(mutex_);
  Statistics s;
  s.allocation = counters_.Read(Metric::kAllocation);
  s.segment = counters_.Read(Metric::kSegment);
  s.active = counters_.Read(Metric::kActive);
  s.inactive_split = counters_.Read(Metric::kInactiveSplit);
  s.allocated_bytes = counters_.Read(Metric::kAllocatedBytes);
  s.reserved_bytes = counters_.Read(Metric::kReservedBytes);
  s.active_bytes = counters_.Read(Metric::kActiveBytes);
  s.inactive_split_bytes = counters_.Read(Metric::kInactiveSplitBytes);
  s.requested_bytes = counters_.Read(Metric::kRequestedBytes);
  s.reserved_bytes_by_private_pool.assign(private_reserved_.begin(), private_reserved_.end());
  s.oversize_allocations = oversize_allocations_;
  s.oversize_segments = oversize_segments_;
  s.num_alloc_retries = num_alloc_retries_;
  s.num_ooms = num_ooms_;
  s.num_sync_all_streams = num_sync_all_streams_;
  s.num_device_alloc = num_device_alloc_;
  s.num_device_free = num_device_free_;
  s.num_oom_rejections = num_oom_rejections_;
  s.max_split_size = static_cast<int64_t>(first_max_split_size_);  // unlimited becomes -1
  return s;
}

void DeviceAllocator::ResetPeakStatistics() {
  SmallMutexLock lock(mutex_);
  counters_.ResetPeak();
  for (auto& [id, stats] : private_reserved_) {
    for (Stat& stat : stats) stat.peak = stat.current;
  }
  oversize_allocations_.peak = oversize_allocations_.current;
  oversize_segments_.peak = oversize_segments_.current;
}

void DeviceAllocator::ResetAccumulatedStatistics() {
  SmallMutexLock lock(mutex_);
  counters_.ResetAccumulated();
  for (auto& [id, stats] : private_reserved_) {
    for (Stat& stat : stats) stat.allocated = stat.freed = 0;
  }
  for (Stat* stat : {&oversize_allocations_, &oversize_segments_}) stat->allocated = stat->freed = 0;
  num_oom_rejections_ = 0;
  num_alloc_retries_ = num_ooms_ = num_sync_all_streams_ = num_device_alloc_ = num_device_free_ = 0;
}

bool DeviceAllocator::UsesExpandableSegments() {
  SmallMutexLock lock(mutex_);
  return expandable_;
}

size_t DeviceAllocator::LargestFreeBlock() {
  SmallMutexLock lock(mutex_);
  size_t largest = 0;
  const auto look = [&largest](const Pool& pool) {
    for (const auto& stream : pool.streams) largest = std::max(largest, stream->free.LargestBytes());
  };
  for (const Pool* pool : shared_pools_) look(*pool);
  for (const auto& [id, pool] : private_pools_) {
    look(pool->small);
    look(pool->large);
  }
  return largest;
}

void DeviceAllocator::FillOutOfMemory(const Request& request, size_t requested, OutOfMemoryInfo* info) {
  DeviceMemoryInfo device;
  memory_.MemoryInfo(device_, &device);
  info->device = device_;
  info->stream = request.pool->stream;
  info->requested_bytes = requested;
  info->rounded_bytes = request.bytes;
  info->segment_bytes = request.segment_bytes;
  info->device_free_bytes = device.free_bytes;
  info->device_total_bytes = device.total_bytes;
  info->allowed_bytes = rejected_ ? ConfiguredLimit(info->device_total_bytes) : has_limit_ ? limit_bytes_ : 0;
  info->allocated_bytes = static_cast<size_t>(counters_.Current(Metric::kAllocatedBytes));
  info->awaiting_free_bytes = static_cast<size_t>(counters_.Current(Metric::kActiveBytes)) - info->allocated_bytes;
  info->reserved_bytes = reserved_bytes();
  info->cached_bytes = info->reserved_bytes - static_cast<size_t>(counters_.Current(Metric::kActiveBytes));
  for (const auto& stream : request.pool->pool->streams) {
    info->largest_free_block_bytes = std::max(info->largest_free_block_bytes, stream->free.LargestBytes());
  }
  info->largest_free_block_same_stream_bytes = request.pool->free.LargestBytes();
  info->limited_by_fraction = limited_by_fraction_;
  info->rejected = rejected_;
}

void DeviceAllocator::ForEachBlock(
    absl::FunctionRef<void(const SegmentView&, const BlockView&, BlockState, const BlockTag&)> fn) {
  SmallMutexLock lock(mutex_);
  for (const auto& [address, segment] : segments_) {
    const SegmentView view = ViewOf(*segment);
    for (const Block* b = index_.Find(address); b != nullptr; b = b->next) fn(view, ViewOf(*b), b->state, b->tag);
  }
}

void DeviceAllocator::WhileLocked(absl::FunctionRef<void()> fn) {
  SmallMutexLock lock(mutex_);
  fn();
}

bool DeviceAllocator::UpdateTag(uintptr_t address, absl::FunctionRef<void(const BlockView&, BlockTag&)> fn) {
  SmallMutexLock lock(mutex_);
  Block* block = FindLive(address);
  if (block == nullptr) return false;
  fn(ViewOf(*block), block->tag);
  return true;
}

std::string DeviceAllocator::DescribeAddress(uintptr_t address) {
  SmallMutexLock lock(mutex_);
  const std::string name = absl::StrFormat("0x%x", address);
  const Segment* segment = SegmentAt(address);
  if (segment == nullptr) {
    for (const auto& [start, bytes] : released_) {
      if (address - start < bytes) {
        return absl::StrCat(name, " lies in a segment of device ", device_,
                            " that was freed and given back to the device");
      }
    }
    return "";
  }
  const Block* b = index_.Find(segment->address);
  while (address - b->address >= b->bytes) b = b->next;
  const std::string where = absl::StrCat(" of device ", device_, ", offset ", address - segment->address,
                                         " in a segment of ", segment->bytes, " bytes");
  switch (b->state) {
    case BlockState::kAllocated:
      if (address == b->address)
        return absl::StrCat(name, " is a block of ", b->requested_bytes, " bytes in use", where);
      return absl::StrCat(name, " lies ", address - b->address, " bytes inside a block of ", b->requested_bytes,
                          " bytes in use", where);
    case BlockState::kAwaitingFree:
      return absl::StrCat(name, " is freed and waits for another stream", where);
    case BlockState::kFree:
      return absl::StrCat(name, " lies in memory that is free", where);
    case BlockState::kUnmapped:
      break;
  }
  return absl::StrCat(name, " lies in address space without memory", where);
}

}  // namespace vramledger
