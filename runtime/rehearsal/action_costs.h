// How long the actions of one chunk are to last, for the engines that keep to given durations.
#pragma once

#include <cstdint>

#include "optimizer/model/pipeline_costs.h"

namespace geopipe {

struct ActionCosts {
  int64_t forward_ns = 0;
  int64_t input_grad_ns = 0;   // the whole backward where the costs do not split it
  int64_t weight_grad_ns = 0;  // 0 where the costs do not split the backward
  int64_t epilogue_ns = 0;     // from the end of the chunk's last action to the end of its Update
  bool split = false;          // the backward is split, though W may take nothing

  friend bool operator==(const ActionCosts&, const ActionCosts&) = default;
};

// Those of `chunk`. REQUIRES: ValidateCosts(costs).ok(), 0 <= chunk < costs.shape.chunks.
inline ActionCosts CostsOfChunk(const PipelineCosts& costs, int32_t chunk) {
  return {.forward_ns = costs.forward_ns[chunk],
          .input_grad_ns = costs.input_grad_ns[chunk],
          .weight_grad_ns = costs.weight_grad_ns.empty() ? 0 : costs.weight_grad_ns[chunk],
          .epilogue_ns = costs.epilogue_ns,
          .split = !costs.weight_grad_ns.empty()};
}

}  // namespace geopipe
