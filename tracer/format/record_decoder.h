// Turns the 32-byte records of a trace into events and texts.
#ifndef VRAMLEDGER_TRACER_FORMAT_RECORD_DECODER_H_
#define VRAMLEDGER_TRACER_FORMAT_RECORD_DECODER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tracer/format/event.h"
#include "tracer/format/record.h"

namespace vramledger {

// A text record, put together.
struct DecodedText {
  RecordKind kind = RecordKind::kNone;  // kString or kMeta
  uint32_t id = 0;
  uint64_t end_sequence = 0;  // of the record after it
  std::string text;
};

// The records of one batch.
struct DecodedRecords {
  std::span<Event> events() { return {storage.data(), count}; }

  std::vector<Event> storage;  // kept from batch to batch; the first `count` are this one's
  size_t count = 0;
  std::vector<DecodedText> texts;
  std::vector<uint64_t> cut_texts;  // sequence numbers of texts that are not whole
};

// Decodes `rows` (whole records) from the record `first` on, `limit` records or a little more where a text goes on.
// `sequence` is the sequence number of the first of `rows`. Returns the index of the record to go on with.
size_t DecodeRecords(std::span<const uint8_t> rows, size_t first, size_t limit, uint64_t sequence, DecodedRecords* out);

}  // namespace vramledger

#endif  // VRAMLEDGER_TRACER_FORMAT_RECORD_DECODER_H_
