// Tells whether this host's memory holds a playground: all of its devices are processes of one machine.
#pragma once

#include <absl/status/status.h>

#include <cstdint>

#include "coordinator/cli/playground/playground_layout.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/plan/plan_params.h"
#include "optimizer/model/run_options.h"
#include "optimizer/schedule/schedule.h"

namespace geopipe {

// Bytes that each process takes before a job is planned: memory of its own and its part of what it shares with others
// (Pss) in a playground of three sites, 18, 7.4 and 11 MB, rounded up.
inline constexpr int64_t kWorkerBytes = int64_t{24} << 20;
inline constexpr int64_t kAgentBytes = int64_t{12} << 20;  // with its keeper
inline constexpr int64_t kCoordinatorBytes = int64_t{32} << 20;

// Before anything is started: processes, and where processors compute one copy of the model's states, which any plan
// has at least. ResourceExhausted: one sentence with what is needed, what is free, and a remedy.
absl::Status CheckHostHolds(const JobSpec& job, BackendKind backend, const PlaygroundLayout& layout,
                            int64_t available_bytes);

// Checks that the host's `available_bytes` hold what all ranks of `plan` take on their devices, which are this host, or
// of this host besides GPUs; with a backend that computes nothing, the messages that they hold. Called once the plan is
// known, beside running processes.
absl::Status CheckHostHolds(const JobSpec& job, BackendKind backend, const Plan& plan, const Schedule& schedule,
                            int64_t available_bytes);

}  // namespace geopipe
