#include "allocator/plugin/recorder.h"

#include <algorithm>

#include "tracer/format/fast_tls.h"

namespace vramledger {
namespace {

MemoryRecord Base(RecordKind kind, Phase phase, int device, uint8_t flags) {
  MemoryRecord r{};
  r.kind = static_cast<uint8_t>(kind);
  r.phase = static_cast<uint8_t>(phase);
  r.device = static_cast<uint8_t>(device);
  r.flags = flags;
  r.thread = PhaseTracker::ThreadNumber();
  return r;
}

void SetSizes(MemoryRecord& r, uint64_t rounded, uint64_t requested) {
  r.blocks = static_cast<uint32_t>((rounded + kBlockUnit - 1) / kBlockUnit);
  r.slack = static_cast<uint32_t>(uint64_t{r.blocks} * kBlockUnit - std::min(requested, rounded));
}

}  // namespace

uint16_t Recorder::StreamNumber(StreamHandle stream) {
  if (stream == 0) return 0;
  static VRAMLEDGER_FAST_TLS StreamHandle last = 0;
  static VRAMLEDGER_FAST_TLS uint16_t last_number = 0;
  if (stream == last) return last_number;
  streams_lock_.lock();
  const auto [it, fresh] = streams_.emplace(stream, static_cast<uint16_t>(std::min<size_t>(streams_.size() + 1, 0xffff)));
  last_number = it->second;
  streams_lock_.unlock();
  if (fresh && last_number == 0xffff && writer() != nullptr) writer()->AddLoss(LossCause::kTableFull);
  last = stream;
  return last_number;
}

void Recorder::Block(RecordKind kind, const BlockView& block, Phase phase, uint8_t flags, uint32_t module) {
  TraceWriter* w = writer();
  if (w == nullptr) return;
  MemoryRecord r = Base(kind, phase, block.device, static_cast<uint8_t>(flags | (block.small_pool ? kFlagSmallPool : 0)));
  r.stream = StreamNumber(block.stream);
  r.module = module;
  Store48(r.address48, block.address / kAddressUnit);
  SetSizes(r, block.block_bytes, block.requested_bytes);
  w->Append(r);
}

void Recorder::WriteCountersIfDue(int device) {
  DeviceSums& sums = devices_[static_cast<size_t>(device)];
  if (!sums.counters_due.load(std::memory_order_relaxed)) return;
  sums.counters_due.store(false, std::memory_order_relaxed);
  Control(RecordKind::kCounters, 0, sums.allocated, sums.reserved, phases_.program_phase(), device);
}

void Recorder::OnAlloc(const BlockView& block, BlockTag& tag) {
  ledger_.Add(block, tag);
  devices_[static_cast<size_t>(block.device)].allocated += block.block_bytes;
  const LiveTag live = LiveTag::From(tag);
  Block(RecordKind::kAlloc, block, static_cast<Phase>(live.phase), live.flags, live.module);
  WriteCountersIfDue(block.device);
}

void Recorder::OnFreeRequested(const BlockView& block, BlockTag&) {
  Block(RecordKind::kFreeRequested, block, phases_.program_phase(), 0, 0);
}

void Recorder::OnFree(const BlockView& block, BlockTag& tag, bool) {
  Block(RecordKind::kFreeCompleted, block, phases_.program_phase(), 0, 0);
  devices_[static_cast<size_t>(block.device)].allocated -= block.block_bytes;
  ledger_.Remove(block, tag);
}

void Recorder::Segment(RecordKind kind, const SegmentView& segment) {
  uint64_t& reserved = devices_[static_cast<size_t>(segment.device)].reserved;
  const bool grows = kind == RecordKind::kSegmentAlloc || kind == RecordKind::kSegmentMap;
  reserved += grows ? segment.bytes : 0 - segment.bytes;
  segment_changes_.fetch_add(1, std::memory_order_release);
  TraceWriter* w = writer();
  if (w == nullptr) return;
  MemoryRecord r = Base(kind, phases_.program_phase(), segment.device, segment.small_pool ? kFlagSmallPool : 0);
  r.stream = StreamNumber(segment.stream);
  Store48(r.address48, segment.address / kAddressUnit);
  SetSizes(r, segment.bytes, segment.bytes);
  w->Append(r);
}

void Recorder::OnOutOfMemory(const OutOfMemoryInfo& info) {
  TraceWriter* w = writer();
  if (w == nullptr) return;
  MemoryRecord r = Base(RecordKind::kOutOfMemory, phases_.program_phase(), info.device, 0);
  r.stream = StreamNumber(info.stream);
  Store48(r.address48, info.device_free_bytes / kAddressUnit);
  SetSizes(r, info.rounded_bytes, info.requested_bytes);
  w->Append(r);
  devices_[static_cast<size_t>(info.device)].counters_due.store(true, std::memory_order_relaxed);
}

void Recorder::Control(RecordKind kind, uint32_t a, uint64_t b, uint64_t c, Phase phase, int device, uint8_t flags) {
  TraceWriter* w = writer();
  if (w == nullptr) return;
  ControlRecord r{};
  r.kind = static_cast<uint8_t>(kind);
  r.phase = static_cast<uint8_t>(phase);
  r.device = static_cast<uint8_t>(device);
  r.flags = flags;
  r.thread = PhaseTracker::ThreadNumber();
  r.a = a;
  r.b = b;
  r.c = c;
  w->Append(r);
}

void Recorder::RequestCounters() {
  for (DeviceSums& sums : devices_) sums.counters_due.store(true, std::memory_order_relaxed);
}

uint32_t Recorder::Intern(std::string_view text) {
  TraceWriter* w = writer();
  return w == nullptr ? 0 : w->InternString(text);
}

}  // namespace vramledger
