#include "tools/analysis/advise_checkpointing.h"

#include <algorithm>
#include <string_view>

#include "tools/analysis/format_text.h"
#include "tools/analysis/predictions.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

// The path up to its first number: "model.layer.3" of "model.layer.3.fc"; nothing where there is none.
std::string_view BlockPath(std::string_view path) {
  size_t begin = 0;
  while (begin < path.size()) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos) return path.substr(0, end);
    begin = end + 1;
  }
  return {};
}

}  // namespace

void CheckpointModel::See(const std::string& path, uint64_t input_bytes) {
  const std::string_view block = BlockPath(path);
  // The first leaf of a block sees the block's input.
  if (!block.empty() && input_bytes != 0) inputs_.emplace(block, input_bytes);
}

std::optional<Suggestion> CheckpointModel::Suggest(const Timeline& t, const std::vector<BlockGroup>& activations) const {
  std::map<std::string, uint64_t> saved_by_block;
  uint64_t all_activations = 0;
  for (const BlockGroup& g : activations) {
    all_activations += g.bytes.rounded;
    if (const std::string_view block = BlockPath(g.site); !block.empty()) saved_by_block[std::string(block)] += g.bytes.rounded;
  }
  uint64_t saved = 0, inputs = 0, largest = 0, count = 0;
  std::vector<std::string> modules;
  for (const auto& [path, bytes] : saved_by_block) {
    const auto input = inputs_.find(path);
    if (input == inputs_.end() || bytes <= input->second) continue;
    saved += bytes;
    inputs += input->second;
    largest = std::max(largest, bytes);
    ++count;
    modules.push_back(path);
  }
  if (count < 2 || saved <= inputs + largest) return std::nullopt;
  const auto less = static_cast<int64_t>(saved - inputs - largest);
  Suggestion s;
  s.id = "CHECKPOINTING";
  s.settings = {{"checkpoint_blocks", count}, {"use_reentrant", false}};
  s.predicted_peak = PeakWithout(t, [&](Phase, const Moment& m) {
    // What a phase holds of the activations goes away in proportion.
    const uint64_t held = m.categories[static_cast<size_t>(Category::kActivation)].rounded;
    const double share = static_cast<double>(held) / static_cast<double>(all_activations);
    return static_cast<int64_t>(static_cast<double>(less) * std::min(1.0, share));
  });
  s.method = Cat("the ", HumanBytes(saved), " saved inside ", count, " repeated blocks are replaced by their inputs (",
                 HumanBytes(inputs), ") and one block's recomputation (", HumanBytes(largest), ")");
  s.price = "one more forward of the blocks: about a third more compute";
  s.time_factor = 1.33;
  s.modules = std::move(modules);
  return s;
}

}  // namespace vramledger
