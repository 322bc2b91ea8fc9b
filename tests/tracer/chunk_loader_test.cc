// Batches ahead of their use: in order, whole up to damage, and over when they are over, on a thread or not.
#include "tracer/format/chunk_loader.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/tracer/temp_file.h"

namespace vramledger {
namespace {

constexpr uint32_t kRecords = 10;  // in a piece

// The parameter: how many pieces, few (no thread) or many.
class ChunkLoaderTest : public ::testing::TestWithParam<size_t> {
 protected:
  ChunkLoaderTest() {
    std::vector<char> bytes;
    for (size_t i = 0; i < GetParam() * kRecords; ++i) {
      MemoryRecord r{};
      r.kind = static_cast<uint8_t>(RecordKind::kAlloc);
      Store48(r.address48, 512 * (i + 1) / kAddressUnit);
      const size_t at = bytes.size();
      bytes.resize(at + sizeof(r));
      std::memcpy(bytes.data() + at, &r, sizeof(r));
    }
    file_.Write(bytes);
    fd_ = ::open(file_.path().c_str(), O_RDONLY);
    for (size_t i = 0; i < GetParam(); ++i) {
      constexpr uint64_t kBytes = kRecords * kRecordBytes;
      pieces_.push_back({i, i * kRecords, i * kBytes, kBytes, kRecords, 0, ChunkType::kRing});
    }
  }
  ~ChunkLoaderTest() override { ::close(fd_); }

  // Of all events up to an error or the end.
  std::vector<uint64_t> Sequences(ChunkLoader& loader) {
    std::vector<uint64_t> out;
    LoadedBatch batch;
    while (loader.Next(&batch)) {
      error_ = batch.error;
      for (const Event& e : batch.decoded.events()) {
        EXPECT_EQ(e.address, 512 * (e.sequence + 1));
        out.push_back(e.sequence);
      }
    }
    for (int again = 0; again < 3; ++again) EXPECT_FALSE(loader.Next(&batch));
    return out;
  }
  static std::vector<uint64_t> UpTo(size_t count) {
    std::vector<uint64_t> out(count);
    for (size_t i = 0; i < count; ++i) out[i] = i;
    return out;
  }

  TempFile file_;
  int fd_ = -1;
  std::vector<TracePiece> pieces_;
  std::string error_;
};

TEST_P(ChunkLoaderTest, GivesEverythingInOrderAndShowsItToTheFollower) {
  std::vector<uint64_t> followed;
  ChunkLoader loader(fd_, pieces_, [&followed](std::span<Event> events) {
    for (Event& e : events) {
      followed.push_back(e.sequence);
      e.address = 512 * (e.sequence + 1);
    }
  });
  EXPECT_EQ(Sequences(loader), UpTo(GetParam() * kRecords));
  EXPECT_EQ(followed, UpTo(GetParam() * kRecords));
  EXPECT_EQ(error_, "");
}

TEST_P(ChunkLoaderTest, EndsAtAPieceThatCannotBeRead) {
  pieces_[2].offset = 1 << 20;
  ChunkLoader loader(fd_, pieces_, nullptr);
  EXPECT_EQ(Sequences(loader), UpTo(2 * kRecords));
  EXPECT_EQ(error_, "slot at offset 1048576 could not be read: the file ends before");
}

TEST_P(ChunkLoaderTest, EndsWhereTheFollowerFails) {
  ChunkLoader loader(fd_, pieces_, [](std::span<Event> events) {
    if (events.front().sequence == kRecords) throw std::runtime_error("made to fail");
  });
  EXPECT_EQ(Sequences(loader), UpTo(kRecords));
  EXPECT_NE(error_.find("could not be read (made to fail)"), std::string::npos) << error_;
}

TEST_P(ChunkLoaderTest, APieceWithoutRecordsStillHasItsNumber) {
  file_.Write({});  // all of the slots were never used
  std::vector<char> zeros(GetParam() * kRecords * kRecordBytes);
  file_.Write(zeros);
  ChunkLoader loader(fd_, pieces_, nullptr);
  LoadedBatch batch;
  for (size_t i = 0; i < GetParam(); ++i) {
    ASSERT_TRUE(loader.Next(&batch));
    EXPECT_EQ(batch.first_sequence, i * kRecords);
    EXPECT_EQ(batch.records, 0u);
    EXPECT_EQ(batch.of_last_piece, i + 1 == GetParam());
  }
  EXPECT_FALSE(loader.Next(&batch));
}

TEST_P(ChunkLoaderTest, CanBeLeftAtAnyPoint) {
  for (size_t taken = 0; taken <= GetParam(); ++taken) {
    ChunkLoader loader(fd_, pieces_, nullptr);
    LoadedBatch batch;
    for (size_t i = 0; i < taken; ++i) EXPECT_TRUE(loader.Next(&batch));
  }
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutAThread, ChunkLoaderTest, ::testing::Values(3, 12));

}  // namespace
}  // namespace vramledger
