// What device bytes read as: known until a kernel may have changed them, then zero, never stale. The device is the one of
// tests/virtual_device/CMakeLists.txt: 1 GiB.
#include "tools/virtual_device/core/content.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "tools/virtual_device/core/host_reads.h"
#include "tools/virtual_device/core/memory.h"
#include "tools/virtual_device/core/state.h"
#include "tools/virtual_device/core/transfer.h"

namespace vd {
namespace {

constexpr size_t kSize = 1 << 16;

class ContentTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(EnsureContext(0), kOk);
    ASSERT_EQ(DeviceMalloc(0, kSize, &at_), kOk);
  }
  void TearDown() override { EXPECT_EQ(DeviceFree(at_), kOk); }
  void* Device(size_t offset = 0) const { return reinterpret_cast<void*>(at_ + offset); }
  std::vector<char> Read() const {
    std::vector<char> bytes(kSize, 'x');
    EXPECT_EQ(CopyBytes(bytes.data(), Device(), kSize), kOk);
    return bytes;
  }
  uintptr_t at_ = 0;
};

TEST_F(ContentTest, WhatTheHostWroteIsReadBackUntilALaunch) {
  std::vector<char> bytes(kSize);
  for (size_t i = 0; i < kSize; ++i) bytes[i] = static_cast<char>(i * 7 + 1);
  ASSERT_EQ(CopyBytes(Device(), bytes.data(), kSize), kOk);
  const uint64_t reads = GetHostReads().reads;
  EXPECT_EQ(Read(), bytes);
  EXPECT_EQ(GetHostReads().reads, reads);
  EXPECT_EQ(OnLaunch(nullptr), kOk);
  EXPECT_EQ(Read(), std::vector<char>(kSize, 0));
  EXPECT_EQ(GetHostReads().reads, reads + 1);
}

TEST_F(ContentTest, FreedMemoryIsNeverStale) {
  const std::vector<char> bytes(kSize, 5);
  ASSERT_EQ(CopyBytes(Device(), bytes.data(), kSize), kOk);
  ASSERT_EQ(DeviceFree(at_), kOk);
  ASSERT_EQ(DeviceMalloc(0, kSize, &at_), kOk);
  EXPECT_EQ(Read(), std::vector<char>(kSize, 0));
}

TEST_F(ContentTest, BadPointersAreErrors) {
  char byte[64] = {};
  EXPECT_EQ(CopyBytes(Device(), reinterpret_cast<void*>(16), 64), kInvalidValue);
  EXPECT_EQ(CopyBytes(reinterpret_cast<void*>(16), Device(), 64), kInvalidValue);
  EXPECT_EQ(CopyBytes(Device(kSize - 8), byte, 64), kInvalidValue);
  EXPECT_EQ(CopyBytes(byte, reinterpret_cast<void*>(kDeviceBase + (1ull << 38)), 64), kInvalidValue);
  EXPECT_EQ(CopyBytes(nullptr, byte, 8), kInvalidValue);
  EXPECT_EQ(CopyBytes(nullptr, nullptr, 0), kOk);
  EXPECT_EQ(SetBytes(Device(kSize - 1), byte, 1, 2), kInvalidValue);
}

// Random writes, fills and copies within the block against a plain array.
TEST_F(ContentTest, AgreesWithAPlainArray) {
  std::mt19937 random(3);
  std::vector<char> model(kSize, 0), bytes(kSize);
  for (int step = 0; step < 3000; ++step) {
    const size_t size = 1 + random() % 3000;
    const size_t from = random() % (kSize - size), to = random() % (kSize - size);
    switch (random() % 4) {
      case 0:
        for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(random());
        ASSERT_EQ(CopyBytes(Device(to), bytes.data(), size), kOk);
        std::memcpy(model.data() + to, bytes.data(), size);
        break;
      case 1: {
        const char value = static_cast<char>(random());
        ASSERT_EQ(SetBytes(Device(to), &value, 1, size), kOk);
        std::memset(model.data() + to, value, size);
        break;
      }
      case 2: {
        const uint32_t value = static_cast<uint32_t>(random());
        const size_t count = size / 4;
        ASSERT_EQ(SetBytes(Device(to), &value, 4, count), kOk);
        for (size_t i = 0; i < count; ++i) std::memcpy(model.data() + to + 4 * i, &value, 4);
        break;
      }
      default:
        ASSERT_EQ(CopyBytes(Device(to), Device(from), size), kOk);
        std::memmove(model.data() + to, model.data() + from, size);
    }
    if (step % 50 == 0) {
      ASSERT_EQ(Read(), model) << step;
    }
  }
}

}  // namespace
}  // namespace vd
