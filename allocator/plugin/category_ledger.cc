#include "allocator/plugin/category_ledger.h"

#include <algorithm>

namespace vramledger {
namespace {

BlockFacts FactsOf(uint8_t phase, uint8_t flags, uint8_t role) {
  BlockFacts facts;
  facts.birth_phase = static_cast<Phase>(phase);
  facts.flags = flags;
  facts.role = static_cast<Role>(role);
  facts.alive_at_end = true;  // so far
  return facts;
}

}  // namespace

Category CategoryLedger::Decide(const Kind& kind) const {
  BlockFacts facts = FactsOf(kind.phase, kind.flags, kind.role);
  facts.names_known = names_known_;
  marks_.Fill(kind.epoch, &facts);
  return Categorize(facts);
}

uint32_t CategoryLedger::PlaceOf(Device& device, const Kind& kind) {
  const uint64_t key = kind.key();
  if (key == device.last_key) return device.last_place;
  const auto [it, fresh] = device.places.try_emplace(key, 0);
  if (fresh) {
    if (device.spare.empty()) {
      device.spare.push_back(static_cast<uint32_t>(device.cohorts.size()));
      device.cohorts.emplace_back();
    }
    it->second = device.spare.back();
    device.spare.pop_back();
    // Nothing has come after its birth yet.
    device.cohorts[it->second] = {kind, Categorize(FactsOf(kind.phase, kind.flags, kind.role))};
  }
  device.last_key = key;
  device.last_place = it->second;
  return it->second;
}

void CategoryLedger::Add(const BlockView& block, BlockTag& tag) {
  Device& device = devices_[static_cast<size_t>(block.device)];
  LiveTag live = LiveTag::From(tag);
  live.cohort = PlaceOf(device, {epoch_.load(std::memory_order_relaxed), live.phase, live.flags, 0});
  tag = live.Pack();
  Cohort& cohort = device.cohorts[live.cohort];
  const auto size = static_cast<int64_t>(block.block_bytes);
  const auto category = static_cast<size_t>(cohort.category);
  cohort.bytes += size;
  ++cohort.blocks;
  CategoryBytes& bytes = device.bytes;
  int64_t& current = bytes.current[category];
  current += size;
  bytes.peak[category] = std::max(bytes.peak[category], current);
  bytes.total += size;
  if (bytes.total > bytes.total_peak) {
    bytes.total_peak = bytes.total;
    bytes.at_peak = bytes.current;
  }
}

void CategoryLedger::Remove(const BlockView& block, const BlockTag& tag) {
  Device& device = devices_[static_cast<size_t>(block.device)];
  Cohort& cohort = device.cohorts[LiveTag::From(tag).cohort];
  const auto size = static_cast<int64_t>(block.block_bytes);
  cohort.bytes -= size;
  --cohort.blocks;
  device.bytes.current[static_cast<size_t>(cohort.category)] -= size;
  device.bytes.total -= size;
}

void CategoryLedger::Move(CategoryBytes& bytes, int64_t size, Category from, Category to) {
  if (from == to) return;
  bytes.current[static_cast<size_t>(from)] -= size;
  int64_t& current = bytes.current[static_cast<size_t>(to)];
  current += size;
  bytes.peak[static_cast<size_t>(to)] = std::max(bytes.peak[static_cast<size_t>(to)], current);
}

void CategoryLedger::EnterPhase(Phase phase, CachingAllocator& core) {
  std::lock_guard<std::mutex> guard(marks_mutex_);
  marks_.Enter(phase, epoch_.fetch_add(1, std::memory_order_relaxed) + 1);
  // Checkpointed layers enter and leave recomputation many times a step; the next other phase catches up.
  if (phase == Phase::kRecompute) return;
  for (int index = 0; index < core.device_count(); ++index) {
    core.WhileLocked(index, [&] {
      Device& device = devices_[static_cast<size_t>(index)];
      device.last_key = UINT64_MAX;  // it may be forgotten
      for (uint32_t place = 0; place < device.cohorts.size(); ++place) {
        Cohort& cohort = device.cohorts[place];
        if (cohort.blocks > 0) {
          const Category now = Decide(cohort.kind);
          Move(device.bytes, cohort.bytes, cohort.category, now);
          cohort.category = now;
        } else if (cohort.kind.epoch != 0) {
          device.places.erase(cohort.kind.key());
          cohort.kind.epoch = 0;
          device.spare.push_back(place);
        }
      }
    });
  }
}

bool CategoryLedger::Name(uintptr_t address, Role role, CachingAllocator& core, BlockView* found) {
  std::lock_guard<std::mutex> guard(marks_mutex_);
  names_known_ |= role == Role::kParameter;
  return core.UpdateTag(reinterpret_cast<void*>(address), 0, [&](const BlockView& block, BlockTag& tag) {
    *found = block;
    Device& device = devices_[static_cast<size_t>(block.device)];
    LiveTag live = LiveTag::From(tag);
    Kind kind = device.cohorts[live.cohort].kind;
    kind.role = static_cast<uint8_t>(StrongerRole(static_cast<Role>(kind.role), role));
    const uint32_t to = PlaceOf(device, kind);
    if (to == live.cohort) return;
    Cohort& from = device.cohorts[live.cohort];
    Cohort& cohort = device.cohorts[to];
    if (cohort.blocks == 0) cohort.category = Decide(kind);
    const auto size = static_cast<int64_t>(block.block_bytes);
    Move(device.bytes, size, from.category, cohort.category);
    from.bytes -= size;
    --from.blocks;
    cohort.bytes += size;
    ++cohort.blocks;
    live.cohort = to;
    tag = live.Pack();
  });
}

CategoryBytes CategoryLedger::Get(int device, CachingAllocator& core) {
  CategoryBytes copy;
  if (device < 0 || device >= static_cast<int>(devices_.size())) return copy;
  core.WhileLocked(device, [&] { copy = devices_[static_cast<size_t>(device)].bytes; });
  return copy;
}

void CategoryLedger::ResetPeaks(int device, CachingAllocator& core) {
  if (device < 0 || device >= static_cast<int>(devices_.size())) return;
  core.WhileLocked(device, [&] {
    CategoryBytes& bytes = devices_[static_cast<size_t>(device)].bytes;
    bytes.peak = bytes.at_peak = bytes.current;
    bytes.total_peak = bytes.total;
  });
}

}  // namespace vramledger
