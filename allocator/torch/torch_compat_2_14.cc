// What only PyTorch 2.14 and newer ask for.
#include "allocator/torch/torch_compat_2_14.h"

#if VRAMLEDGER_TORCH_VERSION >= 214

#include "allocator/torch/torch_events.h"

namespace vramledger {

void TorchEvents::Annotate(CachingAllocator& core, const void* address, const std::string& text) {
  if (!active_.load(std::memory_order_relaxed)) return;
  core.UpdateTag(const_cast<void*>(address), 0, [&](const BlockView& block, BlockTag&) {
    Device& device = At(block.device);
    const std::lock_guard<std::mutex> lock(device.mutex);
    Note(Action::ANNOTATE, device, block.device, block.address, block.requested_bytes, block.stream, block.pool_id,
         Current(), &text);
  });
}

}  // namespace vramledger

#endif
