#include "allocator/core/allocator_settings.h"

#include <cstdlib>

#include "gtest/gtest.h"

namespace vramledger {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST(AllocatorSettings, EmptyTextGivesPyTorchsDefaults) {
  const auto s = AllocatorSettings::Parse("");
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(s->max_split_size, AllocatorSettings::kUnlimited);
  EXPECT_EQ(s->max_non_split_rounding, 20 * kMiB);
  EXPECT_EQ(s->large_segment_size, 20 * kMiB);
  EXPECT_EQ(s->garbage_collection_threshold, 0);
  EXPECT_FALSE(s->expandable_segments);
  EXPECT_EQ(s->ToString(), "");
}

TEST(AllocatorSettings, ReadsEverySetting) {
  const auto s = AllocatorSettings::Parse(
      " max_split_size_mb : 128, garbage_collection_threshold:0.8,max_non_split_rounding_mb:64,"
      "expandable_segments:True,per_process_memory_fraction:0.5,large_segment_size_mb:32,"
      "pinned_use_background_threads:True,release_lock_on_cudamalloc:True,backend:native");
  ASSERT_TRUE(s.ok()) << s.status();
  EXPECT_EQ(s->max_split_size, 128 * kMiB);
  EXPECT_EQ(s->garbage_collection_threshold, 0.8);
  EXPECT_EQ(s->max_non_split_rounding, 64 * kMiB);
  EXPECT_TRUE(s->expandable_segments);
  EXPECT_EQ(s->per_process_memory_fraction, 0.5);
  EXPECT_EQ(s->large_segment_size, 32 * kMiB);
  EXPECT_TRUE(s->notes.empty());
}

TEST(AllocatorSettings, RoundingForAllSizes) {
  const auto s = AllocatorSettings::Parse("roundup_power2_divisions:8");
  ASSERT_TRUE(s.ok());
  for (const uint32_t divisions : s->roundup_power2_divisions) EXPECT_EQ(divisions, 8u);
}

TEST(AllocatorSettings, RoundingByInterval) {
  const auto s = AllocatorSettings::Parse("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]");
  ASSERT_TRUE(s.ok());
  for (size_t i = 0; i < 16; ++i) {
    const uint32_t expected = i <= 8 ? 1 : i == 9 ? 2 : i == 10 ? 4 : 8;
    EXPECT_EQ(s->roundup_power2_divisions[i], expected) << i;
  }
}

TEST(AllocatorSettings, ToStringCanBeParsedAgain) {
  const auto s =
      AllocatorSettings::Parse("max_split_size_mb:200,roundup_power2_divisions:[1:2,>:4],expandable_segments:True");
  ASSERT_TRUE(s.ok());
  const auto again = AllocatorSettings::Parse(s->ToString());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->ToString(), s->ToString());
  EXPECT_EQ(again->roundup_power2_divisions, s->roundup_power2_divisions);
}

TEST(AllocatorSettings, BadTextIsNamed) {
  const struct {
    const char* text;
    const char* mentions;
  } cases[] = {
      {"max_split_size_mb", "name:value"},
      {"max_split_size_mb:", "name:value"},
      {"max_split_size_mb:10", "at least 20"},
      {"max_split_size_mb:abc", "max_split_size_mb"},
      {"garbage_collection_threshold:1.5", "between 0 and 1"},
      {"garbage_collection_threshold:0", "between 0 and 1"},
      {"expandable_segments:yes", "True or False"},
      {"roundup_power2_divisions:3", "power of two"},
      {"roundup_power2_divisions:[3:2]", "power of two"},
      {"roundup_power2_divisions:[256:1", "power of two"},
      {"per_process_memory_fraction:2", "from 0 to 1"},
      {"large_segment_size_mb:10", "at least 11"},
      {"backend:other", "native or cudaMallocAsync"},
      {"max_splitsize_mb:20", "unknown allocator setting 'max_splitsize_mb'"},
  };
  for (const auto& c : cases) {
    const auto s = AllocatorSettings::Parse(c.text);
    ASSERT_FALSE(s.ok()) << c.text;
    EXPECT_NE(std::string(s.status().message()).find(c.mentions), std::string::npos) << s.status().message();
  }
}

TEST(AllocatorSettings, WhatIsNotHonouredIsNoted) {
  const auto s = AllocatorSettings::Parse("backend:cudaMallocAsync,throw_on_cudamalloc_oom:True");
  ASSERT_TRUE(s.ok());
  ASSERT_EQ(s->notes.size(), 1u);  // the second is honoured
  EXPECT_NE(s->notes[0].find("backend"), std::string::npos) << s->notes[0];
}

TEST(AllocatorSettings, WhatThePolicyHasNoUseForIsNamed) {
  auto s = AllocatorSettings::Parse("max_split_size_mb:64,garbage_collection_threshold:0.5,roundup_power2_divisions:4");
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(s->WithoutEffect(), "");
  s->policy = AllocatorSettings::Policy::kVmm;
  EXPECT_EQ(s->WithoutEffect(),
            "policy vmm has no segments to cut or to give back: max_split_size_mb, garbage_collection_threshold have an "
            "effect on private pools only");
  s = AllocatorSettings::Parse("expandable_segments:True,large_segment_size_mb:40");
  s->policy = AllocatorSettings::Policy::kVmm;
  EXPECT_EQ(s->WithoutEffect(),
            "policy vmm has no segments to cut or to give back: large_segment_size_mb has an effect on private pools only");
  s = AllocatorSettings::Parse("roundup_power2_divisions:4,per_process_memory_fraction:0.5");
  s->policy = AllocatorSettings::Policy::kVmm;
  EXPECT_EQ(s->WithoutEffect(), "");
}

TEST(AllocatorSettings, EnvironmentInPyTorchsOrder) {
  setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:100", 1);
  unsetenv("PYTORCH_CUDA_ALLOC_CONF");
  EXPECT_EQ(AllocatorSettings::FromEnvironment()->max_split_size, 100 * kMiB);
  setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:200", 1);
  EXPECT_EQ(AllocatorSettings::FromEnvironment()->max_split_size, 200 * kMiB);
  setenv("PYTORCH_CUDA_ALLOC_CONF", "nonsense", 1);
  const auto bad = AllocatorSettings::FromEnvironment();
  ASSERT_FALSE(bad.ok());
  EXPECT_NE(std::string(bad.status().message()).find("PYTORCH_CUDA_ALLOC_CONF"), std::string::npos);
  unsetenv("PYTORCH_ALLOC_CONF");
  unsetenv("PYTORCH_CUDA_ALLOC_CONF");
}

}  // namespace
}  // namespace vramledger
