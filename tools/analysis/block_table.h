// The live blocks of all devices, kept up to date from memory and name events. Both passes of the analysis run over it.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_BLOCK_TABLE_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_BLOCK_TABLE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "tracer/format/event.h"
#include "tracer/format/record.h"
#include "tracer/phase/category_rules.h"

namespace vramledger {

struct Block {
  uint64_t address = 0;
  uint64_t requested = 0;
  uint64_t rounded = 0;
  uint64_t birth = 0;    // clock of BlockTable
  uint64_t ordinal = 0;  // allocations in order, over all devices
  uint32_t module = 0;
  uint32_t node = 0;
  uint32_t stack = 0;
  uint32_t name = 0;
  uint32_t birth_step = 0;
  uint16_t stream = 0;
  uint8_t device = 0;
  uint8_t flags = 0;
  Phase phase = Phase::kUnknown;
  Role role = Role::kNone;
  Category category = Category::kUnknown;  // second pass
  bool pending = false;
  bool first_of_size_on_thread = false;
  bool cast_of_parameter = false;
};

class BlockTable {
 public:
  // Applies one event. The visitor's functions are called while it happens:
  //   OnBirth(Block&)            the block was just added
  //   OnRequest(Block&)          freed by the program, awaited by a stream
  //   OnEnd(Block&)              about to be removed (pending or not)
  // Other events (phases, steps, segments) only advance the clock and the phase marks.
  template <typename Visitor>
  void Apply(const Event& e, Visitor& visitor) {
    ++clock_;
    switch (e.kind) {
      case RecordKind::kAlloc:
        marks_.Enter(e.phase, clock_);
        Birth(e, visitor);
        break;
      case RecordKind::kFreeRequested:
        marks_.Enter(e.phase, clock_);
        if (Block* b = Find(e.device, e.address); b == nullptr) {
          ++unmatched_frees_;
        } else if (!b->pending) {
          visitor.OnRequest(*b);
          b->pending = true;
        }
        break;
      case RecordKind::kFreeCompleted: {
        const auto it = live_.find(Key(e.device, e.address));
        if (it == live_.end()) {
          ++unmatched_frees_;
          break;
        }
        if (!it->second.pending) marks_.Enter(e.phase, clock_);
        visitor.OnEnd(it->second);
        if (it->second.cast_of_parameter) casts_.erase({it->second.module, it->second.requested});
        live_.erase(it);
        break;
      }
      case RecordKind::kPhase:
        marks_.Enter(e.phase, clock_);
        if (e.phase == Phase::kOptimizer && e.a != 0 && e.c == 0) marks_.ExpectSteps();
        break;
      case RecordKind::kStep:
        marks_.Step(clock_);
        break;
      case RecordKind::kName:
        Name(e);
        break;
      default:
        break;
    }
  }

  Block* Find(uint8_t device, uint64_t address) {
    const auto it = live_.find(Key(device, address));
    return it == live_.end() ? nullptr : &it->second;
  }
  const absl::flat_hash_map<uint64_t, Block>& live() const { return live_; }

  // Facts of a block as known now. The ids say which sites mark workspace and unrecorded births.
  BlockFacts Facts(const Block& b, bool at_end, uint32_t workspace_site, uint32_t before_site) const;

  // How strings are looked up; without it, casts of parameters are told by their sizes alone.
  void set_text(std::function<std::string_view(uint32_t)> text) { text_ = std::move(text); }

  const PhaseMarks& marks() const { return marks_; }
  uint64_t clock() const { return clock_; }
  uint64_t allocations() const { return ordinal_; }
  uint64_t unmatched_frees() const { return unmatched_frees_; }
  uint64_t unmatched_names() const { return unmatched_names_; }
  void set_step(uint32_t step) { step_ = step; }

 private:
  static uint64_t Key(uint8_t device, uint64_t address) { return address ^ (static_cast<uint64_t>(device) << 56); }

  template <typename Visitor>
  void Birth(const Event& e, Visitor& visitor) {
    auto [it, fresh] = live_.try_emplace(Key(e.device, e.address));
    Block& b = it->second;
    if (!fresh) {  // a free was lost
      visitor.OnEnd(b);
      b = Block{};
    }
    b.address = e.address;
    b.requested = e.requested_bytes;
    b.rounded = e.rounded_bytes;
    b.birth = clock_;
    b.ordinal = ordinal_++;
    b.module = e.module;
    b.node = e.node;
    b.stack = e.stack;
    b.birth_step = step_;
    b.stream = e.stream;
    b.device = e.device;
    b.flags = e.flags;
    b.phase = e.phase;
    if (IsCublasWorkspaceSize(e.requested_bytes)) {
      const uint64_t place = static_cast<uint64_t>(e.device) << 32 | static_cast<uint64_t>(e.thread) << 16 | e.stream;
      b.first_of_size_on_thread = workspace_places_.insert({e.requested_bytes, place}).second;
    }
    // In the module's own order: autocast casts a weight before the input, which may be of the same size.
    if ((e.flags & kFlagCast) != 0 && IsSizeOfParameter(e.module, 2 * e.requested_bytes)) {
      b.cast_of_parameter = casts_.insert({e.module, e.requested_bytes}).second;
    }
    visitor.OnBirth(b);
  }
  void Name(const Event& e);
  // Of a parameter of that module (a tied weight has a name in each); of any, where only modules below it have some.
  bool IsSizeOfParameter(uint32_t module, uint64_t bytes) const;

  std::function<std::string_view(uint32_t)> text_;
  absl::flat_hash_map<uint64_t, Block> live_;
  absl::flat_hash_set<std::pair<uint64_t, uint64_t>> workspace_places_;
  std::map<std::string, absl::flat_hash_set<uint64_t>, std::less<>> parameter_sizes_;  // by module; of all under ""
  absl::flat_hash_set<std::pair<uint32_t, uint64_t>> casts_;  // live casts of parameters: module and bytes
  PhaseMarks marks_;
  uint64_t clock_ = 0;
  uint64_t ordinal_ = 0;
  uint64_t unmatched_frees_ = 0;
  uint64_t unmatched_names_ = 0;
  uint32_t step_ = 1;
  bool any_parameter_named_ = false;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_BLOCK_TABLE_H_
