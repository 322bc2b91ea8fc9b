#include "tracer/format/chunk_loader.h"

#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cerrno>
#include <cstring>
#include <exception>
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

void ChunkLoader::Load(const TracePiece& piece, LoadedPiece* out) {
  const size_t raw_bytes = size_t{piece.records} * kRecordBytes;
  out->records.resize(raw_bytes);
  out->first_sequence = piece.first_sequence;
  out->error.clear();
  if (piece.type == ChunkType::kRing) {
    if (!ReadFully(fd_, out->records.data(), raw_bytes, piece.offset)) {
      out->error = absl::StrCat("slot at offset ", piece.offset, " could not be read: ", WhyNot());
      return;
    }
    size_t records = piece.records;
    while (records > 0 && out->records[(records - 1) * kRecordBytes] == 0) --records;
    out->records.resize(records * kRecordBytes);
    return;
  }
  packed_.resize(piece.payload_bytes);
  if (!ReadFully(fd_, packed_.data(), packed_.size(), piece.offset)) {
    out->error = absl::StrCat("chunk at offset ", piece.offset - sizeof(ChunkHeader),
                              " could not be read: ", WhyNot());
    return;
  }
  const bool in_columns = piece.type == ChunkType::kColumns;
  if (in_columns) columns_.resize(raw_bytes);
  std::vector<uint8_t>& raw = in_columns ? columns_ : out->records;
  bool sound = !in_columns || crc32_z(0, packed_.data(), packed_.size()) == piece.crc;
  sound = sound && ZSTD_decompress(raw.data(), raw_bytes, packed_.data(), packed_.size()) == raw_bytes;
  if (in_columns) {
    ColumnsToRows(columns_.data(), piece.records, out->records.data());
  } else {
    sound = sound && crc32_z(0, raw.data(), raw_bytes) == piece.crc;
  }
  if (!sound) {
    out->error = absl::StrCat("chunk at offset ", piece.offset - sizeof(ChunkHeader),
                              " is damaged (checksum or compression); reading stopped there");
  }
}

void ChunkLoader::Run() {
  for (const TracePiece& piece : pieces_) {
    LoadedPiece loaded;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || ready_.size() < kAhead; });
      if (stop_) return;
      if (!spare_.empty()) {
        loaded = std::move(spare_.back());
        spare_.pop_back();
      }
    }
    try {
      Load(piece, &loaded);
    } catch (const std::exception& failure) {
      loaded.records.clear();
      loaded.error = absl::StrCat("chunk at offset ", piece.offset - sizeof(ChunkHeader), " could not be held in memory (", failure.what(), ")");
    }
    {
      std::lock_guard<std::mutex> guard(mutex_);
      ready_.push_back(std::move(loaded));
    }
    changed_.notify_all();
  }
}

bool ChunkLoader::Next(LoadedPiece* out) {
  if (next_ >= pieces_.size()) return false;
  if (pieces_.size() < kPiecesWorthAThread) {
    Load(pieces_[next_++], out);
    return true;
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return !ready_.empty(); });
  spare_.push_back(std::move(*out));
  *out = std::move(ready_.front());
  ready_.pop_front();
  ++next_;
  lock.unlock();
  changed_.notify_all();
  return true;
}

}  // namespace vramledger
