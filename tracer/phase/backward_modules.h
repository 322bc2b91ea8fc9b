// Which module an allocation of backward was made for: that of the forward which made the autograd node that runs.
// Derived from the records: modules note the autograd sequence number at which they begin and end, nodes the number
// that they got (FORMAT.md, kinds 18-20).
#ifndef VRAMLEDGER_TRACER_PHASE_BACKWARD_MODULES_H_
#define VRAMLEDGER_TRACER_PHASE_BACKWARD_MODULES_H_

#include <cstdint>
#include <vector>

#include "tracer/format/event.h"

namespace vramledger {

// Thread rule: one thread. Memory: for each recorded thread, at most kMaxChanges entries of 16 bytes and kMaxDepth of its
// modules; what is older or deeper has no module.
class BackwardModules {
 public:
  static constexpr size_t kMaxChanges = size_t{1} << 18;
  static constexpr size_t kMaxDepth = 4096;

  // To be shown every event in order. Sets module and node of allocations made in backward outside every module.
  void See(Event* event) {
    switch (event->kind) {
      case RecordKind::kAlloc:
        if (event->phase == Phase::kBackward || event->phase == Phase::kRecompute) Resolve(event);
        break;
      case RecordKind::kNode:
      case RecordKind::kModuleEnter:
      case RecordKind::kModuleExit:
        Follow(*event);
        break;
      default:
        break;
    }
  }

 private:
  struct Change {  // from this sequence number on, the innermost module is ...
    uint64_t sequence;
    uint32_t module;
  };
  struct Thread {
    std::vector<uint32_t> modules;
    uint64_t deeper = 0;  // modules entered beyond kMaxDepth
    std::vector<Change> changes;  // ascending
    uint32_t node_name = 0;
    uint32_t node_module = 0;
    size_t last_found = 0;  // index in changes
  };

  void Resolve(Event* event) const;
  void Follow(const Event& event);
  Thread& Of(uint16_t thread);
  uint32_t ModuleAt(uint16_t thread, uint64_t sequence);

  std::vector<Thread> threads_;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TRACER_PHASE_BACKWARD_MODULES_H_
