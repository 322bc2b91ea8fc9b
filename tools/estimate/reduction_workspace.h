// What PyTorch's sum over the rows of a matrix takes from the allocator besides its result: a bias's gradient is one.
#ifndef VRAMLEDGER_TOOLS_ESTIMATE_REDUCTION_WORKSPACE_H_
#define VRAMLEDGER_TOOLS_ESTIMATE_REDUCTION_WORKSPACE_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "tools/estimate/block_size.h"

namespace vramledger {

// Of the device, as the launch is planned for: an H100's.
inline constexpr uint64_t kReductionMultiprocessors = 132, kThreadsOfMultiprocessor = 2048;

// Bytes in blocks, 0 where one thread block sums a column alone. Where several do, each keeps its threads' partial sums
// in float32. How many there are follows from the plan of the launch (setReduceConfig in aten/src/ATen/native/cuda/
// Reduce.cuh of 2.11); the sizes were found equal to those that 2.11 asks for on the virtual device, for 24 shapes.
inline uint64_t RowSumWorkspace(uint64_t rows, uint64_t columns) {
  constexpr uint64_t kMostThreads = 512, kWarp = 32, kFewValues = 16, kManyValues = 256, kElement = 4;
  if (rows == 0 || columns == 0) return 0;
  const auto ceil_divide = [](uint64_t a, uint64_t b) { return (a + b - 1) / b; };
  const uint64_t vector = columns % 4 == 0 ? 4 : columns % 2 == 0 ? 2 : 1;
  const uint64_t threads = kMostThreads / vector;
  const uint64_t wide = std::min(std::bit_floor(columns / vector), threads);
  const uint64_t tall = std::min(std::bit_floor(rows), threads);
  const uint64_t height = std::min(tall, threads / std::min(wide, kWarp));
  const uint64_t width = std::min(wide, threads / height);
  if (rows < height * kFewValues && rows < kManyValues) return 0;
  const uint64_t values = ceil_divide(rows, height);
  const uint64_t blocks = ceil_divide(columns, width * vector);
  const uint64_t target = kReductionMultiprocessors * (kThreadsOfMultiprocessor / (width * height));
  if (values < kManyValues || blocks > target) return 0;
  const uint64_t together = std::max(std::min(ceil_divide(target, blocks), ceil_divide(values, kFewValues)),
                                     ceil_divide(values, kManyValues));
  if (together <= 1) return 0;
  return FreshBlock(kElement * columns * together * width * vector) + RoundToUnit(4 * blocks);  // and a counter a block
}

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ESTIMATE_REDUCTION_WORKSPACE_H_
