// One job's live course on its devices: from the start of its workers over profiling and the roll-out of its plan to
// the last iteration. Says what is to be sent and which state the job should go to next, and why; the coordinator makes
// the move durable first and then lets the run enter the state.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/allocation.h"
#include "coordinator/core/failure.h"
#include "coordinator/core/job_state.h"
#include "coordinator/core/links.h"
#include "coordinator/core/names.h"
#include "coordinator/core/plan_rollout.h"
#include "coordinator/core/profiling.h"
#include "coordinator/core/telemetry/iteration_log.h"
#include "coordinator/core/telemetry/measured_links.h"
#include "geopipe/v1/agent_service.pb.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/run_options.h"
#include "optimizer/plan/report/plan_result.h"
#include "proto/manifest/coordinator_config.h"

namespace geopipe {

struct NodeMessage {
  NodeKey node;
  v1::ConnectResponse message;
};

// What a run makes of something that happened.
struct Reaction {
  struct Change {
    JobState to = v1::JOB_STATE_UNSPECIFIED;
    std::string cause;
  };
  std::optional<Change> change = std::nullopt;
  std::vector<NodeMessage> sends = {};           // to be sent now; they do not depend on `change`
  int64_t iterations_finished = 0;               // how many became complete
  std::vector<TrafficObservation> traffic = {};  // of the links, when an iteration told
};

// Iterations of the run: the job's own count, or fewer when it is to stop early.
int64_t EndIteration(const JobSpec& job, const RunOptions& run);

// Why a job is COMPLETED.
std::string DoneSentence(int64_t iterations);

class JobRun {
 public:
  // `incarnation` names the workers of this run; no other run ever has the same.
  JobRun(const JobSpec& job, const RunOptions& run, Allocation allocation, uint64_t incarnation, std::string version,
         const JobRunLimits& limits);

  // --- Entering a state. Each returns what to send, and is called once, in the order of the job's life. ---
  std::vector<NodeMessage> EnterProfiling(int64_t now_ns);
  void EnterPlanning(int64_t now_ns);
  // Fits the plan to the allocated devices, whose numbers it then bears. Internal when it names devices that were not
  // allocated.
  absl::Status SetPlan(PlanResult* plan, std::string secret, uint64_t epoch);
  // Prepares the ranks and stops the workers that are none, whose devices are given back. REQUIRES: SetPlan.
  std::vector<NodeMessage> EnterDeploying(int64_t now_ns, const PlanResult& plan, const LinkTable& links);
  // The reaction completes the job at once when every worker has already finished.
  Reaction EnterRunning(int64_t now_ns);
  // Stops every worker.
  std::vector<NodeMessage> StopAll(const std::string& reason) const;

  // --- What happens. `report` and `exit` are of this run's incarnation. ---
  Reaction OnReport(int64_t now_ns, const WorkerKey& worker, const v1::WorkerReport& report);
  Reaction OnExit(int64_t now_ns, const WorkerKey& worker, const v1::WorkerExit& exit);
  // The node's agent is back, with these of this run's devices alive.
  Reaction OnNodeReturned(int64_t now_ns, const NodeKey& node, const std::set<int32_t>& alive);
  Reaction OnNodeFailed(int64_t now_ns, const NodeKey& node, int64_t silent_ns);
  // `node_silent`: some agent of this run is not heard from at the moment.
  Reaction OnTick(int64_t now_ns, bool node_silent);

  uint64_t incarnation() const { return incarnation_; }
  const Allocation& allocation() const { return allocation_; }
  const std::set<NodeKey>& nodes() const { return nodes_; }  // held by the job
  // Wanted: part of this run and not told to stop.
  bool Has(const WorkerKey& worker) const {
    const auto found = workers_.find(worker);
    return found != workers_.end() && !found->second.stopped;
  }
  int64_t WorkersOn(const NodeKey& node) const;
  const Profile& profile() const { return rounds_.profile(); }
  const IterationLog& iterations() const { return iterations_; }
  IterationLog TakeIterations() { return std::move(iterations_); }

 private:
  struct Worker {
    bool attached = false;
    bool stopped = false;   // told to stop: it is no rank of the plan
    bool failed = false;    // has said why it cannot go on
    bool finished = false;  // its last iteration is done
  };

  // The node with this number at the site, as plans count them; nullptr when it was not allocated.
  const AllocatedNode* NodeAt(std::string_view site, int32_t node) const;
  NodeMessage Command(const WorkerKey& worker, v1::WorkerCommand command) const;
  std::vector<NodeMessage> ProfileRound(int64_t now_ns);
  std::vector<NodeMessage> StopIdle();
  std::vector<NodeMessage> CommitAll(int64_t now_ns);
  Reaction OnHello(int64_t now_ns, Worker& worker, const WorkerKey& key, const v1::WorkerHello& hello);
  Reaction OnProfile(int64_t now_ns, const WorkerKey& key, const v1::ProfileReport& report);
  Reaction OnPrepared(int64_t now_ns, const WorkerKey& key, const v1::WorkerReport& report);
  Reaction OnCommitted(const WorkerKey& key, const v1::WorkerReport& report);
  Reaction OnIteration(int64_t now_ns, const WorkerKey& key, const v1::IterationReport& report);
  Reaction OnFinished(Worker& worker, const WorkerKey& key, const v1::FinishedReport& report);
  // A failure with the verdict, when there is one.
  Reaction Diagnose(int64_t now_ns, bool node_silent) const;
  std::vector<TrafficObservation> NewTraffic();
  bool AllFinished() const;
  std::string DeadlineSentence() const;

  const JobSpec job_;
  const RunOptions run_;
  const Allocation allocation_;
  const uint64_t incarnation_;
  const std::string version_;
  const JobRunLimits limits_;

  JobState state_ = v1::JOB_STATE_PENDING;
  std::set<NodeKey> nodes_;
  std::map<WorkerKey, Worker> workers_;
  ProfileRounds rounds_;
  bool measuring_ = false;
  PlanRollout rollout_;
  std::string secret_;
  int64_t predicted_iteration_ns_ = 0;
  Plan plan_;
  PipelineCosts costs_;             // the plan's
  int64_t observed_iteration_ = 0;  // the latest whose traffic was looked at; the first is not: links begin then
  IterationLog iterations_;
  FailureDiagnosis diagnosis_;
  int64_t deadline_ns_ = 0;  // of the state or phase under way
};

}  // namespace geopipe
