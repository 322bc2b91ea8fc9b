#include "tools/estimate/optimizer_state.h"

#include <cctype>
#include <utility>

namespace vramledger {
namespace {

// State: as torch/optim/*.py (2.11) makes it in _init_group, bitsandbytes' optimizer.py in init_state, and the Lion
// paper (arXiv:2302.06675). Temporaries: the lists that the _multi_tensor_* functions of torch/optim keep at once, and
// the tensors that _single_tensor_* keeps for one parameter; a fused kernel makes none.
struct Rule {
  OptimizerKind kind;
  std::string_view name;
  uint64_t full;           // tensors like the parameter
  uint64_t quantised;      // tensors of one byte an element with block-wise scales
  double foreach, single;  // temporaries: of all parameters, of one
  bool decoupled;          // weight decay makes no temporary
  bool paged;
};
constexpr Rule kRules[] = {
    {OptimizerKind::kNone, "none", 0, 0, 0, 0, true, false},
    {OptimizerKind::kSgd, "sgd", 0, 0, 0, 0, false, false},
    {OptimizerKind::kMomentum, "momentum", 1, 0, 0, 0, false, false},
    {OptimizerKind::kAdam, "adamw", 2, 0, 1, 3, true, false},
    {OptimizerKind::kAmsgrad, "amsgrad", 3, 0, 1, 3, true, false},
    {OptimizerKind::kAdamax, "adamax", 2, 0, 1, 2, false, false},
    {OptimizerKind::kNadam, "nadam", 2, 0, 1, 2, false, false},
    {OptimizerKind::kAdagrad, "adagrad", 1, 0, 2, 2, false, false},
    {OptimizerKind::kAdadelta, "adadelta", 2, 0, 2, 2, false, false},
    {OptimizerKind::kRmsprop, "rmsprop", 1, 0, 1, 1, false, false},
    {OptimizerKind::kRmspropMomentum, "rmsprop-momentum", 2, 0, 1, 1, false, false},
    {OptimizerKind::kRmspropCentered, "rmsprop-centered", 2, 0, 1, 1, false, false},
    {OptimizerKind::kRmspropCenteredMomentum, "rmsprop-centered-momentum", 3, 0, 1, 1, false, false},
    {OptimizerKind::kAdafactor, "adafactor", 0, 0, 1, 2, true, false},
    {OptimizerKind::kLion, "lion", 1, 0, 1, 2, true, false},
    {OptimizerKind::kMuon, "muon", 1, 0, 0, 3, true, false},
    {OptimizerKind::kAdam8bit, "adamw-8bit", 0, 2, 0, 0, true, false},
    {OptimizerKind::kMomentum8bit, "momentum-8bit", 0, 1, 0, 0, true, false},
    {OptimizerKind::kRmsprop8bit, "rmsprop-8bit", 0, 1, 0, 0, true, false},
    {OptimizerKind::kLion8bit, "lion-8bit", 0, 1, 0, 0, true, false},
    {OptimizerKind::kPagedAdam, "paged-adamw", 2, 0, 0, 0, true, true},
    {OptimizerKind::kPagedAdam8bit, "paged-adamw-8bit", 0, 2, 0, 0, true, true},
    {OptimizerKind::kPagedLion8bit, "paged-lion-8bit", 0, 1, 0, 0, true, true},
};

// Other names of the same state.
constexpr std::pair<std::string_view, OptimizerKind> kAliases[] = {
    {"adam", OptimizerKind::kAdam},           {"radam", OptimizerKind::kAdam},
    {"adam8bit", OptimizerKind::kAdam8bit},   {"sgd8bit", OptimizerKind::kMomentum8bit},
    {"pagedadam", OptimizerKind::kPagedAdam}, {"pagedadam8bit", OptimizerKind::kPagedAdam8bit},
};

const Rule& RuleOf(OptimizerKind kind) {
  for (const Rule& rule : kRules) {
    if (rule.kind == kind) return rule;
  }
  return kRules[0];
}

std::string Plain(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c != '-' && c != '_') out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

// bitsandbytes: tensors under 4,096 elements stay in 32 bits (min_8bit_size); a scale of 4 bytes for each block of 256
// elements (2,048 before 0.44); only tensors of 100,000 elements and more are paged.
constexpr uint64_t kLeastQuantised = 4096, kScaleBlock = 256, kLeastPaged = 100000;

}  // namespace

std::vector<std::string> OptimizerNames() {
  std::vector<std::string> out;
  for (const Rule& rule : kRules) out.emplace_back(rule.name);
  for (const auto& alias : {"adam", "radam"}) out.emplace_back(alias);
  return out;
}

std::optional<OptimizerKind> OptimizerFromName(std::string_view name) {
  const std::string plain = Plain(name);
  for (const Rule& rule : kRules) {
    if (Plain(rule.name) == plain) return rule.kind;
  }
  for (const auto& [alias, kind] : kAliases) {
    if (alias == plain) return kind;
  }
  return std::nullopt;
}

std::string_view OptimizerName(OptimizerKind kind) {
  return RuleOf(kind).name;
}

std::optional<uint64_t> StateCopies(OptimizerKind kind) {
  const Rule& rule = RuleOf(kind);
  if (rule.quantised != 0 || kind == OptimizerKind::kAdafactor) return std::nullopt;
  return rule.full;
}

StateTensors StateOfTensor(OptimizerKind kind, uint64_t rows, uint64_t columns, uint64_t element_bytes,
                           bool scalar_on_device) {
  const Rule& rule = RuleOf(kind);
  const uint64_t numel = columns == 0 ? rows : rows * columns;
  StateTensors out;
  const auto add = [&](uint64_t bytes) { out.bytes[out.count++] = bytes; };
  const bool paged = rule.paged && numel >= kLeastPaged;
  if (kind == OptimizerKind::kAdafactor) {
    // Rows' and columns' means of the squares (arXiv:1804.04235, section 3); a vector keeps its squares whole.
    add(rows * element_bytes);
    if (columns != 0) add(columns * element_bytes);
  } else if (kind == OptimizerKind::kMuon && columns == 0) {
    // Vectors are left to Adam (arXiv:2502.16982, section 2).
    add(numel * element_bytes);
    add(numel * element_bytes);
  } else if (rule.quantised != 0) {
    for (uint64_t i = 0; i < rule.quantised; ++i) {
      if (numel < kLeastQuantised) {
        add(numel * 4);
      } else {
        (paged ? out.paged_bytes : out.bytes[out.count++]) += numel;
        add((numel + kScaleBlock - 1) / kScaleBlock * 4);
      }
    }
  } else {
    for (uint64_t i = 0; i < rule.full; ++i) {
      if (paged) {
        out.paged_bytes += numel * element_bytes;
      } else {
        add(numel * element_bytes);
      }
    }
  }
  const bool counts_steps = kind != OptimizerKind::kSgd && kind != OptimizerKind::kMomentum &&
                            kind != OptimizerKind::kNone && rule.quantised == 0 && !rule.paged;
  if (scalar_on_device && counts_steps && out.count < 4) add(4);
  return out;
}

StepTemporaries TemporariesOfStep(OptimizerKind kind, OptimizerLoop loop, bool weight_decay) {
  const Rule& rule = RuleOf(kind);
  StepTemporaries out;
  if (loop == OptimizerLoop::kFused) return out;
  const double decayed = weight_decay && !rule.decoupled ? 1 : 0;
  if (loop == OptimizerLoop::kForeach && kind != OptimizerKind::kLion && kind != OptimizerKind::kMuon) {
    // Adagrad multiplies the decayed gradient in place where it has one.
    out.all = kind == OptimizerKind::kAdagrad ? 2 : rule.foreach + decayed;
  } else {
    out.largest = rule.single + decayed;
  }
  return out;
}

}  // namespace vramledger
