#include "allocator/torch/torch_events.h"

#include <algorithm>
#include <utility>

#include "allocator/torch/torch_compat.h"

namespace vramledger {
namespace {

// Of the calling thread; what has a destructor is leaked, since frees outlive thread-local destructors.
thread_local const TorchEvents::Context* current_context = nullptr;
thread_local std::string* user_metadata = nullptr;
thread_local std::vector<std::string>* compile_contexts = nullptr;

c10::Device DeviceOf(int index) {
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)};
}

}  // namespace

void TorchEvents::Adjust(AllocatorSettings& settings) {
  settings.routes_are_captures = VRAMLEDGER_TORCH_ROUTES_ARE_CAPTURES;
  if (settings.policy == AllocatorSettings::Policy::kNative) {
    settings.equal_size_order = AllocatorSettings::EqualSizeOrder::VRAMLEDGER_TORCH_EQUAL_SIZE_ORDER;
  }
}

AllocatorObserver* TorchEvents::Wrap(AllocatorObserver& recorder, int devices) {
  recorder_ = &recorder;
  for (int i = 0; i < devices; ++i) devices_.push_back(std::make_unique<Device>());
  return this;
}

// ---- what PyTorch sets ----

void TorchEvents::ContextScope::Open(TorchEvents& events) {
  const native::CreateContextFn create = events.context_recorder_.load(std::memory_order_relaxed);
  if (create == nullptr) return;
  context_ = create();
  outer_ = std::exchange(current_context, &context_);
}

void TorchEvents::ContextScope::Close() {
  current_context = outer_;
}

std::vector<std::unique_lock<std::mutex>> TorchEvents::LockAll() {
  std::vector<std::unique_lock<std::mutex>> locks;
  locks.emplace_back(settings_mutex_);
  for (const auto& device : devices_) locks.emplace_back(device->mutex);
  return locks;
}

void TorchEvents::RecordHistory(bool enabled, native::CreateContextFn recorder, size_t max_entries,
                                native::RecordContext when, bool clear, const std::vector<std::string>& skip_actions) {
  TORCH_CHECK(!enabled || when == native::RecordContext::NEVER || recorder != nullptr,
              "a history with stacks needs a function that gathers them");
  std::array<bool, 16> skipped{};
  for (const std::string& name : skip_actions)
    skipped.at(c10::CachingDeviceAllocator::parseTraceEntryAction(name)) = true;

  std::vector<native::TraceEntry> dropped;  // destroyed after the locks are given back: stacks may be large
  const auto locks = LockAll();
  context_recorder_.store(enabled ? recorder : nullptr);
  context_level_.store(enabled && recorder != nullptr && when != native::RecordContext::NEVER ? static_cast<int>(when)
                                                                                              : -1);
  history_.store(enabled);
  active_.store(enabled || !trackers_.empty());
  max_entries_ = std::max<size_t>(1, max_entries);
  skipped_ = skipped;
  for (const auto& device : devices_) {
    const bool too_long = device->ring.size() > max_entries_ || device->oldest != 0;
    if (enabled && !clear && !too_long) continue;
    std::rotate(device->ring.begin(), device->ring.begin() + static_cast<std::ptrdiff_t>(device->oldest),
                device->ring.end());
    device->oldest = 0;
    size_t gone = device->ring.size() - std::min(device->ring.size(), max_entries_);
    if (!enabled || clear) gone = device->ring.size();
    const auto end = device->ring.begin() + static_cast<std::ptrdiff_t>(gone);
    dropped.insert(dropped.end(), std::make_move_iterator(device->ring.begin()), std::make_move_iterator(end));
    device->ring.erase(device->ring.begin(), end);
  }
  if (!enabled || clear) annotations_.clear();
}

void TorchEvents::RecordAnnotation(const std::vector<std::pair<std::string, std::string>>& values, int device) {
  if (!history_enabled()) return;
  c10::CachingDeviceAllocator::AnnotationEntry entry(static_cast<c10::DeviceIndex>(device), c10::getApproximateTime());
  for (const auto& [name, value] : values) entry.recordUserMetadata(name, value);
  const std::lock_guard<std::mutex> lock(settings_mutex_);
  if (annotations_.size() >= max_entries_) annotations_.erase(annotations_.begin());
  annotations_.push_back(std::move(entry));
}

void TorchEvents::AttachTracker(native::AllocatorTraceTracker tracker) {
  const auto locks = LockAll();
  trackers_.push_back(std::move(tracker));
  active_.store(true);
}

void TorchEvents::AttachOutOfMemoryObserver(native::OutOfMemoryObserver observer) {
  const auto locks = LockAll();
  out_of_memory_observers_.push_back(std::move(observer));
}

void TorchEvents::AttachRejectionObserver(RejectionObserver observer) {
  const auto locks = LockAll();
  rejection_observers_.push_back(std::move(observer));
}

void TorchEvents::SetUserMetadata(const std::string& text) {
  if (user_metadata == nullptr) user_metadata = new std::string();
  *user_metadata = text;
}

std::string TorchEvents::UserMetadata() {
  return user_metadata != nullptr ? *user_metadata : std::string();
}

void TorchEvents::PushCompileContext(const std::string& text) {
  if (compile_contexts == nullptr) compile_contexts = new std::vector<std::string>();
  compile_contexts->push_back(text);
}

void TorchEvents::PopCompileContext() {
  if (compile_contexts != nullptr && !compile_contexts->empty()) compile_contexts->pop_back();
}

// ---- what happens ----

void TorchEvents::Note(Action action, Device& device, int index, uintptr_t address, size_t bytes, StreamHandle stream,
                       PoolId pool, Context context, const std::string* metadata) {
  const bool keeps_stack =
      context_level_.load(std::memory_order_relaxed) >= static_cast<int>(native::RecordContext::ALLOC);
  native::TraceEntry entry(action, static_cast<c10::DeviceIndex>(index), address, bytes,
                           reinterpret_cast<void*>(stream), {pool.first, pool.second}, c10::getApproximateTime(),
                           keeps_stack ? std::move(context) : nullptr,
                           compile_contexts != nullptr && !compile_contexts->empty() ? compile_contexts->back() : "N/A",
                           metadata != nullptr ? *metadata : UserMetadata());
  for (const auto& tracker : trackers_) tracker(entry);
  if (!history_enabled() || skipped_.at(static_cast<size_t>(action))) return;
  if (device.ring.size() < max_entries_) {
    device.ring.push_back(std::move(entry));
  } else {
    device.ring[device.oldest] = std::move(entry);
    device.oldest = (device.oldest + 1) % device.ring.size();
  }
}

TorchEvents::Context TorchEvents::Current() {
  return current_context != nullptr ? *current_context : nullptr;
}

void TorchEvents::Report(const BlockView& block, bool taken) {
  const Device& device = At(block.device);
  const auto bytes = static_cast<int64_t>(block.block_bytes);
  c10::reportMemoryUsageToProfiler(reinterpret_cast<void*>(block.address), taken ? bytes : -bytes, device.allocated,
                                   device.reserved, DeviceOf(block.device));
}

// As in PyTorch, the stack of a segment is known until the segment is first cut, which is at its front.
void TorchEvents::ForgetCutSegment(Device& device, const BlockView& block) {
  const auto segment = device.segments.find(block.address);
  if (segment != device.segments.end() && block.block_bytes < segment->second.bytes) device.segments.erase(segment);
}

void TorchEvents::OnAlloc(const BlockView& block, BlockTag& tag) {
  recorder_->OnAlloc(block, tag);
  Device& device = At(block.device);
  device.allocated += block.block_bytes;
  if (active_.load(std::memory_order_relaxed)) [[unlikely]] {
    const std::lock_guard<std::mutex> lock(device.mutex);
    if (current_context != nullptr) {
      device.blocks[block.address] = *current_context;
      device.keeps_contexts = true;
    }
    ForgetCutSegment(device, block);
    Note(Action::ALLOC, device, block.device, block.address, block.requested_bytes, block.stream, block.pool_id,
         Current());
  } else if (device.keeps_contexts) [[unlikely]] {
    const std::lock_guard<std::mutex> lock(device.mutex);
    ForgetCutSegment(device, block);
  }
  Report(block, true);
}

void TorchEvents::OnFreeRequested(const BlockView& block, BlockTag& tag) {
  recorder_->OnFreeRequested(block, tag);
  Device& device = At(block.device);
  device.allocated -= block.block_bytes;
  if (active_.load(std::memory_order_relaxed)) [[unlikely]] {
    const std::lock_guard<std::mutex> lock(device.mutex);
    const auto born = device.blocks.find(block.address);
    Note(Action::FREE_REQUESTED, device, block.device, block.address, block.requested_bytes, block.stream,
         block.pool_id,
         current_context != nullptr    ? *current_context
         : born != device.blocks.end() ? born->second
                                       : nullptr);
  }
  Report(block, false);
}

void TorchEvents::OnFree(const BlockView& block, BlockTag& tag, bool deferred) {
  recorder_->OnFree(block, tag, deferred);
  Device& device = At(block.device);
  if (!deferred) device.allocated -= block.block_bytes;
  if (active_.load(std::memory_order_relaxed)) [[unlikely]] {
    const std::lock_guard<std::mutex> lock(device.mutex);
    const auto born = device.blocks.find(block.address);
    const Context context = current_context != nullptr    ? *current_context
                            : born != device.blocks.end() ? born->second
                                                          : nullptr;
    if (!deferred) {
      Note(Action::FREE_REQUESTED, device, block.device, block.address, block.requested_bytes, block.stream,
           block.pool_id, context);
    }
    Note(Action::FREE_COMPLETED, device, block.device, block.address, block.requested_bytes, block.stream,
         block.pool_id, context);
    if (born != device.blocks.end()) device.blocks.erase(born);
  } else if (device.keeps_contexts) [[unlikely]] {
    const std::lock_guard<std::mutex> lock(device.mutex);
    device.blocks.erase(block.address);
  }
  if (!deferred) Report(block, false);
}

void TorchEvents::Segment(Action action, const SegmentView& segment) {
  Device& device = At(segment.device);
  const bool grows = action == Action::SEGMENT_ALLOC || action == Action::SEGMENT_MAP;
  device.reserved += grows ? segment.bytes : 0 - segment.bytes;
  if (!active_.load(std::memory_order_relaxed)) {
    if (!device.keeps_contexts) return;
    const std::lock_guard<std::mutex> lock(device.mutex);
    device.segments.erase(segment.address);
    return;
  }
  const std::lock_guard<std::mutex> lock(device.mutex);
  Context context = Current();
  const auto born = device.segments.find(segment.address);
  if (grows) {
    if (context != nullptr && born == device.segments.end()) {
      device.segments[segment.address] = {context, segment.bytes};
      device.keeps_contexts = true;
    }
  } else if (born != device.segments.end()) {
    if (context == nullptr) context = born->second.context;
    device.segments.erase(born);
  }
  Note(action, device, segment.device, segment.address, segment.bytes, segment.stream, segment.pool_id,
       std::move(context));
}

void TorchEvents::OnSegmentAlloc(const SegmentView& segment) {
  recorder_->OnSegmentAlloc(segment);
  Segment(Action::SEGMENT_ALLOC, segment);
}
void TorchEvents::OnSegmentFree(const SegmentView& segment) {
  recorder_->OnSegmentFree(segment);
  Segment(Action::SEGMENT_FREE, segment);
}
void TorchEvents::OnSegmentMap(const SegmentView& part) {
  recorder_->OnSegmentMap(part);
  Segment(Action::SEGMENT_MAP, part);
}
void TorchEvents::OnSegmentUnmap(const SegmentView& part) {
  recorder_->OnSegmentUnmap(part);
  Segment(Action::SEGMENT_UNMAP, part);
}

void TorchEvents::OnOutOfMemory(const OutOfMemoryInfo& info) {
  recorder_->OnOutOfMemory(info);
  Device& device = At(info.device);
  if (info.rejected) return;
  if (active_.load(std::memory_order_relaxed)) {
    const std::lock_guard<std::mutex> lock(device.mutex);
    Note(Action::OOM, device, info.device, info.device_free_bytes, info.segment_bytes, info.stream, {}, Current());
  }
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(info.rounded_bytes), device.allocated, device.reserved,
                                   DeviceOf(info.device));
}

void TorchEvents::BeforeOutOfMemoryError(const OutOfMemoryInfo& info) {
  if (info.rejected) {
    std::vector<RejectionObserver> told;
    {
      const std::lock_guard<std::mutex> lock(settings_mutex_);
      told = rejection_observers_;
    }
    for (const auto& observer : told)
      observer(info.device, info.segment_bytes, info.reserved_bytes, info.device_total_bytes);
    return;
  }
  std::vector<native::OutOfMemoryObserver> observers;
  {
    const std::lock_guard<std::mutex> lock(settings_mutex_);
    observers = out_of_memory_observers_;
  }
  for (const auto& observer : observers) {
    observer(info.device, info.segment_bytes, info.allowed_bytes != 0 ? info.allowed_bytes : info.device_total_bytes,
             info.device_free_bytes);
  }
}

// ---- what PyTorch reads ----

std::vector<native::TraceEntry> TorchEvents::History(int index) {
  std::vector<native::TraceEntry> entries;
  {
    Device& device = At(index);
    const std::lock_guard<std::mutex> lock(device.mutex);
    const auto oldest = device.ring.begin() + static_cast<std::ptrdiff_t>(device.oldest);
    entries.assign(oldest, device.ring.end());
    entries.insert(entries.end(), device.ring.begin(), oldest);
  }
  const auto nanoseconds = clock_.makeConverter();
  for (native::TraceEntry& entry : entries) entry.time_.t_ = nanoseconds(entry.time_.approx_t_) / 1000;
  return entries;
}

std::vector<c10::CachingDeviceAllocator::AnnotationEntry> TorchEvents::Annotations() {
  std::vector<c10::CachingDeviceAllocator::AnnotationEntry> entries;
  {
    const std::lock_guard<std::mutex> lock(settings_mutex_);
    entries = annotations_;
  }
  const auto nanoseconds = clock_.makeConverter();
  for (auto& entry : entries) entry.time_.t_ = nanoseconds(entry.time_.approx_t_) / 1000;
  return entries;
}

TorchEvents::Context TorchEvents::ContextOf(int device, uintptr_t address) {
  const std::lock_guard<std::mutex> lock(At(device).mutex);
  const auto found = At(device).blocks.find(address);
  return found != At(device).blocks.end() ? found->second : nullptr;
}

TorchEvents::Context TorchEvents::ContextOf(CachingAllocator& core, const void* address) {
  int device = -1;
  core.UpdateTag(const_cast<void*>(address), 0,
                 [&device](const BlockView& block, BlockTag&) { device = block.device; });
  return device < 0 ? nullptr : ContextOf(device, reinterpret_cast<uintptr_t>(address));
}

TorchEvents::Context TorchEvents::SegmentContextOf(int device, uintptr_t address) {
  const std::lock_guard<std::mutex> lock(At(device).mutex);
  const auto found = At(device).segments.find(address);
  return found != At(device).segments.end() ? found->second.context : nullptr;
}

void TorchEvents::NoteSnapshot(int device, size_t active_bytes) {
  if (!active_.load(std::memory_order_relaxed)) return;
  const std::lock_guard<std::mutex> lock(At(device).mutex);
  Note(Action::SNAPSHOT, At(device), device, 0, active_bytes, 0, {}, nullptr);
}

}  // namespace vramledger
