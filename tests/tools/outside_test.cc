// Memory outside the allocator: how a sample is split by owner, the verdict on public reports, and its negative
// controls.
#include "tools/analysis/outside.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tools/analysis/report.h"
#include "tools/analysis/timeline.h"
#include "tools/analysis/verdicts.h"
#include "tools/foreign/text_events.h"

namespace vramledger {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

Analysis Replay(const std::string& text) {
  const auto list = ReadTextEvents("vramledger events 1\n" + text);
  EXPECT_TRUE(list.ok()) << list.status();
  auto analysis = Analyze(EventInput::FromList("test", *list));
  EXPECT_TRUE(analysis.ok()) << analysis.status();
  return *std::move(analysis);
}

std::vector<Verdict> Outside(const std::string& text) {
  std::vector<Verdict> found;
  for (Verdict& v : Judge(Replay(text))) {
    if (v.id == "OUTSIDE") found.push_back(std::move(v));
  }
  return found;
}

TEST(Outside, ASampleIsSplitByOwner) {
  const OutsideLedger o = Replay(R"(phase forward
segment s 1000M
alloc a 900M in=s
outside n 300M libnccl.so.2
outside c 40M libcublas.so.13
outside_free c
outside c 60M libcublas.so.13
processes 1860M 200M 2
used 7900M 10000M
phase backward
used 7800M 10000M
)")
                              .timeline.outside;
  ASSERT_TRUE(o.at_peak && o.most);
  EXPECT_EQ(o.samples, 2u);
  // The sample right after the peak is as near as there is one before it: none.
  EXPECT_EQ(o.at_peak->device_used_bytes, 2100 * kMiB);
  EXPECT_EQ(o.at_peak->outside_bytes, 1100 * kMiB);
  EXPECT_EQ(o.at_peak->libraries_bytes, 360 * kMiB);
  ASSERT_EQ(o.at_peak->libraries.size(), 2u);
  EXPECT_EQ(o.at_peak->libraries[0].name, "libnccl.so.2");
  EXPECT_EQ(o.at_peak->others_bytes, 200 * kMiB);
  EXPECT_EQ(o.at_peak->others_count, 2u);
  EXPECT_EQ(o.at_peak->context_bytes, 500 * kMiB);  // 1,860 less 1,000 reserved less 360 of libraries
  EXPECT_EQ(o.at_peak->unexplained_bytes, 40 * kMiB);
  EXPECT_EQ(o.most->outside_bytes, 1200 * kMiB);
  EXPECT_EQ(o.most->unexplained_bytes, 140 * kMiB);
  EXPECT_EQ(o.jump_bytes, 100 * kMiB);
  EXPECT_EQ(o.jump_phase, Phase::kBackward);
}

TEST(Outside, WhatLiesInASegmentOfTheAllocatorIsNotOutside) {
  const OutsideLedger o =
      Replay("segment s 100M\nalloc a 10M in=s\noutside n 5M libother.so\nused 800M 1000M\n").timeline.outside;
  EXPECT_EQ(o.most->libraries_bytes, 5 * kMiB);
  Event event;
  event.b = 1 << 20;
  event.c = 5 * kMiB;
  OutsideFollower follower;
  follower.Alloc(event, "libc10_cuda.so", /*own=*/true);
  EXPECT_EQ(follower.Take().libraries_peak_bytes, 0u);
}

TEST(Outside, WhatWaitsIsBoundedWhereTimeStandsStill) {
  OutsideFollower follower;
  Event event;
  for (uint64_t i = 0; i < 200000; ++i) {
    event.b = (i + 1) << 20;
    event.c = 512;
    follower.Alloc(event, "libother.so", /*own=*/false);
  }
  EXPECT_LE(follower.waiting(), 65536u);
  EXPECT_EQ(follower.Take().libraries_peak_bytes, 200000u * 512);
}

// The record of what a library took stands behind the sample that already shows it.
TEST(Outside, ALateRecordCountsFromItsTime) {
  OutsideFollower follower;
  const auto at = [](uint64_t time_ms, uint64_t b, uint64_t c) {
    Event e;
    e.time_ns = time_ms * 1000000;
    e.b = b;
    e.c = c;
    return e;
  };
  follower.Sampled(at(10, 900 * kMiB, 1000 * kMiB), 0, 1, Phase::kForward, {});
  follower.Sampled(at(30, 600 * kMiB, 1000 * kMiB), 0, 1, Phase::kForward, {});
  follower.Alloc(at(20, 4096, 300 * kMiB), "libnccl.so.2", false);
  follower.Free(at(40, 4096, 0));
  follower.Sampled(at(5000, 850 * kMiB, 1000 * kMiB), 0, 2, Phase::kForward, {});
  const OutsideLedger o = follower.Take();
  EXPECT_EQ(o.most->outside_bytes, 400 * kMiB);
  EXPECT_EQ(o.most->libraries_bytes, 300 * kMiB);
  EXPECT_EQ(o.most->unexplained_bytes, 100 * kMiB);
  EXPECT_EQ(o.libraries_peak_bytes, 300 * kMiB);
  EXPECT_EQ(o.samples, 3u);
}

TEST(Outside, WithoutNvmlNothingIsGuessed) {
  const Analysis a = Replay(
      "meta {\"outside\":{\"cupti\":\"on\",\"nvml\":\"NVML's library was not found\"}}\n"
      "phase forward\nsegment s 100M\nalloc a 10M in=s\noutside n 50M libnccl.so.2\nused 500M 1000M\n");
  EXPECT_FALSE(a.timeline.outside.most->context_bytes);
  EXPECT_EQ(a.timeline.outside.most->unexplained_bytes, 350 * kMiB);
  const auto json = ReportJson(a)["outside"];
  EXPECT_TRUE(json["most"]["context_bytes"].is_null());
  EXPECT_EQ(json["nvml"], "NVML's library was not found");
  const std::string text = ReportText(a);
  EXPECT_NE(text.find("not told"), std::string::npos) << text;
  EXPECT_NE(text.find("taken by libnccl.so.2"), std::string::npos) << text;
  EXPECT_NE(text.find("Note: other processes are not told from this one's context: NVML's library was not found."),
            std::string::npos)
      << text;
}

TEST(Outside, OldTracesHaveNoSplitAndNoNote) {
  const Analysis a = Replay("phase forward\nsegment s 100M\nalloc a 10M in=s\nused 700M 1000M\n");
  const std::string text = ReportText(a);
  EXPECT_NE(text.find("+ outside the allocator (at most)"), std::string::npos);
  EXPECT_EQ(text.find("Outside the allocator\n"), std::string::npos) << text;
  EXPECT_TRUE(ReportJson(a)["outside"]["cupti"].is_null());
}

// A file of trace format version 1, which had no records of what is outside.
TEST(Outside, ATraceOfTheVersionBefore) {
  const std::string path = std::string(VRAMLEDGER_TEST_DATA) + "/traces/bert_b32.vlt";
  uint32_t version = 0;
  std::ifstream in(path, std::ios::binary);
  in.seekg(8).read(reinterpret_cast<char*>(&version), sizeof version);
  ASSERT_EQ(version, 1u);
  const auto input = EventInput::Open(path);
  ASSERT_TRUE(input.ok()) << input.status();
  const auto analysis = Analyze(*input);
  ASSERT_TRUE(analysis.ok()) << analysis.status();
  EXPECT_GT(analysis->timeline.allocations, 1000u);
  EXPECT_GT(analysis->timeline.outside.samples, 0u);
  EXPECT_FALSE(analysis->timeline.outside.split());
  EXPECT_EQ(analysis->timeline.outside.most->unexplained_bytes, analysis->timeline.outside_peak_bytes);
}

// The sample nearest to the peak is taken, before or after it.
TEST(Outside, TheSampleNearestToThePeak) {
  const OutsideLedger o = Replay(R"(phase forward
segment s 100M
used 800M 1000M
alloc x 1M
free x
alloc x 1M
free x
alloc a 90M in=s
used 700M 1000M
free a
used 600M 1000M
)")
                              .timeline.outside;
  EXPECT_EQ(o.at_peak->outside_bytes, 200 * kMiB);
}

// pytorch/pytorch#147179: 60 GB active, 82 reserved, 96 by nvidia-smi.
TEST(Outside, FourteenGigabytesThatNoTraceHolds) {
  const auto v = Outside("phase forward\nsegment s 82G\nalloc a 60G in=s\nused 44G 140G\n");
  ASSERT_EQ(v.size(), 1u);
  EXPECT_EQ(v[0].evidence["outside_bytes"], uint64_t{14} << 30);
  EXPECT_EQ(v[0].confidence, "low");
  EXPECT_NE(v[0].sentence.find("14.00 GiB"), std::string::npos) << v[0].sentence;
}

// NVIDIA/nccl#1685: 1.06 becomes 4.34 GB at the first all-to-all.
TEST(Outside, ACommunicatorIsNamed) {
  const auto v = Outside(R"(phase forward
segment s 1000M
alloc a 900M in=s
processes 1500M 0 0
used 78500M 80000M
phase communication
outside n 3280M libnccl.so.2
processes 4780M 0 0
used 75220M 80000M
)");
  ASSERT_EQ(v.size(), 1u);
  EXPECT_NE(v[0].sentence.find("libnccl.so.2 took 3.20 GiB from CUDA itself"), std::string::npos) << v[0].sentence;
  EXPECT_NE(v[0].suggestion.find("NCCL_MAX_NCHANNELS"), std::string::npos);
  EXPECT_EQ(v[0].evidence["largest_rise_bytes"], 3280 * kMiB);
  EXPECT_EQ(v[0].evidence["largest_rise_phase"], "communication");
}

// pytorch/examples#969: seven other ranks of 520 MB each sit on the first device.
TEST(Outside, StrayRanksAreCounted) {
  const auto v =
      Outside("phase forward\nsegment s 1000M\nalloc a 900M in=s\nprocesses 1500M 3640M 7\nused 74860M 80000M\n");
  ASSERT_EQ(v.size(), 1u);
  EXPECT_NE(v[0].sentence.find("by 7 other processes"), std::string::npos) << v[0].sentence;
  EXPECT_EQ(v[0].evidence["other_processes"], 7);
  EXPECT_EQ(v[0].confidence, "high");
}

// One-2-3-45/One-2-3-45#25: 12.24 of 14.6 GiB belong to something else. Li-Chongyi/Zero-DCE#52: 1.46.
TEST(Outside, AFailureSaysWhatWasFree) {
  const std::string card = "meta {\"devices\":[{\"index\":0,\"total_bytes\":15676211200}]}\nphase forward\n";
  auto v = Outside(card + "segment s 1075M\nalloc a 686M in=s\noom 1730M 1341M\n");
  ASSERT_EQ(v.size(), 1u);
  EXPECT_NE(v[0].sentence.find("12.24 GiB"), std::string::npos) << v[0].sentence;
  v = Outside(
      "meta {\"devices\":[{\"index\":0,\"total_bytes\":12582912000}]}\nphase forward\nsegment s 10023M\nalloc a 10013M "
      "in=s\noom 1751M 481M\n");
  ASSERT_EQ(v.size(), 1u);
}

// The sample that the plug-in takes because of a failure is that failure's.
TEST(Outside, AFailureWaitsForItsSample) {
  const Analysis a = Replay(
      "phase forward\nsegment s 100M\nalloc a 10M in=s\nused 880M 1000M\noom 900M 860M\nused 860M 1000M\nused 850M "
      "1000M\n");
  ASSERT_EQ(a.timeline.failures.size(), 1u);
  ASSERT_TRUE(a.timeline.failures[0].outside);
  EXPECT_EQ(a.timeline.failures[0].outside->outside_bytes, 40 * kMiB);
  EXPECT_EQ(ReportJson(a)["failed_requests"][0]["outside"]["outside_bytes"], 40 * kMiB);
}

// What is usual: pytorch/pytorch#28394 (1,008 MB in use, 2 cached), #58466 (1,014.5 MB), and 1.38 GiB
// (CompVis/taming-transformers#194); cuBLAS's own 8 MiB; a small neighbour.
TEST(Outside, AnOrdinaryContextIsQuiet) {
  EXPECT_TRUE(Outside("phase forward\nsegment s 2M\nalloc a 1M in=s\nused 10992M 12000M\n").empty());
  EXPECT_TRUE(Outside("phase forward\nsegment s 5494M\nalloc a 5000M in=s\nused 4480M 10989M\n").empty());
  EXPECT_TRUE(Outside("meta {\"devices\":[{\"index\":0,\"total_bytes\":6291456000}]}\nphase forward\nsegment s "
                      "4100M\nalloc a 4000M in=s\n"
                      "oom 1423M 487M\n")
                  .empty());
  EXPECT_TRUE(
      Outside(
          "phase forward\nsegment s 1000M\nalloc a 900M in=s\noutside c 8M libcublas.so.13\nprocesses 1508M 100M 1\n"
          "used 78392M 80000M\n")
          .empty());
}

}  // namespace
}  // namespace vramledger
