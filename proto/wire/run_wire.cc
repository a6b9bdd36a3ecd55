#include "proto/wire/run_wire.h"

#include <array>

#include "optimizer/base/status_macros.h"
#include "optimizer/model/job_spec.h"
#include "proto/wire/fields.h"
#include "proto/wire/schedule_wire.h"

namespace geopipe {
namespace {

using wire::Assign;
using wire::CheckEach;
using wire::CheckFinite;
using wire::CheckRange;
using wire::EnumFromProto;
using wire::EnumName;
using wire::EnumToProto;
using wire::kMaxInt64;
using wire::ToVector;
using wire::Under;

constexpr std::array<EnumName<BackendKind, v1::BackendKind>, 3> kBackends{{
    {BackendKind::kCpu, v1::BACKEND_KIND_CPU},
    {BackendKind::kCuda, v1::BACKEND_KIND_CUDA},
    {BackendKind::kModelled, v1::BACKEND_KIND_MODELLED},
}};

}  // namespace

v1::BackendKind ToProto(BackendKind backend) { return EnumToProto(kBackends, backend); }

absl::StatusOr<BackendKind> FromProto(v1::BackendKind backend) { return EnumFromProto(kBackends, "backend", backend); }

v1::RunOptions ToProto(const RunOptions& run) {
  v1::RunOptions message;
  if (run.schedule.has_value()) {
    message.set_schedule(ToProto(*run.schedule));
  }
  message.set_comm(ToProto(run.comm));
  Assign(run.delta_n, message.mutable_delta_n());
  message.set_backend(ToProto(run.backend));
  message.set_pace(run.pace);
  if (run.explicit_costs.has_value()) {
    *message.mutable_explicit_costs() = ToProto(*run.explicit_costs);
  }
  message.set_stop_after_iterations(run.stop_after_iterations);
  if (run.drill.has_value()) {
    message.mutable_drill()->set_stage(run.drill->stage);
    message.mutable_drill()->set_slowdown(run.drill->slowdown);
  }
  return message;
}

absl::StatusOr<RunOptions> FromProto(const v1::RunOptions& message) {
  RunOptions run;
  if (message.schedule() != v1::SCHEDULE_KIND_UNSPECIFIED) {
    GP_ASSIGN_OR_RETURN(run.schedule, FromProto(message.schedule()));
  }
  if (message.comm() != v1::COMM_MODE_UNSPECIFIED) {
    GP_ASSIGN_OR_RETURN(run.comm, FromProto(message.comm()));
  }
  GP_RETURN_IF_ERROR(CheckEach("delta_n", message.delta_n(), wire::kMaxStages, 0, kMaxDeltaN));
  run.delta_n = ToVector(message.delta_n());
  if (message.backend() != v1::BACKEND_KIND_UNSPECIFIED) {
    GP_ASSIGN_OR_RETURN(run.backend, FromProto(message.backend()));
  }
  run.pace = message.pace();
  if (message.has_explicit_costs()) {
    GP_ASSIGN_OR_RETURN(run.explicit_costs, Under("explicit_costs", FromProto(message.explicit_costs())));
  }
  GP_RETURN_IF_ERROR(CheckRange("stop_after_iterations", message.stop_after_iterations(), 0, kMaxInt64));
  run.stop_after_iterations = message.stop_after_iterations();
  if (message.has_drill()) {
    constexpr double kLeastSlowdown = 1e-3;
    GP_RETURN_IF_ERROR(CheckRange("drill.stage", message.drill().stage(), 0, wire::kMaxStages - 1));
    GP_RETURN_IF_ERROR(CheckFinite("drill.slowdown", message.drill().slowdown(), kLeastSlowdown));
    run.drill = StageDrill{message.drill().stage(), message.drill().slowdown()};
  }
  return run;
}

}  // namespace geopipe
