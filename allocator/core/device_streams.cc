// Blocks that other streams still use when the program frees them.
#include <algorithm>

#include "allocator/core/device_allocator.h"
#include "allocator/core/private_pool.h"

namespace vramledger {

bool DeviceAllocator::RecordStream(uintptr_t address, StreamHandle stream) {
  SmallMutexLock lock(mutex_);
  Block* block = FindLive(address);
  if (block == nullptr) return false;
  if (stream == block->pool->stream) return true;  // work on its own stream is in order already
  if (block->used_by == nullptr) block->used_by = std::make_unique<std::vector<StreamUse>>();
  auto& used_by = *block->used_by;
  const bool captured = captures_ > 0 && memory_.StreamIsCapturing(device_, stream);
  const auto known =
      std::find_if(used_by.begin(), used_by.end(), [stream](const StreamUse& use) { return use.stream == stream; });
  if (known == used_by.end()) {
    used_by.push_back({stream, captured});
  } else if (!captured) {
    known->captured = false;
  }
  return true;
}

void DeviceAllocator::BeginCapture() {
  SmallMutexLock lock(mutex_);
  ++captures_;
}

void DeviceAllocator::EndCapture() {
  SmallMutexLock lock(mutex_);
  if (captures_ > 0) --captures_;
  ReleaseCapturedUses();
}

EventHandle DeviceAllocator::NewEvent() {
  if (!spare_events_.empty()) {
    const EventHandle event = spare_events_.back();
    spare_events_.pop_back();
    return event;
  }
  EventHandle event = 0;
  return memory_.CreateEvent(device_, &event) == DeviceResult::kOk ? event : 0;
}

void DeviceAllocator::InsertEvents(Block* block, bool freed_in_capture) {
  for (const StreamUse& use : *block->used_by) {
    // A capture we were not told about: its streams take no event of ours. The block waits until it is over.
    if (memory_.StreamIsCapturing(device_, use.stream)) {
      deferred_.push_back(block);
      return;
    }
  }
  const std::vector<StreamUse> uses = std::move(*block->used_by);
  block->used_by->clear();
  for (const auto& [stream, captured] : uses) {
    // A capture ends only when all its streams have been joined. What was freed after it may be in use by the graph.
    if (captured && freed_in_capture) continue;
    const EventHandle event = NewEvent();
    if (event == 0 || memory_.RecordEvent(device_, event, stream) != DeviceResult::kOk) {
      // The stream is gone, or the process is ending. Waiting for the whole device is as safe.
      memory_.Synchronize(device_);
      if (event != 0) spare_events_.push_back(event);
      continue;
    }
    ++block->pending_events;
    auto it =
        std::find_if(events_.begin(), events_.end(), [stream](const StreamEvents& e) { return e.stream == stream; });
    if (it == events_.end()) it = events_.insert(it, StreamEvents{stream, {}});
    it->queue.emplace_back(event, block);
  }
  if (block->pending_events == 0) CompleteFree(block, true);
}

void DeviceAllocator::InsertDeferredEvents() {
  if (deferred_.empty()) return;
  std::vector<Block*> blocks;
  blocks.swap(deferred_);
  for (Block* block : blocks) InsertEvents(block, true);  // may defer it again
}

// With the setting, the next capture into a private pool finds what the one that has ended is done with. Without it, as
// in PyTorch, that is free with the first request outside captures.
void DeviceAllocator::ReleaseCapturedUses() {
  if (!settings_.graph_capture_record_stream_reuse || deferred_.empty()) return;
  std::vector<Block*> blocks;
  blocks.swap(deferred_);
  for (Block* block : blocks) {
    if (block->pool->pool->owner != nullptr) {
      InsertEvents(block, true);  // may defer it again
    } else {
      deferred_.push_back(block);
    }
  }
}

void DeviceAllocator::ProcessEvents() {
  InsertDeferredEvents();
  for (StreamEvents& stream : events_) {
    while (!stream.queue.empty()) {
      const auto [event, block] = stream.queue.front();
      // An error means that the device can say nothing any more; nothing is reused on the strength of it.
      if (memory_.EventDone(device_, event) != DeviceResult::kOk) break;
      stream.queue.pop_front();
      spare_events_.push_back(event);
      if (--block->pending_events == 0) CompleteFree(block, true);
    }
  }
  std::erase_if(events_, [](const StreamEvents& stream) { return stream.queue.empty(); });
}

void DeviceAllocator::SynchronizeEvents(const PrivatePool* only) {
  ++num_sync_all_streams_;
  InsertDeferredEvents();
  for (StreamEvents& stream : events_) {
    for (auto it = stream.queue.begin(); it != stream.queue.end();) {
      const auto [event, block] = *it;
      if (only != nullptr && block->pool->pool->owner != only) {
        ++it;
        continue;
      }
      if (memory_.WaitForEvent(device_, event) != DeviceResult::kOk) break;
      it = stream.queue.erase(it);
      spare_events_.push_back(event);
      if (--block->pending_events == 0) CompleteFree(block, true);
    }
  }
  std::erase_if(events_, [](const StreamEvents& stream) { return stream.queue.empty(); });
}

}  // namespace vramledger
