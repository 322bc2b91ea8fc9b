#include "tracer/format/vocabulary.h"

#include <array>
#include <cstddef>

namespace vramledger {
namespace {

constexpr std::array<std::string_view, kPhaseCount> kPhaseNames = {
    "unknown",  "load",      "data", "forward", "recompute",     "backward",
    "optimizer", "zero_grad", "eval", "save",    "communication", "idle"};
constexpr std::array<std::string_view, kCategoryCount> kCategoryNames = {
    "unknown", "parameter", "buffer",    "gradient",      "optimizer_state", "activation",
    "input",   "temporary", "workspace", "communication", "cast_cache"};
constexpr std::array<std::string_view, kRoleCount> kRoleNames = {
    "none", "parameter", "buffer", "gradient", "optimizer_state", "input", "output"};

template <size_t N>
std::string_view NameOf(const std::array<std::string_view, N>& names, uint8_t value) {
  return value < N ? names[value] : std::string_view("unknown");
}

template <typename E, size_t N>
std::optional<E> ValueOf(const std::array<std::string_view, N>& names, std::string_view name) {
  for (size_t i = 0; i < N; ++i) {
    if (names[i] == name) return static_cast<E>(i);
  }
  return std::nullopt;
}

}  // namespace

std::string_view PhaseName(Phase phase) { return NameOf(kPhaseNames, static_cast<uint8_t>(phase)); }
std::string_view CategoryName(Category category) { return NameOf(kCategoryNames, static_cast<uint8_t>(category)); }
std::string_view RoleName(Role role) { return NameOf(kRoleNames, static_cast<uint8_t>(role)); }
std::optional<Phase> PhaseFromName(std::string_view name) { return ValueOf<Phase>(kPhaseNames, name); }
std::optional<Role> RoleFromName(std::string_view name) { return ValueOf<Role>(kRoleNames, name); }

}  // namespace vramledger
