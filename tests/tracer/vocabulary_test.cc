// The numbers of phases and roles stand a second time in the header for C++ programs, which must not need this source tree.
#include "tracer/format/vocabulary.h"

#include <gtest/gtest.h>

#include "allocator/torch/include/vramledger/phase_scope.h"

namespace vramledger {
namespace {

constexpr bool Same(ScopePhase a, Phase b) { return static_cast<int>(a) == static_cast<int>(b); }
constexpr bool Same(StorageRole a, Role b) { return static_cast<int>(a) == static_cast<int>(b); }

static_assert(Same(ScopePhase::kNamed, Phase::kUnknown) && Same(ScopePhase::kLoad, Phase::kLoad) && Same(ScopePhase::kData, Phase::kData) &&
              Same(ScopePhase::kOptimizer, Phase::kOptimizer) && Same(ScopePhase::kZeroGrad, Phase::kZeroGrad) &&
              Same(ScopePhase::kEval, Phase::kEval) && Same(ScopePhase::kSave, Phase::kSave) &&
              Same(ScopePhase::kCommunication, Phase::kCommunication) && Same(ScopePhase::kIdle, Phase::kIdle));
static_assert(Same(StorageRole::kParameter, Role::kParameter) && Same(StorageRole::kBuffer, Role::kBuffer) &&
              Same(StorageRole::kGradient, Role::kGradient) && Same(StorageRole::kOptimizerState, Role::kOptimizerState) &&
              Same(StorageRole::kInput, Role::kInput) && Same(StorageRole::kOutput, Role::kOutput));

TEST(Vocabulary, EveryNameLeadsBackToItsNumber) {
  for (int i = 0; i < kPhaseCount; ++i) EXPECT_EQ(PhaseFromName(PhaseName(static_cast<Phase>(i))), static_cast<Phase>(i));
  for (int i = 0; i < kRoleCount; ++i) EXPECT_EQ(RoleFromName(RoleName(static_cast<Role>(i))), static_cast<Role>(i));
  EXPECT_EQ(PhaseName(static_cast<Phase>(200)), "unknown");
  EXPECT_EQ(PhaseFromName("sleeping"), std::nullopt);
}

}  // namespace
}  // namespace vramledger
