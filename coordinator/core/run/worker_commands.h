// Orders to agents and workers, as messages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/core/run/profiling.h"
#include "geopipe/v1/agent_service.pb.h"
#include "geopipe/v1/worker_service.pb.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/run_options.h"
#include "optimizer/plan/report/plan_result.h"

namespace geopipe {

v1::ConnectResponse StartMessage(const std::string& job, uint64_t run, uint64_t incarnation,
                                 const std::vector<int32_t>& devices);
// Stops the job's workers on these devices (empty: all) of this incarnation (0: any). `keeps_state`: what they have
// kept in memory is for their successors.
v1::ConnectResponse StopMessage(const std::string& job, int64_t grace_ns, const std::string& reason,
                                const std::vector<int32_t>& devices = {}, uint64_t incarnation = 0,
                                bool keeps_state = false);
v1::ProfileCommand ProfileMessage(const JobSpec& job, BackendKind backend, int32_t round,
                                  const ProfileCandidate& candidate);

// Returns the part of the command that is the same for all ranks; the caller fills in rank, memory limit and link
// shapes. The costs travel once, as the plan's, so run.explicit_costs is left out. `threads` is 1: the agent knows how
// many it gives each worker, and puts that number there when it passes the command on.
v1::PrepareCommand PrepareForAll(const JobSpec& job, const RunOptions& run, const PlanResult& plan);

}  // namespace geopipe
