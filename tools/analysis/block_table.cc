#include "tools/analysis/block_table.h"

namespace vramledger {

void BlockTable::Name(const Event& e) {
  Block* b = Find(e.device, e.b);
  if (b == nullptr) {
    ++unmatched_names_;
    return;
  }
  if (e.flags == static_cast<uint8_t>(Role::kParameter)) {
    parameter_sizes_[""].insert(b->requested);
    const std::string_view name = text_ ? text_(e.a) : std::string_view();
    if (const size_t dot = name.rfind('.'); dot != std::string_view::npos)
      parameter_sizes_[std::string(name.substr(0, dot))].insert(b->requested);
  }
  any_parameter_named_ |= e.flags == static_cast<uint8_t>(Role::kParameter);
  const Role role = e.flags < kRoleCount ? static_cast<Role>(e.flags) : Role::kNone;
  const Role stronger = StrongerRole(b->role, role);
  if (stronger != b->role || b->name == 0) b->name = e.a;
  b->role = stronger;
}

bool BlockTable::IsSizeOfParameter(uint32_t module, uint64_t bytes) const {
  const std::string path(text_ ? text_(module) : std::string_view());
  auto sizes = parameter_sizes_.find(path);
  if (sizes == parameter_sizes_.end()) {
    // A module without parameters below it (an activation function) casts none, whatever the sizes of its tensors.
    const auto below = parameter_sizes_.lower_bound(path + ".");
    if (!path.empty() && (below == parameter_sizes_.end() || !below->first.starts_with(path + "."))) return false;
    sizes = parameter_sizes_.find("");
  }
  return sizes != parameter_sizes_.end() && sizes->second.contains(bytes);
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
  f.cast_of_parameter = b.cast_of_parameter;
  f.first_of_size_on_thread = b.first_of_size_on_thread;
  f.alive_at_end = at_end;
  marks_.Fill(b.birth, &f);
  return f;
}

}  // namespace vramledger
