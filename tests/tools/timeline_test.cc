#include "tools/analysis/timeline.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "tools/analysis/report.h"
#include "tools/foreign/text_events.h"

namespace vramledger {
namespace {

Analysis Replay(const EventInput& input, std::optional<int> device = std::nullopt) {
  auto analysis = Analyze(input, device);
  EXPECT_TRUE(analysis.ok()) << analysis.status();
  return *std::move(analysis);
}

EventInput Text(const std::string& text) {
  const auto list = ReadTextEvents("vramledger events 1\n" + text);
  EXPECT_TRUE(list.ok()) << list.status();
  return EventInput::FromList("test", *list);
}

void ExpectCloses(const Moment& m) {
  Bytes sum;
  for (const Bytes& b : m.categories) sum.Merge(b);
  EXPECT_EQ(sum.requested, m.total.requested);
  EXPECT_EQ(sum.rounded, m.total.rounded);
  EXPECT_EQ(sum.count, m.total.count);
}

// The ledger closes at every moment that a report shows.
void ExpectCloses(const Timeline& t) {
  ExpectCloses(t.peak);
  ExpectCloses(t.end);
  for (const PhasePeak& p : t.phase_peaks) ExpectCloses(p.moment);
  for (const StepSummary& s : t.steps) ExpectCloses(s.peak);
  for (const Moment& m : t.series) ExpectCloses(m);
  Bytes births;
  for (const auto& row : t.peak_by_birth_phase) {
    for (const Bytes& b : row) births.Merge(b);
  }
  EXPECT_EQ(births.rounded, t.peak.total.rounded);
  Bytes modules;
  for (const NamedBytes& m : t.peak_modules) modules.Merge(m.bytes);
  EXPECT_EQ(modules.rounded, t.peak.total.rounded);
  if (t.at_peak.known && t.peak.reserved_bytes >= t.peak.total.rounded + t.peak.pending_bytes) {
    EXPECT_EQ(t.peak.total.rounded + t.at_peak.external(), t.peak.reserved_bytes);
  }
}

TEST(Timeline, ClosesOnEveryPublicSnapshot) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(VRAMLEDGER_TEST_DATA) + "/snapshots")) {
    if (entry.path().extension() != ".gz") continue;
    SCOPED_TRACE(entry.path().filename().string());
    const auto input = EventInput::Open(entry.path().string());
    ASSERT_TRUE(input.ok()) << input.status();
    const Analysis a = Replay(*input);
    ExpectCloses(a.timeline);
    EXPECT_GT(a.timeline.peak.total.rounded, 0u);
    EXPECT_EQ(a.timeline.unmatched_frees, 0u);
    ++files;
  }
  EXPECT_EQ(files, 16);
}

// Gradients and Adam's moments of the "medium" model (423,183,360 parameters) to the byte.
TEST(Timeline, MediumModelByCategory) {
  const auto input =
      EventInput::Open(std::string(VRAMLEDGER_TEST_DATA) + "/snapshots/medium_ctx128_training.pickle.gz");
  ASSERT_TRUE(input.ok());
  const Timeline t = Replay(*input).timeline;
  EXPECT_EQ(t.peak.categories[static_cast<size_t>(Category::kGradient)].requested, 423183360u * 4);
  EXPECT_EQ(t.end.categories[static_cast<size_t>(Category::kOptimizerState)].requested, 423183360u * 8);
  EXPECT_EQ(t.peak.phase, Phase::kOptimizer);
}

TEST(Timeline, UnnamedTraceHasTheSameSums) {
  const std::string names = "name p parameter w\nname b buffer mean\n";
  const auto text = [](const std::string& extra) {
    return "phase load\nalloc p 10M\nalloc b 1M\n" + extra + R"(phase forward
alloc x 5M
alloc t 3M
free t
phase backward
alloc g 10M
free x
phase optimizer
alloc s 20M
step Adam
phase zero_grad
free g
phase forward
alloc x 5M
phase backward
free x
)";
  };
  const Timeline named = Replay(Text(text(names))).timeline, plain = Replay(Text(text(""))).timeline;
  for (int c = 0; c < kCategoryCount; ++c) {
    const auto category = static_cast<Category>(c);
    if (category == Category::kParameter || category == Category::kBuffer) continue;
    EXPECT_EQ(named.peak.categories[static_cast<size_t>(c)].rounded,
              plain.peak.categories[static_cast<size_t>(c)].rounded)
        << CategoryName(category);
  }
  EXPECT_EQ(plain.peak.categories[static_cast<size_t>(Category::kParameter)].rounded, uint64_t{11} << 20);
  EXPECT_EQ(named.peak.categories[static_cast<size_t>(Category::kBuffer)].rounded, uint64_t{1} << 20);
}

TEST(Timeline, HalfStepsOfTwoOptimizers) {
  const Timeline t = Replay(Text(R"(phase load
alloc d 10M
alloc g 20M
repeat 3
phase forward
alloc x 30M module=D
phase backward
free x
phase optimizer
step Adam#1
phase forward
alloc x 50M module=G
phase backward
free x
phase optimizer
step Adam#2
end
)"))
                         .timeline;
  ASSERT_EQ(t.steps.size(), 6u);
  EXPECT_EQ(t.steps[0].optimizer, "Adam#1");
  EXPECT_EQ(t.steps[0].peak.total.rounded, uint64_t{60} << 20);
  EXPECT_EQ(t.steps[1].optimizer, "Adam#2");
  EXPECT_EQ(t.steps[1].peak.total.rounded, uint64_t{80} << 20);
  EXPECT_EQ(t.steps[2].peak.total.rounded, uint64_t{60} << 20);
}

TEST(Timeline, DevicesAreKeptApart) {
  const EventInput input = Text("alloc a 10M phase=forward\ndevice 1\nalloc b 30M phase=forward\nfree b\n");
  EXPECT_EQ(Replay(input).timeline.device, 1);
  EXPECT_EQ(Replay(input).timeline.peak.total.rounded, uint64_t{30} << 20);
  EXPECT_EQ(Replay(input, 0).timeline.peak.total.rounded, uint64_t{10} << 20);
  EXPECT_FALSE(Analyze(input, 5).ok());
}

TEST(Timeline, OutsideMemory) {
  const Timeline t = Replay(Text("segment s 100M\nalloc a 10M in=s\nused 700M 1000M\n")).timeline;
  EXPECT_TRUE(t.device_sampled);
  EXPECT_EQ(t.outside_peak_bytes, uint64_t{200} << 20);
}

TEST(Timeline, EmptyInput) {
  const Analysis a = Replay(Text(""));
  EXPECT_EQ(a.timeline.events, 0u);
  EXPECT_NE(ReportText(a).find("No allocation was recorded"), std::string::npos);
  EXPECT_NE(ReportText(a).find("PYTORCH_NO_CUDA_MEMORY_CACHING=1 sent every request past"), std::string::npos);
  EXPECT_EQ(ReportJson(a)["schema"], "vramledger.report/1");
}

// Random histories, sound or not (double allocations, frees of nothing): the ledger closes and the peak is the largest
// sum.
TEST(Timeline, ClosesOnRandomHistories) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    auto list = std::make_shared<EventList>();
    list->Intern("site");
    uint64_t live_sum = 0, peak = 0;
    std::map<uint64_t, std::pair<uint64_t, bool>> live;  // address -> size, pending
    for (int i = 0; i < 400; ++i) {
      Event e;
      e.time_ns = static_cast<uint64_t>(i);
      e.phase = static_cast<Phase>(random() % kPhaseCount);
      e.address = (1 + random() % 40) << 20;
      e.module = static_cast<uint32_t>(random() % 2);
      const uint64_t what = random() % 12;
      const auto it = live.find(e.address);
      if (what < 6) {
        e.kind = RecordKind::kAlloc;
        e.requested_bytes = 1 + random() % 100000;
        e.rounded_bytes = (e.requested_bytes + 511) / 512 * 512;
        if (it != live.end() && !it->second.second) live_sum -= it->second.first;
        live[e.address] = {e.rounded_bytes, false};
        live_sum += e.rounded_bytes;
        peak = std::max(peak, live_sum);
      } else if (what < 8) {
        e.kind = RecordKind::kFreeRequested;
        if (it != live.end() && !it->second.second) live_sum -= it->second.first, it->second.second = true;
      } else if (what < 10) {
        e.kind = RecordKind::kFreeCompleted;
        if (it != live.end()) {
          if (!it->second.second) live_sum -= it->second.first;
          live.erase(it);
        }
      } else {
        e.kind = what == 10 ? RecordKind::kPhase : RecordKind::kStep;
        e.b = static_cast<uint64_t>(i);
      }
      list->Add(e);
    }
    const Timeline t = Replay(EventInput::FromList("random", list)).timeline;
    ExpectCloses(t);
    EXPECT_EQ(t.peak.total.rounded, peak);
    EXPECT_EQ(t.end.total.rounded, live_sum);
  }
}

TEST(TimelineTest, TheSeriesIsEvenAndBounded) {
  for (const uint64_t allocations : {10u, 1000u, 40000u}) {
    auto list = std::make_shared<EventList>();
    for (uint64_t i = 0; i < allocations; ++i) {
      Event e;
      e.kind = RecordKind::kAlloc;
      e.address = (i + 1) << 10;
      e.requested_bytes = e.rounded_bytes = 512;
      list->Add(e);
    }
    const Timeline t = Replay(EventInput::FromList("series", list)).timeline;
    EXPECT_LE(t.series.size(), Timeline::kSeriesMoments);
    EXPECT_EQ(t.series.size(), allocations / t.series_every);
    for (size_t i = 0; i < t.series.size(); ++i) EXPECT_EQ(t.series[i].total.count, (i + 1) * t.series_every);
  }
}

TEST(TimelineTest, EachStepKnowsThePeakOfItsPhases) {
  const Timeline t = Replay(Text("phase forward\nalloc a 3M\nphase backward\nalloc b 1M\nfree a\nphase optimizer\nalloc c 512K\nfree c\nstep SGD\n"
                                 "phase forward\nalloc d 1M\nphase optimizer\nstep SGD\n")).timeline;
  ASSERT_EQ(t.steps.size(), 2u);
  const auto of = [&](size_t step, Phase p) { return t.steps[step].phase_peaks[static_cast<size_t>(p)]; };
  EXPECT_EQ(of(0, Phase::kForward), uint64_t{3} << 20);
  EXPECT_EQ(of(0, Phase::kBackward), uint64_t{4} << 20);
  EXPECT_EQ(of(0, Phase::kOptimizer), uint64_t{1536} << 10);
  EXPECT_EQ(of(1, Phase::kForward), uint64_t{2} << 20);
  EXPECT_EQ(of(1, Phase::kBackward), 0u);
}

// As a snapshot taken after the backward, or a request that failed in it, leaves them: the gradient that an operator is about to pass on
// has another size than every parameter.
TEST(Timeline, GradientsOfARecordingThatEndsInItsBackward) {
  const std::string step = "phase forward\nalloc x 40M\nphase backward\nalloc gw 100M\nalloc passing 40M\nfree x\nalloc gv 30M\n";
  const std::string start = "phase load\nalloc w 100M\nalloc v 30M\n", zero = "free passing\nphase optimizer\nstep SGD\nphase zero_grad\nfree gw\nfree gv\n";
  for (const std::string& text : {start + step, start + step + zero + step}) {
    const Timeline t = Replay(Text(text)).timeline;
    const auto held = [&](Category c) { return t.end.categories[static_cast<size_t>(c)].rounded; };
    EXPECT_EQ(held(Category::kParameter), uint64_t{130} << 20);
    EXPECT_EQ(held(Category::kGradient), uint64_t{130} << 20);
    EXPECT_EQ(held(Category::kTemporary), uint64_t{40} << 20);
  }
}

TEST(Timeline, AParameterHasOneGradientWhereARecordingEndsInItsBackward) {
  const std::string start = "phase load\nalloc w 100M\n", backward = "phase forward\nalloc x 40M\nphase backward\nalloc g 100M\nfree x\n";
  struct {
    std::string text;
    uint64_t gradients, temporaries;
  } const cases[] = {
      {start + backward + "alloc passing 100M\n", 1, 1},
      {start + "alloc v 100M\n" + backward + "alloc h 100M\nalloc passing 100M\n", 2, 1},
      // The gradient of the backward before is known, and what the next one makes is added to it.
      {start + backward + "phase forward\nalloc y 40M\nphase backward\nalloc more 100M\nfree y\n", 1, 1},
      // A parameter of the other device has its gradient there.
      {"device 1\n" + start + "device 0\n" + start + backward + "alloc passing 100M\n", 1, 1},
  };
  for (const auto& c : cases) {
    const Timeline t = Replay(Text(c.text), 0).timeline;
    const auto held = [&](Category category) { return t.end.categories[static_cast<size_t>(category)].rounded; };
    EXPECT_EQ(held(Category::kGradient), c.gradients * (uint64_t{100} << 20)) << c.text;
    EXPECT_EQ(held(Category::kTemporary), c.temporaries * (uint64_t{100} << 20)) << c.text;
  }
  // The older of the two, by its module.
  const Timeline t = Replay(Text(start + "phase backward\nalloc g 100M module=net.w\nalloc passing 100M module=net.x\n")).timeline;
  ASSERT_EQ(t.peak_groups.size(), 3u);
  for (const BlockGroup& g : t.peak_groups) {
    if (g.site == "net.w") {
      EXPECT_EQ(g.category, Category::kGradient);
    }
    if (g.site == "net.x") {
      EXPECT_EQ(g.category, Category::kTemporary);
    }
  }
}

}  // namespace
}  // namespace vramledger
