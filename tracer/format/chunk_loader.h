// Reads, decompresses and decodes the chunks of a trace ahead of their use, on a thread of its own.
#ifndef VRAMLEDGER_TRACER_FORMAT_CHUNK_LOADER_H_
#define VRAMLEDGER_TRACER_FORMAT_CHUNK_LOADER_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tracer/format/event.h"
#include "tracer/format/record.h"
#include "tracer/format/record_decoder.h"

namespace vramledger {

// Where one chunk of records lies: compressed, or still raw in a slot of a ring.
struct TracePiece {
  uint64_t ordinal = 0;
  uint64_t first_sequence = 0;
  uint64_t offset = 0;  // of the payload
  uint64_t payload_bytes = 0;
  uint32_t records = 0;
  uint32_t crc = 0;
  ChunkType type = ChunkType::kRing;
};

struct LoadedBatch {
  DecodedRecords decoded;
  uint64_t first_sequence = 0;
  size_t records = 0;          // texts and padding counted, so that gaps between batches can be told
  bool of_last_piece = false;
  std::string error;           // empty, or one sentence with the offset; then there are no records
};

// Thread rule: one thread calls Next(). `pieces` must outlive the loader. `follow` may be null; it runs on the loader's
// thread. Memory: one chunk, packed and unpacked, and kAhead + 2 batches.
class ChunkLoader {
 public:
  // A hand-over may wake a thread, which costs as much as some thousand records: small batches are slower than none.
  static constexpr size_t kBatchRecords = 16384;
  static constexpr size_t kAhead = 3;

  ChunkLoader(int fd, const std::vector<TracePiece>& pieces, EventFollower follow)
      : fd_(fd), pieces_(pieces), follow_(std::move(follow)) {}
  ~ChunkLoader();
  ChunkLoader(const ChunkLoader&) = delete;
  ChunkLoader& operator=(const ChunkLoader&) = delete;

  // The next batch, in order; false after the last. Gives the buffers of the one before back in `out`, to be used again.
  bool Next(LoadedBatch* out);

 private:
  // The next batch on the calling thread; false after the last.
  bool Make(LoadedBatch* out);
  // The records of the piece into rows_, or the sentence that says why not.
  std::string Load(const TracePiece& piece);
  void Decode(LoadedBatch* out);
  void Run();
  void MakeAll();

  const int fd_;
  const std::vector<TracePiece>& pieces_;
  const EventFollower follow_;
  // Of Make(), and so of one thread.
  size_t piece_ = 0;  // index of the one to be loaded next
  size_t row_ = 0;    // of rows_, to be decoded next
  std::vector<uint8_t> packed_, columns_, rows_;

  std::thread thread_;  // only where there are enough pieces
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<LoadedBatch> ready_;
  std::vector<LoadedBatch> spare_;
  bool all_made_ = false;
  bool failed_ = false;  // without a sentence
  bool stop_ = false;
};

// All of `bytes` at `offset`, or false.
bool ReadFully(int fd, void* out, size_t bytes, uint64_t offset);

}  // namespace vramledger

#endif  // VRAMLEDGER_TRACER_FORMAT_CHUNK_LOADER_H_
