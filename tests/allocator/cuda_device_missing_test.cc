// A runtime that lacks functions is refused by their names.
#include "allocator/cuda_device_memory.h"
#include "gtest/gtest.h"

namespace vramledger {
namespace {

TEST(CudaDeviceMissing, FunctionsThatAreMissingAreNamed) {
  const auto opened = CudaDeviceMemory::Open();
  ASSERT_FALSE(opened.ok());
  const std::string text(opened.status().message());
  EXPECT_NE(text.find("lacks cudaStreamIsCapturing, cudaThreadExchangeStreamCaptureMode"), std::string::npos) << text;
}

}  // namespace
}  // namespace vramledger
