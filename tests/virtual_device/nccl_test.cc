// What a rank receives, without other ranks: the bytes that it sends itself, never old ones. Rank 1 of 2.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <cstdint>

namespace {

constexpr int64_t kMine = 42, kOld = 7;

class NcclTest : public testing::Test {
 protected:
  void SetUp() override {
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    ASSERT_EQ(ncclCommInitRank(&comm_, 2, id, 1), ncclSuccess);
    ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&device_), 4 * sizeof(int64_t)), cudaSuccess);
    Set(0, kMine);
    for (int i = 1; i < 4; ++i) Set(i, kOld);
  }
  void TearDown() override {
    EXPECT_EQ(cudaFree(device_), cudaSuccess);
    EXPECT_EQ(ncclCommDestroy(comm_), ncclSuccess);
  }
  void Set(int place, int64_t value) { ASSERT_EQ(cudaMemcpy(device_ + place, &value, sizeof value, cudaMemcpyHostToDevice), cudaSuccess); }
  int64_t Get(int place) const {
    int64_t value = -1;
    EXPECT_EQ(cudaMemcpy(&value, device_ + place, sizeof value, cudaMemcpyDeviceToHost), cudaSuccess);
    return value;
  }
  // Of COUNT numbers at places FROM and TO.
  void Broadcast(int from, int to, int root, size_t count = 1) {
    ASSERT_EQ(ncclBroadcast(device_ + from, device_ + to, count, ncclInt64, root, comm_, nullptr), ncclSuccess);
  }
  ncclComm_t comm_ = nullptr;
  int64_t* device_ = nullptr;
};

TEST_F(NcclTest, AGroupOfBroadcastsGathersWhatThisRankSends) {
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  Broadcast(1, 1, 0);
  Broadcast(0, 2, 1);
  ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
  EXPECT_EQ(Get(1), kOld);  // only the end of the outer group starts anything
  ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
  EXPECT_EQ(Get(1), kMine);
  EXPECT_EQ(Get(2), kMine);
  EXPECT_EQ(Get(3), kOld);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
}

TEST_F(NcclTest, WhatIsOfAnotherSizeIsNotKnown) {
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  Broadcast(0, 1, 1);
  Broadcast(2, 2, 0, 2);
  ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
  EXPECT_EQ(Get(1), kMine);
  EXPECT_EQ(Get(2), 0);
  EXPECT_EQ(Get(3), 0);
}

TEST_F(NcclTest, ABroadcastInPlaceKeepsWhatTheRankHas) {
  Broadcast(1, 1, 0);
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  Broadcast(2, 2, 0);
  Broadcast(3, 3, 1);
  ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
  for (int i = 1; i < 4; ++i) EXPECT_EQ(Get(i), kOld);
}

TEST_F(NcclTest, AGatherArrivesAtTheRootOnly) {
  ASSERT_EQ(ncclGather(device_, device_ + 1, 1, ncclInt64, 0, comm_, nullptr), ncclSuccess);
  EXPECT_EQ(Get(1), kOld);
  ASSERT_EQ(ncclGather(device_, device_ + 1, 1, ncclInt64, 1, comm_, nullptr), ncclSuccess);
  EXPECT_EQ(Get(1), kMine);
  EXPECT_EQ(Get(2), kMine);
  EXPECT_EQ(Get(3), kOld);
  EXPECT_EQ(ncclGather(device_, device_ + 2, 3, ncclInt64, 1, comm_, nullptr), ncclInvalidArgument);   // past the end
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 0)
TEST_F(NcclTest, CommunicatorsGrowAndHoldNothing) {
  ncclUniqueId id;
  ASSERT_EQ(ncclCommGetUniqueId(comm_, &id), ncclSuccess);
  ncclComm_t grown = nullptr, joined = nullptr;
  ASSERT_EQ(ncclCommGrow(comm_, 4, nullptr, -1, &grown, nullptr), ncclSuccess);
  ASSERT_EQ(ncclCommGrow(nullptr, 4, &id, 3, &joined, nullptr), ncclSuccess);
  int size = 0, rank = 0, new_rank = 0;
  ASSERT_EQ(ncclCommCount(grown, &size), ncclSuccess);
  ASSERT_EQ(ncclCommUserRank(grown, &rank), ncclSuccess);
  ASSERT_EQ(ncclCommUserRank(joined, &new_rank), ncclSuccess);
  EXPECT_EQ(size, 4);
  EXPECT_EQ(rank, 1);
  EXPECT_EQ(new_rank, 3);
  EXPECT_EQ(ncclCommSuspend(grown, NCCL_SUSPEND_MEM), ncclSuccess);
  uint64_t held = 1;
  EXPECT_EQ(ncclCommMemStats(grown, ncclStatGpuMemTotal, &held), ncclSuccess);
  EXPECT_EQ(held, 0u);
  EXPECT_EQ(ncclCommResume(grown), ncclSuccess);
  EXPECT_EQ(ncclCommRevoke(grown, 0), ncclSuccess);
  EXPECT_EQ(ncclCommDestroy(grown), ncclSuccess);
  EXPECT_EQ(ncclCommDestroy(joined), ncclSuccess);
  ncclWindow_t window = nullptr;
  void* seen = nullptr;
  ASSERT_EQ(ncclCommWindowRegister(comm_, device_, 8, &window, 0), ncclSuccess);
  ASSERT_EQ(ncclWinGetUserPtr(comm_, window, &seen), ncclSuccess);
  EXPECT_EQ(seen, device_);
  EXPECT_EQ(ncclCommWindowDeregister(comm_, window), ncclSuccess);
}
#endif

}  // namespace
