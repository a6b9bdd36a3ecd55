// How a backend computes attention, which decides what it keeps of it and how much of it is work; and how it runs the
// operations of a layer.
#pragma once

#include <cstdint>

namespace geopipe {

enum class Attention : uint8_t {
  // Scores of every query with every key, whatever the mask, and their softmax kept for the backward: the CPU engine.
  kDense,
  // Block by block, and no more of it than the causal mask leaves; nothing but a number for each row is kept, and the
  // backward makes the scores again (FlashAttention-2, arXiv 2307.08691; cuDNN): GPUs.
  kBlocked,
};

// How the time of a part of the model follows from its arithmetic and its traffic.
enum class Roofline : uint8_t {
  // The greater of both, over all of a layer: as if every operation on elements ran while a product does.
  kBlock,
  // Operation by operation, one after the other: the products with weights, attention, and what only moves elements.
  kOperation,
};

}  // namespace geopipe
