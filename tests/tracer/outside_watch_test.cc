// The thread that watches memory outside the allocator, next to a program that writes to the same trace.
#include "tracer/cupti/outside_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/tracer/temp_file.h"
#include "tracer/format/trace_reader.h"
#include "tracer/format/trace_writer.h"

namespace vramledger {
namespace {

// A program whose allocator is busy all the time. Its devices have no address, so that NVML is not asked for them,
// should this machine have it.
class BusyHost : public OutsideHost {
 public:
  int DeviceCount() override { return 2; }
  bool DeviceInUse(int device) override { return device == 1; }
  std::string BusId(int) override { return ""; }
  uint64_t SegmentChanges() const override { return ++changes_; }
  Phase CurrentPhase() const override { return Phase::kForward; }

 private:
  mutable std::atomic<uint64_t> changes_{0};
};

TEST(OutsideWatch, LosesNothingBesideAProgramThatWritesWakesYieldsAndStops) {
  constexpr int kThreads = 4;
  constexpr uint64_t kRecords = 2000;
  TempFile file;
  {
    auto writer = TraceWriter::Create(file.path());
    ASSERT_TRUE(writer.ok()) << writer.status();
    BusyHost host;
    OutsideWatch watch(host, **writer);
    watch.Start();
    std::vector<std::thread> program;
    for (int t = 0; t < kThreads; ++t) {
      program.emplace_back([&, t] {
        for (uint64_t i = 0; i < kRecords; ++i) {
          ControlRecord r{};
          r.kind = static_cast<uint8_t>(RecordKind::kMark);
          r.a = (*writer)->InternString("mark " + std::to_string(i % 10));
          (*writer)->Append(r);
          if (i % 100 == 0) watch.Wake();
          if (i % 500 == 0) watch.YieldToProfiler();
        }
        if (t % 2 == 0) watch.Stop();  // also while others go on
      });
    }
    for (std::thread& thread : program) thread.join();
    watch.Stop();
    watch.Wake();
  }
  auto reader = OpenTrace(file.path());
  ASSERT_TRUE(reader.ok()) << reader.status();
  uint64_t marks = 0;
  while (const Event* e = (*reader)->Next()) marks += e->kind == RecordKind::kMark ? 1 : 0;
  EXPECT_LE(marks, kThreads * kRecords);
  EXPECT_GE(marks + (*reader)->health().lost_records, kThreads * kRecords);  // texts may be lost, too
  EXPECT_FALSE((*reader)->health().ended_early);
  const nlohmann::json outside = nlohmann::json::parse((*reader)->metadata_json()).at("outside");
  EXPECT_TRUE(outside["nvml"].is_string());
  EXPECT_TRUE(outside["cupti"].is_string());
}

}  // namespace
}  // namespace vramledger
