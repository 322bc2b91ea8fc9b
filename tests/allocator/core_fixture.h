// What the tests of the allocator core share: a simulated device, and an observer that writes down what it is told.
#ifndef VRAMLEDGER_TESTS_ALLOCATOR_CORE_FIXTURE_H_
#define VRAMLEDGER_TESTS_ALLOCATOR_CORE_FIXTURE_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "allocator/core/caching_allocator.h"
#include "allocator/simulated_device_memory.h"
#include "gtest/gtest.h"

namespace vramledger {

constexpr size_t kKiB = size_t{1} << 10;
constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kGiB = size_t{1} << 30;

class WritingObserver : public AllocatorObserver {
 public:
  void OnAlloc(const BlockView& block, BlockTag&) override { Write("alloc", block.requested_bytes); }
  void OnFreeRequested(const BlockView& block, BlockTag&) override { Write("free_requested", block.requested_bytes); }
  void OnFree(const BlockView& block, BlockTag&, bool deferred) override {
    Write(deferred ? "free_deferred" : "free", block.requested_bytes);
  }
  void OnSegmentAlloc(const SegmentView& segment) override { Write("segment_alloc", segment.bytes); }
  void OnSegmentFree(const SegmentView& segment) override { Write("segment_free", segment.bytes); }
  void OnSegmentMap(const SegmentView& part) override { Write("segment_map", part.bytes); }
  void OnSegmentUnmap(const SegmentView& part) override { Write("segment_unmap", part.bytes); }
  void OnOutOfMemory(const OutOfMemoryInfo& info) override { Write("out_of_memory", info.requested_bytes); }

  // What was told since the last call.
  std::vector<std::string> Take() { return std::exchange(lines_, {}); }

 private:
  void Write(const char* what, size_t bytes) { lines_.push_back(std::string(what) + " " + std::to_string(bytes)); }
  std::vector<std::string> lines_;
};

class CoreTest : public testing::Test {
 protected:
  // (Re)starts with an empty device.
  void Start(const std::string& settings = "", SimulatedDeviceOptions options = {}) {
    allocator_.reset();
    device_.emplace(std::move(options));
    auto parsed = AllocatorSettings::Parse(settings);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    allocator_ = std::make_unique<CachingAllocator>(*device_, *parsed, &observer_);
    observer_.Take();
  }
  void SetUp() override { Start(); }

  void* Take(size_t bytes, StreamHandle stream = 0, int device = 0) {
    return allocator_->Allocate(device, stream, bytes, BlockTag()).address;
  }
  void Give(void* address) { EXPECT_EQ(allocator_->Free(address), FreeStatus::kOk); }
  // The size of the block that a request is served with.
  size_t BlockBytes(size_t bytes) {
    const AllocationResult result = allocator_->Allocate(0, 0, bytes, BlockTag());
    if (result.address != nullptr) Give(result.address);
    return result.block_bytes;
  }
  Statistics Stats(int device = 0) { return allocator_->GetStatistics(device); }
  int64_t Reserved() { return Stats().reserved_bytes[kAllPools].current; }
  static size_t Distance(const void* from, const void* to) {
    return static_cast<size_t>(static_cast<const char*>(to) - static_cast<const char*>(from));
  }

  std::optional<SimulatedDeviceMemory> device_;
  WritingObserver observer_;
  std::unique_ptr<CachingAllocator> allocator_;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TESTS_ALLOCATOR_CORE_FIXTURE_H_
