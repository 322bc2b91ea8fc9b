// Completion that comes later: what streams and events promise still holds. The seed is in CMakeLists.txt.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <vector>

namespace {

void Work(cudaStream_t stream) {
  ASSERT_EQ(cudaLaunchKernel(nullptr, dim3(1), dim3(32), nullptr, 0, stream), cudaSuccess);
}

int PollsUntilDone(cudaEvent_t event) {
  int polls = 0;
  while (cudaEventQuery(event) == cudaErrorNotReady && polls < 100000) ++polls;
  cudaGetLastError();
  return polls;
}

class DelayTest : public testing::Test {
 protected:
  void SetUp() override {
    for (cudaStream_t& stream : streams_) ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    for (cudaEvent_t& event : events_) ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  }
  void TearDown() override {
    for (cudaStream_t stream : streams_) EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    for (cudaEvent_t event : events_) EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  }
  cudaStream_t streams_[3] = {};
  cudaEvent_t events_[3] = {};
};

TEST_F(DelayTest, WorkIsNotDoneAtOnceButIsInTheEnd) {
  int waited = 0;
  for (int i = 0; i < 50; ++i) {
    Work(streams_[0]);
    ASSERT_EQ(cudaEventRecord(events_[0], streams_[0]), cudaSuccess);
    const int polls = PollsUntilDone(events_[0]);
    EXPECT_LT(polls, 1000);
    waited += polls > 0 ? 1 : 0;
  }
  EXPECT_GT(waited, 10);
}

TEST_F(DelayTest, AnEventCoversTheWorkBeforeItInItsStream) {
  for (int i = 0; i < 20; ++i) Work(streams_[0]);
  ASSERT_EQ(cudaEventRecord(events_[0], streams_[0]), cudaSuccess);
  Work(streams_[0]);
  ASSERT_EQ(cudaEventRecord(events_[1], streams_[0]), cudaSuccess);
  // The later event is never done before the earlier one.
  while (cudaEventQuery(events_[1]) == cudaErrorNotReady) {}
  EXPECT_EQ(cudaEventQuery(events_[0]), cudaSuccess);
  cudaGetLastError();
}

TEST_F(DelayTest, AWaitOrdersStreams) {
  for (int i = 0; i < 50; ++i) Work(streams_[0]);
  ASSERT_EQ(cudaEventRecord(events_[0], streams_[0]), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(streams_[1], events_[0], 0), cudaSuccess);
  Work(streams_[1]);
  ASSERT_EQ(cudaEventRecord(events_[1], streams_[1]), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(events_[1]), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(events_[0]), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(streams_[0]), cudaSuccess);
}

TEST_F(DelayTest, TheDefaultStreamWaitsForBlockingStreams) {
  cudaStream_t blocking;
  ASSERT_EQ(cudaStreamCreate(&blocking), cudaSuccess);
  for (int i = 0; i < 50; ++i) Work(blocking);
  Work(nullptr);
  ASSERT_EQ(cudaEventRecord(events_[0], nullptr), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(events_[0]), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(blocking), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(blocking), cudaSuccess);
}

TEST_F(DelayTest, SynchronisingEndsAllWork) {
  for (cudaStream_t stream : streams_) {
    for (int i = 0; i < 30; ++i) Work(stream);
  }
  EXPECT_EQ(cudaStreamQuery(streams_[2]), cudaErrorNotReady);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  for (cudaStream_t stream : streams_) EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
  cudaGetLastError();
}

TEST_F(DelayTest, AnEventNeverRecordedIsDone) { EXPECT_EQ(cudaEventQuery(events_[2]), cudaSuccess); }

}  // namespace
