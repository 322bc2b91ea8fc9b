// The plug-in with VRAMLEDGER_POLICY=vmm on a device without virtual memory management, on a fake runtime.
#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "tests/allocator/fake_cuda.h"
#include "tests/tracer/temp_file.h"
#include "tracer/format/trace_reader.h"

namespace vramledger {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST(PluginPolicy, WithoutVirtualMemoryItSaysSoAndServesNatively) {
  fake_cuda_reset();
  fake_cuda_set_vmm(false);
  const TempFile trace("policy.vlt");
  setenv("VRAMLEDGER_POLICY", "vmm", 1);
  setenv("VRAMLEDGER_TRACE", trace.path().c_str(), 1);
  void* library = dlopen(VRAMLEDGER_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto allocate = reinterpret_cast<void* (*)(size_t, int, void*)>(dlsym(library, "vramledger_malloc"));
  const auto release = reinterpret_cast<void (*)(void*, size_t, int, void*)>(dlsym(library, "vramledger_free"));
  const auto close_trace = reinterpret_cast<void (*)()>(dlsym(library, "vramledger_close_trace"));
  ASSERT_TRUE(allocate != nullptr && release != nullptr && close_trace != nullptr);

  testing::internal::CaptureStderr();
  void* block = allocate(3 * kMiB, 0, nullptr);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(
      said.find("vramledger: the device has no virtual memory management; the policy native serves in place of vmm"),
      std::string::npos)
      << said;
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(fake_cuda_used(0), 20 * kMiB);  // a segment of PyTorch's size; vmm would have mapped 4 MiB
  void* neighbour = allocate(2 * kMiB, 0, nullptr);
  EXPECT_EQ(static_cast<char*>(neighbour) - static_cast<char*>(block), static_cast<std::ptrdiff_t>(3 * kMiB));
  release(block, 3 * kMiB, 0, nullptr);
  release(neighbour, 2 * kMiB, 0, nullptr);
  close_trace();

  auto source = OpenTrace(trace.path());
  ASSERT_TRUE(source.ok()) << source.status();
  size_t segments = 0;
  while (const Event* event = (*source)->Next()) segments += event->kind == RecordKind::kSegmentAlloc ? 1 : 0;
  EXPECT_EQ(segments, 1u);
  EXPECT_NE((*source)->metadata_json().find("\"policy\":\"native\""), std::string::npos) << (*source)->metadata_json();
}

}  // namespace
}  // namespace vramledger
