#include "allocator/torch/torch_observe.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <memory>
#include <vector>

#include "allocator/plugin/plugin.h"
#include "allocator/torch/torch_settings.h"

namespace vramledger {
namespace {

namespace native = c10::cuda::CUDACachingAllocator;
using Action = native::TraceEntry::Action;

SegmentView SegmentOf(int device, uintptr_t address, size_t bytes, const void* stream, c10::MempoolId_t pool) {
  SegmentView view;
  view.device = device;
  view.stream = reinterpret_cast<StreamHandle>(stream);
  view.address = address;
  view.bytes = bytes;
  view.pool_id = {pool.first, pool.second};
  return view;
}

// Never destroyed: PyTorch calls it as long as the process lives. Events of one device come one at a time.
class Follower {
 public:
  Follower(Plugin& plugin, CachingAllocator& core)
      : plugin_(plugin), core_(core), requested_(static_cast<size_t>(core.device_count())) {}

  void TakeOver() {
    for (const native::SegmentInfo& segment : native::snapshot({0, 0}, false).segments) {
      const SegmentView view =
          SegmentOf(segment.device, segment.address, segment.total_size, segment.stream, segment.owner_private_pool_id);
      Count(segment.is_expandable ? core_.FollowMap(view) : core_.FollowSegmentAlloc(view));
      uintptr_t address = segment.address;
      for (const native::BlockInfo& block : segment.blocks) {
        if (block.active) Count(core_.FollowAlloc(segment.device, address, block.requested_size, BlockTag()) != 0);
        if (block.active && !block.allocated) Count(core_.FollowFreeRequested(segment.device, address));
        address += block.size;
      }
    }
  }

  // Under PyTorch's lock of the device: no call into PyTorch, no lock that is held while something is allocated.
  void On(const native::TraceEntry& e) {
    if (plugin_.forked()) return;
    // A free that waits for no stream is completed at once, by the next event.
    uintptr_t& requested = requested_[static_cast<size_t>(e.device_)];
    if (requested != 0 && !(e.action_ == Action::FREE_COMPLETED && e.addr_ == requested)) {
      Count(core_.FollowFreeRequested(e.device_, requested));
    }
    requested = 0;
    switch (e.action_) {
      case Action::ALLOC:
        Count(core_.FollowAlloc(e.device_, e.addr_, e.size_, plugin_.NewTag(e.size_)) != 0);
        break;
      case Action::FREE_REQUESTED:
        requested = e.addr_;
        break;
      case Action::FREE_COMPLETED:
        Count(core_.FollowFree(e.device_, e.addr_));
        break;
      case Action::SEGMENT_ALLOC:
        Count(core_.FollowSegmentAlloc(SegmentOf(e.device_, e.addr_, e.size_, e.stream_, e.mempool_)));
        break;
      case Action::SEGMENT_FREE:
        Count(core_.FollowSegmentFree(e.device_, e.addr_));
        break;
      case Action::SEGMENT_MAP:
        Count(core_.FollowMap(SegmentOf(e.device_, e.addr_, e.size_, e.stream_, e.mempool_)));
        break;
      case Action::SEGMENT_UNMAP:
        Count(core_.FollowUnmap(e.device_, e.addr_));
        break;
      case Action::OOM:
        core_.FollowOutOfMemory(e.device_, reinterpret_cast<StreamHandle>(e.stream_), e.size_, e.addr_);
        break;
      default:
        break;
    }
  }

 private:
  void Count(bool followed) {
    if (!followed && missed_.fetch_add(1, std::memory_order_relaxed) == 0) {
      plugin_.Complain(
          "PyTorch's allocator did something that its known rules do not explain; sizes of some blocks may be off");
      plugin_.Mark("observe: an event could not be followed");
    }
  }

  Plugin& plugin_;
  CachingAllocator& core_;
  std::vector<uintptr_t> requested_;  // a free asked for by the last event of the device, 0 if none
  std::atomic<uint64_t> missed_{0};
};

}  // namespace

void Observe() {
  native::CUDAAllocator* const allocator = native::get();
  TORCH_CHECK(allocator->name() == "native",
              "mode observe watches PyTorch's native allocator, but the current one is '", allocator->name(), "'");
  TORCH_CHECK(allocator->initialized(), "CUDA is not initialised yet, and PyTorch only accepts observers after that");
  Plugin& plugin = Plugin::Get();
  plugin.SetMode("observe", nullptr);
  std::string error;
  CachingAllocator* const core = plugin.core(&error);
  TORCH_CHECK(core != nullptr, "vramledger: ", error);
  core->BeginFollowing();
  plugin.Metadata(R"({"observe": {"block_sizes": "exact"}})");
  auto* const follower = new Follower(plugin, *core);
  follower->TakeOver();
  FollowTorchSettings();
  native::attachAllocatorTraceTracker([follower](const native::TraceEntry& entry) { follower->On(entry); });
}

}  // namespace vramledger
