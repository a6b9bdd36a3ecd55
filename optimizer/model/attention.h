// The way in which a backend computes attention, which decides how much of it is work and how much is kept; and the way
// in which it runs the operations of a layer.
#pragma once

#include <cstdint>

namespace geopipe {

enum class Attention : uint8_t {
  // Computes the scores of every query with every key, whatever the mask, and keeps their softmax for the backward: as
  // frameworks did without a fused kernel, for comparison with what they published.
  kDense,
  // Computes block by block, only as far as the causal mask demands; keeps one number for each row, and the backward
  // computes the scores again (FlashAttention-2, arXiv 2307.08691; cuDNN): every backend of the engine.
  kBlocked,
};

// The rule by which the time of a part of the model follows from its arithmetic and its traffic.
enum class Roofline : uint8_t {
  // The greater of both, over all of a layer: as if every element-wise operation ran while a product does.
  kBlock,
  // Operation by operation, one after the other: the products with weights, attention, and element-wise operations.
  kOperation,
};

}  // namespace geopipe
