#include "tools/analysis/block_table.h"

namespace vramledger {

void BlockTable::Name(const Event& e) {
  Block* b = Find(e.device, e.b);
  if (b == nullptr) {
    ++unmatched_names_;
    return;
  }
  any_parameter_named_ |= e.flags == static_cast<uint8_t>(Role::kParameter);
  const Role role = e.flags < kRoleCount ? static_cast<Role>(e.flags) : Role::kNone;
  const Role stronger = StrongerRole(b->role, role);
  if (stronger != b->role || b->name == 0) b->name = e.a;
  b->role = stronger;
}

BlockFacts BlockTable::Facts(const Block& b, bool at_end, uint32_t workspace_site, uint32_t before_site) const {
  BlockFacts f;
  f.birth_phase = b.phase;
  f.flags = b.flags;
  f.role = b.role;
  f.requested_bytes = b.requested;
  f.names_known = any_parameter_named_;
  f.before_trace = before_site != 0 && b.module == before_site;
  f.workspace_hint = workspace_site != 0 && b.module == workspace_site;
  f.first_of_size_on_thread = b.first_of_size_on_thread;
  f.alive_at_end = at_end;
  marks_.Fill(b.birth, &f);
  return f;
}

}  // namespace vramledger
