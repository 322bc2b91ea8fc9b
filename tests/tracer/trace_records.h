// Records to write and events to read, for the tests of the trace file.
#ifndef VRAMLEDGER_TESTS_TRACER_TRACE_RECORDS_H_
#define VRAMLEDGER_TESTS_TRACER_TRACE_RECORDS_H_

#include <vector>

#include "tracer/format/event.h"
#include "tracer/format/record.h"

namespace vramledger::testing {

inline MemoryRecord Memory(RecordKind kind, uint64_t address, uint64_t requested) {
  MemoryRecord r{};
  r.kind = static_cast<uint8_t>(kind);
  r.phase = static_cast<uint8_t>(Phase::kForward);
  Store48(r.address48, address / kAddressUnit);
  r.blocks = static_cast<uint32_t>((requested + kBlockUnit - 1) / kBlockUnit);
  r.slack = static_cast<uint32_t>(r.blocks * kBlockUnit - requested);
  return r;
}

inline std::vector<Event> ReadAll(EventSource& source) {
  std::vector<Event> events;
  while (const Event* e = source.Next()) events.push_back(*e);
  return events;
}

}  // namespace vramledger::testing

#endif  // VRAMLEDGER_TESTS_TRACER_TRACE_RECORDS_H_
