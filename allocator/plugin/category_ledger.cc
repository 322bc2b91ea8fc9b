#include "allocator/plugin/category_ledger.h"

#include <algorithm>

namespace vramledger {

Category CategoryLedger::Decide(const BlockView& block, const LiveTag& tag, const PhaseMarks& marks) const {
  BlockFacts facts;
  facts.birth_phase = static_cast<Phase>(tag.phase);
  facts.flags = tag.flags;
  facts.role = static_cast<Role>(tag.role);
  facts.requested_bytes = block.requested_bytes;
  facts.names_known = names_known_;
  marks.Fill(tag.epoch, &facts);
  facts.alive_at_end = true;  // so far
  return Categorize(facts);
}

void CategoryLedger::Add(const BlockView& block, BlockTag& tag) {
  LiveTag live = LiveTag::From(tag);
  live.epoch = epoch_.load(std::memory_order_relaxed);
  BlockFacts facts;
  facts.birth_phase = static_cast<Phase>(live.phase);
  facts.flags = live.flags;
  facts.requested_bytes = block.requested_bytes;
  facts.alive_at_end = true;
  live.category = static_cast<uint8_t>(Categorize(facts));
  tag = live.Pack();
  CategoryBytes& bytes = devices_[static_cast<size_t>(block.device)];
  const auto size = static_cast<int64_t>(block.block_bytes);
  int64_t& current = bytes.current[live.category];
  current += size;
  bytes.peak[live.category] = std::max(bytes.peak[live.category], current);
  bytes.total += size;
  if (bytes.total > bytes.total_peak) {
    bytes.total_peak = bytes.total;
    bytes.at_peak = bytes.current;
  }
}

void CategoryLedger::Remove(const BlockView& block, const BlockTag& tag) {
  CategoryBytes& bytes = devices_[static_cast<size_t>(block.device)];
  const auto size = static_cast<int64_t>(block.block_bytes);
  bytes.current[LiveTag::From(tag).category] -= size;
  bytes.total -= size;
}

void CategoryLedger::Move(CategoryBytes& bytes, const BlockView& block, BlockTag& tag, LiveTag live, Category category) {
  const auto to = static_cast<uint8_t>(category);
  if (to != live.category) {
    const auto size = static_cast<int64_t>(block.block_bytes);
    bytes.current[live.category] -= size;
    bytes.current[to] += size;
    bytes.peak[to] = std::max(bytes.peak[to], bytes.current[to]);
    live.category = to;
  }
  tag = live.Pack();
}

void CategoryLedger::EnterPhase(Phase phase, CachingAllocator& core) {
  std::lock_guard<std::mutex> guard(marks_mutex_);
  marks_.Enter(phase, epoch_.fetch_add(1, std::memory_order_relaxed) + 1);
  // Checkpointed layers enter and leave recomputation many times a step; the next other phase catches up.
  if (phase == Phase::kRecompute) return;
  for (int device = 0; device < core.device_count(); ++device) {
    CategoryBytes& bytes = devices_[static_cast<size_t>(device)];
    core.ForEachLiveBlock(device, [&](const BlockView& block, BlockState state, BlockTag& tag) {
      if (state != BlockState::kAllocated) return;
      const LiveTag live = LiveTag::From(tag);
      Move(bytes, block, tag, live, Decide(block, live, marks_));
    });
  }
}

bool CategoryLedger::Name(uintptr_t address, Role role, CachingAllocator& core, BlockView* found) {
  std::lock_guard<std::mutex> guard(marks_mutex_);
  names_known_ |= role == Role::kParameter;
  return core.UpdateTag(reinterpret_cast<void*>(address), 0, [&](const BlockView& block, BlockTag& tag) {
    LiveTag live = LiveTag::From(tag);
    live.role = static_cast<uint8_t>(StrongerRole(static_cast<Role>(live.role), role));
    Move(devices_[static_cast<size_t>(block.device)], block, tag, live, Decide(block, live, marks_));
    *found = block;
  });
}

CategoryBytes CategoryLedger::Get(int device, CachingAllocator& core) {
  CategoryBytes copy;
  if (device < 0 || device >= static_cast<int>(devices_.size())) return copy;
  // The iteration is only for its lock; an empty device has nothing to copy.
  bool first = true;
  core.ForEachLiveBlock(device, [&](const BlockView&, BlockState, BlockTag&) {
    if (first) copy = devices_[static_cast<size_t>(device)];
    first = false;
  });
  if (first) copy = devices_[static_cast<size_t>(device)];
  return copy;
}

void CategoryLedger::ResetPeaks(int device, CachingAllocator& core) {
  if (device < 0 || device >= static_cast<int>(devices_.size())) return;
  const auto reset = [this, device] {
    CategoryBytes& bytes = devices_[static_cast<size_t>(device)];
    bytes.peak = bytes.at_peak = bytes.current;
    bytes.total_peak = bytes.total;
  };
  bool first = true;
  core.ForEachLiveBlock(device, [&](const BlockView&, BlockState, BlockTag&) {
    if (first) reset();
    first = false;
  });
  if (first) reset();
}

}  // namespace vramledger
