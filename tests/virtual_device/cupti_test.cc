// CUPTI's records of memory operations, one subscriber, and handles for other processes, as a program meets them.
#include <cuda_runtime_api.h>
#include <cupti.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

std::vector<CUpti_ActivityMemory4> records;

void CUPTIAPI Requested(uint8_t** buffer, size_t* bytes, size_t* most) {
  *bytes = 2 * sizeof(CUpti_ActivityMemory4);  // small, so that one is given back full
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, *bytes));
  *most = 0;
}

void CUPTIAPI Completed(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    records.push_back(*reinterpret_cast<CUpti_ActivityMemory4*>(record));
  }
  std::free(buffer);
}

TEST(Cupti, MemoryOperationsAreRecordedWithTheirSource) {
  records.clear();
  ASSERT_EQ(cuptiActivityRegisterCallbacks(Requested, Completed), CUPTI_SUCCESS);
  ASSERT_EQ(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMORY2), CUPTI_SUCCESS);
  ASSERT_EQ(cuptiActivityEnableAllocationSource(1), CUPTI_SUCCESS);
  void *device = nullptr, *pinned = nullptr, *pooled = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 3000), cudaSuccess);
  ASSERT_EQ(cudaMallocHost(&pinned, 100), cudaSuccess);
  ASSERT_EQ(cudaMallocAsync(&pooled, 5000, nullptr), cudaSuccess);
  cudaFree(device);
  cudaFreeAsync(pooled, nullptr);
  cudaFreeHost(pinned);
  ASSERT_EQ(cuptiActivityFlushAll(0), CUPTI_SUCCESS);
  ASSERT_EQ(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_MEMORY2), CUPTI_SUCCESS);
  ASSERT_EQ(cudaMalloc(&device, 3000), cudaSuccess);
  cudaFree(device);
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[0].memoryOperationType, CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION);
  EXPECT_EQ(records[0].memoryKind, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE);
  EXPECT_EQ(records[0].bytes, 3000u);
  EXPECT_NE(std::string(records[0].source).find("vd_cupti_test"), std::string::npos);
  EXPECT_EQ(records[1].isAsync, 1u);
  EXPECT_EQ(records[2].memoryOperationType, CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE);
  EXPECT_EQ(records[2].address, records[0].address);
  EXPECT_EQ(records[3].address, records[1].address);
  EXPECT_LE(records[0].timestamp, records[3].timestamp);
}

TEST(Cupti, OneSubscriber) {
  const auto nothing = [](void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {};
  CUpti_SubscriberHandle first = nullptr, second = nullptr;
  ASSERT_EQ(cuptiSubscribe(&first, nothing, nullptr), CUPTI_SUCCESS);
  EXPECT_EQ(cuptiSubscribe(&second, nothing, nullptr), CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
  EXPECT_EQ(cuptiUnsubscribe(first), CUPTI_SUCCESS);
  EXPECT_EQ(cuptiUnsubscribe(first), CUPTI_ERROR_INVALID_PARAMETER);
  EXPECT_EQ(cuptiActivityEnable(static_cast<CUpti_ActivityKind>(10000)), CUPTI_ERROR_INVALID_KIND);
}

TEST(Ipc, HandlesAreForOtherProcesses) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 4 << 20), cudaSuccess);
  cudaIpcMemHandle_t handle;
  ASSERT_EQ(cudaIpcGetMemHandle(&handle, memory), cudaSuccess);
  EXPECT_EQ(cudaIpcGetMemHandle(&handle, static_cast<char*>(memory) + 512), cudaErrorInvalidValue);
  void* opened = nullptr;
  EXPECT_EQ(cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaIpcCloseMemHandle(memory), cudaErrorInvalidValue);
  std::memset(&handle, 0, sizeof handle);
  EXPECT_EQ(cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess), cudaErrorInvalidValue);
  cudaEvent_t event;
  cudaIpcEventHandle_t event_handle;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  EXPECT_EQ(cudaIpcGetEventHandle(&event_handle, event), cudaErrorInvalidResourceHandle);
  cudaEventDestroy(event);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess), cudaSuccess);
  EXPECT_EQ(cudaIpcGetEventHandle(&event_handle, event), cudaSuccess);
  cudaEventDestroy(event);
  cudaFree(memory);
  cudaGetLastError();
}

}  // namespace
