// The 32-byte records of a trace and the headers around them, as they lie in the file (little-endian). FORMAT.md is the
// normative text; the static_asserts below hold the code to it.
#ifndef VRAMLEDGER_TRACER_FORMAT_RECORD_H_
#define VRAMLEDGER_TRACER_FORMAT_RECORD_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tracer/format/vocabulary.h"

namespace vramledger {

enum class RecordKind : uint8_t {
  kNone = 0,  // a slot that was never committed
  // Memory records (MemoryRecord).
  kAlloc = 1,
  kFreeRequested = 2,
  kFreeCompleted = 3,
  kSegmentAlloc = 4,
  kSegmentFree = 5,
  kSegmentMap = 6,
  kSegmentUnmap = 7,
  kOutOfMemory = 8,
  // Control records (ControlRecord).
  kPhase = 16,
  kStep = 17,
  kNode = 18,
  kModuleEnter = 19,
  kModuleExit = 20,
  kStack = 21,
  kName = 24,
  kDeviceUsed = 25,
  kCounters = 26,
  kMark = 27,
  kUnname = 28,
  kOutsideAlloc = 29,
  kOutsideFree = 30,
  kProcessUsed = 31,
  // Text records: a ControlRecord followed by ceil(length / 31) continuation slots.
  kString = 32,
  kMeta = 33,
  kContinuation = 34,
  kPadding = 35,  // fills a chunk whose rest was too short for a text
};

constexpr bool IsMemoryRecord(RecordKind k) { return k >= RecordKind::kAlloc && k <= RecordKind::kOutOfMemory; }
constexpr bool IsControlRecord(RecordKind k) { return k >= RecordKind::kPhase && k <= RecordKind::kProcessUsed; }
// Whether the control record's `a` is a string id.
constexpr bool ControlHasText(RecordKind k) {
  return k != RecordKind::kDeviceUsed && k != RecordKind::kCounters && k != RecordKind::kProcessUsed;
}
constexpr bool IsTextRecord(RecordKind k) { return k == RecordKind::kString || k == RecordKind::kMeta; }

// Signals as read at the allocation, kept raw so that a newer rule set can decide again.
enum MemoryFlags : uint8_t {
  kFlagGradMode = 1 << 0,       // at::GradMode was on
  kFlagInBackwardTask = 1 << 1, // the thread was running a node of a backward graph task
  kFlagInference = 1 << 2,      // c10::InferenceMode was on
  kFlagKeepGraph = 1 << 3,      // the graph task keeps its graph (retain_graph or create_graph)
  kFlagSignals = 1 << 4,        // the four above were readable (PyTorch found in the process)
  kFlagSmallPool = 1 << 5,      // served from the pool of small blocks (requests <= 1 MiB)
  kFlagCast = 1 << 7,           // made by a cast of autocast's own
  kFlagLibrary = 1 << 6,        // asked for by library code directly (cuBLAS, cuDNN, CUB ...), not for a tensor's storage
};

// `flags` of OUTSIDE_ALLOC: how the memory was taken.
enum class OutsideKind : uint8_t {
  kNone = 0,
  kDevice = 1,   // cudaMalloc, arrays
  kManaged = 2,  // cudaMallocManaged
  kStatic = 3,   // variables of loaded modules
  kPool = 4,     // cudaMallocAsync
};

// Fields are little-endian integers without padding; 48-bit ones are accessed through the helpers below.
struct MemoryRecord {
  uint8_t kind;
  uint8_t phase;
  uint8_t device;
  uint8_t flags;
  uint8_t time48[6];     // since the trace's start, in units of 16 ns
  uint16_t thread;       // number of the thread in order of its first record
  uint16_t stream;       // number of the stream in order of first use; 0 is the default stream
  uint8_t address48[6];  // in units of 16 B
  uint32_t blocks;       // rounded bytes in units of 512 B, rounded up
  uint32_t slack;        // blocks * 512 - requested bytes
  uint32_t module;       // string id of the innermost module on this thread, 0 = none
};
static_assert(sizeof(MemoryRecord) == 32);

struct ControlRecord {
  uint8_t kind;
  uint8_t phase;
  uint8_t device;
  uint8_t flags;
  uint8_t time48[6];
  uint16_t thread;
  uint32_t a;
  uint64_t b;
  uint64_t c;
};
static_assert(sizeof(ControlRecord) == 32);

inline constexpr uint32_t kContinuationBytes = 31;
struct ContinuationRecord {
  uint8_t kind;
  char text[kContinuationBytes];
};
static_assert(sizeof(ContinuationRecord) == 32);

inline constexpr uint32_t kRecordBytes = 32;
inline constexpr uint64_t kTimeUnitNs = 16;
inline constexpr uint64_t kAddressUnit = 16;
inline constexpr uint64_t kBlockUnit = 512;
inline constexpr uint32_t kMaxTextBytes = 400000;

inline void Store48(uint8_t (&out)[6], uint64_t value) {
  std::memcpy(out, &value, 6);
}

// ---- file header and chunks ----

inline constexpr char kTraceMagic[8] = {'V', 'R', 'A', 'M', 'L', 'D', 'G', 'R'};
inline constexpr uint32_t kFormatVersion = 3;
inline constexpr uint32_t kMinReaderVersion = 3;
inline constexpr uint32_t kFileHeaderBytes = 4096;

enum class TraceState : uint32_t { kOpen = 1, kClosed = 2 };

// Why records are missing. Numbers are part of the format.
enum class LossCause : uint32_t {
  kBufferFull = 0,    // the compressor was behind and every slot was in use
  kDiskFull = 1,      // a sealed chunk could not be written
  kForkedChild = 2,   // memory records of a forked child, which does not write its parent's trace
  kTextTooLong = 3,   // a text was cut
  kTableFull = 4,     // more threads, streams or strings than the format can number
};
inline constexpr uint32_t kLossCauseCount = 16;

struct FileHeader {
  char magic[8];
  uint32_t version;
  uint32_t min_reader_version;
  uint32_t header_bytes;
  uint32_t state;           // TraceState
  uint64_t start_unix_ns;   // wall clock at the start
  uint64_t end_unix_ns;     // wall clock at the close, 0 while open
  uint64_t pid;
  uint64_t losses[kLossCauseCount];
  uint64_t total_chunks;    // ordinals given out, written at the close
  uint8_t reserved[64];
};
static_assert(sizeof(FileHeader) <= kFileHeaderBytes);

enum class ChunkType : uint32_t {
  kRing = 0x474e4952,     // "RING"
  kSealed = 0x4c414553,   // "SEAL", of versions 1 and 2: rows
  kColumns = 0x534c4f43,  // "COLS": byte columns
};
constexpr bool IsSealed(ChunkType type) { return type == ChunkType::kSealed || type == ChunkType::kColumns; }

// Before every chunk of the file.
struct ChunkHeader {
  uint32_t type;           // ChunkType
  uint32_t slot_count;     // kRing: slots that follow
  uint64_t payload_bytes;  // bytes after this header, padding to 64 excluded
  uint64_t ordinal;        // sealed: number of the chunk of records, from 0
  uint64_t first_sequence; // sealed: sequence number of its first record
  uint32_t records;        // sealed: 32-byte slots in it
  uint32_t crc32;          // kColumns: of the payload; kSealed: of the decompressed records
  uint64_t slot_bytes;     // kRing: bytes of one slot, header included
  uint64_t reserved;
  uint64_t header_crc32;   // of the 56 bytes before
};
static_assert(sizeof(ChunkHeader) == 64);

// At the start of each slot of a ring; `records_per_slot` records follow.
struct SlotHeader {
  uint64_t ordinal_plus_one;  // 0 = unused
  uint64_t first_sequence;
  uint8_t reserved[48];
};
static_assert(sizeof(SlotHeader) == 64);

}  // namespace vramledger

#endif  // VRAMLEDGER_TRACER_FORMAT_RECORD_H_
