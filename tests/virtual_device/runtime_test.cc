// The runtime's and the driver's own functions, called as a program calls them.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <thread>

namespace {

TEST(Runtime, ErrorsAreRememberedOncePerThread) {
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, size_t{1} << 50), cudaErrorMemoryAllocation);
  std::thread([] { EXPECT_EQ(cudaGetLastError(), cudaSuccess); }).join();
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(Runtime, ALaunchWithImpossibleBlocksFails) {
  EXPECT_EQ(cudaLaunchKernel(nullptr, dim3(1), dim3(1), nullptr, 0, nullptr), cudaSuccess);
  EXPECT_EQ(cudaLaunchKernel(nullptr, dim3(1), dim3(1025), nullptr, 0, nullptr), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaLaunchKernel(nullptr, dim3(0), dim3(32), nullptr, 0, nullptr), cudaErrorInvalidConfiguration);
  cudaGetLastError();
}

TEST(Runtime, PropertiesAndAttributesAgree) {
  cudaDeviceProp p;
  ASSERT_EQ(cudaGetDeviceProperties(&p, 0), cudaSuccess);
  EXPECT_STREQ(p.name, "Tesla T4");
  int sms = 0, major = 0;
  EXPECT_EQ(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
  EXPECT_EQ(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0), CUDA_SUCCESS);
  EXPECT_EQ(sms, p.multiProcessorCount);
  EXPECT_EQ(major, p.major);
  EXPECT_EQ(cudaGetDeviceProperties(&p, 2), cudaErrorInvalidDevice);
  cudaGetLastError();
}

// 1,024 threads and 64 KiB of registers at 32 each: one block of 1,024 on a device with 1,024 threads per multiprocessor.
TEST(Runtime, OccupancyFollowsTheDevice) {
  int blocks = 0;
  EXPECT_EQ(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, nullptr, 1024, 0), cudaSuccess);
  EXPECT_EQ(blocks, 1);
  EXPECT_EQ(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, nullptr, 128, 0), cudaSuccess);
  EXPECT_EQ(blocks, 8);
  EXPECT_EQ(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, nullptr, 128, 40000), cudaSuccess);
  EXPECT_EQ(blocks, 1);
}

TEST(Runtime, CaptureCountsWorkAndForbidsAllocation) {
  cudaStream_t stream, other;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  cudaStreamCaptureStatus status;
  EXPECT_EQ(cudaStreamIsCapturing(stream, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, 512), cudaErrorStreamCaptureUnsupported);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  EXPECT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&pointer, 512), cudaSuccess);
  EXPECT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  cudaEvent_t event;
  ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
  EXPECT_EQ(cudaLaunchKernel(nullptr, dim3(1), dim3(32), nullptr, 0, stream), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(other, event, 0), cudaSuccess);  // draws the other stream in
  EXPECT_EQ(cudaLaunchKernel(nullptr, dim3(1), dim3(32), nullptr, 0, other), cudaSuccess);
  cudaGraph_t graph;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  size_t nodes = 0;
  EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
  EXPECT_EQ(nodes, 2u);
  EXPECT_EQ(cudaStreamIsCapturing(other, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
  cudaGraphExec_t executable;
  EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaFree(pointer), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
  cudaGetLastError();
}

TEST(Driver, NoPrivateTableIsOffered) {
  const void* table = &table;
  CUuuid id = {};
  EXPECT_EQ(cuGetExportTable(&table, &id), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(table, nullptr);
}

TEST(Driver, ItsLogIsEmpty) {
  CUlogsCallbackHandle handle = nullptr;
  EXPECT_EQ(cuLogsRegisterCallback([](void*, CUlogLevel, char*, size_t) {}, nullptr, &handle), CUDA_SUCCESS);
  EXPECT_EQ(cuLogsUnregisterCallback(handle), CUDA_SUCCESS);
  EXPECT_EQ(cuLogsRegisterCallback(nullptr, nullptr, &handle), CUDA_ERROR_INVALID_VALUE);
  CUlogIterator now = 9;
  EXPECT_EQ(cuLogsCurrent(&now, 0), CUDA_SUCCESS);
  EXPECT_EQ(now, 0u);
  char text[4] = "old";
  size_t size = sizeof text;
  EXPECT_EQ(cuLogsDumpToMemory(&now, text, &size, 0), CUDA_SUCCESS);
  EXPECT_EQ(size, 0u);
  EXPECT_STREQ(text, "");
}

TEST(Driver, EntryPointsAreItsOwn) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult status;
  EXPECT_EQ(cudaGetDriverEntryPointByVersion("cuMemCreate", &function, 12000, 0, &status), cudaSuccess);
  EXPECT_EQ(function, reinterpret_cast<void*>(&cuMemCreate));
  EXPECT_EQ(cudaGetDriverEntryPointByVersion("cuMemAlloc", &function, 12000, 0, &status), cudaSuccess);
  CUdeviceptr address = 0;
  EXPECT_EQ(reinterpret_cast<CUresult (*)(CUdeviceptr*, size_t)>(function)(&address, 512), CUDA_SUCCESS);
  EXPECT_NE(address, 0u);
  EXPECT_EQ(cuMemFree(address), CUDA_SUCCESS);
  EXPECT_NE(cudaGetDriverEntryPointByVersion("cuNoSuchThing", &function, 12000, 0, &status), cudaSuccess);
  EXPECT_EQ(status, cudaDriverEntryPointSymbolNotFound);
  cudaGetLastError();
}

}  // namespace
