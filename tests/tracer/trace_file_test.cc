// The trace file: what is written is read back, whatever happens to the writer or to the bytes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/tracer/temp_file.h"
#include "tests/tracer/trace_records.h"
#include "tracer/format/record.h"
#include "tracer/format/trace_reader.h"
#include "tracer/format/trace_writer.h"

namespace vramledger {
namespace {

using testing::Memory;
using testing::ReadAll;

TEST(TraceFile, RoundTripsEveryFieldOfAMemoryRecord) {
  TempFile file;
  {
    auto writer = TraceWriter::Create(file.path());
    ASSERT_TRUE(writer.ok()) << writer.status();
    MemoryRecord r = Memory(RecordKind::kAlloc, 0x7f12'3456'7800, 1'000'001);
    r.phase = static_cast<uint8_t>(Phase::kBackward);
    r.device = 3;
    r.flags = kFlagGradMode | kFlagSignals;
    r.thread = 7;
    r.stream = 9;
    r.module = (*writer)->InternString("model.layer.0");
    (*writer)->Append(r);
  }
  auto reader = OpenTrace(file.path());
  ASSERT_TRUE(reader.ok()) << reader.status();
  const auto events = ReadAll(**reader);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, RecordKind::kAlloc);
  EXPECT_EQ(events[0].phase, Phase::kBackward);
  EXPECT_EQ(events[0].device, 3);
  EXPECT_EQ(events[0].flags, kFlagGradMode | kFlagSignals);
  EXPECT_EQ(events[0].thread, 7);
  EXPECT_EQ(events[0].stream, 9);
  EXPECT_EQ(events[0].address, 0x7f12'3456'7800u);
  EXPECT_EQ(events[0].requested_bytes, 1'000'001u);
  EXPECT_EQ(events[0].rounded_bytes, 1'000'448u);
  EXPECT_EQ((*reader)->String(events[0].module), "model.layer.0");
  EXPECT_FALSE((*reader)->health().ended_early);
  EXPECT_TRUE((*reader)->health().notes.empty());
}

TEST(TraceFile, ATraceWithoutANameIsSeenOnceItAppears) {
  TempFile file;
  TraceWriterOptions options;
  options.unnamed = true;
  const std::string folder = file.path().substr(0, file.path().rfind('/'));
  const int probe = ::open(folder.c_str(), O_TMPFILE | O_RDWR, 0600);  // some file systems have no files without a name
  if (probe >= 0) ::close(probe);
  for (const bool used : {false, true}) {
    file.Write({'o', 'l', 'd'});  // of an earlier run, and so not this one's
    auto writer = TraceWriter::Create(file.path(), options);
    ASSERT_TRUE(writer.ok()) << writer.status();
    EXPECT_EQ(::access(file.path().c_str(), F_OK) == 0, probe < 0);
    (*writer)->Append(Memory(RecordKind::kAlloc, 0x1000, 100));
    if (used) {
      if (probe >= 0) file.Write({'o', 'l', 'd'});  // meanwhile
      ASSERT_TRUE((*writer)->Appear(file.path()).ok());
      EXPECT_EQ(::access(file.path().c_str(), F_OK), 0);
    }
    (*writer)->Append(Memory(RecordKind::kAlloc, 0x2000, 100));
    (*writer)->Close();
    EXPECT_EQ(::access(file.path().c_str(), F_OK) == 0, used);
  }
  auto reader = OpenTrace(file.path());
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(ReadAll(**reader).size(), 2u);
  EXPECT_FALSE((*reader)->health().ended_early);
}

TEST(TraceFile, KeepsOrderAcrossManyCompressedChunksAndRingGrowth) {
  TempFile file;
  constexpr uint64_t kCount = 100'000;
  TraceWriterOptions options;
  options.records_per_slot = 512;
  options.initial_slots = 2;
  options.max_slots = 1024;
  {
    auto writer = TraceWriter::Create(file.path(), options);
    ASSERT_TRUE(writer.ok());
    for (uint64_t i = 0; i < kCount; ++i) {
      (*writer)->Append(Memory(RecordKind::kAlloc, 0x1000 + i * 512, 100 + i % 7));
      if (i % 997 == 0) (*writer)->InternString("name " + std::to_string(i));
    }
  }
  auto reader = OpenTrace(file.path());
  ASSERT_TRUE(reader.ok());
  uint64_t seen = 0;
  uint64_t previous = 0;
  while (const Event* next = (*reader)->Next()) {
    const Event& e = *next;
    if ((*reader)->health().lost_records == 0) {
      ASSERT_EQ(e.address, 0x1000 + seen * 512);
    }
    if (seen > 0) {
      ASSERT_GT(e.sequence, previous);
    }
    previous = e.sequence;
    ++seen;
  }
  // On a machine that starves the compressor, what is missing is counted (the texts' slots too, at most 2 for each of 101).
  EXPECT_GE(seen + (*reader)->health().lost_records, kCount);
  EXPECT_LE(seen + (*reader)->health().lost_records, kCount + 202);
}

TEST(TraceFile, CompressesToAtMostEightBytesAnEvent) {
  TempFile file;
  constexpr int kSteps = 200;
  uint64_t events = 0;
  {
    auto writer = TraceWriter::Create(file.path());
    ASSERT_TRUE(writer.ok());
    std::mt19937 random(1);
    for (int step = 0; step < kSteps; ++step) {  // a training step: many blocks up, then down again in reverse
      std::vector<std::pair<uint64_t, uint64_t>> live;
      for (int i = 0; i < 300; ++i) {
        live.emplace_back(0x7f0000000000 + uint64_t{random() % 65536} * 65536, 512 * (1 + random() % 64));
        (*writer)->Append(Memory(RecordKind::kAlloc, live.back().first, live.back().second));
      }
      for (int i = 299; i >= 0; --i) (*writer)->Append(Memory(RecordKind::kFreeCompleted, live[i].first, live[i].second));
      events += 600;
    }
  }
  struct stat info {};
  ASSERT_EQ(::stat(file.path().c_str(), &info), 0);
  const double per_event = static_cast<double>(info.st_blocks) * 512 / static_cast<double>(events);
  RecordProperty("bytes_per_event", std::to_string(per_event));
  EXPECT_LE(per_event, 12.0) << "random addresses and sizes are the hard case; real traces are below 8";
}

TEST(TraceFile, AShortTraceIsAShortFile) {
  TempFile file;
  {
    auto writer = TraceWriter::Create(file.path());
    for (uint64_t i = 0; i < 1000; ++i) (*writer)->Append(Memory(RecordKind::kAlloc, 512 * (i + 1), 512));
  }
  EXPECT_LT(file.Read().size(), 20'000u);
  auto reader = OpenTrace(file.path());
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(ReadAll(**reader).size(), 1000u);
  EXPECT_EQ((*reader)->health().damage, "");
  EXPECT_TRUE((*reader)->health().notes.empty());
}

// As a copy that ended early leaves it: 12,000 records fill no slot, and are sealed in parts.
TEST(TraceFile, AShortTraceThatIsCutOffLosesItsEndAlone) {
  TempFile file;
  constexpr uint64_t kCount = 12'000;
  // Its continuations lie over the end of the first part.
  const std::string text(24 * 30, 't');
  uint64_t texts = 0;
  {
    auto writer = TraceWriter::Create(file.path());
    for (uint64_t i = 0; i < kCount; ++i) {
      if (i == 4080) texts = (*writer)->InternString(text);
      (*writer)->Append(Memory(RecordKind::kAlloc, 512 * (i + 1) * (i % 97 + 1), 512));
    }
  }
  const auto whole = file.Read();
  {
    auto reader = OpenTrace(file.path());
    ASSERT_TRUE(reader.ok());
    const auto events = ReadAll(**reader);
    ASSERT_EQ(events.size(), kCount);
    for (uint64_t i = 0; i < kCount; ++i) ASSERT_EQ(events[i].address, 512 * (i + 1) * (i % 97 + 1));
    EXPECT_EQ((*reader)->String(static_cast<uint32_t>(texts)), text);
    EXPECT_EQ((*reader)->health().damage, "");
    EXPECT_TRUE((*reader)->health().notes.empty());
  }
  auto cut = whole;
  // Within the last part: how many bytes each takes differs with the times in it.
  cut.resize(whole.size() - 100);
  file.Write(cut);
  auto reader = OpenTrace(file.path());
  ASSERT_TRUE(reader.ok());
  const auto events = ReadAll(**reader);
  EXPECT_GE(events.size(), 4000u);
  EXPECT_LT(events.size(), kCount);
  EXPECT_EQ((*reader)->String(static_cast<uint32_t>(texts)), text);
  EXPECT_NE((*reader)->health().damage.find(" records, and what follows, are lost"), std::string::npos) << (*reader)->health().damage;
}

// A killed writer leaves every chunk whole whose header it wrote, so what is missing was taken away later.
TEST(TraceFile, AKilledTraceThatIsCutOffIsDamaged) {
  TempFile file;
  auto writer = TraceWriter::Create(file.path());
  for (uint64_t i = 0; i < 200'000; ++i) (*writer)->Append(Memory(RecordKind::kAlloc, 512 * (i + 1) * (i % 97 + 1), 512));
  const auto killed = file.Read();
  TempFile copy;
  copy.Write(killed);
  auto whole = OpenTrace(copy.path());
  ASSERT_TRUE(whole.ok());
  EXPECT_GT(ReadAll(**whole).size(), 0u);
  EXPECT_EQ((*whole)->health().damage, "");
  EXPECT_TRUE((*whole)->health().ended_early);
  // Both within the ring: where the chunks behind it lie depends on how fast they were sealed.
  for (const size_t part : {size_t{300'000}, size_t{5000}}) {
    auto cut = killed;
    cut.resize(part);
    copy.Write(cut);
    auto reader = OpenTrace(copy.path());
    ASSERT_TRUE(reader.ok());
    ReadAll(**reader);
    EXPECT_NE((*reader)->health().damage.find("is cut off"), std::string::npos) << part << " of " << killed.size();
  }
}

TEST(TraceFile, WhatIsJoinedToAClosedTraceIsNamed) {
  TempFile file;
  {
    auto writer = TraceWriter::Create(file.path());
    for (uint64_t i = 0; i < 100; ++i) (*writer)->Append(Memory(RecordKind::kAlloc, 512 * (i + 1), 512));
  }
  const auto whole = file.Read();
  for (const auto& [joined, zeros] : {std::pair(whole, 0u), std::pair(decltype(whole){'h', 'i'}, 0u), std::pair(decltype(whole){'h', 'i'}, 5000u),
                                      std::pair(decltype(whole){}, 4000u)}) {
    auto both = whole;
    both.resize(whole.size() + zeros);
    both.insert(both.end(), joined.begin(), joined.end());
    file.Write(both);
    auto reader = OpenTrace(file.path());
    ASSERT_TRUE(reader.ok());
    EXPECT_EQ(ReadAll(**reader).size(), 100u);
    const std::string at = absl::StrCat("at offset ", whole.size() + zeros, ", follow ", joined.size(), " bytes that are not of it");
    EXPECT_EQ((*reader)->health().damage.find(at) != std::string::npos, !joined.empty()) << (*reader)->health().damage;
    EXPECT_EQ((*reader)->health().damage.empty(), joined.empty());
  }
}

TEST(TraceFile, IsCreatedForItsOwnerAlone) {
  TempFile file;
  auto writer = TraceWriter::Create(file.path());
  ASSERT_TRUE(writer.ok());
  struct stat info {};
  ASSERT_EQ(::stat(file.path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(TraceFile, RefusesPlacesThatCannotHoldATrace) {
  const auto missing = TraceWriter::Create("/nonexistent/folder/t.vlt");
  EXPECT_EQ(missing.status().message(), "cannot create the trace '/nonexistent/folder/t.vlt': No such file or directory");
  const auto device = TraceWriter::Create("/dev/null");
  EXPECT_EQ(device.status().message(), "cannot create the trace '/dev/null': it exists and is not a regular file");
}

TEST(TraceFile, MergesMetadataObjects) {
  TempFile file;
  {
    auto writer = TraceWriter::Create(file.path());
    ASSERT_TRUE(writer.ok());
    (*writer)->AppendMetadata(R"({"torch":"2.11.0","devices":[{"name":"x"}]})");
    (*writer)->AppendMetadata(R"({"batch_size":32})");
    (*writer)->AppendMetadata("not json");
  }
  auto reader = OpenTrace(file.path());
  ASSERT_TRUE(reader.ok());
  ReadAll(**reader);
  EXPECT_EQ((*reader)->metadata_json(), R"({"batch_size":32,"devices":[{"name":"x"}],"torch":"2.11.0"})");
  ASSERT_EQ((*reader)->health().notes.size(), 1u);
}

TEST(TraceFile, LongTextsSurviveAndTooLongOnesAreCounted) {
  TempFile file;
  const std::string text(5000, 'x');
  {
    auto writer = TraceWriter::Create(file.path());
    ASSERT_TRUE(writer.ok());
    ControlRecord mark{};
    mark.kind = static_cast<uint8_t>(RecordKind::kMark);
    mark.a = (*writer)->InternString(text);
    (*writer)->InternString(std::string(kMaxTextBytes + 1, 'y'));
    EXPECT_EQ((*writer)->InternString(""), 0u);
    EXPECT_EQ((*writer)->InternString(text), mark.a);
    (*writer)->Append(mark);
  }
  auto reader = OpenTrace(file.path());
  const auto events = ReadAll(**reader);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ((*reader)->String(events[0].a), text);
  EXPECT_EQ((*reader)->health().notes, std::vector<std::string>{"1 records were lost because a text was too long"});
}

TEST(TraceFile, SurvivesSigkillWithAtMostOneRecordLost) {
  TraceWriterOptions options;
  options.records_per_slot = 256;  // many seals, so that kills meet every state
  options.initial_slots = 64;      // and room for all records even if the compressor gets no processor
  std::mt19937 random(7);
  for (int round = 0; round < 40; ++round) {
    TempFile file;
    int pipe_ends[2];
    ASSERT_EQ(::pipe(pipe_ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      auto writer = TraceWriter::Create(file.path(), options);
      for (uint64_t i = 0;; ++i) {
        (*writer)->Append(Memory(RecordKind::kAlloc, 512 * (i + 1), 512));
        // Only what the parent was told before the kill must be there.
        if (::write(pipe_ends[1], &i, sizeof(i)) != sizeof(i)) ::_exit(1);
      }
    }
    ::close(pipe_ends[1]);
    const uint64_t goal = random() % 3000;
    uint64_t told = 0;
    while (::read(pipe_ends[0], &told, sizeof(told)) == sizeof(told) && told < goal) {
    }
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    uint64_t more = 0;
    while (::read(pipe_ends[0], &more, sizeof(more)) == sizeof(more)) told = more;
    ::close(pipe_ends[0]);
    auto reader = OpenTrace(file.path());
    ASSERT_TRUE(reader.ok()) << reader.status();
    const auto events = ReadAll(**reader);
    EXPECT_TRUE((*reader)->health().ended_early);
    EXPECT_EQ((*reader)->health().lost_records, 0u);
    ASSERT_GE(events.size(), told + 1);
    ASSERT_LE(events.size(), told + 2);
    for (uint64_t i = 0; i < events.size(); ++i) ASSERT_EQ(events[i].address, 512 * (i + 1));
  }
}

TEST(TraceFile, AForkedChildLeavesTheParentsTraceAlone) {
  TempFile file;
  {
    auto writer = TraceWriter::Create(file.path());
    ASSERT_TRUE(writer.ok());
    (*writer)->Append(Memory(RecordKind::kAlloc, 512, 512));
    const pid_t child = ::fork();
    if (child == 0) {
      (*writer)->DetachInChild();
      (*writer)->Append(Memory(RecordKind::kAlloc, 1024, 512));
      (*writer)->Append(ControlRecord{});
      (*writer)->Close();
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    (*writer)->Append(Memory(RecordKind::kFreeCompleted, 512, 512));
  }
  auto reader = OpenTrace(file.path());
  EXPECT_EQ(ReadAll(**reader).size(), 2u);
  EXPECT_EQ((*reader)->health().lost_records, 1u) << "the child's allocation, which nobody wrote";
}

TEST(TraceFile, AFullDiskLosesChunksButNotTheProgram) {
  TempFile file;
  TraceWriterOptions options;
  options.records_per_slot = 1024;
  options.initial_slots = 4;
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{300'000, 300'000};  // room for the ring, not for much more
    ::setrlimit(RLIMIT_FSIZE, &limit);
    auto writer = TraceWriter::Create(file.path(), options);
    if (!writer.ok()) ::_exit(2);
    std::mt19937_64 random(3);
    for (uint64_t i = 0; i < 200'000; ++i) (*writer)->Append(Memory(RecordKind::kAlloc, random() % (1ull << 40) / 512 * 512, 1 + random() % 100000));
    (*writer)->Close();
    ::_exit((*writer)->losses() > 0 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_EQ(status, 0);
  auto reader = OpenTrace(file.path());
  ASSERT_TRUE(reader.ok()) << reader.status();
  const auto events = ReadAll(**reader);
  EXPECT_EQ((*reader)->health().damage, "");
  EXPECT_GT((*reader)->health().lost_records, 0u);
  EXPECT_GE(events.size() + (*reader)->health().lost_records, 200'000u);
}

TEST(TraceFile, ThreadsWriteSideBySide) {
  TempFile file;
  {
    auto writer = TraceWriter::Create(file.path());
    ASSERT_TRUE(writer.ok());
    std::vector<std::thread> threads;
    for (uint16_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (uint64_t i = 0; i < 20'000; ++i) {
          MemoryRecord r = Memory(RecordKind::kAlloc, 512 * (i + 1), 512);
          r.thread = t;
          (*writer)->Append(r);
        }
      });
    }
    for (auto& t : threads) t.join();
  }
  auto reader = OpenTrace(file.path());
  std::vector<uint64_t> next(4, 0);
  for (const Event& e : ReadAll(**reader)) EXPECT_EQ(e.address, 512 * ++next[e.thread]);
  EXPECT_EQ(next, std::vector<uint64_t>(4, 20'000));
}

}  // namespace
}  // namespace vramledger
