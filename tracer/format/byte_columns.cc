#include "tracer/format/byte_columns.h"

#include <cstring>

#include "tracer/format/record.h"

namespace vramledger {
namespace {

constexpr size_t kSide = 16;
// Columns are often a power of two apart and so share a set of the cache: each is touched a whole line at a time.
constexpr size_t kLine = 64;

typedef uint8_t Bytes16 __attribute__((vector_size(kSide)));

// Row i interleaved with row i + 8, for all i.
inline void Interleave(const Bytes16 (&from)[kSide], Bytes16 (&to)[kSide]) {
#pragma GCC unroll 8
  for (size_t i = 0; i < kSide / 2; ++i) {
    const Bytes16 a = from[i], b = from[i + kSide / 2];
    to[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    to[2 * i + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  }
}

// A square of 16 x 16 bytes: log2(16) interleavings.
inline void TransposeSquare(const uint8_t* in, size_t in_stride, uint8_t* out, size_t out_stride) {
  Bytes16 one[kSide], other[kSide];
#pragma GCC unroll 16
  for (size_t i = 0; i < kSide; ++i) std::memcpy(&one[i], in + i * in_stride, kSide);
  Interleave(one, other);
  Interleave(other, one);
  Interleave(one, other);
  Interleave(other, one);
#pragma GCC unroll 16
  for (size_t i = 0; i < kSide; ++i) std::memcpy(out + i * out_stride, &one[i], kSide);
}

}  // namespace

void RowsToColumns(const uint8_t* rows, size_t records, uint8_t* columns) {
  uint8_t tile[kSide][kLine];
  size_t r = 0;
  for (; r + kLine <= records; r += kLine) {
    for (size_t first = 0; first < kRecordBytes; first += kSide) {
      for (size_t i = 0; i < kLine; i += kSide)
        TransposeSquare(rows + (r + i) * kRecordBytes + first, kRecordBytes, &tile[0][i], kLine);
      for (size_t j = 0; j < kSide; ++j) std::memcpy(columns + (first + j) * records + r, tile[j], kLine);
    }
  }
  for (; r < records; ++r) {
    for (size_t j = 0; j < kRecordBytes; ++j) columns[j * records + r] = rows[r * kRecordBytes + j];
  }
}

void ColumnsToRows(const uint8_t* columns, size_t records, uint8_t* rows) {
  uint8_t tile[kSide][kLine];
  size_t r = 0;
  for (; r + kLine <= records; r += kLine) {
    for (size_t first = 0; first < kRecordBytes; first += kSide) {
      for (size_t j = 0; j < kSide; ++j) std::memcpy(tile[j], columns + (first + j) * records + r, kLine);
      for (size_t i = 0; i < kLine; i += kSide)
        TransposeSquare(&tile[0][i], kLine, rows + (r + i) * kRecordBytes + first, kRecordBytes);
    }
  }
  for (; r < records; ++r) {
    for (size_t j = 0; j < kRecordBytes; ++j) rows[r * kRecordBytes + j] = columns[j * records + r];
  }
}

}  // namespace vramledger
