// Memory that several streams use, and captures.
#include <string>
#include <vector>

#include "tests/allocator/core_fixture.h"

namespace vramledger {
namespace {

using Lines = std::vector<std::string>;

class Streams : public CoreTest {
 protected:
  void SetUp() override {
    SimulatedDeviceOptions options;
    options.completion = Completion::kManual;
    Start("", options);
  }
};

TEST_F(Streams, BlockWaitsForTheRecordedStream) {
  void* const a = Take(1000, 0);
  EXPECT_TRUE(allocator_->RecordStream(a, 7));
  observer_.Take();
  Give(a);
  EXPECT_EQ(observer_.Take(), Lines{"free_requested 1000"});
  EXPECT_EQ(Stats().allocated_bytes[kAllPools].current, 0);
  EXPECT_EQ(Stats().active_bytes[kAllPools].current, 1024);
  EXPECT_EQ(Stats().requested_bytes[kAllPools].current, 1000);
  EXPECT_NE(Take(1000, 0), a);
  device_->Complete(0, 7, 1);
  observer_.Take();
  EXPECT_EQ(Take(1000, 0), a);
  EXPECT_EQ(observer_.Take(), (Lines{"free_deferred 1000", "alloc 1000"}));
}

TEST_F(Streams, AWaitingBlockJoinsNoNeighbour) {
  void* const a = Take(512);
  void* const b = Take(512);
  void* const c = Take(512);
  allocator_->RecordStream(b, 7);
  Give(b);
  Give(a);
  EXPECT_EQ(Take(1024), static_cast<char*>(c) + 512);
  device_->Complete(0, 7, 1);
  EXPECT_EQ(Take(1024), a);
}

TEST_F(Streams, AllRecordedStreamsAreAwaited) {
  void* const a = Take(512);
  allocator_->RecordStream(a, 7);
  allocator_->RecordStream(a, 8);
  allocator_->RecordStream(a, 7);  // once is enough
  Give(a);
  EXPECT_EQ(device_->Submitted(0, 7), 1u);
  device_->Complete(0, 8, 1);
  EXPECT_NE(Take(512), a);
  device_->Complete(0, 7, 1);
  EXPECT_EQ(Take(512), a);
}

TEST_F(Streams, TheAllocationStreamNeedsNoEvent) {
  void* const a = Take(512, 3);
  EXPECT_TRUE(allocator_->RecordStream(a, 3));
  Give(a);
  EXPECT_EQ(device_->Submitted(0, 3), 0u);
  EXPECT_EQ(Take(512, 3), a);
}

TEST_F(Streams, RecordingOnWhatIsNoLiveBlockIsRefused) {
  void* const a = Take(512);
  EXPECT_FALSE(allocator_->RecordStream(static_cast<char*>(a) + 8, 7));
  Give(a);
  EXPECT_FALSE(allocator_->RecordStream(a, 7));
  EXPECT_FALSE(allocator_->RecordStream(nullptr, 7));
}

TEST_F(Streams, EventsOfAStreamAreProcessedInOrder) {
  void* const a = Take(512);
  void* const b = Take(1024);
  for (void* p : {a, b}) {
    allocator_->RecordStream(p, 7);
    Give(p);
  }
  device_->Complete(0, 7, 1);
  EXPECT_NE(Take(1024), b);
  EXPECT_EQ(Take(512), a);
  device_->Complete(0, 7, 1);
  EXPECT_EQ(Take(1024), b);
}

TEST_F(Streams, AFreedBlockThatWaitsIsNotFreedTwice) {
  void* const a = Take(512);
  allocator_->RecordStream(a, 7);
  Give(a);
  EXPECT_EQ(allocator_->Free(a), FreeStatus::kDoubleFree);
  EXPECT_NE(allocator_->DescribeAddress(a).find("waits for another stream"), std::string::npos);
}

TEST_F(Streams, OutOfMemoryWaitsForStreams) {
  SimulatedDeviceOptions options;
  options.completion = Completion::kManual;
  options.capacity_bytes = 100 * kMiB;
  Start("", options);
  void* const a = Take(60 * kMiB);
  allocator_->RecordStream(a, 7);
  Give(a);
  EXPECT_NE(Take(80 * kMiB), nullptr);
  EXPECT_EQ(device_->Done(0, 7), 1u);
  EXPECT_EQ(Stats().num_sync_all_streams, 1);
}

TEST_F(Streams, EventsAreUsedAgain) {
  for (int i = 0; i < 100; ++i) {
    void* const a = Take(512);
    allocator_->RecordStream(a, 7);
    Give(a);
    device_->Complete(0, 7, 1);
  }
  EXPECT_LE(device_->events_alive(), 2u);
  allocator_.reset();
  EXPECT_EQ(device_->events_alive(), 0u);
  EXPECT_EQ(device_->used_bytes(0), 0u);
}

TEST_F(Streams, AStreamThatTakesNoEventIsReplacedByWaitingForTheDevice) {
  void* const a = Take(512);
  allocator_->RecordStream(a, 7);
  device_->Fail(SimulatedDeviceMemory::Operation::kRecordEvent, DeviceResult::kError, 1);
  Give(a);
  EXPECT_EQ(Take(512), a);
  allocator_->RecordStream(a, 7);
  device_->Fail(SimulatedDeviceMemory::Operation::kCreateEvent, DeviceResult::kError, 5);
  device_->Fail(SimulatedDeviceMemory::Operation::kRecordEvent, DeviceResult::kError, 5);
  Give(a);
  EXPECT_EQ(Take(512), a);
}

TEST_F(Streams, NoEventDuringACapture) {
  void* const before = Take(512);
  allocator_->RecordStream(before, 7);
  Give(before);
  void* const during = Take(512);
  allocator_->RecordStream(during, 7);
  void* const cached = Take(30 * kMiB);
  Give(cached);

  allocator_->BeginCapture(0);
  device_->SetCapturing(0, 7, true);
  Give(during);
  device_->Complete(0, 7, 1);
  EXPECT_NE(Take(512), before);  // its event is not asked
  const size_t used = device_->used_bytes(0);
  allocator_->EmptyCache();
  EXPECT_EQ(device_->used_bytes(0), used);
  EXPECT_EQ(device_->Submitted(0, 7), 1u);
  device_->SetCapturing(0, 7, false);
  allocator_->EndCapture(0);

  EXPECT_EQ(Take(512), before);
  EXPECT_EQ(device_->Submitted(0, 7), 2u);
  device_->Complete(0, 7, 1);
  EXPECT_EQ(Take(512), during);
  EXPECT_EQ(device_->capture_violations(), 0);
}

// What a stream does in a capture with a block that is freed in it is done when the capture has ended; what it did
// before is awaited.
TEST_F(Streams, UsesInACaptureAreOverWithIt) {
  void* const captured = Take(512);
  void* const both = Take(512);
  void* const kept = Take(512);
  allocator_->RecordStream(both, 7);
  allocator_->BeginCapture(0);
  device_->SetCapturing(0, 7, true);
  allocator_->RecordStream(captured, 7);
  allocator_->RecordStream(both, 7);
  allocator_->RecordStream(kept, 7);
  Give(captured);
  Give(both);
  device_->SetCapturing(0, 7, false);
  allocator_->EndCapture(0);
  EXPECT_EQ(Stats().active[kAllPools].current, 3);

  EXPECT_EQ(Take(512), captured);
  EXPECT_EQ(device_->Submitted(0, 7), 1u);
  EXPECT_NE(Take(512), both);
  device_->Complete(0, 7, 1);
  EXPECT_EQ(Take(512), both);
  Give(kept);  // the graph that uses it on that stream may be running
  EXPECT_EQ(device_->Submitted(0, 7), 2u);
  EXPECT_NE(Take(512), kept);
  device_->Complete(0, 7, 1);
  EXPECT_EQ(Take(512), kept);
  EXPECT_EQ(device_->capture_violations(), 0);
}

TEST_F(Streams, TheNextCaptureIntoAPoolReusesWhatOtherStreamsUsedInTheLast) {
  for (const bool reuse : {false, true}) {
    SimulatedDeviceOptions options;
    options.completion = Completion::kManual;
    Start(reuse ? "graph_capture_record_stream_reuse:True" : "", options);
    const auto all = [](StreamHandle) { return true; };
    const PoolId pool{1, 0};
    ASSERT_EQ(allocator_->SharePool(0, pool), PoolStatus::kOk);
    ASSERT_EQ(allocator_->BeginAllocateToPool(0, pool, all), PoolStatus::kOk);
    device_->SetCapturing(0, 3, true);
    device_->SetCapturing(0, 7, true);
    void* const first = Take(8 * kMiB, 3);
    allocator_->RecordStream(first, 7);
    Give(first);
    void* const second = Take(8 * kMiB, 3);
    EXPECT_NE(second, first);  // still in use by the other stream, for all that is known
    device_->SetCapturing(0, 3, false);
    device_->SetCapturing(0, 7, false);
    ASSERT_EQ(allocator_->EndAllocateToPool(0, pool), PoolStatus::kOk);
    EXPECT_EQ(Stats().active[kAllPools].current, reuse ? 1 : 2);

    ASSERT_EQ(allocator_->BeginAllocateToPool(0, pool, all), PoolStatus::kOk);
    EXPECT_EQ(Take(8 * kMiB, 3) == first, reuse);
    ASSERT_EQ(allocator_->EndAllocateToPool(0, pool), PoolStatus::kOk);
    Take(512);
    EXPECT_EQ(Take(8 * kMiB, 3) == first, false);  // the pool's own for ever
    EXPECT_EQ(device_->capture_violations(), 0);
  }
}

TEST_F(Streams, OutOfMemoryDuringACaptureGivesNothingBack) {
  SimulatedDeviceOptions options;
  options.capacity_bytes = 100 * kMiB;
  Start("", options);
  Give(Take(60 * kMiB));
  allocator_->BeginCapture(0);
  EXPECT_EQ(Take(80 * kMiB), nullptr);
  allocator_->EndCapture(0);
  EXPECT_NE(Take(80 * kMiB), nullptr);
}

TEST_F(Streams, ACaptureNobodyAnnouncedIsNoticed) {
  void* const a = Take(512);
  allocator_->RecordStream(a, 7);
  device_->SetCapturing(0, 7, true);
  Give(a);
  EXPECT_NE(Take(512), a);
  EXPECT_EQ(device_->Submitted(0, 7), 0u);
  device_->SetCapturing(0, 7, false);
  Take(512);  // records the event
  EXPECT_EQ(device_->Submitted(0, 7), 1u);
  device_->Complete(0, 7, 1);
  EXPECT_EQ(Take(512), a);
  EXPECT_EQ(device_->capture_violations(), 0);
}

}  // namespace
}  // namespace vramledger
