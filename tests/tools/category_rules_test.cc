#include "tracer/phase/category_rules.h"

#include <gtest/gtest.h>

#include "tracer/format/record.h"

namespace vramledger {
namespace {

BlockFacts Born(Phase phase) {
  BlockFacts f;
  f.birth_phase = phase;
  f.requested_bytes = 4096;
  return f;
}

TEST(CategoryRules, ANameWins) {
  BlockFacts f = Born(Phase::kBackward);
  f.role = Role::kParameter;
  EXPECT_EQ(Categorize(f), Category::kParameter);
  f.role = Role::kBuffer;
  EXPECT_EQ(Categorize(f), Category::kBuffer);
  f.role = Role::kGradient;
  EXPECT_EQ(Categorize(f), Category::kGradient);
  f.role = Role::kOptimizerState;
  EXPECT_EQ(Categorize(f), Category::kOptimizerState);
  f.role = Role::kInput;
  EXPECT_EQ(Categorize(f), Category::kInput);
  EXPECT_EQ(StrongerRole(Role::kGradient, Role::kParameter), Role::kParameter);
  EXPECT_EQ(StrongerRole(Role::kNone, Role::kInput), Role::kInput);
  // Even a size that cuBLAS uses.
  f.role = Role::kGradient;
  f.requested_bytes = 33554432;
  f.first_of_size_on_thread = f.alive_at_end = true;
  EXPECT_EQ(Categorize(f), Category::kGradient);
}

TEST(CategoryRules, ForwardBlocks) {
  for (const Phase phase : {Phase::kForward, Phase::kRecompute}) {
    BlockFacts f = Born(phase);
    EXPECT_EQ(Categorize(f), Category::kTemporary);
    f.alive_at_backward_start = true;
    EXPECT_EQ(Categorize(f), Category::kActivation);
  }
  // Kept for ever: the model's, when nothing is named; an activation that leaked, when parameters have names.
  BlockFacts kept = Born(Phase::kForward);
  kept.alive_at_backward_start = kept.alive_at_later_backward = kept.before_first_backward_end = true;
  EXPECT_EQ(Categorize(kept), Category::kParameter);
  kept.names_known = true;
  EXPECT_EQ(Categorize(kept), Category::kActivation);
  BlockFacts crash = Born(Phase::kForward);
  crash.alive_at_end = true;
  EXPECT_EQ(Categorize(crash), Category::kActivation);
  crash.flags = kFlagSignals | kFlagInference;
  EXPECT_EQ(Categorize(crash), Category::kTemporary);
}

TEST(CategoryRules, BackwardAndOptimizerBlocks) {
  BlockFacts f = Born(Phase::kBackward);
  EXPECT_EQ(Categorize(f), Category::kTemporary);
  f.alive_after_backward = true;
  EXPECT_EQ(Categorize(f), Category::kGradient);
  f.flags = kFlagSignals | kFlagInBackwardTask | kFlagGradMode;
  EXPECT_EQ(Categorize(f), Category::kActivation) << "create_graph: saved for a second backward";
  f = Born(Phase::kOptimizer);
  EXPECT_EQ(Categorize(f), Category::kTemporary);
  f.alive_after_optimizer = true;
  EXPECT_EQ(Categorize(f), Category::kOptimizerState);
}

TEST(CategoryRules, WhatARecordingEndsWithInItsBackward) {
  BlockFacts f;
  f.birth_phase = Phase::kBackward;
  f.alive_at_end = true;
  EXPECT_EQ(Categorize(f), Category::kTemporary);
  f.left_in_size_of_parameter = true;
  EXPECT_EQ(Categorize(f), Category::kGradient);
}

TEST(CategoryRules, LoadDataAndTheRest) {
  BlockFacts f = Born(Phase::kLoad);
  EXPECT_EQ(Categorize(f), Category::kTemporary);
  f.alive_at_forward_start = true;
  EXPECT_EQ(Categorize(f), Category::kParameter);
  // Where parameters have names, what has none is the first batch, or a constant.
  f.names_known = true;
  EXPECT_EQ(Categorize(f), Category::kInput);
  f.alive_at_later_backward = true;
  EXPECT_EQ(Categorize(f), Category::kBuffer);
  EXPECT_EQ(Categorize(Born(Phase::kData)), Category::kInput);
  EXPECT_EQ(Categorize(Born(Phase::kCommunication)), Category::kCommunication);
  EXPECT_EQ(Categorize(Born(Phase::kUnknown)), Category::kUnknown);
  f = Born(Phase::kUnknown);
  f.before_trace = true;
  EXPECT_EQ(Categorize(f), Category::kUnknown);
  f.free_phase = Phase::kOptimizer;
  EXPECT_EQ(Categorize(f), Category::kOptimizerState);
}

TEST(CategoryRules, CublasWorkspace) {
  for (const uint64_t size : {uint64_t{8519680}, uint64_t{33554432}}) {
    BlockFacts f = Born(Phase::kBackward);
    f.requested_bytes = size;
    f.alive_after_backward = true;
    EXPECT_EQ(Categorize(f), Category::kGradient) << "freed later: no workspace";
    f.alive_at_end = true;
    EXPECT_EQ(Categorize(f), Category::kGradient) << "not the first of its size on the thread";
    f.first_of_size_on_thread = true;
    EXPECT_EQ(Categorize(f), Category::kWorkspace);
    f.birth_phase = Phase::kLoad;
    f.alive_at_forward_start = true;
    EXPECT_EQ(Categorize(f), Category::kParameter);
  }
}

BlockFacts FactsAt(const PhaseMarks& marks, uint64_t birth) {
  BlockFacts f;
  marks.Fill(birth, &f);
  return f;
}

TEST(PhaseMarks, OneTrainingStep) {
  PhaseMarks marks;
  marks.Enter(Phase::kLoad, 1);
  marks.Enter(Phase::kForward, 10);
  marks.Enter(Phase::kData, 12);  // a loader thread changes nothing
  marks.Enter(Phase::kForward, 13);
  EXPECT_EQ(marks.forwards(), 1u);
  marks.Enter(Phase::kBackward, 20);
  EXPECT_TRUE(FactsAt(marks, 15).alive_at_backward_start);
  EXPECT_FALSE(FactsAt(marks, 20).alive_at_backward_start);
  EXPECT_TRUE(FactsAt(marks, 5).alive_at_forward_start);
  EXPECT_FALSE(FactsAt(marks, 25).alive_after_backward);
  marks.Enter(Phase::kRecompute, 30);
  marks.Enter(Phase::kBackward, 35);
  EXPECT_EQ(marks.backwards(), 1u);
  EXPECT_FALSE(FactsAt(marks, 25).alive_after_backward) << "a recompute does not end the backward";
  EXPECT_TRUE(FactsAt(marks, 32).alive_at_backward_start) << "what it saved waits for the backward";
  marks.Enter(Phase::kOptimizer, 40);
  EXPECT_TRUE(FactsAt(marks, 25).alive_after_backward);
  EXPECT_FALSE(FactsAt(marks, 45).alive_after_optimizer);
  marks.Enter(Phase::kForward, 50);
  EXPECT_TRUE(FactsAt(marks, 45).alive_after_optimizer);
  EXPECT_FALSE(FactsAt(marks, 15).alive_at_later_backward);
  marks.Enter(Phase::kBackward, 60);
  EXPECT_TRUE(FactsAt(marks, 15).alive_at_later_backward);
  EXPECT_TRUE(FactsAt(marks, 15).before_first_backward_end);
  EXPECT_FALSE(FactsAt(marks, 45).before_first_backward_end);
}

}  // namespace
}  // namespace vramledger
