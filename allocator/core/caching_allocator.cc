#include "allocator/core/caching_allocator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "allocator/core/device_allocator.h"

namespace vramledger {

CachingAllocator::CachingAllocator(DeviceMemory& memory, AllocatorSettings settings, AllocatorObserver* observer)
    : memory_(memory), settings_(std::move(settings)) {
  const int count = memory.device_count();
  for (int i = 0; i < count; ++i) {
    devices_.push_back(std::make_unique<DeviceAllocator>(memory, settings_, observer, i));
  }
}

CachingAllocator::~CachingAllocator() = default;

AllocationResult CachingAllocator::Allocate(int device_index, StreamHandle stream, size_t bytes, const BlockTag& tag,
                                            OutOfMemoryInfo* out_of_memory, uint8_t likeness) {
  DeviceAllocator* d = device(device_index);
  if (d == nullptr) {
    AllocationResult result;
    result.status = AllocationStatus::kInvalidDevice;
    return result;
  }
  return d->Allocate(stream, bytes, tag, likeness, out_of_memory);
}

FreeStatus CachingAllocator::Free(void* address, int device_hint) {
  if (address == nullptr) return FreeStatus::kNull;
  const uintptr_t at = reinterpret_cast<uintptr_t>(address);
  DeviceAllocator* const hinted = device(device_hint);
  FreeStatus status = hinted != nullptr ? hinted->Free(at) : FreeStatus::kForeign;
  if (status != FreeStatus::kForeign && status != FreeStatus::kDoubleFree) return status;
  for (const auto& d : devices_) {
    if (d.get() == hinted) continue;
    // A device may remember an address as given back that is another's by now.
    const FreeStatus other = d->Free(at);
    if (other == FreeStatus::kOk) return other;
    if (status == FreeStatus::kForeign) status = other;
  }
  return status;
}

bool CachingAllocator::RecordStream(void* address, StreamHandle stream, int device_hint) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(address);
  DeviceAllocator* const hinted = device(device_hint);
  if (hinted != nullptr && hinted->RecordStream(at, stream)) return true;
  for (const auto& d : devices_) {
    if (d.get() != hinted && d->RecordStream(at, stream)) return true;
  }
  return false;
}

void CachingAllocator::EmptyCache() {
  for (const auto& d : devices_) d->EmptyCache();
}

void CachingAllocator::EmptyCache(int device_index) {
  if (DeviceAllocator* d = device(device_index)) d->EmptyCache();
}

void CachingAllocator::UpdateSettings(const AllocatorSettings& settings) {
  SmallMutexLock lock(settings_mutex_);
  AllocatorSettings changed = settings;
  changed.policy = settings_.policy;
  changed.equal_size_order = settings_.equal_size_order;
  changed.routes_are_captures = settings_.routes_are_captures;
  settings_ = std::move(changed);
  for (const auto& d : devices_) d->UpdateSettings(settings_);
}

AllocatorSettings CachingAllocator::settings() const {
  SmallMutexLock lock(settings_mutex_);
  return settings_;
}

bool CachingAllocator::SetMemoryFraction(double fraction, int device_index) {
  DeviceAllocator* d = device(device_index);
  return d != nullptr && d->SetMemoryFraction(fraction);
}

double CachingAllocator::MemoryFraction(int device_index) {
  DeviceAllocator* d = device(device_index);
  return d == nullptr ? 1 : d->MemoryFraction();
}

void* CachingAllocator::BaseAllocation(void* address, size_t* bytes) {
  for (const auto& d : devices_) {
    if (void* base = d->BaseAllocation(reinterpret_cast<uintptr_t>(address), bytes)) return base;
  }
  return nullptr;
}

void CachingAllocator::BeginCapture(int device_index) {
  if (DeviceAllocator* d = device(device_index)) d->BeginCapture();
}

void CachingAllocator::EndCapture(int device_index) {
  if (DeviceAllocator* d = device(device_index)) d->EndCapture();
}

PoolStatus CachingAllocator::SharePool(int device_index, PoolId id, std::shared_ptr<SegmentSource> source) {
  DeviceAllocator* d = device(device_index);
  return d == nullptr ? PoolStatus::kUnknownPool : d->SharePool(id, std::move(source));
}

PoolStatus CachingAllocator::BeginAllocateToPool(int device_index, PoolId id, StreamFilter filter) {
  DeviceAllocator* d = device(device_index);
  return d == nullptr ? PoolStatus::kUnknownPool : d->BeginAllocateToPool(id, std::move(filter));
}

PoolStatus CachingAllocator::EndAllocateToPool(int device_index, PoolId id) {
  DeviceAllocator* d = device(device_index);
  return d == nullptr ? PoolStatus::kUnknownPool : d->EndAllocateToPool(id);
}

PoolStatus CachingAllocator::ReleasePool(int device_index, PoolId id) {
  DeviceAllocator* d = device(device_index);
  return d == nullptr ? PoolStatus::kUnknownPool : d->ReleasePool(id);
}

int CachingAllocator::PoolUseCount(int device_index, PoolId id) {
  DeviceAllocator* d = device(device_index);
  return d == nullptr ? -1 : d->PoolUseCount(id);
}

PoolStatus CachingAllocator::SetPoolUseWhenOut(int device_index, PoolId id, bool use) {
  DeviceAllocator* d = device(device_index);
  return d == nullptr ? PoolStatus::kUnknownPool : d->SetPoolUseWhenOut(id, use);
}

PoolStatus CachingAllocator::SetPoolNoSplit(int device_index, PoolId id) {
  DeviceAllocator* d = device(device_index);
  return d == nullptr ? PoolStatus::kUnknownPool : d->SetPoolNoSplit(id);
}

void CachingAllocator::EmptyPool(int device_index, PoolId id) {
  if (DeviceAllocator* d = device(device_index)) d->EmptyPool(id);
}

PoolStatus CachingAllocator::LivePoolBlocks(int device_index, PoolId id, std::vector<void*>* addresses) {
  DeviceAllocator* d = device(device_index);
  return d == nullptr ? PoolStatus::kUnknownPool : d->LivePoolBlocks(id, addresses);
}

PoolStatus CachingAllocator::GetPoolState(int device_index, PoolId id, PoolState* state) {
  DeviceAllocator* d = device(device_index);
  return d == nullptr ? PoolStatus::kUnknownPool : d->GetPoolState(id, state);
}

PoolStatus CachingAllocator::SetPoolState(int device_index, const PoolState& state, const BlockTag& tag,
                                          std::vector<void*>* freed, std::vector<void*>* allocated) {
  DeviceAllocator* d = device(device_index);
  return d == nullptr ? PoolStatus::kUnknownPool : d->SetPoolState(state, tag, freed, allocated);
}

void CachingAllocator::BeginFollowing() {
  for (const auto& d : devices_) d->BeginFollowing();
}

bool CachingAllocator::FollowSegmentAlloc(const SegmentView& segment) {
  DeviceAllocator* d = device(segment.device);
  return d != nullptr && d->FollowSegmentAlloc(segment);
}

bool CachingAllocator::FollowSegmentFree(int device_index, uintptr_t address) {
  DeviceAllocator* d = device(device_index);
  return d != nullptr && d->FollowSegmentFree(address);
}

bool CachingAllocator::FollowMap(const SegmentView& part) {
  DeviceAllocator* d = device(part.device);
  return d != nullptr && d->FollowMap(part);
}

bool CachingAllocator::FollowUnmap(int device_index, uintptr_t address) {
  DeviceAllocator* d = device(device_index);
  return d != nullptr && d->FollowUnmap(address);
}

size_t CachingAllocator::FollowAlloc(int device_index, uintptr_t address, size_t bytes, const BlockTag& tag) {
  DeviceAllocator* d = device(device_index);
  return d == nullptr ? 0 : d->FollowAlloc(address, bytes, tag);
}

bool CachingAllocator::FollowFreeRequested(int device_index, uintptr_t address) {
  DeviceAllocator* d = device(device_index);
  return d != nullptr && d->FollowFreeRequested(address);
}

bool CachingAllocator::FollowFree(int device_index, uintptr_t address) {
  DeviceAllocator* d = device(device_index);
  return d != nullptr && d->FollowFree(address);
}

void CachingAllocator::FollowOutOfMemory(int device_index, StreamHandle stream, size_t bytes,
                                         size_t device_free_bytes) {
  if (DeviceAllocator* d = device(device_index)) d->FollowOutOfMemory(stream, bytes, device_free_bytes);
}

void CachingAllocator::AddFreeMemoryCallback(FreeMemoryCallback callback, void* context) {
  for (const auto& d : devices_) d->AddFreeMemoryCallback(callback, context);
}

Statistics CachingAllocator::GetStatistics(int device_index) {
  DeviceAllocator* d = device(device_index);
  return d == nullptr ? Statistics() : d->GetStatistics();
}

void CachingAllocator::ResetPeakStatistics(int device_index) {
  if (DeviceAllocator* d = device(device_index)) d->ResetPeakStatistics();
}

void CachingAllocator::ResetAccumulatedStatistics(int device_index) {
  if (DeviceAllocator* d = device(device_index)) d->ResetAccumulatedStatistics();
}

bool CachingAllocator::UsesExpandableSegments(int device_index) {
  DeviceAllocator* d = device(device_index);
  return d != nullptr && d->UsesExpandableSegments();
}

size_t CachingAllocator::LargestFreeBlock(int device_index) {
  DeviceAllocator* d = device(device_index);
  if (d == nullptr) return 0;
  DeviceMemoryInfo info;
  memory_.MemoryInfo(device_index, &info);
  return std::max(info.free_bytes, d->LargestFreeBlock());
}

void CachingAllocator::ForEachBlock(
    int device_index, absl::FunctionRef<void(const SegmentView&, const BlockView&, BlockState, const BlockTag&)> fn) {
  if (DeviceAllocator* d = device(device_index)) d->ForEachBlock(fn);
}

void CachingAllocator::WhileLocked(int device_index, absl::FunctionRef<void()> fn) {
  if (DeviceAllocator* d = device(device_index)) d->WhileLocked(fn);
}

bool CachingAllocator::UpdateTag(void* address, int device_hint,
                                 absl::FunctionRef<void(const BlockView&, BlockTag&)> fn) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(address);
  DeviceAllocator* const hinted = device(device_hint);
  if (hinted != nullptr && hinted->UpdateTag(at, fn)) return true;
  for (const auto& d : devices_) {
    if (d.get() != hinted && d->UpdateTag(at, fn)) return true;
  }
  return false;
}

bool CachingAllocator::Restore(int device_index, const std::vector<SegmentImage>& segments) {
  DeviceAllocator* d = device(device_index);
  return d != nullptr && d->Restore(segments);
}

std::string CachingAllocator::DescribeAddress(const void* address) {
  for (const auto& d : devices_) {
    const std::string text = d->DescribeAddress(reinterpret_cast<uintptr_t>(address));
    if (!text.empty()) return text;
  }
  return absl::StrFormat("0x%x was never handed out by this allocator", reinterpret_cast<uintptr_t>(address));
}

}  // namespace vramledger
