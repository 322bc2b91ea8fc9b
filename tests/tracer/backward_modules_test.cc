#include "tracer/phase/backward_modules.h"

#include <gtest/gtest.h>

namespace vramledger {
namespace {

class BackwardModulesTest : public ::testing::Test {
 protected:
  void Tell(RecordKind kind, uint16_t thread, uint32_t a, uint64_t b, uint64_t c = 0) {
    Event e;
    e.kind = kind;
    e.thread = thread;
    e.a = a;
    e.b = b;
    e.c = c;
    modules_.See(&e);
  }
  void Enter(uint32_t module, uint64_t sequence, uint16_t thread = 0) { Tell(RecordKind::kModuleEnter, thread, module, sequence); }
  void Exit(uint64_t sequence, uint16_t thread = 0) { Tell(RecordKind::kModuleExit, thread, 0, sequence); }
  void Node(uint32_t name, uint64_t sequence, uint64_t forward_thread = 0, uint16_t thread = 1) {
    Tell(RecordKind::kNode, thread, name, sequence, forward_thread);
  }
  Event Allocate(Phase phase = Phase::kBackward, uint16_t thread = 1, uint32_t module = 0) {
    Event e;
    e.kind = RecordKind::kAlloc;
    e.phase = phase;
    e.thread = thread;
    e.module = module;
    modules_.See(&e);
    return e;
  }
  BackwardModules modules_;
};

TEST_F(BackwardModulesTest, ANodeBelongsToTheInnermostModuleThatRanWhenItWasMade) {
  Enter(7, 10);
  Enter(8, 12);
  Exit(15);
  Exit(20);
  const struct { uint64_t sequence; uint32_t module; } cases[] = {{9, 0}, {10, 7}, {11, 7}, {12, 8}, {14, 8}, {15, 7}, {19, 7}, {20, 0}};
  for (const auto& c : cases) {
    Node(3, c.sequence);
    const Event e = Allocate();
    EXPECT_EQ(e.module, c.module) << c.sequence;
    EXPECT_EQ(e.node, 3u);
  }
}

TEST_F(BackwardModulesTest, AModuleThatMadeNoNodeHasNone) {
  Enter(7, 10);
  Enter(8, 10);
  Exit(10);
  Exit(11);
  Node(3, 10);
  EXPECT_EQ(Allocate().module, 7u);
}

TEST_F(BackwardModulesTest, OnlyBackwardOutsideModulesIsResolved) {
  Enter(7, 10);
  Exit(12);
  Node(3, 11);
  EXPECT_EQ(Allocate(Phase::kForward).module, 0u);
  EXPECT_EQ(Allocate(Phase::kBackward, 1, 5).module, 5u) << "its own module stands";
  Enter(9, 40, 1);  // a checkpoint computes again on the thread of backward
  EXPECT_EQ(Allocate(Phase::kRecompute, 1, 9).node, 0u);
  Exit(44, 1);
  Node(4, 41, 1);  // and its nodes are of that thread
  EXPECT_EQ(Allocate().module, 9u);
}

TEST_F(BackwardModulesTest, WhatAccumulatesGradientsAndUnknownThreadsHaveNoModule) {
  Enter(7, 10);
  Exit(12);
  Node(3, UINT64_MAX);
  EXPECT_EQ(Allocate().module, 0u);
  Node(3, 11, 0xffff);
  EXPECT_EQ(Allocate().module, 0u);
  EXPECT_EQ(Allocate(Phase::kBackward, 60000).module, 0u);
}

TEST_F(BackwardModulesTest, NumbersThatBeginAgainForgetTheOldOnes) {
  Enter(7, 100);
  Exit(110);
  Enter(8, 5);
  Exit(9);
  Node(3, 105);
  EXPECT_EQ(Allocate().module, 0u);
  Node(3, 6);
  EXPECT_EQ(Allocate().module, 8u);
}

TEST_F(BackwardModulesTest, KeepsTheLatestOfALongRun) {
  const uint64_t last = 2 * BackwardModules::kMaxChanges;
  for (uint64_t i = 0; i < last; ++i) {
    Enter(static_cast<uint32_t>(i + 1), 2 * i);
    Exit(2 * i + 1);
  }
  Node(3, 2 * (last - 1));
  EXPECT_EQ(Allocate().module, last);
  Node(3, 0);
  EXPECT_EQ(Allocate().module, 0u) << "too old";
}

}  // namespace
}  // namespace vramledger
