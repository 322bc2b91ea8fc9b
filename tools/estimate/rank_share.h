// What one rank of a parallel run holds of a model: which layers, which part of each tensor.
#ifndef VRAMLEDGER_TOOLS_ESTIMATE_RANK_SHARE_H_
#define VRAMLEDGER_TOOLS_ESTIMATE_RANK_SHARE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/estimate/parameter_list.h"

namespace vramledger {

// World size = data x tensor x context x pipeline. Expert parallelism divides the data, tensor and context ranks once
// more: the ranks that hold the same experts are data x tensor x context / (expert x expert_tensor).
struct Parallelism {
  uint64_t data = 1, tensor = 1, context = 1, pipeline = 1;
  uint64_t expert = 1, expert_tensor = 0;      // 0: as tensor
  bool sequence = false;                       // sequence parallelism in the tensor group
  uint64_t virtual_stages = 1;                 // model chunks of a rank (interleaved 1F1B)
  uint64_t stage = 0;                          // of the pipeline; the answer is for this rank
  uint64_t warmup_group = 0;                   // micro-batches that a chunk takes at once when interleaved; 0: pipeline
  uint64_t first_layers = 0, last_layers = 0;  // layers of the first and last stage; 0: even
  // Sharding over the data ranks (ZeRO, arXiv:1910.02054): 1 optimizer state, 2 and gradients, 3 and parameters.
  uint64_t zero = 0;
  bool fsdp = false;     // stage 3 by units of a layer (PyTorch FSDP, arXiv:2304.11277)
  bool buckets = false;  // DistributedDataParallel's gradient buckets as a second copy of the gradients

  uint64_t expert_tensor_ranks() const { return expert_tensor == 0 ? tensor : expert_tensor; }
  uint64_t data_ranks() const { return data * context; }
  uint64_t expert_data_ranks() const;
};

// One sentence where the sizes do not divide as the parallelism asks.
absl::Status CheckParallelism(const ModelConfig& model, const Parallelism& parallel);

// The parts that the rank's stage holds, and the layers of one of its chunks.
PartCounts StageParts(const ModelConfig& model, const Parallelism& parallel);

// Micro-batches whose activations a rank holds at most at once, in chunks of the model: with 1F1B stage p of P holds
// P - p micro-batches (arXiv:2104.04473, section 2.2.1); interleaved, (P - p - 1) x 2 + (v - 1) x group + 1 chunks
// (Megatron-LM's schedule, section 2.2.2).
uint64_t ChunksInFlight(const Parallelism& parallel, uint64_t micro_batches);

// A tensor of which every element stands on one rank, and over how many data ranks copies of it are kept.
struct RankTensor {
  std::string name;
  uint64_t rows = 0, columns = 0, count = 0;  // count: equal tensors on the rank
  uint64_t data_ranks = 1;
  ModelPart part = ModelPart::kEmbedding;

  uint64_t numel() const { return columns == 0 ? rows : rows * columns; }
};
std::vector<RankTensor> ListRankTensors(const ModelConfig& model, const Parallelism& parallel);

// Elements of one of `ranks` equal shares: rounded up, as padded flat buffers are.
inline uint64_t ShareOf(uint64_t numel, uint64_t ranks) {
  return (numel + ranks - 1) / ranks;
}

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ESTIMATE_RANK_SHARE_H_
