// Settings of the caching policy, in PyTorch's terms and syntax.
#ifndef VRAMLEDGER_ALLOCATOR_CORE_ALLOCATOR_SETTINGS_H_
#define VRAMLEDGER_ALLOCATOR_CORE_ALLOCATOR_SETTINGS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace vramledger {

struct AllocatorSettings {
  // kNative: PyTorch's own policy, to the byte. kVmm: ours, see vmm_policy.h. Not part of the configuration text.
  enum class Policy : uint8_t { kNative, kVmm };
  Policy policy = Policy::kNative;
  static std::optional<Policy> PolicyFromName(std::string_view name);
  const char* policy_name() const { return policy == Policy::kVmm ? "vmm" : "native"; }

  static constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

  // Blocks of at least this size are not split, nor given to smaller requests.
  size_t max_split_size = kUnlimited;
  // How much larger than the request an unsplittable block may be.
  size_t max_non_split_rounding = size_t{20} << 20;
  // Share of the allowed memory above which old free blocks are given back before the device is asked; 0 = never. Has
  // an effect only with a memory fraction set, as in PyTorch.
  double garbage_collection_threshold = 0;
  // Divisions between powers of two to which sizes are rounded: entry i is for sizes in [2^(20+i), 2^(21+i)), the first
  // also for all smaller and the last for all larger ones. 0 or 1 = off.
  std::array<uint32_t, 16> roundup_power2_divisions{};
  bool expandable_segments = false;
  // Share of the device's memory that may be reserved; 1 or more = no limit is set at start.
  double per_process_memory_fraction = 1.0;
  // PyTorch's throw_on_cudamalloc_oom: a request that would exceed per_process_memory_fraction fails at once, without
  // giving cached memory back first; counted as a rejection.
  bool reject_over_fraction = false;
  // A block of a private pool that other streams used in a graph capture is free as the capture ends, not only at the
  // next request outside captures.
  bool graph_capture_record_stream_reuse = false;
  // Size of the segments that serve requests between 1 and 10 MiB.
  size_t large_segment_size = size_t{20} << 20;

  // Which of several free blocks of equal size is taken first: the one at the lowest address, the one whose segment is
  // the oldest, or the one that has been a block of its own for the longest. Which version of PyTorch does what was
  // measured; see allocator/torch/torch_compat.h. Not part of the configuration text.
  enum class EqualSizeOrder : uint8_t { kAddress, kSegmentAge, kBlockAge };
  EqualSizeOrder equal_size_order = EqualSizeOrder::kAddress;
  // Whether routing requests to a private pool (torch.cuda.use_mem_pool) is taken for a graph capture, during which
  // events are neither recorded nor queried: PyTorch up to 2.12. Newer ones say when a capture is under way. Not part
  // of the configuration text.
  bool routes_are_captures = true;

  // Names of settings that were understood but have no meaning here (host memory, back end ...), and one sentence each
  // on what was not honoured.
  std::vector<std::string> notes;

  // Parses the text of PYTORCH_ALLOC_CONF (or PYTORCH_CUDA_ALLOC_CONF). Empty text gives the defaults. An error names
  // the setting and what was expected.
  static absl::StatusOr<AllocatorSettings> Parse(std::string_view text);
  // Reads PYTORCH_CUDA_ALLOC_CONF, else PYTORCH_ALLOC_CONF, from the environment: PyTorch's order; and the policy from
  // VRAMLEDGER_POLICY (native, vmm).
  static absl::StatusOr<AllocatorSettings> FromEnvironment();
  // One sentence that names those settings that the policy uses for private pools alone; empty if there are none.
  std::string WithoutEffect() const;
  // The settings that differ from the defaults, in the same syntax.
  std::string ToString() const;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_CORE_ALLOCATOR_SETTINGS_H_
