#include "tracer/format/chunk_loader.h"

#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tracer/format/byte_columns.h"

namespace vramledger {
namespace {

constexpr size_t kPiecesWorthAThread = 4;

// After a read that gave less than was asked for.
const char* WhyNot() { return errno != 0 ? std::strerror(errno) : "the file ends before"; }

}  // namespace

bool ReadFully(int fd, void* out, size_t bytes, uint64_t offset) {
  char* p = static_cast<char*>(out);
  errno = 0;
  while (bytes > 0) {
    const ssize_t n = ::pread(fd, p, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    p += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

ChunkLoader::~ChunkLoader() {
  {
    std::lock_guard<std::mutex> guard(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::string ChunkLoader::Load(const TracePiece& piece) {
  const size_t raw_bytes = size_t{piece.records} * kRecordBytes;
  rows_.resize(raw_bytes);
  if (piece.type == ChunkType::kRing) {
    if (!ReadFully(fd_, rows_.data(), raw_bytes, piece.offset))
      return absl::StrCat("slot at offset ", piece.offset, " could not be read: ", WhyNot());
    size_t records = piece.records;
    while (records > 0 && rows_[(records - 1) * kRecordBytes] == 0) --records;
    rows_.resize(records * kRecordBytes);
    return {};
  }
  const uint64_t chunk = piece.offset - sizeof(ChunkHeader);
  packed_.resize(piece.payload_bytes);
  if (!ReadFully(fd_, packed_.data(), packed_.size(), piece.offset))
    return absl::StrCat("chunk at offset ", chunk, " could not be read: ", WhyNot());
  const bool in_columns = piece.type == ChunkType::kColumns;
  if (in_columns) columns_.resize(raw_bytes);
  std::vector<uint8_t>& raw = in_columns ? columns_ : rows_;
  bool sound = !in_columns || crc32_z(0, packed_.data(), packed_.size()) == piece.crc;
  sound = sound && ZSTD_decompress(raw.data(), raw_bytes, packed_.data(), packed_.size()) == raw_bytes;
  if (in_columns) {
    ColumnsToRows(columns_.data(), piece.records, rows_.data());
  } else {
    sound = sound && crc32_z(0, raw.data(), raw_bytes) == piece.crc;
  }
  if (sound) return {};
  return absl::StrCat("chunk at offset ", chunk, " is damaged (checksum or compression); reading stopped there");
}

bool ChunkLoader::Make(LoadedBatch* out) {
  out->error.clear();
  out->decoded.count = 0;
  try {
    if (row_ * kRecordBytes == rows_.size()) {
      if (piece_ == pieces_.size()) return false;
      row_ = 0;
      out->error = Load(pieces_[piece_++]);
    }
    if (out->error.empty()) Decode(out);  // of a piece without records too: its number says what is missing before it
  } catch (const std::exception& failure) {
    const bool memory = dynamic_cast<const std::bad_alloc*>(&failure) != nullptr;
    out->error = absl::StrCat("chunk at offset ", pieces_[piece_ - 1].offset - sizeof(ChunkHeader), " could not be ",
                              memory ? "held in memory" : "read", " (", failure.what(), ")");
  }
  if (!out->error.empty()) {  // nothing is read beyond it
    out->decoded.count = 0;
    piece_ = pieces_.size();
    row_ = 0;
    rows_.clear();
  }
  return true;
}

void ChunkLoader::Decode(LoadedBatch* out) {
  const uint64_t sequence = pieces_[piece_ - 1].first_sequence;
  const size_t first = row_;
  row_ = DecodeRecords(rows_, first, kBatchRecords, sequence, &out->decoded);
  out->first_sequence = sequence + first;
  out->records = row_ - first;
  out->of_last_piece = piece_ == pieces_.size();
  if (follow_ != nullptr) follow_(out->decoded.events());
}

void ChunkLoader::Run() {
  try {
    MakeAll();
  } catch (const std::exception&) {  // no memory, not even for the sentence that says so
    const std::lock_guard<std::mutex> guard(mutex_);
    failed_ = all_made_ = true;
  }
  changed_.notify_all();
}

void ChunkLoader::MakeAll() {
  for (bool more = true; more;) {
    LoadedBatch batch;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || ready_.size() < kAhead; });
      if (stop_) return;
      if (!spare_.empty()) {
        batch = std::move(spare_.back());
        spare_.pop_back();
      }
    }
    more = Make(&batch);
    {
      std::lock_guard<std::mutex> guard(mutex_);
      if (more)
        ready_.push_back(std::move(batch));
      else
        all_made_ = true;
    }
    changed_.notify_all();
  }
}

bool ChunkLoader::Next(LoadedBatch* out) {
  if (pieces_.size() < kPiecesWorthAThread) return Make(out);
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return all_made_ || !ready_.empty(); });
  if (ready_.empty()) {
    if (!std::exchange(failed_, false)) return false;
    *out = LoadedBatch();
    out->error = "there was no memory to read on";
    return true;
  }
  spare_.push_back(std::move(*out));
  *out = std::move(ready_.front());
  ready_.pop_front();
  lock.unlock();
  changed_.notify_all();
  return true;
}

}  // namespace vramledger
