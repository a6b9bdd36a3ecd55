// Durations of the actions of one stage, for the engines that keep to given durations.
#pragma once

#include <cstdint>

#include "optimizer/model/pipeline_costs.h"

namespace geopipe {

struct ActionCosts {
  int64_t forward_ns = 0;
  int64_t input_grad_ns = 0;   // the whole backward where the costs do not split it
  int64_t weight_grad_ns = 0;  // 0 where the costs do not split the backward
  int64_t epilogue_ns = 0;     // from the end of the rank's last action to the end of its Update

  friend bool operator==(const ActionCosts&, const ActionCosts&) = default;
};

// The costs of `stage`. REQUIRES: ValidateCosts(costs).ok(), 0 <= stage < costs.shape.stages.
inline ActionCosts CostsOfStage(const PipelineCosts& costs, int32_t stage) {
  return {.forward_ns = costs.forward_ns[stage],
          .input_grad_ns = costs.input_grad_ns[stage],
          .weight_grad_ns = costs.weight_grad_ns.empty() ? 0 : costs.weight_grad_ns[stage],
          .epilogue_ns = costs.epilogue_ns};
}

}  // namespace geopipe
