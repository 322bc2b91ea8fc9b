#include "tracer/format/record_decoder.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace vramledger {
namespace {

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

void Decode(const uint8_t* slot, uint64_t sequence, Event* event) {
  // Every field is set, rather than the whole cleared first: this runs once for each record.
  event->kind = static_cast<RecordKind>(FIELD(MemoryRecord, kind));
  const uint8_t phase = FIELD(MemoryRecord, phase);
  event->phase = phase < kPhaseCount ? static_cast<Phase>(phase) : Phase::kUnknown;
  event->device = FIELD(MemoryRecord, device);
  event->flags = FIELD(MemoryRecord, flags);
  event->sequence = sequence;
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

// The text whose head is record `*at` and whose parts follow; moves `*at` past it. False where parts are missing.
bool PutTogether(std::span<const uint8_t> rows, size_t* at, DecodedText* out) {
  const size_t records = rows.size() / kRecordBytes;
  ControlRecord head{};
  std::memcpy(&head, rows.data() + *at * kRecordBytes, sizeof(head));
  ++*at;
  const uint64_t length = head.b;
  const uint64_t parts = (length + kContinuationBytes - 1) / kContinuationBytes;
  if (length > kMaxTextBytes || *at + parts > records) return false;
  out->kind = static_cast<RecordKind>(head.kind);
  out->id = head.a;
  out->text.reserve(length);
  for (uint64_t i = 0; i < parts; ++i, ++*at) {
    ContinuationRecord part{};
    std::memcpy(&part, rows.data() + *at * kRecordBytes, sizeof(part));
    if (part.kind != static_cast<uint8_t>(RecordKind::kContinuation)) return false;
    out->text.append(part.text, std::min<uint64_t>(kContinuationBytes, length - out->text.size()));
  }
  return true;
}

}  // namespace

size_t DecodeRecords(std::span<const uint8_t> rows, size_t first, size_t limit, uint64_t sequence, DecodedRecords* out) {
  out->texts.clear();
  out->cut_texts.clear();
  out->storage.resize(std::max(out->storage.size(), limit));
  Event* event = out->storage.data();
  const size_t end = first + std::min(limit, rows.size() / kRecordBytes - first);
  size_t at = first;
  while (at < end) {
    const auto kind = static_cast<RecordKind>(rows[at * kRecordBytes]);
    if (IsTextRecord(kind)) {
      const uint64_t number = sequence + at;
      DecodedText text;
      if (PutTogether(rows, &at, &text)) {
        text.end_sequence = sequence + at;
        out->texts.push_back(std::move(text));
      } else {
        out->cut_texts.push_back(number);
      }
      continue;
    }
    // Else padding, continuation, none, or newer than we know.
    if (IsMemoryRecord(kind) || IsControlRecord(kind)) Decode(rows.data() + at * kRecordBytes, sequence + at, event++);
    ++at;
  }
  out->count = static_cast<size_t>(event - out->storage.data());
  return at;
}

}  // namespace vramledger
