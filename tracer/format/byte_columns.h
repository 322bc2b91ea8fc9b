// Records and their byte columns: byte j of every record, for j from 0 to 31, one column after the other. Neighbours in a
// column are alike (kinds, high bytes of addresses and times), so zstd packs and unpacks them faster than rows.
#ifndef VRAMLEDGER_TRACER_FORMAT_BYTE_COLUMNS_H_
#define VRAMLEDGER_TRACER_FORMAT_BYTE_COLUMNS_H_

#include <cstddef>
#include <cstdint>

namespace vramledger {

// `records` x kRecordBytes bytes from `rows` to `columns`, or back. The two must not overlap. Any thread.
void RowsToColumns(const uint8_t* rows, size_t records, uint8_t* columns);
void ColumnsToRows(const uint8_t* columns, size_t records, uint8_t* rows);

}  // namespace vramledger

#endif  // VRAMLEDGER_TRACER_FORMAT_BYTE_COLUMNS_H_
