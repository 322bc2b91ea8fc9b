// Reads and decompresses the chunks of a trace one ahead of the other, on a thread of its own: half of the cost of
// reading a trace.
#ifndef VRAMLEDGER_TRACER_FORMAT_CHUNK_LOADER_H_
#define VRAMLEDGER_TRACER_FORMAT_CHUNK_LOADER_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tracer/format/record.h"

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

struct LoadedPiece {
  std::vector<uint8_t> records;  // whole records of kRecordBytes
  uint64_t first_sequence = 0;
  std::string error;  // empty, or one sentence with the offset; then there are no records
};

// Thread rule: one thread calls Next(). `pieces` must outlive the loader. Memory: at most kAhead + 1 chunks.
class ChunkLoader {
 public:
  static constexpr size_t kAhead = 4;

  ChunkLoader(int fd, const std::vector<TracePiece>& pieces) : fd_(fd), pieces_(pieces) {}
  ~ChunkLoader();
  ChunkLoader(const ChunkLoader&) = delete;
  ChunkLoader& operator=(const ChunkLoader&) = delete;

  // The next piece, in order; false after the last. Gives the buffer of the one before back in `out`, to be used again.
  bool Next(LoadedPiece* out);

 private:
  void Load(const TracePiece& piece, LoadedPiece* out);
  void Run();

  const int fd_;
  const std::vector<TracePiece>& pieces_;
  size_t next_ = 0;  // to be handed out
  std::vector<uint8_t> packed_, columns_;
  std::thread thread_;  // only where there are enough pieces
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<LoadedPiece> ready_;
  std::vector<LoadedPiece> spare_;
  bool stop_ = false;
};

// All of `bytes` at `offset`, or false.
bool ReadFully(int fd, void* out, size_t bytes, uint64_t offset);

}  // namespace vramledger

#endif  // VRAMLEDGER_TRACER_FORMAT_CHUNK_LOADER_H_
