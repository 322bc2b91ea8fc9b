// A recorded state put back in place.
#include "allocator/core/device_allocator.h"

namespace vramledger {

bool DeviceAllocator::Restore(const std::vector<SegmentImage>& segments) {
  SmallMutexLock lock(mutex_);
  opened_ = true;
  std::vector<Block*> holes;
  for (const SegmentImage& image : segments) {
    size_t end = 0;
    for (const SegmentImage::Block& b : image.blocks) {
      if (b.offset < end || b.bytes == 0 || b.bytes % 512 != 0 || b.offset % 512 != 0) return false;
      if (b.bytes > image.bytes || b.offset > image.bytes - b.bytes) return false;
      end = b.offset + b.bytes;
    }
    Request request;
    request.pool = StreamPoolFor(image.small_pool ? small_ : large_, image.stream);
    request.bytes = request.segment_bytes = image.bytes;
    Block* rest = nullptr;
    if (image.bytes == 0 || AllocateSegment(request, &rest) != Supply::kOk) return false;
    const uintptr_t start = rest->address;
    // Hands out [.., offset `until`) of what is left of the segment.
    const auto take = [&](size_t until, size_t requested) {
      const bool was_split = rest->is_split();
      const size_t bytes = start + until - rest->address;
      Block* block = rest;
      rest = bytes < block->bytes ? Split(block, bytes) : nullptr;
      Activate(block, requested, BlockTag(), was_split, rest);
      if (rest != nullptr) rest->pool->free.Erase(rest);
      return block;
    };
    for (const SegmentImage::Block& b : image.blocks) {
      if (start + b.offset > rest->address) holes.push_back(take(b.offset, 1));
      take(b.offset + b.bytes, b.requested_bytes);
    }
    if (rest != nullptr) holes.push_back(take(image.bytes, 1));
  }
  for (Block* hole : holes) RequestFree(hole);
  counters_.ResetPeak();
  counters_.ResetAccumulated();
  return true;
}

}  // namespace vramledger
