// Writes a synthetic trace: make_trace PATH EVENTS. Training steps of a deep network as the plug-in records them:
// modules entered and left, activations held from forward to backward, a temporary in every second operator, nodes,
// gradients with names, optimizer temporaries, and segments. What reading costs is measured on it.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tracer/format/trace_writer.h"

namespace {

using namespace vramledger;

constexpr int kLayers = 1000;

class Script {
 public:
  Script(TraceWriter& writer, uint64_t events) : writer_(writer), events_(events) {
    for (int i = 0; i < kLayers; ++i) {
      modules_.push_back(writer.InternString("Net.layers." + std::to_string(i)));
      gradients_.push_back(writer.InternString("Net.layers." + std::to_string(i) + ".weight.grad"));
    }
    node_ = writer.InternString("AddmmBackward0");
    optimizer_ = writer.InternString("AdamW#1");
  }

  void Run() {
    Memory(RecordKind::kSegmentAlloc, Phase::kLoad, 0, uint64_t{64} << 30, 0);
    for (uint64_t step = 1; written_ < events_; ++step) {
      Step(step);
      // The compressor must keep up: a lost record would make another trace.
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

 private:
  uint64_t Place(uint64_t index) const { return (uint64_t{1} << 32) + index * (uint64_t{4} << 20); }

  void Memory(RecordKind kind, Phase phase, uint64_t place, uint64_t bytes, uint32_t module) {
    MemoryRecord r{};
    r.kind = static_cast<uint8_t>(kind);
    r.phase = static_cast<uint8_t>(phase);
    r.flags = kFlagSignals | kFlagGradMode;
    Store48(r.address48, Place(place) / kAddressUnit);
    r.blocks = static_cast<uint32_t>(bytes / kBlockUnit);
    r.module = module;
    r.thread = phase == Phase::kBackward ? 1 : 0;
    writer_.Append(r);
    ++written_;
  }
  void Control(RecordKind kind, Phase phase, uint32_t a, uint64_t b, uint64_t c, uint8_t flags = 0) {
    ControlRecord r{};
    r.kind = static_cast<uint8_t>(kind);
    r.phase = static_cast<uint8_t>(phase);
    r.flags = flags;
    r.thread = phase == Phase::kBackward ? 1 : 0;
    r.a = a;
    r.b = b;
    r.c = c;
    writer_.Append(r);
    ++written_;
  }
  void Enter(Phase to) {
    Control(RecordKind::kPhase, to, 0, static_cast<uint64_t>(phase_), 0);
    phase_ = to;
  }

  void Step(uint64_t step) {
    Enter(Phase::kForward);
    for (int i = 0; i < kLayers; ++i) {
      const auto at = static_cast<uint64_t>(i);
      Control(RecordKind::kModuleEnter, phase_, modules_[at], sequence_, 0);
      Memory(RecordKind::kAlloc, phase_, 2 * at, uint64_t{1} << 20, modules_[at]);
      if (i % 2 == 0) {
        Memory(RecordKind::kAlloc, phase_, 4 * kLayers, uint64_t{2} << 20, modules_[at]);
        Memory(RecordKind::kFreeCompleted, phase_, 4 * kLayers, uint64_t{2} << 20, modules_[at]);
      }
      sequence_ += 2;
      Control(RecordKind::kModuleExit, phase_, 0, sequence_, 0);
    }
    Enter(Phase::kBackward);
    for (int i = kLayers - 1; i >= 0; --i) {
      const auto at = static_cast<uint64_t>(i);
      Control(RecordKind::kNode, phase_, node_, sequence_ - 2 * (kLayers - at), 0);
      Memory(RecordKind::kAlloc, phase_, 2 * kLayers + at, uint64_t{512} << 10, 0);
      Memory(RecordKind::kAlloc, phase_, 5 * kLayers + at, uint64_t{1} << 20, 0);
      Memory(RecordKind::kFreeCompleted, phase_, 2 * at, uint64_t{1} << 20, modules_[at]);
      Memory(RecordKind::kFreeCompleted, phase_, 5 * kLayers + at, uint64_t{1} << 20, 0);
    }
    for (int i = 0; i < kLayers; ++i) {
      const auto at = static_cast<uint64_t>(i);
      Control(RecordKind::kName, phase_, gradients_[at], Place(2 * kLayers + at), uint64_t{512} << 10,
              static_cast<uint8_t>(Role::kGradient));
    }
    Enter(Phase::kOptimizer);
    for (int i = 0; i < kLayers; ++i)
      Memory(RecordKind::kAlloc, phase_, 7 * kLayers + static_cast<uint64_t>(i), uint64_t{512} << 10, 0);
    for (int i = 0; i < kLayers; ++i)
      Memory(RecordKind::kFreeCompleted, phase_, 7 * kLayers + static_cast<uint64_t>(i), uint64_t{512} << 10, 0);
    Control(RecordKind::kStep, phase_, optimizer_, step, 0);
    Enter(Phase::kZeroGrad);
    for (int i = 0; i < kLayers; ++i)
      Memory(RecordKind::kFreeCompleted, phase_, 2 * kLayers + static_cast<uint64_t>(i), uint64_t{512} << 10, 0);
  }

  TraceWriter& writer_;
  const uint64_t events_;
  uint64_t written_ = 0, sequence_ = 1;
  Phase phase_ = Phase::kLoad;
  std::vector<uint32_t> modules_, gradients_;
  uint32_t node_ = 0, optimizer_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || std::strtoull(argv[2], nullptr, 10) == 0) {
    std::fprintf(stderr, "usage: make_trace PATH EVENTS\n");
    return 2;
  }
  const auto writer =
      vramledger::TraceWriter::Create(argv[1], {.max_slots = 4096});  // no loss where the compressor is slower
  if (!writer.ok()) {
    std::fprintf(stderr, "error: %s\n", std::string(writer.status().message()).c_str());
    return 3;
  }
  Script(**writer, std::strtoull(argv[2], nullptr, 10)).Run();
  (*writer)->Close();
  std::printf("%llu records lost\n", static_cast<unsigned long long>((*writer)->losses()));
  return 0;
}
