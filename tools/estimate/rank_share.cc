#include "tools/estimate/rank_share.h"

#include <algorithm>

#include "tools/foreign/text.h"

namespace vramledger {
namespace {

absl::Status Divides(std::string_view what, uint64_t size, std::string_view by, uint64_t parts) {
  if (parts == 0) return absl::InvalidArgumentError(Cat(by, " must be at least 1"));
  if (size % parts == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(Cat("the model's ", size, " ", what, " cannot be divided over ", by, " ", parts));
}

// Layers of the stage: equal shares, or what is left between a first and a last stage of given sizes.
struct Range {
  uint64_t begin = 0, end = 0;
};
Range StageRange(uint64_t layers, const Parallelism& p) {
  if (p.pipeline == 1) return {0, layers};
  uint64_t inner_stages = p.pipeline, inner = layers, begin = 0;
  if (p.first_layers != 0) {
    if (p.stage == 0) return {0, p.first_layers};
    --inner_stages, inner -= p.first_layers, begin = p.first_layers;
  }
  if (p.last_layers != 0) {
    if (p.stage + 1 == p.pipeline) return {layers - p.last_layers, layers};
    --inner_stages, inner -= p.last_layers;
  }
  const uint64_t index = p.stage - (p.first_layers != 0 ? 1 : 0);
  const uint64_t each = inner / std::max<uint64_t>(inner_stages, 1), more = inner % std::max<uint64_t>(inner_stages, 1);
  begin += index * each + std::min(index, more);
  return {begin, begin + each + (index < more ? 1 : 0)};
}

}  // namespace

uint64_t Parallelism::expert_data_ranks() const {
  return std::max<uint64_t>(1, data * context * tensor / (expert * expert_tensor_ranks()));
}

absl::Status CheckParallelism(const ModelConfig& m, const Parallelism& p) {
  for (const absl::Status& status :
       {Divides("attention heads", m.heads, "--tensor-parallel", p.tensor),
        Divides("elements of the MLP's width", m.intermediate, "--tensor-parallel", p.tensor),
        Divides("experts", m.experts, "--expert-parallel", p.expert),
        Divides("elements of an expert's width", m.expert_intermediate, "--expert-tensor-parallel",
                p.expert_tensor_ranks())}) {
    if (!status.ok()) return status;
  }
  if (m.vocabulary != 0 && p.tensor > m.vocabulary)
    return absl::InvalidArgumentError(
        Cat("--tensor-parallel ", p.tensor, " is more than the vocabulary of ", m.vocabulary));
  if (p.stage >= p.pipeline)
    return absl::InvalidArgumentError(Cat("stage ", p.stage, " is not one of ", p.pipeline, " pipeline stages"));
  if (p.pipeline > std::max<uint64_t>(m.layers, 1))
    return absl::InvalidArgumentError(
        Cat(p.pipeline, " pipeline stages are more than the model's ", m.layers, " layers"));
  if (p.first_layers > m.layers || p.last_layers > m.layers - p.first_layers)
    return absl::InvalidArgumentError("the first and last stage have more layers than the model");
  const uint64_t named = (p.first_layers != 0 ? 1 : 0) + (p.last_layers != 0 ? 1 : 0);
  if (named != 0 && p.pipeline > 1) {
    const uint64_t inner = p.pipeline - std::min(named, p.pipeline), rest = m.layers - p.first_layers - p.last_layers;
    if (named > p.pipeline || (inner == 0 && rest != 0) || inner > rest)
      return absl::InvalidArgumentError(
          Cat(rest, " layers are left for ", inner, " stages between the first and the last"));
  }
  if (p.pipeline > 1 && m.decoder_layers != 0)
    return absl::InvalidArgumentError("pipeline stages of an encoder-decoder model are not known");
  if (p.virtual_stages > 1 && p.pipeline == 1)
    return absl::InvalidArgumentError("several model chunks a rank need --pipeline-parallel of 2 or more");
  if (p.expert * p.expert_tensor_ranks() > p.data * p.tensor * p.context)
    return absl::InvalidArgumentError("expert parallelism asks for more ranks than data, tensor and context have");
  return absl::OkStatus();
}

PartCounts StageParts(const ModelConfig& m, const Parallelism& p) {
  PartCounts out = CountParts(m);
  const Range range = StageRange(m.layers, p);
  const uint64_t dense_end = out.dense;
  out.dense = std::min(range.end, dense_end) - std::min(range.begin, dense_end);
  out.sparse = range.end - range.begin - out.dense;
  const bool last = p.stage + 1 == p.pipeline;
  // A tied head needs the word embedding on the last stage too (arXiv:2104.04473, section 3.2).
  out.embedding = p.stage == 0 ? 1 : 0;
  out.head = last ? 1 : 0;
  return out;
}

uint64_t ChunksInFlight(const Parallelism& p, uint64_t micro_batches) {
  micro_batches = std::max<uint64_t>(micro_batches, 1);
  if (p.pipeline == 1) return 1;
  if (p.virtual_stages <= 1) return std::min(p.pipeline - p.stage, micro_batches);
  const uint64_t group = p.warmup_group == 0 ? p.pipeline : p.warmup_group;
  return std::min((p.pipeline - p.stage - 1) * 2 + (p.virtual_stages - 1) * group + 1,
                  micro_batches * p.virtual_stages);
}

std::vector<RankTensor> ListRankTensors(const ModelConfig& m, const Parallelism& p) {
  const PartCounts counts = StageParts(m, p);
  std::vector<RankTensor> out;
  for (const ParameterGroup& g : ListParameters(m)) {
    uint64_t count = counts.Of(g.part) * g.copies;
    if (g.name == "embedding.word" && count == 0 && counts.head != 0 && ((m.tied && m.has_logits) || m.mtp_layers != 0))
      count = 1;
    RankTensor t{g.name, g.rows, g.columns, count, p.data_ranks(), g.part};
    const bool row_parallel = g.name.ends_with("out.weight") || g.name.ends_with("down.weight");
    const auto divide = [&](uint64_t ranks) {
      uint64_t& side = row_parallel && t.columns != 0 ? t.columns : t.rows;
      side = ShareOf(side, ranks);
    };
    if (g.split == TensorSplit::kTensor) divide(p.tensor);
    if (g.split == TensorSplit::kExpert || g.split == TensorSplit::kExpertWhole) {
      t.count = count / p.expert;
      t.data_ranks = p.expert_data_ranks();
      if (g.split == TensorSplit::kExpert) divide(p.expert_tensor_ranks());
    }
    if (t.count != 0) out.push_back(std::move(t));
  }
  return out;
}

}  // namespace vramledger
