// Statistics and snapshots in PyTorch's structures.
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAAllocatorConfig.h>

#include <algorithm>

#include "allocator/torch/torch_allocator.h"

namespace vramledger {
namespace {

using TorchStat = c10::CachingAllocator::Stat;
using TorchStats = c10::CachingAllocator::StatArray;

TorchStat Convert(const Stat& from) {
  TorchStat to;
  to.current = from.current;
  to.peak = from.peak;
  to.allocated = from.allocated;
  to.freed = from.freed;
  return to;
}

TorchStats Convert(const StatByPool& from) {
  // Both order them: all, small, large.
  TorchStats to;
  for (size_t i = 0; i < to.size(); ++i) to[i] = Convert(from[i]);
  return to;
}

}  // namespace

c10::CachingDeviceAllocator::DeviceStats TorchAllocator::getDeviceStats(c10::DeviceIndex device) {
  const Statistics s = Core(device).GetStatistics(device);
  c10::CachingDeviceAllocator::DeviceStats out;
  out.allocation = Convert(s.allocation);
  out.segment = Convert(s.segment);
  out.active = Convert(s.active);
  out.inactive_split = Convert(s.inactive_split);
  out.allocated_bytes = Convert(s.allocated_bytes);
  out.reserved_bytes = Convert(s.reserved_bytes);
  out.active_bytes = Convert(s.active_bytes);
  out.inactive_split_bytes = Convert(s.inactive_split_bytes);
  out.requested_bytes = Convert(s.requested_bytes);
  out.num_alloc_retries = s.num_alloc_retries;
  out.num_ooms = s.num_ooms;
  out.oversize_allocations = Convert(s.oversize_allocations);
  out.oversize_segments = Convert(s.oversize_segments);
  out.num_sync_all_streams = s.num_sync_all_streams;
  out.num_device_alloc = s.num_device_alloc;
  out.num_device_free = s.num_device_free;
  out.max_split_size = s.max_split_size;
  VRAMLEDGER_TORCH_2_12_STATISTICS(out, s);
  VRAMLEDGER_TORCH_2_13_STATISTICS(out, s);
  return out;
}

void TorchAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  Core(device).ResetAccumulatedStatistics(device);
}

void TorchAllocator::resetPeakStats(c10::DeviceIndex device) {
  Core(device);
  plugin_.ResetPeaks(device);  // the categories' peaks too
}

void TorchAllocator::cacheInfo(c10::DeviceIndex device, size_t* largest) {
  // 0 asks for a first guess, for which PyTorch takes all that the device has left.
  CachingAllocator& core = Core(device);
  size_t found = core.LargestFreeBlock(device);
  DeviceMemoryInfo info;
  if (*largest != 0 && core.memory().MemoryInfo(device, &info) == DeviceResult::kOk && found <= info.free_bytes)
    found = 0;
  *largest = std::max(*largest, found);
}

std::vector<native::StreamSegmentSize> TorchAllocator::getExpandableSegmentSizes(c10::DeviceIndex device) {
  std::vector<native::StreamSegmentSize> sizes;
  uintptr_t last = 0;
  Core(device).ForEachBlock(
      device, [&](const SegmentView& segment, const BlockView& block, BlockState state, const BlockTag&) {
        if (!segment.expandable) return;
        if (sizes.empty() || segment.address != last) {
          sizes.emplace_back(reinterpret_cast<cudaStream_t>(segment.stream), segment.small_pool, 0);
          last = segment.address;
        }
        if (state != BlockState::kUnmapped) sizes.back().total_size += block.block_bytes;
      });
  return sizes;
}

native::SnapshotInfo TorchAllocator::snapshot(c10::MempoolId_t pool, bool include_traces) {
  CachingAllocator& core = Core();
  native::SnapshotInfo out;
  const PoolId only{pool.first, pool.second};
  for (int device = 0; device < core.device_count(); ++device) {
    if (include_traces) {
      out.device_traces.push_back(events_.History(device));
    } else {
      out.device_traces.emplace_back();
    }
    size_t active = 0;
    uintptr_t end = 0;  // where the mapped range being read ends
    const size_t first = out.segments.size();
    core.ForEachBlock(device,
                      [&](const SegmentView& segment, const BlockView& block, BlockState state, const BlockTag&) {
                        if (!only.is_default() && segment.pool_id != only) return;
                        if (state == BlockState::kUnmapped) {
                          end = 0;
                          return;
                        }
                        // Each contiguous mapped range of an expandable segment is shown as a segment, as PyTorch does.
                        if (block.address == segment.address || block.address != end) {
                          native::SegmentInfo info;
                          info.device = static_cast<c10::DeviceIndex>(device);
                          info.address = block.address;
                          info.stream = reinterpret_cast<void*>(segment.stream);
                          info.is_large = !segment.small_pool;
                          info.is_expandable = segment.expandable;
                          info.owner_private_pool_id = {segment.pool_id.first, segment.pool_id.second};
                          out.segments.push_back(std::move(info));
                        }
                        end = block.address + block.block_bytes;
                        native::SegmentInfo& info = out.segments.back();
                        native::BlockInfo b;
                        b.size = block.block_bytes;
                        b.requested_size = block.requested_bytes;
                        b.allocated = state == BlockState::kAllocated;
                        b.active = state != BlockState::kFree;
                        info.total_size += b.size;
                        if (b.allocated) info.allocated_size += b.size;
                        if (b.active) {
                          info.active_size += b.size;
                          info.requested_size += b.requested_size;
                          active += b.size;
                        }
                        info.blocks.push_back(std::move(b));
                      });
    for (size_t i = first; i < out.segments.size(); ++i) {
      native::SegmentInfo& info = out.segments[i];
      info.context_when_allocated = events_.SegmentContextOf(device, info.address);
      uintptr_t address = info.address;
      for (native::BlockInfo& b : info.blocks) {
        if (b.active) b.context_when_allocated = events_.ContextOf(device, address);
        address += b.size;
      }
    }
    events_.NoteSnapshot(device, active);
  }
  out.external_annotations = events_.Annotations();

  using Common = c10::CachingAllocator::AcceleratorAllocatorConfig;
  using Cuda = native::CUDAAllocatorConfig;
  const AllocatorSettings now = core.settings();
  auto& settings = out.config_metadata;
  settings.garbage_collection_threshold = now.garbage_collection_threshold;
  settings.max_split_size = now.max_split_size;
  settings.pinned_num_register_threads = Cuda::pinned_num_register_threads();
  settings.expandable_segments = now.expandable_segments;
  settings.release_lock_on_malloc = Cuda::release_lock_on_cudamalloc();
  settings.pinned_use_host_register = Cuda::pinned_use_cuda_host_register();
  settings.graph_capture_record_stream_reuse = Cuda::graph_capture_record_stream_reuse();
  settings.last_allocator_settings = Common::last_allocator_settings();
  VRAMLEDGER_TORCH_2_13_SNAPSHOT_SETTINGS(settings);
  settings.roundup_power2_divisions.assign(now.roundup_power2_divisions.begin(), now.roundup_power2_divisions.end());
  return out;
}

}  // namespace vramledger
