// The trace file: what is written is read back, whatever happens to the writer or to the bytes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/tracer/temp_file.h"
#include "tracer/format/byte_columns.h"
#include "tracer/format/record.h"
#include "tracer/format/trace_reader.h"
#include "tracer/format/trace_writer.h"

namespace vramledger {
namespace {

MemoryRecord Memory(RecordKind kind, uint64_t address, uint64_t requested) {
  MemoryRecord r{};
  r.kind = static_cast<uint8_t>(kind);
  r.phase = static_cast<uint8_t>(Phase::kForward);
  Store48(r.address48, address / kAddressUnit);
  r.blocks = static_cast<uint32_t>((requested + kBlockUnit - 1) / kBlockUnit);
  r.slack = static_cast<uint32_t>(r.blocks * kBlockUnit - requested);
  return r;
}

std::vector<Event> ReadAll(EventSource& source) {
  std::vector<Event> events;
  while (const Event* e = source.Next()) events.push_back(*e);
  return events;
}

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

// Printing and merging recurse.
TEST(TraceReader, SkipsMetadataThatIsNestedWithoutEnd) {
  TempFile file;
  const auto nested = [](size_t depth) {
    std::string text;
    for (size_t i = 0; i < depth; ++i) text += R"({"a":)";
    return text + "1" + std::string(depth, '}');
  };
  {
    auto writer = TraceWriter::Create(file.path());
    ASSERT_TRUE(writer.ok());
    (*writer)->AppendMetadata(nested(50'000));
    (*writer)->AppendMetadata(nested(65));
    (*writer)->AppendMetadata(nested(2));
  }
  auto reader = OpenTrace(file.path());
  ASSERT_TRUE(reader.ok());
  ReadAll(**reader);
  EXPECT_EQ((*reader)->metadata_json(), R"({"a":{"a":1}})");
  ASSERT_EQ((*reader)->health().notes.size(), 2u);
  EXPECT_NE((*reader)->health().notes[0].find("not a JSON object of at most 64 levels"), std::string::npos);
}

TEST(TraceReader, KeepsAHundredSentencesAndCountsTheRest) {
  TempFile file;
  {
    auto writer = TraceWriter::Create(file.path());
    ASSERT_TRUE(writer.ok());
    ControlRecord head{};
    head.kind = static_cast<uint8_t>(RecordKind::kString);
    head.b = 500;  // and no part of it follows
    for (int i = 0; i < 1000; ++i) (*writer)->Append(head);
  }
  auto reader = OpenTrace(file.path());
  ASSERT_TRUE(reader.ok());
  EXPECT_TRUE(ReadAll(**reader).empty());
  ASSERT_EQ((*reader)->health().notes.size(), 101u);
  EXPECT_EQ((*reader)->health().notes[100], "900 more such sentences are left out");
}

// A slot in use without a record: what is missing before it is lost all the same.
TEST(TraceReader, CountsWhatIsMissingBeforeAnEmptySlot) {
  constexpr uint64_t kSlotBytes = sizeof(SlotHeader) + 4 * kRecordBytes;
  const auto lost = [&](std::vector<std::pair<uint64_t, int>> slots) {  // sequence number, records
    std::vector<char> bytes(kFileHeaderBytes + sizeof(ChunkHeader) + slots.size() * kSlotBytes);
    FileHeader header{};
    std::memcpy(header.magic, kTraceMagic, sizeof(kTraceMagic));
    header.version = kFormatVersion;
    header.min_reader_version = kMinReaderVersion;
    header.header_bytes = kFileHeaderBytes;
    header.state = static_cast<uint32_t>(TraceState::kOpen);
    std::memcpy(bytes.data(), &header, sizeof(header));
    ChunkHeader ring{};
    ring.type = static_cast<uint32_t>(ChunkType::kRing);
    ring.slot_count = static_cast<uint32_t>(slots.size());
    ring.slot_bytes = kSlotBytes;
    ring.payload_bytes = slots.size() * kSlotBytes;
    ring.header_crc32 = crc32(0, reinterpret_cast<const Bytef*>(&ring), offsetof(ChunkHeader, header_crc32));
    std::memcpy(bytes.data() + kFileHeaderBytes, &ring, sizeof(ring));
    for (size_t i = 0; i < slots.size(); ++i) {
      char* at = bytes.data() + kFileHeaderBytes + sizeof(ring) + i * kSlotBytes;
      SlotHeader slot{};
      slot.ordinal_plus_one = i + 1;
      slot.first_sequence = slots[i].first;
      std::memcpy(at, &slot, sizeof(slot));
      for (int r = 0; r < slots[i].second; ++r) {
        const MemoryRecord record = Memory(RecordKind::kAlloc, 512, 512);
        std::memcpy(at + sizeof(slot) + static_cast<size_t>(r) * kRecordBytes, &record, sizeof(record));
      }
    }
    TempFile file;
    file.Write(bytes);
    auto reader = OpenTrace(file.path());
    EXPECT_TRUE(reader.ok()) << reader.status();
    ReadAll(**reader);
    for (int again = 0; again < 3; ++again) EXPECT_EQ((*reader)->Next(), nullptr);
    return (*reader)->health().lost_records;
  };
  EXPECT_EQ(lost({{0, 4}, {4, 2}}), 0u);
  EXPECT_EQ(lost({{0, 4}, {1000, 0}}), 996u);
  EXPECT_EQ(lost({{0, 0}, {1000, 4}}), 1000u);
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

TEST(TraceReader, RefusesWhatIsNoTraceOrTooNew) {
  TempFile file;
  EXPECT_EQ(OpenTrace("/nonexistent").status().message(), "cannot open '/nonexistent': No such file or directory");
  file.Write({});
  EXPECT_FALSE(OpenTrace(file.path()).ok());
  file.Write(std::vector<char>(5000, 'a'));
  EXPECT_EQ(OpenTrace(file.path()).status().message(),
            "'" + file.path() + "' is not a vramledger trace: the first 8 bytes are not 'VRAMLDGR' (5000 bytes in all)");
  { auto writer = TraceWriter::Create(file.path()); }
  auto bytes = file.Read();
  bytes[8] = 9;   // version
  bytes[12] = 8;  // oldest reader
  file.Write(bytes);
  EXPECT_EQ(OpenTrace(file.path()).status().message(),
            "'" + file.path() + "' has trace format version 9, which needs a reader of version 8 or newer; this one reads up to version 3");
}

// Versions 1 and 2 hold rows where version 3 holds byte columns.
TEST(TraceReader, ReadsOlderVersions) {
  const struct {
    const char* name;
    size_t events;
  } kFiles[] = {{"traces/dcgan_b128.vlt", 2321}, {"old_traces/dcgan_version_2.vlt", 2458}};
  for (const auto& file : kFiles) {
    auto reader = OpenTrace(std::string(VRAMLEDGER_TEST_DATA) + "/" + file.name);
    ASSERT_TRUE(reader.ok()) << reader.status();
    const auto events = ReadAll(**reader);
    EXPECT_EQ(events.size(), file.events) << file.name;
    EXPECT_EQ((*reader)->health().damage, "");
    EXPECT_EQ(std::count_if(events.begin(), events.end(), [](const Event& e) { return e.kind == RecordKind::kAlloc; }), 803);
  }
}

TEST(ByteColumns, HoldByteJOfEveryRecordAndComeBack) {
  std::mt19937 random(5);
  for (const size_t records : {0, 1, 15, 16, 63, 64, 65, 127, 128, 1000}) {
    std::vector<uint8_t> rows(records * kRecordBytes), columns(rows.size()), back(rows.size());
    for (uint8_t& byte : rows) byte = static_cast<uint8_t>(random());
    RowsToColumns(rows.data(), records, columns.data());
    for (size_t r = 0; r < records; ++r) {
      for (size_t j = 0; j < kRecordBytes; ++j) ASSERT_EQ(columns[j * records + r], rows[r * kRecordBytes + j]) << r << ' ' << j;
    }
    ColumnsToRows(columns.data(), records, back.data());
    EXPECT_EQ(back, rows);
  }
}

// What a chunk header says of its length must not lead back to the file's start.
TEST(TraceReader, AChunkLongerThanAnyFileEndsTheTrace) {
  for (const ChunkType type : {ChunkType::kRing, ChunkType::kColumns, static_cast<ChunkType>(0x21212121)}) {
    TempFile file;
    { auto writer = TraceWriter::Create(file.path()); }
    auto bytes = file.Read();
    bytes.resize(2 * kFileHeaderBytes);
    ChunkHeader chunk{};
    chunk.type = static_cast<uint32_t>(type);
    chunk.payload_bytes = 0 - uint64_t{2 * kFileHeaderBytes} - 100;
    chunk.slot_count = 1;
    chunk.slot_bytes = sizeof(SlotHeader) + kRecordBytes;
    chunk.records = 1;
    chunk.header_crc32 = crc32(0, reinterpret_cast<const Bytef*>(&chunk), offsetof(ChunkHeader, header_crc32));
    std::memcpy(bytes.data() + kFileHeaderBytes, &chunk, sizeof(chunk));
    file.Write(bytes);
    auto reader = OpenTrace(file.path());
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_TRUE(ReadAll(**reader).empty());
    EXPECT_LE((*reader)->health().notes.size(), 3u);
    EXPECT_NE((*reader)->health().damage.find("chunk at offset 4096 is cut off"), std::string::npos);
  }
}

TEST(TraceReader, TruncationAndBitFlipsAreReportedAndNeverCrash) {
  TempFile file;
  TraceWriterOptions options;
  options.records_per_slot = 256;
  options.initial_slots = 2;
  {
    auto writer = TraceWriter::Create(file.path(), options);
    for (uint64_t i = 0; i < 3000; ++i) {
      (*writer)->Append(Memory(RecordKind::kAlloc, 512 * (i + 1), 512));
      if (i % 100 == 0) (*writer)->InternString("name " + std::to_string(i));
    }
  }
  const auto whole = file.Read();
  std::mt19937 random(11);
  int readable = 0;
  for (int round = 0; round < 600; ++round) {
    auto bytes = whole;
    if (round % 2 == 0) {
      bytes.resize(random() % bytes.size());
    } else {
      // Flip where it matters: headers and sealed chunks, not the punched hole.
      for (int i = 0; i < 3; ++i) bytes[(round % 4 == 1) ? random() % 4096 : random() % bytes.size()] ^= static_cast<char>(1 << (random() % 8));
    }
    file.Write(bytes);
    auto reader = OpenTrace(file.path());
    if (!reader.ok()) {
      EXPECT_FALSE(reader.status().message().empty());
      continue;
    }
    ++readable;
    const auto events = ReadAll(**reader);
    EXPECT_LE(events.size(), 3000u);
    if (events.size() < 3000u) {
      EXPECT_FALSE((*reader)->health().notes.empty());
      // The header's own state may have been flipped to "open", which reads like a kill.
      if (round % 2 == 0) {
        EXPECT_NE((*reader)->health().damage, "");
      }
    }
  }
  EXPECT_GT(readable, 100);
}

}  // namespace
}  // namespace vramledger
