#include "tools/foreign/event_writer.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "nlohmann/json.hpp"
#include "tools/foreign/text.h"
#include "tracer/format/trace_writer.h"

namespace vramledger {
namespace {

constexpr uint64_t kMaxSlots = 8192;  // 4 GiB of ring, given back at the close

class Encoder {
 public:
  // `moved`: where each address goes; empty = every address stays.
  Encoder(EventSource& source, TraceWriter& writer, const std::map<uint64_t, uint64_t>& moved)
      : source_(source), writer_(writer), moved_(moved) {}

  void Append(const Event& e) {
    if (IsMemoryRecord(e.kind)) return Memory(e);
    if (!IsControlRecord(e.kind)) return;
    ControlRecord r{};
    r.kind = static_cast<uint8_t>(e.kind);
    r.phase = static_cast<uint8_t>(e.phase);
    r.device = e.device;
    r.flags = e.flags;
    r.thread = e.thread;
    r.a = ControlHasText(e.kind) ? String(e.a) : e.a;
    r.b = e.kind == RecordKind::kName || e.kind == RecordKind::kUnname ? Address(e.b) : e.b;
    r.c = e.c;
    Store48(r.time48, e.time_ns / kTimeUnitNs);
    writer_.Append(r, /*keep_time=*/true);
  }

 private:
  void Memory(const Event& e) {
    const bool failed = e.kind == RecordKind::kOutOfMemory;
    MemoryRecord r{};
    r.kind = static_cast<uint8_t>(e.kind);
    r.phase = static_cast<uint8_t>(e.phase);
    r.device = e.device;
    r.flags = e.flags;
    r.thread = e.thread;
    r.stream = e.stream;
    r.module = String(e.module);
    Store48(r.time48, e.time_ns / kTimeUnitNs);
    Store48(r.address48, (failed ? e.address : Address(e.address)) / kAddressUnit);
    const uint64_t rounded = std::max(e.rounded_bytes, e.requested_bytes);
    const uint64_t blocks = (rounded + kBlockUnit - 1) / kBlockUnit;
    r.blocks = static_cast<uint32_t>(std::min<uint64_t>(blocks, UINT32_MAX));
    r.slack = static_cast<uint32_t>(std::min<uint64_t>(blocks * kBlockUnit - e.requested_bytes, UINT32_MAX));
    writer_.Append(r, /*keep_time=*/true);
  }

  uint64_t Address(uint64_t address) const {
    const auto it = moved_.find(address);
    return it == moved_.end() ? address : it->second;
  }

  uint32_t String(uint32_t id) {
    if (id == 0) return 0;
    const auto it = ids_.find(id);
    if (it != ids_.end()) return it->second;
    return ids_[id] = writer_.InternString(source_.String(id));
  }

  EventSource& source_;
  TraceWriter& writer_;
  const std::map<uint64_t, uint64_t>& moved_;
  absl::flat_hash_map<uint32_t, uint32_t> ids_;
};

// The same order with every gap rounded up to whole blocks.
std::map<uint64_t, uint64_t> MoveApart(std::vector<uint64_t> addresses) {
  std::sort(addresses.begin(), addresses.end());
  addresses.erase(std::unique(addresses.begin(), addresses.end()), addresses.end());
  std::map<uint64_t, uint64_t> moved;
  uint64_t before = 0, at = 0;
  for (const uint64_t address : addresses) {
    at += (address - before + kBlockUnit - 1) / kBlockUnit * kBlockUnit;
    moved[address] = at;
    before = address;
  }
  return moved;
}

}  // namespace

absl::StatusOr<WrittenTrace> WriteTrace(EventSource& probe, EventSource& source, const std::string& path) {
  WrittenTrace written;
  std::vector<uint64_t> addresses;
  uint64_t events = 0;
  while (const Event* next = probe.Next()) {
    const Event& e = *next;
    ++events;
    if (!IsMemoryRecord(e.kind) || e.kind == RecordKind::kOutOfMemory) continue;
    if (e.address % kAddressUnit != 0) written.addresses_moved = true;
    addresses.push_back(e.address);
  }
  std::map<uint64_t, uint64_t> moved;
  if (written.addresses_moved) moved = MoveApart(std::move(addresses));
  // Nobody must wait here for the compressor as a training run does, so the ring holds everything.
  TraceWriterOptions options;
  const uint64_t slots = (events + events / 4) / options.records_per_slot + 8;
  options.initial_slots = options.max_slots = static_cast<uint32_t>(std::min<uint64_t>(slots, kMaxSlots));
  absl::StatusOr<std::unique_ptr<TraceWriter>> writer = TraceWriter::Create(path, options);
  if (!writer.ok()) return writer.status();
  nlohmann::json metadata = nlohmann::json::parse(probe.metadata_json(), nullptr, /*allow_exceptions=*/false);
  if (!metadata.is_object()) metadata = nlohmann::json::object();
  if (!probe.health().notes.empty()) metadata["import_notes"] = probe.health().notes;
  (*writer)->AppendMetadata(metadata.dump());
  Encoder encoder(source, **writer, moved);
  while (const Event* e = source.Next()) {
    encoder.Append(*e);
    ++written.records;
  }
  (*writer)->Close();
  if ((*writer)->losses() != 0)
    return absl::DataLossError(Cat(path, ": ", (*writer)->losses(), " records could not be written"));
  return written;
}

}  // namespace vramledger
