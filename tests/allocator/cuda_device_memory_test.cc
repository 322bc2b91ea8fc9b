// CudaDeviceMemory against a fake runtime that is in the process, as PyTorch's is: device restored, errors cleared,
// legal during captures, silent while the process ends.
#include "allocator/cuda_device_memory.h"

#include <memory>
#include <string>
#include <vector>

#include "allocator/core/caching_allocator.h"
#include "gtest/gtest.h"
#include "tests/allocator/fake_cuda.h"

namespace vramledger {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

class CudaDevice : public testing::Test {
 protected:
  void SetUp() override {
    fake_cuda_reset();
    auto opened = CudaDeviceMemory::Open();
    ASSERT_TRUE(opened.ok()) << opened.status();
    memory_ = *std::move(opened);
  }
  // Whatever happened, the thread is as it was.
  void TearDown() override {
    EXPECT_EQ(fake_cuda_current_device(), 0);
    EXPECT_EQ(fake_cuda_pending_error(), 0);
  }
  std::unique_ptr<CudaDeviceMemory> memory_;
};

TEST_F(CudaDevice, AllocatesOnTheDeviceAskedFor) {
  EXPECT_EQ(memory_->device_count(), 2);
  void* address = nullptr;
  ASSERT_EQ(memory_->Allocate(1, 4 * kMiB, &address), DeviceResult::kOk);
  EXPECT_EQ(fake_cuda_used(1), 4 * kMiB);
  DeviceMemoryInfo info;
  EXPECT_EQ(memory_->MemoryInfo(1, &info), DeviceResult::kOk);
  EXPECT_EQ(info.free_bytes, 60 * kMiB);
  EXPECT_EQ(info.total_bytes, 64 * kMiB);
  EXPECT_EQ(memory_->Free(1, address), DeviceResult::kOk);
  EXPECT_EQ(fake_cuda_last_device(), 1);
  EXPECT_EQ(fake_cuda_used(1), 0u);
}

TEST_F(CudaDevice, OutOfMemoryLeavesNoErrorBehind) {
  void* address = nullptr;
  EXPECT_EQ(memory_->Allocate(0, 65 * kMiB, &address), DeviceResult::kOutOfMemory);
  EXPECT_EQ(address, nullptr);
  EXPECT_STREQ(memory_->last_error(), "cudaMalloc: an error of the fake (2)");
}

TEST_F(CudaDevice, OtherErrorsHaveTheirText) {
  EXPECT_EQ(memory_->Free(0, &memory_), DeviceResult::kError);
  EXPECT_STREQ(memory_->last_error(), "cudaFree: an error of the fake (1)");
}

TEST_F(CudaDevice, EventsAreOnTheirDevice) {
  EventHandle event = 0;
  ASSERT_EQ(memory_->CreateEvent(1, &event), DeviceResult::kOk);
  EXPECT_EQ(memory_->RecordEvent(1, event, 3), DeviceResult::kOk);
  EXPECT_EQ(fake_cuda_last_device(), 1);
  fake_cuda_set_events_done(false);
  EXPECT_EQ(memory_->EventDone(1, event), DeviceResult::kNotReady);
  fake_cuda_set_events_done(true);
  EXPECT_EQ(memory_->EventDone(1, event), DeviceResult::kOk);
  EXPECT_EQ(memory_->WaitForEvent(1, event), DeviceResult::kOk);
  memory_->DestroyEvent(1, event);
  EXPECT_EQ(memory_->RecordEvent(1, event, 3), DeviceResult::kError);
}

TEST_F(CudaDevice, AllocationAndQueriesAreLegalDuringACapture) {
  EventHandle event = 0;
  ASSERT_EQ(memory_->CreateEvent(0, &event), DeviceResult::kOk);
  fake_cuda_set_capture(true);
  void* address = nullptr;
  EXPECT_EQ(memory_->Allocate(0, kMiB, &address), DeviceResult::kOk);
  EXPECT_EQ(memory_->EventDone(0, event), DeviceResult::kOk);
  EXPECT_TRUE(memory_->StreamIsCapturing(0, 7));
  EXPECT_TRUE(memory_->StreamIsCapturing(0, 0));  // the default stream must not be touched meanwhile
  EXPECT_FALSE(memory_->StreamIsCapturing(0, 9));
  fake_cuda_set_capture(false);
  EXPECT_FALSE(memory_->StreamIsCapturing(0, 7));
}

TEST_F(CudaDevice, TheEndOfTheProcessIsNoError) {
  void* address = nullptr;
  EventHandle event = 0;
  ASSERT_EQ(memory_->Allocate(0, kMiB, &address), DeviceResult::kOk);
  ASSERT_EQ(memory_->CreateEvent(0, &event), DeviceResult::kOk);
  fake_cuda_set_unloading(true);
  EXPECT_EQ(memory_->Free(0, address), DeviceResult::kOk);
  EXPECT_EQ(memory_->EventDone(0, event), DeviceResult::kOk);
  EXPECT_EQ(memory_->Synchronize(0), DeviceResult::kOk);
  EXPECT_EQ(memory_->Allocate(0, kMiB, &address), DeviceResult::kError);
  fake_cuda_reset();
}

TEST_F(CudaDevice, VirtualMemory) {
  EXPECT_EQ(memory_->granularity(0), 2 * kMiB);
  void* start = nullptr;
  ASSERT_EQ(memory_->ReserveAddress(1, 100 * kMiB, &start), DeviceResult::kOk);
  EXPECT_EQ(memory_->Map(1, start, 20 * kMiB), DeviceResult::kOk);
  EXPECT_EQ(fake_cuda_handles(), 0u);  // the mapping alone holds the memory
  EXPECT_EQ(memory_->Map(1, static_cast<char*>(start) + 20 * kMiB, 50 * kMiB), DeviceResult::kOutOfMemory);
  EXPECT_EQ(fake_cuda_used(1), 20 * kMiB);
  EXPECT_EQ(memory_->Unmap(1, start, 20 * kMiB), DeviceResult::kOk);
  EXPECT_EQ(fake_cuda_synchronizations(), 1);  // nothing may use the pages any more
  fake_cuda_set_access_fails(true);
  EXPECT_EQ(memory_->Map(1, start, 20 * kMiB), DeviceResult::kNotSupported);
  EXPECT_EQ(fake_cuda_used(1), 0u);
  EXPECT_EQ(memory_->ReleaseAddress(1, start, 100 * kMiB), DeviceResult::kOk);
}

TEST_F(CudaDevice, DrivesTheCore) {
  for (const char* text : {"", "expandable_segments:True"}) {
    {
      CachingAllocator allocator(*memory_, *AllocatorSettings::Parse(text), nullptr);
      ASSERT_EQ(allocator.device_count(), 2);
      std::vector<void*> blocks;
      for (int i = 0; i < 200; ++i) {
        const AllocationResult result = allocator.Allocate(i % 2, 0, static_cast<size_t>(i) * 1000, BlockTag());
        if (i > 0) {
          ASSERT_EQ(result.status, AllocationStatus::kOk);
          blocks.push_back(result.address);
        }
      }
      EXPECT_TRUE(allocator.RecordStream(blocks[3], 5));
      EXPECT_EQ(allocator.Allocate(0, 0, 70 * kMiB, BlockTag()).status, AllocationStatus::kOutOfMemory);
      for (void* block : blocks) EXPECT_EQ(allocator.Free(block), FreeStatus::kOk);
      EXPECT_NE(allocator.Allocate(0, 0, 60 * kMiB, BlockTag()).address, nullptr);
    }
    EXPECT_EQ(fake_cuda_used(0) + fake_cuda_used(1), 0u) << text;
  }
}

}  // namespace
}  // namespace vramledger
