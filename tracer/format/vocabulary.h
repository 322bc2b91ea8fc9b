// The words of the trace with their numbers: phases, categories, roles. The numbers are part of the format (FORMAT.md §4):
// never renumber, only append.
#ifndef VRAMLEDGER_TRACER_FORMAT_VOCABULARY_H_
#define VRAMLEDGER_TRACER_FORMAT_VOCABULARY_H_

#include <cstdint>
#include <optional>
#include <string_view>

namespace vramledger {

// Where in the program an allocation was made.
enum class Phase : uint8_t {
  kUnknown = 0,
  kLoad = 1,
  kData = 2,
  kForward = 3,
  kRecompute = 4,
  kBackward = 5,
  kOptimizer = 6,
  kZeroGrad = 7,
  kEval = 8,
  kSave = 9,
  kCommunication = 10,
  kIdle = 11,
};
inline constexpr int kPhaseCount = 12;

// What the bytes are. Derived by tracer/phase/category_rules.h, never stored as a fact.
enum class Category : uint8_t {
  kUnknown = 0,
  kParameter = 1,
  kBuffer = 2,
  kGradient = 3,
  kOptimizerState = 4,
  kActivation = 5,
  kInput = 6,
  kTemporary = 7,
  kWorkspace = 8,
  kCommunication = 9,
  kCastCache = 10,
};
inline constexpr int kCategoryCount = 11;

// What a name record says an address holds (seen by walking modules and optimizers, so a fact).
enum class Role : uint8_t {
  kNone = 0,
  kParameter = 1,
  kBuffer = 2,
  kGradient = 3,
  kOptimizerState = 4,
  kInput = 5,
  kOutput = 6,
};
inline constexpr int kRoleCount = 7;

// Names as printed and as used in JSON: "forward", "optimizer_state", ... Static storage. Out-of-range values give "unknown".
std::string_view PhaseName(Phase phase);
std::string_view CategoryName(Category category);
std::string_view RoleName(Role role);
// The inverse of the above; nullopt for a word that is none.
std::optional<Phase> PhaseFromName(std::string_view name);
std::optional<Role> RoleFromName(std::string_view name);

// Begins the MARK of a device on which a share of the memory was set as the limit; the share follows.
inline constexpr std::string_view kMemoryFractionMark = "memory fraction: ";

}  // namespace vramledger

#endif  // VRAMLEDGER_TRACER_FORMAT_VOCABULARY_H_
