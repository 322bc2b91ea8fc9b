#include "tools/analysis/leaks.h"

#include <algorithm>
#include <string_view>

#include "absl/container/flat_hash_set.h"

namespace vramledger {
namespace {

// A place leaks steadily when it left blocks behind in at least this many steps ...
constexpr uint64_t kMinSteps = 4;
// ... and in at least this share of the steps from its first to its last one, of those of one optimizer.
constexpr double kMinStepShare = 0.75;

}  // namespace

uint32_t StepsOfARound(const std::vector<StepSummary>& steps) {
  absl::flat_hash_set<std::string_view> optimizers;
  for (const StepSummary& step : steps) {
    if (!step.optimizer.empty()) optimizers.insert(step.optimizer);
  }
  return std::max<uint32_t>(1, static_cast<uint32_t>(optimizers.size()));
}

std::vector<LeakSuspect> LeakWatch::Suspects(const BlockTable& table, int device, uint32_t last_step, uint32_t round,
                                             const std::function<std::string(uint32_t)>& site) const {
  struct Group {
    LeakSuspect suspect;
    absl::flat_hash_set<uint32_t> steps;
    uint32_t first = ~0u, last = 0;
    uint32_t module = 0;
  };
  absl::flat_hash_map<Key, Group> groups;
  const auto see = [&](const Block& b) {
    // A block of the last step may still be on its way to a free.
    if (b.device != device || b.birth_step >= last_step || b.role == Role::kParameter || b.role == Role::kBuffer)
      return;
    Group& g = groups[KeyOf(b)];
    g.suspect.phase = b.phase;
    g.suspect.requested_each = b.requested;
    ++g.suspect.blocks;
    g.suspect.bytes += b.rounded;
    g.steps.insert(b.birth_step);
    g.first = std::min(g.first, b.birth_step);
    g.last = std::max(g.last, b.birth_step);
    g.module = b.module;
  };
  for (const auto& entry : table.live()) {
    if (!entry.second.pending) see(entry.second);
  }
  for (const Block& b : freed_since_step_) see(b);
  std::vector<LeakSuspect> out;
  for (auto& [key, g] : groups) {
    const auto steps = static_cast<double>(g.steps.size());
    if (g.steps.size() < kMinSteps || steps * round < kMinStepShare * (g.last - g.first + 1)) continue;
    if (g.last + 1 + round < last_step) continue;  // it stopped
    if (late_frees_.contains(key)) continue;  // some of its kind do come back, only later: no steady leak
    g.suspect.steps = g.steps.size();
    g.suspect.site = site(g.module);
    out.push_back(g.suspect);
  }
  std::sort(out.begin(), out.end(), [](const LeakSuspect& a, const LeakSuspect& b) {
    return std::tie(b.bytes, a.site, a.requested_each) < std::tie(a.bytes, b.site, b.requested_each);
  });
  return out;
}

}  // namespace vramledger
