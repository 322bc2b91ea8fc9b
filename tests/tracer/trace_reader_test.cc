// The reader of trace files: what is damaged, cut off, hostile, older or newer.
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/tracer/temp_file.h"
#include "tests/tracer/trace_records.h"
#include "tracer/format/byte_columns.h"
#include "tracer/format/record.h"
#include "tracer/format/trace_reader.h"
#include "tracer/format/trace_writer.h"

namespace vramledger {
namespace {

using testing::Memory;
using testing::ReadAll;

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

// As a trace lies while its sealed chunks are moved to where its ring was: the ring has no slots any more, and bytes of chunks in them.
TEST(TraceReader, ReadsEachRecordOnceWhileChunksAreMoved) {
  TempFile file;
  {
    auto writer = TraceWriter::Create(file.path());
    for (uint64_t i = 0; i < 5000; ++i) (*writer)->Append(Memory(RecordKind::kAlloc, 512 * (i + 1), 512));
  }
  const auto moved = file.Read();
  const std::vector<char> chunks(moved.begin() + kFileHeaderBytes, moved.end());
  const size_t room = (chunks.size() + 4095) / 4096 * 4096;
  ChunkHeader ring{};
  ring.type = static_cast<uint32_t>(ChunkType::kRing);
  ring.slot_bytes = sizeof(SlotHeader) + 4 * kRecordBytes;
  ring.payload_bytes = room - sizeof(ring);
  ring.header_crc32 = crc32(0, reinterpret_cast<const Bytef*>(&ring), offsetof(ChunkHeader, header_crc32));
  std::vector<char> bytes(kFileHeaderBytes + room);
  std::copy(moved.begin(), moved.begin() + kFileHeaderBytes, bytes.begin());
  std::copy(chunks.begin(), chunks.end(), bytes.begin() + kFileHeaderBytes);
  std::memcpy(bytes.data() + kFileHeaderBytes, &ring, sizeof(ring));
  bytes.insert(bytes.end(), chunks.begin(), chunks.end());
  file.Write(bytes);
  auto reader = OpenTrace(file.path());
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(ReadAll(**reader).size(), 5000u);
  EXPECT_EQ((*reader)->health().lost_records, 0u);
  EXPECT_EQ((*reader)->health().damage, "");
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
