#include "tracer/format/trace_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "tracer/format/bounded_json.h"
#include "tracer/format/chunk_loader.h"

namespace vramledger {
namespace {

constexpr uint64_t kChunkAlign = 4096;
// Limits on what a file may ask for, far above what the writer makes: a hostile header must not cost memory.
constexpr uint64_t kMaxRecordsPerChunk = 1u << 20;
constexpr uint64_t kMaxPackedBytes = 64u << 20;
constexpr uint64_t kMaxSlots = 1u << 16;
constexpr size_t kMaxMetadataBytes = 64u << 20;
constexpr size_t kMaxNotes = 100;

constexpr const char* kLossNames[] = {"the buffer was full", "the disk was full", "they belong to a forked child",
                                      "a text was too long", "a table was full"};

class TraceReader : public EventSource {
 public:
  TraceReader(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  ~TraceReader() override {
    loader_.reset();  // its thread reads from the file
    ::close(fd_);
  }

  absl::Status Initialize(EventFollower follow);
  std::string_view String(uint32_t id) const override {
    const auto it = strings_.find(id);
    return it == strings_.end() ? std::string_view() : std::string_view(it->second);
  }
  const std::string& metadata_json() const override {
    if (metadata_changed_) {
      metadata_text_ = metadata_.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      metadata_changed_ = false;
    }
    return metadata_text_;
  }
  const SourceHealth& health() const override { return health_; }
  std::string_view format() const override { return "trace"; }

 protected:
  std::span<const Event> NextBatch() override;

 private:
  absl::Status ScanChunks(uint64_t file_bytes);
  // Whether a closed trace ends where its last chunk does, at `end`.
  void ExpectNothingAfter(uint64_t end, uint64_t file_bytes);
  // At the end and at damage.
  void Finish();
  void Damaged(std::string sentence) {
    if (health_.damage.empty()) health_.damage = absl::StrCat("'", path_, "' is damaged: ", sentence);
    health_.notes.push_back(std::move(sentence));
    health_.ended_early = true;
  }
  // A part that a killed writer may well have left unfinished is no damage.
  void CutOff(std::string sentence) {
    if (header_.state == static_cast<uint32_t>(TraceState::kClosed)) return Damaged(std::move(sentence));
    health_.notes.push_back(std::move(sentence));
    health_.ended_early = true;
  }
  void Absorb(DecodedText* text);
  void Note(std::string sentence) {
    if (health_.notes.size() < kMaxNotes)
      health_.notes.push_back(std::move(sentence));
    else
      ++more_notes_;
  }

  const std::string path_;
  const int fd_;
  FileHeader header_{};
  std::vector<TracePiece> pieces_;
  std::optional<ChunkLoader> loader_;  // once the pieces are known
  LoadedBatch loaded_;
  std::optional<uint64_t> expected_sequence_;
  uint64_t gap_records_ = 0;
  uint64_t more_notes_ = 0;
  bool finished_ = false;
  absl::flat_hash_map<uint32_t, std::string> strings_;
  nlohmann::json metadata_ = nlohmann::json::object();
  mutable std::string metadata_text_ = "{}";  // of metadata_, unless that has changed since
  mutable bool metadata_changed_ = false;
  size_t metadata_bytes_ = 0;
  SourceHealth health_;
};

absl::Status TraceReader::Initialize(EventFollower follow) {
  struct stat info {};
  if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("'", path_, "' is not a regular file"));
  }
  const auto file_bytes = static_cast<uint64_t>(info.st_size);
  if (file_bytes < sizeof(FileHeader) || !ReadFully(fd_, &header_, sizeof(header_), 0) ||
      std::memcmp(header_.magic, kTraceMagic, sizeof(kTraceMagic)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", path_, "' is not a vramledger trace: the first 8 bytes are not 'VRAMLDGR' (", file_bytes, " bytes in all)"));
  }
  if (header_.min_reader_version > kFormatVersion) {
    return absl::InvalidArgumentError(absl::StrCat("'", path_, "' has trace format version ", header_.version,
                                                   ", which needs a reader of version ", header_.min_reader_version,
                                                   " or newer; this one reads up to version ", kFormatVersion));
  }
  if (header_.header_bytes < sizeof(FileHeader) || header_.header_bytes % kChunkAlign != 0 || header_.header_bytes > file_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("'", path_, "' is damaged at offset 20: header size ", header_.header_bytes,
                                                   " does not fit a file of ", file_bytes, " bytes"));
  }
  for (uint32_t i = 0; i < kLossCauseCount; ++i) {
    const uint64_t n = header_.losses[i];
    if (n == 0) continue;
    const char* why = i < std::size(kLossNames) ? kLossNames[i] : "of a cause this reader does not know";
    health_.lost_records += n;
    health_.notes.push_back(absl::StrCat(n, " records were lost because ", why));
  }
  if (absl::Status status = ScanChunks(file_bytes); !status.ok()) return status;
  loader_.emplace(fd_, pieces_, std::move(follow));
  if (header_.state != static_cast<uint32_t>(TraceState::kClosed)) {
    health_.ended_early = true;
    health_.notes.push_back("the trace ended early: the program was killed or is still running");
  } else if (pieces_.size() < header_.total_chunks && header_.losses[static_cast<uint32_t>(LossCause::kDiskFull)] == 0) {
    // Chunks that the disk had no room for are counted losses, not damage.
    Damaged(absl::StrCat(header_.total_chunks - pieces_.size(), " of ", header_.total_chunks, " chunks of records are missing"));
  }
  return absl::OkStatus();
}

void TraceReader::ExpectNothingAfter(uint64_t end, uint64_t file_bytes) {
  if (header_.state != static_cast<uint32_t>(TraceState::kClosed) || !health_.damage.empty()) return;
  // The writer leaves less than a page of zeros; whatever is joined to a file shows in its first bytes.
  std::array<char, 4 * kChunkAlign> bytes{};
  const size_t n = std::min<uint64_t>(bytes.size(), file_bytes - std::min(file_bytes, end));
  if (!ReadFully(fd_, bytes.data(), n, end)) return;
  const auto other = std::find_if(bytes.begin(), bytes.begin() + n, [](char c) { return c != 0; });
  if (other == bytes.begin() + n) return;
  const uint64_t at = end + static_cast<uint64_t>(other - bytes.begin());
  Damaged(absl::StrCat("after the end of the trace, at offset ", at, ", follow ", file_bytes - at, " bytes that are not of it; they were not read"));
}

absl::Status TraceReader::ScanChunks(uint64_t file_bytes) {
  std::vector<TracePiece> slots;
  uint64_t offset = header_.header_bytes;
  uint64_t end = offset;
  while (offset < file_bytes) {
    ChunkHeader chunk{};
    const bool whole = offset + sizeof(chunk) <= file_bytes && ReadFully(fd_, &chunk, sizeof(chunk), offset);
    const uint64_t crc = whole ? crc32(0, reinterpret_cast<const Bytef*>(&chunk), offsetof(ChunkHeader, header_crc32)) : 0;
    if (!whole || chunk.header_crc32 != crc) {
      static constexpr ChunkHeader kNothing{};
      if (whole && std::memcmp(&chunk, &kNothing, sizeof(chunk)) == 0) break;  // space that was reserved and never used
      CutOff(absl::StrCat("chunk header at offset ", offset, whole ? " is damaged" : " is cut off", "; what follows it was not read"));
      break;
    }
    const auto type = static_cast<ChunkType>(chunk.type);
    const uint64_t payload_offset = offset + sizeof(chunk);
    const bool whole_payload = chunk.payload_bytes <= file_bytes - payload_offset;
    if (!whole_payload) {
      std::string sentence = absl::StrCat("chunk at offset ", offset, " is cut off: it says ", chunk.payload_bytes, " bytes, ",
                                          file_bytes - payload_offset, " are there", IsSealed(type) ? absl::StrCat("; its ", chunk.records, " records, and what follows, are lost") : "");
      // A chunk's header is written once its bytes are there, by a killed writer too; a running one may have made the file longer meanwhile.
      struct stat now {};
      if (::fstat(fd_, &now) == 0 && static_cast<uint64_t>(now.st_size) > file_bytes) {
        CutOff(std::move(sentence));
      } else {
        Damaged(std::move(sentence));
      }
      if (IsSealed(type)) break;
    }
    if (IsSealed(type)) {
      if (chunk.records > kMaxRecordsPerChunk || chunk.payload_bytes > kMaxPackedBytes) {
        return absl::InvalidArgumentError(absl::StrCat("'", path_, "' is damaged: chunk at offset ", offset, " claims ", chunk.records,
                                                       " records in ", chunk.payload_bytes, " bytes, more than the format allows"));
      }
      pieces_.push_back({chunk.ordinal, chunk.first_sequence, payload_offset, chunk.payload_bytes, chunk.records, chunk.crc32, type});
    } else if (type == ChunkType::kRing) {
      const uint64_t record_bytes = chunk.slot_bytes < sizeof(SlotHeader) ? 0 : chunk.slot_bytes - sizeof(SlotHeader);
      if (record_bytes == 0 || record_bytes % kRecordBytes != 0 || record_bytes / kRecordBytes > kMaxRecordsPerChunk ||
          chunk.slot_count > kMaxSlots) {
        return absl::InvalidArgumentError(absl::StrCat("'", path_, "' is damaged: ring at offset ", offset, " has ", chunk.slot_count,
                                                       " slots of ", chunk.slot_bytes, " bytes, which the format does not allow"));
      }
      for (uint32_t i = 0; i < chunk.slot_count; ++i) {
        const uint64_t at = payload_offset + i * chunk.slot_bytes;
        SlotHeader slot{};
        if (!ReadFully(fd_, &slot, sizeof(slot), at)) break;
        if (slot.ordinal_plus_one == 0) continue;
        const uint64_t available = std::min<uint64_t>(record_bytes, file_bytes - std::min(file_bytes, at + sizeof(slot)));
        slots.push_back({slot.ordinal_plus_one - 1, slot.first_sequence, at + sizeof(slot), available / kRecordBytes * kRecordBytes,
                         static_cast<uint32_t>(available / kRecordBytes), 0, ChunkType::kRing});
      }
    } else {
      Note(absl::StrCat("chunk at offset ", offset, " has an unknown type and was skipped"));
    }
    if (!whole_payload) break;  // nothing can follow, and what it says must not be added to
    end = payload_offset + chunk.payload_bytes;
    offset = (end + kChunkAlign - 1) / kChunkAlign * kChunkAlign;
  }
  ExpectNothingAfter(end, file_bytes);
  // A process killed between writing a sealed chunk and clearing its slot leaves both: the sealed one is whole.
  pieces_.insert(pieces_.end(), slots.begin(), slots.end());
  std::stable_sort(pieces_.begin(), pieces_.end(), [](const TracePiece& x, const TracePiece& y) { return x.ordinal < y.ordinal; });
  pieces_.erase(std::unique(pieces_.begin(), pieces_.end(), [](const TracePiece& x, const TracePiece& y) { return x.ordinal == y.ordinal; }),
                pieces_.end());
  return absl::OkStatus();
}

std::span<const Event> TraceReader::NextBatch() {
  do {
    if (finished_ || !loader_->Next(&loaded_) || !loaded_.error.empty()) {
      Finish();
      return {};
    }
    if (expected_sequence_ && loaded_.first_sequence > *expected_sequence_)
      gap_records_ += loaded_.first_sequence - *expected_sequence_;
    expected_sequence_ = loaded_.first_sequence + loaded_.records;
    for (DecodedText& text : loaded_.decoded.texts) Absorb(&text);
    // A text cut by the end of a killed trace is the one record that may be lost; elsewhere it is damage.
    if (!loaded_.of_last_piece || header_.state == static_cast<uint32_t>(TraceState::kClosed)) {
      for (const uint64_t sequence : loaded_.decoded.cut_texts)
        Note(absl::StrCat("record ", sequence, " is a text whose parts are missing; it was skipped"));
    }
  } while (loaded_.decoded.count == 0);
  return loaded_.decoded.events();
}

void TraceReader::Finish() {
  if (std::exchange(finished_, true)) return;
  if (!loaded_.error.empty()) Damaged(loaded_.error);
  if (more_notes_ != 0) health_.notes.push_back(absl::StrCat(more_notes_, " more such sentences are left out"));
  if (gap_records_ == 0) return;
  health_.notes.push_back(absl::StrCat(gap_records_, " record numbers are missing in between"));
  health_.lost_records = std::max(health_.lost_records, gap_records_);
}

void TraceReader::Absorb(DecodedText* text) {
  if (text->kind == RecordKind::kString) {
    strings_[text->id] = std::move(text->text);
    return;
  }
  metadata_bytes_ += text->text.size();
  const std::optional<nlohmann::json> patch = ParseBoundedJson(text->text);
  if (!patch || !patch->is_object() || metadata_bytes_ > kMaxMetadataBytes) {
    Note(absl::StrCat("a metadata record is not a JSON object of at most ", kMaxJsonDepth, " levels and was skipped (record ", text->end_sequence, ")"));
    return;
  }
  metadata_.merge_patch(*patch);
  metadata_changed_ = true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<EventSource>> OpenTrace(const std::string& path, EventFollower follow) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::NotFoundError(absl::StrCat("cannot open '", path, "': ", std::strerror(errno)));
  auto reader = std::make_unique<TraceReader>(path, fd);
  if (absl::Status status = reader->Initialize(std::move(follow)); !status.ok()) return status;
  return reader;
}

bool LooksLikeTrace(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char magic[sizeof(kTraceMagic)];
  const bool ok = ReadFully(fd, magic, sizeof(magic), 0) && std::memcmp(magic, kTraceMagic, sizeof(magic)) == 0;
  ::close(fd);
  return ok;
}

}  // namespace vramledger
