#include "runtime/model/dry_run.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/base/trouble.h"

namespace geopipe {
namespace {

absl::Status Pass(const Action& action, TransformerStage& stage) {
  const bool forward = action.kind == ActionKind::kForward;
  Timed<Tensor> message;
  if (forward ? !stage.is_first() : !stage.is_last()) {
    GP_ASSIGN_OR_RETURN(message.value, stage.NewMessage());
  }
  switch (action.kind) {
    case ActionKind::kForward:
      return stage.Forward(action.micro_batch, std::move(message)).status();
    case ActionKind::kBackward:
      return stage.Backward(action.micro_batch, std::move(message)).status();
    case ActionKind::kInputGradient:
      return stage.BackwardInput(action.micro_batch, std::move(message)).status();
    default:
      return stage.BackwardWeight(action.micro_batch, 0).status();
  }
}

absl::Status RunPasses(const std::vector<Action>& actions, const std::vector<TransformerStage*>& stages,
                       int64_t first_iteration, int32_t rank) {
  for (TransformerStage* const stage : stages) {
    if (stage != nullptr) {
      GP_RETURN_IF_ERROR(stage->BeginDryRun());
      GP_RETURN_IF_ERROR(stage->BeginIteration(first_iteration));
    }
  }
  for (const Action& action : actions) {
    if (IsCompute(action.kind)) {
      TransformerStage* const stage = stages.at(action.stage);
      GP_CHECK(stage != nullptr, "{} is no action of this rank", ToString(action));
      if (const absl::Status status = Pass(action, *stage); !status.ok()) {
        return Reworded(status, fmt::format("iteration {}, {} on rank {}: {}", first_iteration, ToString(action), rank,
                                            std::string(status.message())));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status DryRun(const std::vector<Action>& actions, const std::vector<TransformerStage*>& stages,
                    int64_t first_iteration, int32_t rank) {
  const absl::Status status = RunPasses(actions, stages, first_iteration, rank);
  for (TransformerStage* const stage : stages) {
    if (stage != nullptr) {
      stage->EndDryRun();
    }
  }
  return status;
}

}  // namespace geopipe
