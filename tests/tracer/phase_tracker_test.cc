// The state machine of phases without PyTorch in the process: what the hooks announce is what decides.
#include "tracer/phase/phase_tracker.h"

#include <gtest/gtest.h>

#include <thread>
#include <utility>
#include <vector>

namespace vramledger {
namespace {

class Log : public PhaseListener {
 public:
  void OnPhaseChange(Phase previous, Phase now, uint32_t) override { changes.emplace_back(previous, now); }
  std::vector<std::pair<Phase, Phase>> changes;
};

class PhaseTrackerTest : public ::testing::Test {
 protected:
  PhaseTrackerTest() { tracker_.SetHooksActive(true); }
  Log log_;
  PhaseTracker tracker_{&log_};
};

TEST_F(PhaseTrackerTest, FollowsATrainingStep) {
  EXPECT_EQ(tracker_.OnAllocation().phase, Phase::kLoad);
  tracker_.EnterModule(5, /*training=*/true);
  EXPECT_EQ(tracker_.OnAllocation().phase, Phase::kForward);
  tracker_.EnterModule(6, true);
  EXPECT_EQ(tracker_.OnAllocation().module, 6u);
  tracker_.ExitModule();
  EXPECT_EQ(tracker_.OnAllocation().module, 5u);
  tracker_.ExitModule();
  EXPECT_EQ(tracker_.OnAllocation().phase, Phase::kForward) << "the loss belongs to the forward";
  tracker_.BeginScope(Phase::kOptimizer, 9);
  EXPECT_EQ(tracker_.OnAllocation().phase, Phase::kOptimizer);
  tracker_.EndScope();
  EXPECT_EQ(tracker_.OnAllocation().phase, Phase::kIdle);
  const std::vector<std::pair<Phase, Phase>> expected = {
      {Phase::kLoad, Phase::kForward}, {Phase::kForward, Phase::kOptimizer}, {Phase::kOptimizer, Phase::kIdle}};
  EXPECT_EQ(log_.changes, expected);
}

TEST_F(PhaseTrackerTest, AModuleInEvaluationWithoutGradientsIsEvalAndEndsWithItsRoot) {
  tracker_.EnterModule(1, /*training=*/false);  // no PyTorch here: gradients read as off
  EXPECT_EQ(tracker_.OnAllocation().phase, Phase::kEval);
  tracker_.ExitModule();
  EXPECT_EQ(tracker_.OnAllocation().phase, Phase::kIdle);
}

TEST_F(PhaseTrackerTest, AModuleCalledInsideAnOptimizersClosureIsAForward) {
  tracker_.BeginScope(Phase::kOptimizer, 1);
  tracker_.EnterModule(2, true);
  EXPECT_EQ(tracker_.OnAllocation().phase, Phase::kForward);
  tracker_.ExitModule();
  EXPECT_EQ(tracker_.OnAllocation().phase, Phase::kForward) << "the loss after it, until its backward";
  tracker_.BeginScope(Phase::kZeroGrad, 0);
  tracker_.EndScope();
  EXPECT_EQ(tracker_.OnAllocation().phase, Phase::kOptimizer);
  tracker_.EndScope();
}

TEST_F(PhaseTrackerTest, AForwardThatFailedIsOver) {
  tracker_.EnterModule(1, /*training=*/true);
  tracker_.ForwardFailed();
  EXPECT_EQ(tracker_.OnAllocation().phase, Phase::kForward) << "an outer module still runs";
  tracker_.ExitModule();
  tracker_.ForwardFailed();
  EXPECT_EQ(tracker_.OnAllocation().phase, Phase::kIdle);
}

TEST_F(PhaseTrackerTest, ANamedScopeWithoutAPhaseChangesNothing) {
  tracker_.BeginScope(Phase::kUnknown, 3);
  EXPECT_EQ(tracker_.OnAllocation().phase, Phase::kLoad);
  tracker_.EndScope();
  EXPECT_TRUE(log_.changes.empty());
}

TEST_F(PhaseTrackerTest, NestedScopesReturnToTheOuterOne) {
  tracker_.BeginScope(Phase::kSave, 1);
  tracker_.BeginScope(Phase::kZeroGrad, 0);
  tracker_.EndScope();
  EXPECT_EQ(tracker_.program_phase(), Phase::kSave);
  tracker_.EndScope();
  EXPECT_EQ(tracker_.program_phase(), Phase::kLoad) << "no forward has come yet";
  tracker_.EndScope();  // one too many is harmless
  tracker_.ExitModule();
}

TEST_F(PhaseTrackerTest, ScopesAndModulesBelongToTheirThread) {
  tracker_.EnterModule(4, true);
  std::thread([this] {
    const auto reading = tracker_.OnAllocation();
    EXPECT_EQ(reading.module, 0u);
    EXPECT_EQ(reading.phase, Phase::kForward) << "a helper thread is in the program's phase";
  }).join();
  EXPECT_EQ(tracker_.OnAllocation().module, 4u);
  tracker_.ExitModule();
}

}  // namespace
}  // namespace vramledger
