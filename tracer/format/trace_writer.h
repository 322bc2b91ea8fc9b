// Writes a trace while the program runs. Appending costs a lock of a few ns and a 32-byte store into a memory-mapped slot of
// the file itself, so a killed process loses at most the record being written. A background thread compresses full
// slots and appends them to the file as sealed chunks (FORMAT.md).
#ifndef VRAMLEDGER_TRACER_FORMAT_TRACE_WRITER_H_
#define VRAMLEDGER_TRACER_FORMAT_TRACE_WRITER_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tracer/format/record.h"
#include "tracer/format/spin_lock.h"
#include "tracer/format/trace_clock.h"

namespace vramledger {

struct TraceWriterOptions {
  uint32_t records_per_slot = 16384;  // 512 KiB
  uint32_t initial_slots = 8;
  uint32_t max_slots = 128;     // the ring grows to this while the compressor is behind; then records are lost and counted
  int compression_level = 1;          // zstd
  bool unnamed = false;  // nothing stands in the folder before Appear(), nor afterwards if that never comes
};

// Thread rule: every method may be called from any thread, except the destructor. Nothing throws. After Close() or in a
// forked child (NoteFork) appends are ignored.
class TraceWriter {
 public:
  // Creates `path` (0600; an existing file is replaced, not appended to). The error is one sentence naming the path and why.
  static absl::StatusOr<std::unique_ptr<TraceWriter>> Create(const std::string& path, const TraceWriterOptions& options = {});
  ~TraceWriter();
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // Nanoseconds since the trace began.
  uint64_t Now() const { return clock_.Now(); }

  // Appends a copy of the record. time48 is set here (Now()) unless `keep_time`.
  void Append(const MemoryRecord& record, bool keep_time = false) { AppendSlots(&record, record.kind, keep_time); }
  void Append(const ControlRecord& record, bool keep_time = false) { AppendSlots(&record, record.kind, keep_time); }

  // The id of a text, written to the trace at its first use. 0 for the empty text, and when the table is full.
  uint32_t InternString(std::string_view text);
  // A JSON object merged (RFC 7396) into the trace's metadata by the reader. Longer than kMaxTextBytes: split by the caller
  // into several objects, since a cut JSON text is lost and counted.
  void AppendMetadata(std::string_view json);

  // Gives a trace of options.unnamed its name, replacing what stands there; any other has its own. The error is one
  // sentence.
  absl::Status Appear(const std::string& path);
  bool unnamed() const { return unnamed_.load(std::memory_order_relaxed); }

  void AddLoss(LossCause cause, uint64_t count = 1);
  uint64_t losses() const;  // of all causes
  uint64_t losses(LossCause cause) const;

  // Seals everything, marks the trace as closed. Blocks until written. Idempotent.
  void Close();
  // Call in the child after fork(): the child no longer writes, the parent's trace stays as it is.
  void DetachInChild() { accepting_.store(false, std::memory_order_relaxed); detached_ = true; }

  std::string path() const {
    const std::lock_guard<std::mutex> guard(path_mutex_);
    return path_;
  }

 private:
  struct Slot {
    SlotHeader* header = nullptr;
    uint8_t* records = nullptr;
  };
  struct Mapping {
    void* address;
    size_t bytes;
    off_t file_offset;
  };

  TraceWriter(std::string path, int fd, const TraceWriterOptions& options);
  absl::Status Initialize();
  absl::Status AddRing(uint32_t slots);
  void AppendSlots(const void* record, uint8_t kind, bool keep_time);
  void AppendText(RecordKind kind, uint32_t id, std::string_view text);
  bool EnsureRoom(uint32_t slots);       // with lock_
  bool ActivateFreeSlot();               // with lock_
  void RetireCurrent();                  // with lock_
  void CompressorMain();
  // Puts a sealed chunk at `at` of compress_buffer_ and returns where it ends; 0 if it cannot be compressed.
  size_t PackChunk(const uint8_t* records, uint32_t count, uint64_t ordinal, uint64_t first_sequence, size_t at);
  // `last`: of the trace. It is sealed in parts, so that a short trace that is cut off later (a copy that ended early) is not
  // all lost with its only chunk.
  void SealSlot(const Slot& slot, bool last);
  void ReleaseRing();
  bool WriteAll(const void* data, size_t bytes, uint64_t offset);

  mutable std::mutex path_mutex_;
  std::string path_;
  const int fd_;
  bool in_folder_ = true;               // the file has an entry there
  std::atomic<bool> unnamed_{false};    // still waits for Appear()
  const TraceWriterOptions options_;
  FileHeader* header_ = nullptr;
  const TraceClock clock_;
  std::atomic<bool> accepting_{false};
  bool detached_ = false;

  SpinLock lock_;  // guards the five below
  Slot current_{};
  uint32_t next_ = 0;            // next free record of the current slot
  uint64_t sequence_ = 0;        // of the next record
  uint64_t next_ordinal_ = 0;
  std::vector<Slot> free_slots_;

  std::mutex string_mutex_;
  absl::flat_hash_map<std::string, uint32_t> strings_;

  std::mutex work_mutex_;        // taken after lock_, never the other way round
  std::condition_variable work_ready_;
  std::deque<Slot> full_slots_;
  const SlotHeader* last_slot_ = nullptr;  // once Close() has retired it
  bool closing_ = false;
  bool want_more_slots_ = false;

  // Only the compressor thread (and Initialize, Close once it has ended).
  uint64_t end_offset_ = kFileHeaderBytes;
  uint32_t slot_count_ = 0;
  std::vector<Mapping> mappings_;
  std::vector<char> compress_buffer_;
  std::vector<uint8_t> column_buffer_;
  std::thread compressor_;
  std::mutex close_mutex_;
  bool closed_ = false;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TRACER_FORMAT_TRACE_WRITER_H_
