// Records to events and texts, in batches of any size.
#include "tracer/format/record_decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace vramledger {
namespace {

class Rows {
 public:
  template <typename Record>
  void Add(const Record& record) {
    static_assert(sizeof(Record) == kRecordBytes);
    const size_t at = bytes.size();
    bytes.resize(at + kRecordBytes);
    std::memcpy(bytes.data() + at, &record, kRecordBytes);
  }
  void AddAlloc(uint64_t address) {
    MemoryRecord r{};
    r.kind = static_cast<uint8_t>(RecordKind::kAlloc);
    Store48(r.address48, address / kAddressUnit);
    r.blocks = 3;
    r.slack = 36;
    Add(r);
  }
  // `parts`: how many of its continuations are there.
  void AddText(RecordKind kind, uint32_t id, const std::string& text, size_t parts) {
    ControlRecord head{};
    head.kind = static_cast<uint8_t>(kind);
    head.a = id;
    head.b = text.size();
    Add(head);
    for (size_t i = 0; i < parts; ++i) {
      ContinuationRecord part{};
      part.kind = static_cast<uint8_t>(RecordKind::kContinuation);
      text.copy(part.text, kContinuationBytes, i * kContinuationBytes);
      Add(part);
    }
  }
  size_t count() const { return bytes.size() / kRecordBytes; }

  std::vector<uint8_t> bytes;
};

struct Whole {
  std::vector<uint64_t> sequences, addresses, cut, text_ends;
  std::vector<std::string> texts;

  bool operator==(const Whole&) const = default;
};

Whole InBatches(const Rows& rows, size_t limit) {
  Whole whole;
  DecodedRecords batch;
  for (size_t at = 0; at < rows.count();) {
    const size_t next = DecodeRecords(rows.bytes, at, limit, 1000, &batch);
    EXPECT_GT(next, at);
    EXPECT_LE(batch.count, limit);
    at = next;
    for (const Event& e : batch.events()) {
      whole.sequences.push_back(e.sequence);
      whole.addresses.push_back(e.address);
    }
    whole.cut.insert(whole.cut.end(), batch.cut_texts.begin(), batch.cut_texts.end());
    for (const DecodedText& text : batch.texts) {
      whole.texts.push_back(text.text);
      whole.text_ends.push_back(text.end_sequence);
    }
  }
  return whole;
}

TEST(RecordDecoder, TakesBlocksAndTextsApart) {
  Rows rows;
  rows.AddAlloc(4096);
  rows.AddText(RecordKind::kString, 7, std::string(40, 'x'), 2);
  rows.AddAlloc(8192);
  DecodedRecords batch;
  EXPECT_EQ(DecodeRecords(rows.bytes, 0, 100, 10, &batch), 5u);
  ASSERT_EQ(batch.count, 2u);
  EXPECT_EQ(batch.events()[0].rounded_bytes, 1536u);
  EXPECT_EQ(batch.events()[0].requested_bytes, 1500u);
  EXPECT_EQ(batch.events()[1].address, 8192u);
  EXPECT_EQ(batch.events()[1].sequence, 14u);
  ASSERT_EQ(batch.texts.size(), 1u);
  EXPECT_EQ(batch.texts[0].id, 7u);
  EXPECT_EQ(batch.texts[0].text, std::string(40, 'x'));
  EXPECT_EQ(batch.texts[0].end_sequence, 14u);
}

TEST(RecordDecoder, ATextThatIsNotWholeIsNamedByItsRecord) {
  Rows rows;
  rows.AddText(RecordKind::kString, 1, std::string(100, 'y'), 2);  // of 4
  rows.AddAlloc(512);
  EXPECT_EQ(InBatches(rows, 100).cut, std::vector<uint64_t>{1000});
  EXPECT_EQ(InBatches(rows, 100).addresses, std::vector<uint64_t>{512});
  Rows end;
  end.AddAlloc(512);
  end.AddText(RecordKind::kMeta, 0, std::string(100, 'y'), 1);
  EXPECT_EQ(InBatches(end, 1).cut, std::vector<uint64_t>{1001});
}

TEST(RecordDecoder, BatchesOfAnySizeGiveTheSame) {
  std::mt19937 random(5);
  Rows rows;
  while (rows.count() < 300) {
    const size_t length = random() % 120;
    const size_t parts = (length + kContinuationBytes - 1) / kContinuationBytes;
    switch (random() % 4) {
      case 0:
        rows.AddText(random() % 2 == 0 ? RecordKind::kString : RecordKind::kMeta, random(), std::string(length, 'z'),
                     random() % 8 == 0 ? parts / 2 : parts);
        break;
      case 1: {  // anything at all
        std::vector<uint8_t> noise(kRecordBytes);
        std::generate(noise.begin(), noise.end(), [&] { return static_cast<uint8_t>(random()); });
        rows.bytes.insert(rows.bytes.end(), noise.begin(), noise.end());
        break;
      }
      default:
        rows.AddAlloc(512 * (random() % 1000));
    }
  }
  const Whole whole = InBatches(rows, rows.count());
  EXPECT_FALSE(whole.texts.empty());
  EXPECT_FALSE(whole.cut.empty());
  for (size_t limit = 1; limit < 64; ++limit) EXPECT_EQ(InBatches(rows, limit), whole) << limit;
}

}  // namespace
}  // namespace vramledger
