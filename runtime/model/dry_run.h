// The passes of an iteration without their work.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <vector>

#include "optimizer/schedule/action.h"
#include "runtime/model/transformer_stage.h"

namespace geopipe {

// Runs a rank's compute actions in their order with stages that neither compute nor send: memory is taken and its pages
// are touched, primitives are made, and the iterations that follow do neither. Stages are as before afterwards, also
// after an error. Errors, which name the first iteration, action and rank: the allocator's and the backend's. REQUIRES:
// UseGroups was not called.
absl::Status DryRun(const std::vector<Action>& actions, const std::vector<TransformerStage*>& stages,
                    int64_t first_iteration, int32_t rank);

}  // namespace geopipe
