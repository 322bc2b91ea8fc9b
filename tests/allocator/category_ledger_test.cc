// The sums of cohorts against every block decided on its own.
#include "allocator/plugin/category_ledger.h"

#include <map>
#include <random>
#include <utility>
#include <vector>

#include "tests/allocator/core_fixture.h"
#include "tracer/format/record.h"

namespace vramledger {
namespace {

class LedgerObserver final : public AllocatorObserver {
 public:
  explicit LedgerObserver(CategoryLedger& ledger) : ledger_(ledger) {}
  void OnAlloc(const BlockView& block, BlockTag& tag) override { ledger_.Add(block, tag); }
  void OnFreeRequested(const BlockView&, BlockTag&) override {}
  void OnFree(const BlockView& block, BlockTag& tag, bool) override {
    ledger_.Remove(block, tag);
    gone.push_back(reinterpret_cast<void*>(block.address));
  }
  void OnSegmentAlloc(const SegmentView&) override {}
  void OnSegmentFree(const SegmentView&) override {}
  void OnSegmentMap(const SegmentView&) override {}
  void OnSegmentUnmap(const SegmentView&) override {}
  void OnOutOfMemory(const OutOfMemoryInfo&) override {}

  std::vector<void*> gone;

 private:
  CategoryLedger& ledger_;
};

// What the test itself knows of a block.
struct Shadow {
  int device;
  bool awaited;  // freed, but for a stream
  int64_t bytes;
  Phase phase;
  uint8_t flags;
  Role role;
  uint32_t epoch;
};

TEST(CategoryLedger, AgreesWithEveryBlockDecidedOnItsOwn) {
  constexpr Phase kPhases[] = {Phase::kLoad,     Phase::kForward,   Phase::kBackward, Phase::kRecompute,
                               Phase::kBackward, Phase::kOptimizer, Phase::kZeroGrad, Phase::kIdle,
                               Phase::kEval,     Phase::kData};
  SimulatedDeviceOptions options;
  options.devices = 2;
  options.completion = Completion::kRandom;
  options.delay = 20;
  SimulatedDeviceMemory device{options};
  CategoryLedger ledger(device.device_count());
  LedgerObserver observer(ledger);
  CachingAllocator core(device, AllocatorSettings(), &observer);
  std::mt19937 random(11);
  std::map<void*, Shadow> live;
  PhaseMarks marks;
  Phase phase = Phase::kLoad;
  uint32_t epoch = 1;
  bool names_known = false;
  std::array<int64_t, 2> highest{};
  size_t awaited = 0;
  for (int step = 0; step < 20'000; ++step) {
    const uint32_t what = random() % 100;
    bool decided = false;  // as of now, rather than of the last change of phase
    if (what < 4) {
      phase = kPhases[random() % std::size(kPhases)];
      ledger.EnterPhase(phase, core);
      marks.Enter(phase, ++epoch);
      decided = phase != Phase::kRecompute;
    } else if (what < 50) {
      LiveTag tag;
      tag.phase = static_cast<uint8_t>(phase);
      tag.flags = random() % 8 == 0 ? static_cast<uint8_t>(kFlagLibrary) : uint8_t{0};
      const int on = static_cast<int>(random() % 2);
      const AllocationResult got = core.Allocate(on, 0, 1 + random() % 5'000'000, tag.Pack());
      ASSERT_NE(got.address, nullptr);
      const auto bytes = static_cast<int64_t>(got.block_bytes);
      for (void* address : std::exchange(observer.gone, {})) live.erase(address);  // whose streams were seen to pass
      live[got.address] = {on, false, bytes, phase, tag.flags, Role::kNone, epoch};
      int64_t held = 0;
      for (const auto& [address, b] : live) held += b.device == on ? b.bytes : 0;
      highest[static_cast<size_t>(on)] = std::max(highest[static_cast<size_t>(on)], held);
    } else if (!live.empty()) {
      const auto it = std::next(live.begin(), random() % live.size());
      if (it->second.awaited) {
        BlockView found;
        ASSERT_FALSE(ledger.Name(reinterpret_cast<uintptr_t>(it->first), Role::kParameter, core, &found));
        names_known = true;
      } else if (what < 60) {
        const Role role = static_cast<Role>(1 + random() % (kRoleCount - 1));
        BlockView found;
        ASSERT_TRUE(ledger.Name(reinterpret_cast<uintptr_t>(it->first), role, core, &found));
        ASSERT_EQ(found.address, reinterpret_cast<uintptr_t>(it->first));
        names_known |= role == Role::kParameter;
        it->second.role = StrongerRole(it->second.role, role);
      } else {
        if (random() % 3 == 0) core.RecordStream(it->first, 7);
        ASSERT_EQ(core.Free(it->first), FreeStatus::kOk);
        void* const address = it->first;
        it->second.awaited = true;
        for (void* gone : std::exchange(observer.gone, {})) live.erase(gone);
        awaited += live.contains(address);
      }
    }
    const int on = step % 2;
    const CategoryBytes got = ledger.Get(on, core);
    int64_t total = 0;
    std::array<int64_t, kCategoryCount> want{};
    for (const auto& [address, b] : live) {
      if (b.device != on) continue;
      BlockFacts facts;
      facts.birth_phase = b.phase;
      facts.flags = b.flags;
      facts.role = b.role;
      facts.names_known = names_known;
      facts.alive_at_end = true;
      marks.Fill(b.epoch, &facts);
      want[static_cast<size_t>(Categorize(facts))] += b.bytes;
      total += b.bytes;
    }
    ASSERT_EQ(got.total, total);
    ASSERT_EQ(got.total_peak, highest[static_cast<size_t>(on)]);
    int64_t sum = 0, at_peak = 0;
    for (size_t c = 0; c < kCategoryCount; ++c) {
      sum += got.current[c];
      at_peak += got.at_peak[c];
      ASSERT_LE(got.current[c], got.peak[c]);
      if (decided) {
        ASSERT_EQ(got.current[c], want[c]) << "step " << step << ", " << CategoryName(static_cast<Category>(c));
      }
    }
    ASSERT_EQ(sum, total);
    ASSERT_EQ(at_peak, got.total_peak);
  }
  EXPECT_GT(awaited, 100u) << "frees that had to wait for a stream";
}

TEST(CategoryLedger, NamesAnAddressThatIsNoBlockAsSuch) {
  SimulatedDeviceMemory device{SimulatedDeviceOptions{}};
  CategoryLedger ledger(device.device_count());
  LedgerObserver observer(ledger);
  CachingAllocator core(device, AllocatorSettings(), &observer);
  BlockView found;
  EXPECT_FALSE(ledger.Name(512, Role::kParameter, core, &found));
}

}  // namespace
}  // namespace vramledger
