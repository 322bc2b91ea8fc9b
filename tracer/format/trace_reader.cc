#include "tracer/format/trace_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "tracer/format/chunk_loader.h"

namespace vramledger {
namespace {

constexpr uint64_t kChunkAlign = 4096;
// Limits on what a file may ask for, far above what the writer makes: a hostile header must not cost memory.
constexpr uint64_t kMaxRecordsPerChunk = 1u << 20;
constexpr uint64_t kMaxPackedBytes = 64u << 20;
constexpr uint64_t kMaxSlots = 1u << 16;
constexpr size_t kMaxMetadataBytes = 64u << 20;

constexpr const char* kLossNames[] = {"the buffer was full", "the disk was full", "they belong to a forked child",
                                      "a text was too long", "a table was full"};

class TraceReader : public EventSource {
 public:
  TraceReader(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  ~TraceReader() override {
    loader_.reset();  // its thread reads from the file
    ::close(fd_);
  }

  absl::Status Initialize();
  bool Next(Event* event) override;
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

 private:
  absl::Status ScanChunks(uint64_t file_bytes);
  // The next chunk's records; false at the end and at damage.
  bool LoadPiece();
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
  bool AbsorbText(const ControlRecord& head);
  void Decode(const uint8_t* slot, Event* event) const;

  const std::string path_;
  const int fd_;
  FileHeader header_{};
  std::vector<TracePiece> pieces_;
  std::optional<ChunkLoader> loader_;  // once the pieces are known
  LoadedPiece loaded_;
  size_t pieces_read_ = 0;
  uint32_t records_in_buffer_ = 0;
  uint32_t record_index_ = 0;
  uint64_t buffer_sequence_ = 0;
  std::optional<uint64_t> expected_sequence_;
  uint64_t gap_records_ = 0;
  bool finished_ = false;
  absl::flat_hash_map<uint32_t, std::string> strings_;
  nlohmann::json metadata_ = nlohmann::json::object();
  mutable std::string metadata_text_ = "{}";  // of metadata_, unless that has changed since
  mutable bool metadata_changed_ = false;
  size_t metadata_bytes_ = 0;
  SourceHealth health_;
};

absl::Status TraceReader::Initialize() {
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
  if (header_.state != static_cast<uint32_t>(TraceState::kClosed)) {
    health_.ended_early = true;
    health_.notes.push_back("the trace ended early: the program was killed or is still running");
  } else if (pieces_.size() < header_.total_chunks && header_.losses[static_cast<uint32_t>(LossCause::kDiskFull)] == 0) {
    // Chunks that the disk had no room for are counted losses, not damage.
    Damaged(absl::StrCat(header_.total_chunks - pieces_.size(), " of ", header_.total_chunks, " chunks of records are missing"));
  }
  return absl::OkStatus();
}

absl::Status TraceReader::ScanChunks(uint64_t file_bytes) {
  std::vector<TracePiece> slots;
  uint64_t offset = header_.header_bytes;
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
      CutOff(absl::StrCat("chunk at offset ", offset, " is cut off: it says ", chunk.payload_bytes, " bytes, ", file_bytes - payload_offset,
                          " are there"));
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
      health_.notes.push_back(absl::StrCat("chunk at offset ", offset, " has an unknown type and was skipped"));
    }
    if (!whole_payload) break;  // nothing can follow, and what it says must not be added to
    offset = (payload_offset + chunk.payload_bytes + kChunkAlign - 1) / kChunkAlign * kChunkAlign;
  }
  // A process killed between writing a sealed chunk and clearing its slot leaves both: the sealed one is whole.
  pieces_.insert(pieces_.end(), slots.begin(), slots.end());
  std::stable_sort(pieces_.begin(), pieces_.end(), [](const TracePiece& x, const TracePiece& y) { return x.ordinal < y.ordinal; });
  pieces_.erase(std::unique(pieces_.begin(), pieces_.end(), [](const TracePiece& x, const TracePiece& y) { return x.ordinal == y.ordinal; }),
                pieces_.end());
  loader_.emplace(fd_, pieces_);
  return absl::OkStatus();
}

bool TraceReader::LoadPiece() {
  record_index_ = 0;
  records_in_buffer_ = 0;
  if (!loader_->Next(&loaded_)) return false;
  if (!loaded_.error.empty()) {
    Damaged(loaded_.error);
    return false;
  }
  ++pieces_read_;
  records_in_buffer_ = static_cast<uint32_t>(loaded_.records.size() / kRecordBytes);
  buffer_sequence_ = loaded_.first_sequence;
  if (expected_sequence_ && buffer_sequence_ > *expected_sequence_) gap_records_ += buffer_sequence_ - *expected_sequence_;
  expected_sequence_ = buffer_sequence_ + records_in_buffer_;
  return true;
}

bool TraceReader::AbsorbText(const ControlRecord& head) {
  const uint64_t length = head.b;
  const uint64_t parts = (length + kContinuationBytes - 1) / kContinuationBytes;
  if (length > kMaxTextBytes || record_index_ + parts > records_in_buffer_) return false;
  std::string text;
  text.reserve(length);
  for (uint64_t i = 0; i < parts; ++i, ++record_index_) {
    ContinuationRecord part{};
    std::memcpy(&part, loaded_.records.data() + size_t{record_index_} * kRecordBytes, sizeof(part));
    if (part.kind != static_cast<uint8_t>(RecordKind::kContinuation)) return false;
    text.append(part.text, std::min<uint64_t>(kContinuationBytes, length - text.size()));
  }
  if (static_cast<RecordKind>(head.kind) == RecordKind::kString) {
    strings_[head.a] = std::move(text);
    return true;
  }
  metadata_bytes_ += text.size();
  nlohmann::json patch = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!patch.is_object() || metadata_bytes_ > kMaxMetadataBytes) {
    health_.notes.push_back(absl::StrCat("a metadata record is not a JSON object and was skipped (record ",
                                         buffer_sequence_ + record_index_, ")"));
    return true;
  }
  metadata_.merge_patch(patch);
  metadata_changed_ = true;
  return true;
}

// A field of a record, read where it lies: a copy of the whole record would stand between its load and its use.
template <typename T, size_t kOffset>
T Field(const uint8_t* slot) {
  T value;
  std::memcpy(&value, slot + kOffset, sizeof(value));
  return value;
}
#define FIELD(record, name) Field<decltype(record::name), offsetof(record, name)>(slot)
// 48-bit fields, which are followed by at least two more bytes of the record.
#define FIELD48(record, name) (Field<uint64_t, offsetof(record, name)>(slot) & 0xffff'ffff'ffff)

void TraceReader::Decode(const uint8_t* slot, Event* event) const {
  // Every field is set, rather than the whole cleared first: this runs once for each record.
  event->kind = static_cast<RecordKind>(FIELD(MemoryRecord, kind));
  const uint8_t phase = FIELD(MemoryRecord, phase);
  event->phase = phase < kPhaseCount ? static_cast<Phase>(phase) : Phase::kUnknown;
  event->device = FIELD(MemoryRecord, device);
  event->flags = FIELD(MemoryRecord, flags);
  event->time_ns = FIELD48(MemoryRecord, time48) * kTimeUnitNs;
  event->thread = FIELD(MemoryRecord, thread);
  event->node = event->stack = 0;
  if (IsMemoryRecord(event->kind)) {
    event->stream = FIELD(MemoryRecord, stream);
    event->module = FIELD(MemoryRecord, module);
    event->address = FIELD48(MemoryRecord, address48) * kAddressUnit;
    event->rounded_bytes = uint64_t{FIELD(MemoryRecord, blocks)} * kBlockUnit;
    event->requested_bytes = event->rounded_bytes - std::min<uint64_t>(FIELD(MemoryRecord, slack), event->rounded_bytes);
    event->a = 0;
    event->b = event->c = 0;
  } else {
    event->stream = 0;
    event->module = 0;
    event->address = event->rounded_bytes = event->requested_bytes = 0;
    event->a = FIELD(ControlRecord, a);
    event->b = FIELD(ControlRecord, b);
    event->c = FIELD(ControlRecord, c);
  }
}
#undef FIELD
#undef FIELD48

bool TraceReader::Next(Event* event) {
  for (;;) {
    if (record_index_ >= records_in_buffer_) {
      if (!finished_ && LoadPiece()) continue;
      if (!finished_ && gap_records_ > 0) {
        health_.notes.push_back(absl::StrCat(gap_records_, " record numbers are missing in between"));
        health_.lost_records = std::max(health_.lost_records, gap_records_);
      }
      finished_ = true;
      return false;
    }
    const uint8_t* slot = loaded_.records.data() + size_t{record_index_} * kRecordBytes;
    const auto kind = static_cast<RecordKind>(slot[0]);
    const uint64_t sequence = buffer_sequence_ + record_index_;
    ++record_index_;
    if (IsTextRecord(kind)) {
      ControlRecord head{};
      std::memcpy(&head, slot, sizeof(head));
      // A text cut by the end of a killed trace is the one record that may be lost; elsewhere it is damage.
      if (!AbsorbText(head) && (pieces_read_ < pieces_.size() || header_.state == static_cast<uint32_t>(TraceState::kClosed))) {
        health_.notes.push_back(absl::StrCat("record ", sequence, " is a text whose parts are missing; it was skipped"));
      }
      continue;
    }
    if (!IsMemoryRecord(kind) && !IsControlRecord(kind)) continue;  // padding, continuation, none, or newer than we know
    Decode(slot, event);
    event->sequence = sequence;
    return true;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<EventSource>> OpenTrace(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::NotFoundError(absl::StrCat("cannot open '", path, "': ", std::strerror(errno)));
  auto reader = std::make_unique<TraceReader>(path, fd);
  if (absl::Status status = reader->Initialize(); !status.ok()) return status;
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
