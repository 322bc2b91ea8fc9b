#include "tracer/format/trace_writer.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tracer/format/byte_columns.h"

namespace vramledger {
namespace {

// Chunks begin on page boundaries so that a ring can be mapped.
constexpr uint64_t kChunkAlign = 4096;
constexpr uint32_t kRecordsPerPart = 4096;  // of the last slot: a page's rest for each is little beside what they compress to
constexpr uint32_t kMaxStrings = 1u << 24;

uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

uint64_t WallClockNs() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

// The kind byte is what makes a record count, so it is stored after the rest: a process killed in between leaves kNone.
void Commit(uint8_t* slot, const void* record) {
  std::memcpy(slot + 1, static_cast<const uint8_t*>(record) + 1, kRecordBytes - 1);
  std::atomic_signal_fence(std::memory_order_release);
  *static_cast<volatile uint8_t*>(slot) = *static_cast<const uint8_t*>(record);
}

ChunkHeader SealHeader(ChunkHeader header) {
  header.header_crc32 = crc32(0, reinterpret_cast<const Bytef*>(&header), offsetof(ChunkHeader, header_crc32));
  return header;
}

absl::Status MakeWay(const std::string& path) {
  struct stat existing {};
  if (::lstat(path.c_str(), &existing) != 0) return absl::OkStatus();
  if (!S_ISREG(existing.st_mode)) {
    return absl::UnavailableError(absl::StrCat("cannot create the trace '", path, "': it exists and is not a regular file"));
  }
  // A new inode rather than O_TRUNC: another process may still have the old file mapped, and would die of SIGBUS.
  ::unlink(path.c_str());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<TraceWriter>> TraceWriter::Create(const std::string& path,
                                                                 const TraceWriterOptions& options) {
  if (absl::Status status = MakeWay(path); !status.ok()) return status;
  int fd = -1;
  if (options.unnamed) {
    const size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  }
  const bool in_folder = fd < 0;  // also on a file system that has no files without a name
  if (in_folder) fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) {
    return absl::UnavailableError(absl::StrCat("cannot create the trace '", path, "': ", std::strerror(errno)));
  }
  std::unique_ptr<TraceWriter> writer(new TraceWriter(path, fd, options));
  writer->in_folder_ = in_folder;
  writer->unnamed_.store(options.unnamed);
  if (absl::Status status = writer->Initialize(); !status.ok()) {
    if (in_folder) ::unlink(path.c_str());  // what stands there is no trace yet
    return status;
  }
  return writer;
}

absl::Status TraceWriter::Appear(const std::string& path) {
  if (detached_ || !unnamed_.exchange(false) || in_folder_) return absl::OkStatus();
  if (absl::Status status = MakeWay(path); !status.ok()) return status;
  const std::string file = absl::StrCat("/proc/self/fd/", fd_);
  if (::linkat(AT_FDCWD, file.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot create the trace '", path, "': ", std::strerror(errno)));
  }
  const std::lock_guard<std::mutex> guard(path_mutex_);
  path_ = path;
  return absl::OkStatus();
}

TraceWriter::TraceWriter(std::string path, int fd, const TraceWriterOptions& options)
    : path_(std::move(path)), fd_(fd), options_(options) {}

TraceWriter::~TraceWriter() {
  Close();
  for (const Mapping& m : mappings_) ::munmap(m.address, m.bytes);
  if (header_ != nullptr) ::munmap(header_, kFileHeaderBytes);
  ::close(fd_);
}

absl::Status TraceWriter::Initialize() {
  // Reserved, not sparse: a store into a mapped page that the disk has no room for would be a SIGBUS in the training run.
  if (const int error = ::posix_fallocate(fd_, 0, kFileHeaderBytes); error != 0) {
    return absl::UnavailableError(absl::StrCat("cannot reserve space for the trace '", path(), "': ", std::strerror(error)));
  }
  void* map = ::mmap(nullptr, kFileHeaderBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (map == MAP_FAILED) {
    return absl::UnavailableError(absl::StrCat("cannot map the trace '", path(), "': ", std::strerror(errno)));
  }
  header_ = static_cast<FileHeader*>(map);
  if (absl::Status status = AddRing(options_.initial_slots); !status.ok()) return status;
  FileHeader header{};
  std::memcpy(header.magic, kTraceMagic, sizeof(header.magic));
  header.version = kFormatVersion;
  header.min_reader_version = kMinReaderVersion;
  header.header_bytes = kFileHeaderBytes;
  header.state = static_cast<uint32_t>(TraceState::kOpen);
  header.start_unix_ns = WallClockNs();
  header.pid = static_cast<uint64_t>(::getpid());
  *header_ = header;
  lock_.lock();
  ActivateFreeSlot();
  lock_.unlock();
  accepting_.store(true);
  // Signals of the program (Ctrl-C, timers) are its own threads' business.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  compressor_ = std::thread([this] { CompressorMain(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return absl::OkStatus();
}

absl::Status TraceWriter::AddRing(uint32_t slots) {
  const uint64_t slot_bytes = sizeof(SlotHeader) + uint64_t{options_.records_per_slot} * kRecordBytes;
  const uint64_t payload = slot_bytes * slots;
  const uint64_t total = RoundUp(sizeof(ChunkHeader) + payload, kChunkAlign);
  const auto offset = static_cast<off_t>(end_offset_);
  if (const int error = ::posix_fallocate(fd_, offset, static_cast<off_t>(total)); error != 0) {
    if (::ftruncate(fd_, offset) != 0) { /* the reader ignores what follows the last whole chunk */ }
    return absl::UnavailableError(absl::StrCat("cannot reserve ", total, " bytes for the trace '", path(), "': ",
                                               std::strerror(error)));
  }
  void* map = ::mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, offset);
  if (map == MAP_FAILED) {
    return absl::UnavailableError(absl::StrCat("cannot map the trace '", path(), "': ", std::strerror(errno)));
  }
  ChunkHeader header{};
  header.type = static_cast<uint32_t>(ChunkType::kRing);
  header.slot_count = slots;
  header.payload_bytes = payload;
  header.slot_bytes = slot_bytes;
  auto* base = static_cast<uint8_t*>(map);
  const ChunkHeader sealed = SealHeader(header);
  std::memcpy(base, &sealed, sizeof(sealed));
  mappings_.push_back({map, total, offset});
  end_offset_ += total;
  slot_count_ += slots;
  lock_.lock();
  for (uint32_t i = slots; i > 0; --i) {
    uint8_t* slot = base + sizeof(ChunkHeader) + (i - 1) * slot_bytes;
    free_slots_.push_back({reinterpret_cast<SlotHeader*>(slot), slot + sizeof(SlotHeader)});
  }
  lock_.unlock();
  return absl::OkStatus();
}

bool TraceWriter::ActivateFreeSlot() {
  if (free_slots_.empty()) return false;
  current_ = free_slots_.back();
  free_slots_.pop_back();
  next_ = 0;
  current_.header->first_sequence = sequence_;
  std::atomic_signal_fence(std::memory_order_release);
  current_.header->ordinal_plus_one = ++next_ordinal_;
  return true;
}

void TraceWriter::RetireCurrent() {
  if (current_.header == nullptr) return;
  {
    std::lock_guard<std::mutex> guard(work_mutex_);
    full_slots_.push_back(current_);
    if (!accepting_.load(std::memory_order_relaxed)) last_slot_ = current_.header;
    if (free_slots_.size() <= 2) want_more_slots_ = true;
  }
  work_ready_.notify_one();
  current_ = Slot{};
}

bool TraceWriter::EnsureRoom(uint32_t slots) {
  if (current_.header != nullptr && next_ + slots <= options_.records_per_slot) return true;
  if (current_.header != nullptr) {
    ControlRecord padding{};
    padding.kind = static_cast<uint8_t>(RecordKind::kPadding);
    for (; next_ < options_.records_per_slot; ++next_, ++sequence_) {
      Commit(current_.records + size_t{next_} * kRecordBytes, &padding);
    }
    RetireCurrent();
  }
  return ActivateFreeSlot();
}

void TraceWriter::AppendSlots(const void* record, uint8_t kind, bool keep_time) {
  if (!accepting_.load(std::memory_order_relaxed)) {
    // The header is shared with the parent, whose trace then says what it does not hold.
    if (detached_ && IsMemoryRecord(static_cast<RecordKind>(kind))) {
      __atomic_fetch_add(&header_->losses[static_cast<uint32_t>(LossCause::kForkedChild)], 1, __ATOMIC_RELAXED);
    }
    return;
  }
  alignas(8) uint8_t copy[kRecordBytes];
  std::memcpy(copy, record, kRecordBytes);
  if (!keep_time) {
    const uint64_t units = Now() / kTimeUnitNs;
    std::memcpy(copy + offsetof(MemoryRecord, time48), &units, 6);
  }
  lock_.lock();
  if (!accepting_.load(std::memory_order_relaxed)) {  // closed meanwhile
    lock_.unlock();
    return;
  }
  if (EnsureRoom(1)) {
    Commit(current_.records + size_t{next_} * kRecordBytes, copy);
    ++next_;
  } else {
    __atomic_fetch_add(&header_->losses[static_cast<uint32_t>(LossCause::kBufferFull)], 1, __ATOMIC_RELAXED);
  }
  ++sequence_;  // a lost record takes a number too, so that the gap shows
  lock_.unlock();
}

void TraceWriter::AppendText(RecordKind kind, uint32_t id, std::string_view text) {
  if (!accepting_.load(std::memory_order_relaxed)) return;
  const auto continuations = static_cast<uint32_t>((text.size() + kContinuationBytes - 1) / kContinuationBytes);
  ControlRecord head{};
  head.kind = static_cast<uint8_t>(kind);
  head.a = id;
  head.b = text.size();
  Store48(head.time48, Now() / kTimeUnitNs);
  lock_.lock();
  if (!accepting_.load(std::memory_order_relaxed)) {
    lock_.unlock();
    return;
  }
  if (!EnsureRoom(1 + continuations)) {
    __atomic_fetch_add(&header_->losses[static_cast<uint32_t>(LossCause::kBufferFull)], 1 + continuations, __ATOMIC_RELAXED);
    sequence_ += 1 + continuations;
    lock_.unlock();
    return;
  }
  Commit(current_.records + size_t{next_} * kRecordBytes, &head);
  ++next_;
  for (uint32_t i = 0; i < continuations; ++i, ++next_) {
    ContinuationRecord part{};
    part.kind = static_cast<uint8_t>(RecordKind::kContinuation);
    const std::string_view piece = text.substr(size_t{i} * kContinuationBytes, kContinuationBytes);
    std::memcpy(part.text, piece.data(), piece.size());
    Commit(current_.records + size_t{next_} * kRecordBytes, &part);
  }
  sequence_ += 1 + continuations;
  lock_.unlock();
}

uint32_t TraceWriter::InternString(std::string_view text) {
  if (text.empty() || !accepting_.load(std::memory_order_relaxed)) return 0;
  const uint32_t limit = std::min(kMaxTextBytes, (options_.records_per_slot - 1) * kContinuationBytes);
  if (text.size() > limit) {
    AddLoss(LossCause::kTextTooLong);
    text = text.substr(0, limit);
  }
  std::lock_guard<std::mutex> guard(string_mutex_);
  // Debian's Abseil has a string_view of its own, which the map's hash wants.
  if (const auto it = strings_.find(absl::string_view(text.data(), text.size())); it != strings_.end()) return it->second;
  if (strings_.size() >= kMaxStrings) {
    AddLoss(LossCause::kTableFull);
    return 0;
  }
  const auto id = static_cast<uint32_t>(strings_.size() + 1);
  strings_.emplace(text, id);
  AppendText(RecordKind::kString, id, text);
  return id;
}

void TraceWriter::AppendMetadata(std::string_view json) {
  if (json.size() > std::min(kMaxTextBytes, (options_.records_per_slot - 1) * kContinuationBytes)) {
    AddLoss(LossCause::kTextTooLong);
    return;
  }
  AppendText(RecordKind::kMeta, 0, json);
}

void TraceWriter::AddLoss(LossCause cause, uint64_t count) {
  if (detached_) return;
  __atomic_fetch_add(&header_->losses[static_cast<uint32_t>(cause)], count, __ATOMIC_RELAXED);
}

uint64_t TraceWriter::losses() const {
  uint64_t sum = 0;
  for (const uint64_t& loss : header_->losses) sum += __atomic_load_n(&loss, __ATOMIC_RELAXED);
  return sum;
}

uint64_t TraceWriter::losses(LossCause cause) const {
  return __atomic_load_n(&header_->losses[static_cast<uint32_t>(cause)], __ATOMIC_RELAXED);
}

bool TraceWriter::WriteAll(const void* data, size_t bytes, uint64_t offset) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd_, p, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    p += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

size_t TraceWriter::PackChunk(const uint8_t* records, uint32_t count, uint64_t ordinal, uint64_t first_sequence, size_t at) {
  const size_t raw_bytes = size_t{count} * kRecordBytes;
  const size_t payload_at = at + sizeof(ChunkHeader);
  compress_buffer_.resize(payload_at + ZSTD_compressBound(raw_bytes));
  column_buffer_.resize(raw_bytes);
  RowsToColumns(records, count, column_buffer_.data());
  char* payload = compress_buffer_.data() + payload_at;
  const size_t packed =
      ZSTD_compress(payload, compress_buffer_.size() - payload_at, column_buffer_.data(), raw_bytes, options_.compression_level);
  if (ZSTD_isError(packed)) return 0;
  ChunkHeader header{};
  header.type = static_cast<uint32_t>(ChunkType::kColumns);
  header.payload_bytes = packed;
  header.ordinal = ordinal;
  header.first_sequence = first_sequence;
  header.records = count;
  header.crc32 = static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(payload), packed));
  const ChunkHeader sealed = SealHeader(header);
  std::memcpy(compress_buffer_.data() + at, &sealed, sizeof(sealed));
  return payload_at + packed;
}

void TraceWriter::SealSlot(const Slot& slot, bool last) {
  // The last slot of a trace is seldom full: what follows the last committed record is not part of the chunk.
  const auto kind_of = [&](uint32_t record) { return slot.records[size_t{record} * kRecordBytes]; };
  uint32_t records = options_.records_per_slot;
  while (records > 0 && kind_of(records - 1) == 0) --records;
  size_t bytes = 0;
  bool written = true;
  for (uint32_t begin = 0, end = 0; begin < records && written; begin = end) {
    end = last ? std::min(begin + kRecordsPerPart, records) : records;
    // A text is not parted.
    while (end < records && kind_of(end) == static_cast<uint8_t>(RecordKind::kContinuation)) ++end;
    uint64_t ordinal = slot.header->ordinal_plus_one - 1;
    if (begin != 0) {
      lock_.lock();
      ordinal = next_ordinal_++;
      lock_.unlock();
    }
    const size_t at = RoundUp(bytes, kChunkAlign);
    compress_buffer_.resize(bytes);
    compress_buffer_.resize(at);  // what lies between two parts is zero
    bytes = PackChunk(slot.records + size_t{begin} * kRecordBytes, end - begin, ordinal, slot.header->first_sequence + begin, at);
    written = bytes != 0;
  }
  if (written && records > 0) {
    // The first header goes last: a reader that meets the file before that takes all of it from the slot, and no part twice.
    written = WriteAll(compress_buffer_.data() + sizeof(ChunkHeader), bytes - sizeof(ChunkHeader), end_offset_ + sizeof(ChunkHeader)) &&
              WriteAll(compress_buffer_.data(), sizeof(ChunkHeader), end_offset_);
    if (written) {
      end_offset_ = RoundUp(end_offset_ + bytes, kChunkAlign);
    } else if (::ftruncate(fd_, static_cast<off_t>(end_offset_)) != 0) { /* without its header it reads as the end of the file */
    }
  }
  if (!written) AddLoss(LossCause::kDiskFull, records);
  // The ordinal goes first: a reader that meets a half-cleared slot must not take it for the chunk just written.
  slot.header->ordinal_plus_one = 0;
  std::atomic_signal_fence(std::memory_order_release);
  std::memset(slot.records, 0, size_t{options_.records_per_slot} * kRecordBytes);
  lock_.lock();
  free_slots_.push_back(slot);
  lock_.unlock();
}

void TraceWriter::CompressorMain() {
  for (;;) {
    Slot slot{};
    bool grow = false, last = false;
    {
      std::unique_lock<std::mutex> guard(work_mutex_);
      work_ready_.wait(guard, [this] { return closing_ || !full_slots_.empty() || want_more_slots_; });
      grow = want_more_slots_ && slot_count_ < options_.max_slots;
      want_more_slots_ = false;
      if (!full_slots_.empty()) {
        slot = full_slots_.front();
        full_slots_.pop_front();
        last = slot.header == last_slot_;
      } else if (closing_) {
        return;
      }
    }
    // More room first: a burst fills slots faster than they are compressed. Failure to grow shows as counted losses.
    if (grow) AddRing(std::min(slot_count_, options_.max_slots - slot_count_)).IgnoreError();
    if (slot.header != nullptr) SealSlot(slot, last);
  }
}

// The ring is all zeros now. A short trace moves its sealed chunks into the first ring's place, so that the file is no longer than
// what it holds; of a long one the rings become holes.
void TraceWriter::ReleaseRing() {
  const auto begin = static_cast<uint64_t>(kFileHeaderBytes);
  const auto ring_end = static_cast<uint64_t>(mappings_.front().file_offset) + mappings_.front().bytes;
  const uint64_t sealed = end_offset_ - ring_end;
  if (mappings_.size() == 1 && sealed > 0 && sealed <= ring_end - begin) {
    std::vector<char> chunks(sealed);
    size_t have = 0;
    while (have < chunks.size()) {
      const ssize_t n = ::pread(fd_, chunks.data() + have, chunks.size() - have, static_cast<off_t>(ring_end + have));
      if (n <= 0) break;
      have += static_cast<size_t>(n);
    }
    // Of no slots from now on: a reader that comes before the move is done must not take what has been moved for slots in use.
    ChunkHeader empty{};
    std::memcpy(&empty, mappings_.front().address, sizeof(empty));
    empty.slot_count = 0;
    empty = SealHeader(empty);
    // The last chunk's padding to a page was never written.
    if (have + kChunkAlign > chunks.size() && WriteAll(&empty, sizeof(empty), begin) &&
        WriteAll(chunks.data() + sizeof(ChunkHeader), have - sizeof(ChunkHeader), begin + sizeof(ChunkHeader)) &&
        // The first header goes last: until then a reader walks over the ring to the chunks behind it.
        WriteAll(chunks.data(), sizeof(ChunkHeader), begin)) {
      end_offset_ = begin + sealed;
      if (::ftruncate(fd_, static_cast<off_t>(begin + have)) != 0) { /* zeros at the end are harmless */ }
      return;
    }
  }
  for (const Mapping& m : mappings_) {
    ::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, m.file_offset + static_cast<off_t>(kChunkAlign),
                static_cast<off_t>(m.bytes - kChunkAlign));
  }
}

void TraceWriter::Close() {
  std::lock_guard<std::mutex> close_guard(close_mutex_);
  if (closed_) return;
  closed_ = true;
  if (detached_) {
    // The compressor thread does not exist in a forked child, and the file is the parent's.
    if (compressor_.joinable()) compressor_.detach();
    return;
  }
  if (!compressor_.joinable()) return;  // Initialize failed
  // Before the file says that it is closed, since another process may take the name then.
  if (unnamed_.load() && in_folder_) ::unlink(path().c_str());
  lock_.lock();
  accepting_.store(false);
  RetireCurrent();
  lock_.unlock();
  {
    std::lock_guard<std::mutex> guard(work_mutex_);
    closing_ = true;
    want_more_slots_ = false;
  }
  work_ready_.notify_one();
  compressor_.join();
  ReleaseRing();
  header_->total_chunks = next_ordinal_;
  header_->end_unix_ns = WallClockNs();
  header_->state = static_cast<uint32_t>(TraceState::kClosed);
}

}  // namespace vramledger
