// Memory of a training step from a model's description alone: the textbook's formulas beside an account of what is
// kept, operator by operator, over the step's time line, for one rank.
#ifndef VRAMLEDGER_TOOLS_ESTIMATE_MEMORY_ESTIMATE_H_
#define VRAMLEDGER_TOOLS_ESTIMATE_MEMORY_ESTIMATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/estimate/layer_builder.h"
#include "tools/estimate/model_config.h"
#include "tools/estimate/optimizer_state.h"
#include "tools/estimate/rank_share.h"
#include "tools/estimate/step_walk.h"

namespace vramledger {

struct EstimateSettings {
  uint64_t batch = 1;  // samples in a micro-batch of one data rank
  uint64_t sequence = 128;
  uint64_t decoder_sequence = 0;  // of an encoder-decoder model; 0: as sequence
  uint64_t micro_batches = 1;     // in a step: gradient accumulation, or what goes through the pipeline
  Precision precision = Precision::kFloat32;
  bool master_weights = false;  // float32 copies of 16-bit parameters, which the optimizer works on
  uint64_t gradient_bytes = 0;  // of an element; 0: as the parameters
  OptimizerKind optimizer = OptimizerKind::kAdam;
  OptimizerLoop loop = OptimizerLoop::kForeach;
  // The program holds the model's outputs until those of the next step take their place, as a loop does that has them in
  // a variable; absent: it does, but for Megatron-LM, which gives them up.
  std::optional<bool> keeps_outputs;
  bool weight_decay = false;                 // decay added to the gradient (L2)
  std::optional<AttentionKernel> attention;  // absent: what scaled_dot_product_attention takes for the precision
  KernelSet kernels = KernelSet::kPytorch;
  Checkpointing checkpointing = Checkpointing::kNone;
  uint64_t checkpoint_every = 1;
  Parallelism parallel;
  uint32_t capability = 90;                  // of the device, for cuBLAS's workspace: 90 = 9.0
  std::optional<uint64_t> cublas_workspace;  // of one thread, where CUBLAS_WORKSPACE_CONFIG says it
};

// Sizes in bytes; absent = not known by this method.
struct EstimateColumn {
  std::optional<uint64_t> parameter, buffer, gradient, optimizer_state, activation, input, temporary, workspace,
      communication, cast_cache;
};

// The highest point of one phase of the step.
struct PhasePeak {
  std::string phase;  // "forward", "backward", "recompute", "optimizer"
  uint64_t bytes = 0;
  std::string at;  // module and operator
  EstimateColumn categories;
};

// What an engine needs at least to run the forward alone.
struct DeploymentSizes {
  uint64_t weights_fp16 = 0, weights_int8 = 0;  // int8: matrices in one byte with a float32 scale an output row
  uint64_t arena_fp16 = 0, arena_int8 = 0;      // all activations that live at once at most
  uint64_t kv_cache_fp16 = 0;                   // of a decoder, for the whole sequence
};

struct MemoryEstimate {
  uint64_t parameters = 0;       // of the model
  uint64_t rank_parameters = 0;  // held by the rank this is for
  EstimateColumn textbook;
  EstimateColumn analytic;  // each category at its own highest
  std::optional<uint64_t> peak, low, high;
  std::vector<PhasePeak> phases;
  uint64_t paged = 0;  // optimizer state in managed memory, outside PyTorch's allocator
  DeploymentSizes deployment;
  std::vector<std::string> assumptions;
};

// `model` must have passed CheckParallelism with the settings' parallelism.
MemoryEstimate EstimateMemory(const ModelConfig& model, const EstimateSettings& settings);
// The same from operators: a recorded model ("vramledger.operators/1"), of which batch and precision are as recorded.
MemoryEstimate EstimateMemory(ForwardGraph graph, const EstimateSettings& settings);

// Bytes that a CUBLAS_WORKSPACE_CONFIG asks for: ":4096:8" is 8 pieces of 4,096 KiB; absent where it is no such text.
std::optional<uint64_t> ParseCublasWorkspace(std::string_view config);

// ---- the textbook's formulas, each as it is printed in courses and blogs ----

// (in + 2 pad - kernel) / stride + 1
uint64_t ConvolutionOutput(uint64_t in, uint64_t kernel, uint64_t stride, uint64_t pad);
// One hidden state for each layer: batch x sequence x hidden x layers x element size.
uint64_t TextbookTransformerActivations(uint64_t batch, uint64_t sequence, uint64_t hidden, uint64_t layers,
                                        uint64_t element_bytes);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ESTIMATE_MEMORY_ESTIMATE_H_
