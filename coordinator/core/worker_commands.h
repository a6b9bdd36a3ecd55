// Orders to agents and workers, as messages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/core/profiling.h"
#include "geopipe/v1/agent_service.pb.h"
#include "geopipe/v1/worker_service.pb.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/run_options.h"
#include "optimizer/plan/report/plan_result.h"

namespace geopipe {

v1::ConnectResponse StartMessage(const std::string& job, uint64_t incarnation, const std::vector<int32_t>& devices);
v1::ConnectResponse StopMessage(const std::string& job, int64_t grace_ns, const std::string& reason);
// Stops one worker and leaves the others of its node alone.
v1::ConnectResponse StopWorkerMessage(const v1::WorkerId& worker, const std::string& reason);
v1::ProfileCommand ProfileMessage(const JobSpec& job, int32_t round, const ProfileCandidate& candidate);

// What is the same for all ranks: rank, memory limit and link shapes are left to fill in. The costs travel once, as
// the plan's; run.explicit_costs stays behind. `threads` is 1: the agent, which knows what it gives each worker, puts
// its own number there when it passes the command on.
v1::PrepareCommand PrepareForAll(const JobSpec& job, const RunOptions& run, const PlanResult& plan);

}  // namespace geopipe
