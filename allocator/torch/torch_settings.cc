#include "allocator/torch/torch_settings.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAAllocatorConfig.h>

#include <algorithm>
#include <string>
#include <utility>

#include "allocator/plugin/plugin.h"
#include "allocator/torch/torch_compat.h"

namespace vramledger {
namespace {

using Common = c10::CachingAllocator::AcceleratorAllocatorConfig;
using Cuda = c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;

// Leaked: asked for as long as the process lives.
std::string* replaced = nullptr;
thread_local bool parsing = false;

struct ParsingScope {
  ParsingScope() { parsing = true; }
  ~ParsingScope() { parsing = false; }
};

AllocatorSettings Current(AllocatorSettings settings) {
  settings.max_split_size = Common::max_split_size();
  settings.max_non_split_rounding = Common::max_non_split_rounding_size();
  settings.garbage_collection_threshold = Common::garbage_collection_threshold();
  settings.large_segment_size = Common::large_segment_size();
  settings.expandable_segments = Cuda::expandable_segments();
  settings.per_process_memory_fraction = Cuda::per_process_memory_fraction();
  const auto& divisions = Common::roundup_power2_divisions();
  for (size_t i = 0; i < std::min(divisions.size(), settings.roundup_power2_divisions.size()); ++i) {
    settings.roundup_power2_divisions[i] = static_cast<uint32_t>(divisions[i]);
  }
  VRAMLEDGER_TORCH_2_12_SETTINGS(settings);
  return settings;
}

void Update() {
  Plugin& plugin = Plugin::Get();
  CachingAllocator* const core = plugin.core();
  if (core == nullptr || plugin.forked()) return;
  const AllocatorSettings before = core->settings();
  const AllocatorSettings now = Current(before);
  core->UpdateSettings(now);
  if (now.ToString() != before.ToString()) plugin.Mark("allocator settings: " + now.ToString());
}

}  // namespace

std::string AllocatorName() {
  return parsing && replaced != nullptr ? *replaced : "vramledger";
}

void RememberReplaced(std::string name) {
  replaced = new std::string(std::move(name));
}

void ReadTorchSettings() {
  const ParsingScope scope;
  static_cast<void>(Cuda::per_process_memory_fraction());
}

void FollowTorchSettings() {
  Update();  // what the program has set before CUDA was initialised
  // PyTorch hands every new text to this hook once the common settings are parsed; its own parser of the CUDA settings
  // sits there, and is called first.
  auto& hook = Common::getConfigParserHook();
  hook = [parse = std::move(hook)](const std::string& text) {
    if (parse) {
      const ParsingScope scope;
      parse(text);
    }
    Update();
  };
}

}  // namespace vramledger
