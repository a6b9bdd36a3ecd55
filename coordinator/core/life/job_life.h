// The life of a job that has devices, as one value: its crew, its plan, its epochs, its checkpoints, and what is wanted
// of it. Durable: another life of the coordinator goes on from the record of it. Nothing here was heard and not stored.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/cluster/allocation.h"
#include "coordinator/cluster/names.h"
#include "coordinator/core/life/checkpoint_list.h"
#include "coordinator/core/run/epoch.h"
#include "coordinator/core/run/job_state.h"
#include "coordinator/core/run/stored.h"
#include "geopipe/v1/job_record.pb.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/profile.h"
#include "optimizer/model/run_options.h"
#include "optimizer/plan/report/plan_result.h"

namespace geopipe {

// Iterations of the run: the job's own count, or fewer when it is to stop early.
int64_t EndIteration(const JobSpec& job, const RunOptions& run);

// One device of the job, and the worker that was ordered there.
struct Post {
  enum class Duty : uint8_t {
    kServes,
    kLost,     // another is to be started in its place
    kStopped,  // the plan has no use for the device
  };
  uint64_t incarnation = 0;
  Duty duty = Duty::kServes;
  std::string exchange_address = {};  // source of its node's checkpoint files; empty: not told yet
};

// Wishes of people, and of the coordinator. Each is taken back, or stays until it has come about.
struct Intents {
  bool pause = false;
  bool move = false;            // the run ends, to go on elsewhere
  std::string move_cause = {};  // not durable: a sentence
};

struct JobLife {
  // An earlier run of the job, which has left its devices.
  struct Earlier {
    uint64_t epochs = 0;  // the latest, of all runs
    CheckpointList checkpoints = {};
    uint64_t last_worker = 0;  // number of the latest of its workers; 0: not known
    bool told = false;         // figures of some iteration
    // Sizes that the earlier iterations were done with: others would skip or repeat samples, and change the order of
    // sums. 0: none.
    int64_t micro_batch_size = 0;
    int64_t sequence_length = 0;

    // True when a run on these nodes finds a checkpoint, or no iteration was ever told.
    bool CanGoOnAt(const std::set<NodeKey>& nodes) const;
  };

  JobLife(JobSpec job_spec, RunOptions options, Allocation devices, uint64_t run_incarnation);
  // Restores what Record has written. `detail`: the job's plan, profile and checkpoints. DataLoss: the parts do not fit
  // together.
  static absl::StatusOr<JobLife> Restore(const JobSpec& job, const RunOptions& run, const v1::JobDetail& detail,
                                         const v1::JobRecord& record, bool told);
  v1::JobRecord Record() const;

  // Goes on from the newest checkpoint that its nodes have together, or begins anew where there is none and no
  // iteration was ever told. Given once, before the plan is set.
  void GoOnFrom(Earlier earlier);
  // Fits the plan to the allocated devices, whose numbers it then bears. Internal when it names devices that were not
  // allocated.
  absl::Status SetPlan(PlanResult* result);
  // Posts that are no rank of the plan are given up: returns their workers.
  std::vector<WorkerKey> DismissIdle();

  int64_t end() const { return EndIteration(job, run); }
  // True for a worker of this run that was not told to stop.
  bool Has(const WorkerKey& worker) const;
  bool Has(const WorkerKey& worker, uint64_t number) const;
  uint64_t last_incarnation() const;
  // -1: the worker is no rank of the plan.
  int32_t RankOf(const WorkerKey& worker) const;
  std::vector<EpochMember> Members() const;
  std::set<NodeKey> MemberNodes() const;
  // The node with this number at the site, as plans count them; nullptr when it was not allocated.
  const AllocatedNode* NodeAt(std::string_view site, int32_t node) const;
  // The device's node. REQUIRES: it is allocated.
  const AllocatedNode& NodeOf(const NodeKey& node) const;
  // Checkpoints that an epoch can begin with.
  std::vector<CheckpointIdentity> Checkpoints() const;
  // False when the plan's nodes have none of the job's checkpoints and it must not begin anew.
  bool FindsState() const { return !must_find_state || !Checkpoints().empty(); }

  JobSpec job;
  RunOptions run;
  Allocation allocation;
  uint64_t incarnation = 0;  // names the run; its workers have the numbers after it, no other worker ever has one
  JobState state = v1::JOB_STATE_PENDING;
  std::map<WorkerKey, Post> posts;
  std::set<NodeKey> nodes;  // of posts that were not given up
  Profile profile;
  std::shared_ptr<PlanResult> plan;  // null before PLANNING is done
  std::vector<WorkerKey> members;    // by rank of the plan
  std::string secret;                // for the next epoch; empty: it was taken
  std::optional<Epoch> epoch;        // the latest
  bool committed = false;            // by all its members
  bool ending = false;               // its members were ordered to end it
  std::optional<int64_t> ended_at;   // it has ended, all members hold the state before this iteration
  bool may_go_back = false;          // something was lost in or after it
  Intents wants;
  CheckpointList checkpoints;
  JobSpec choices;             // the job, limited to the micro-batch sizes and sequence lengths that this run may have
  uint64_t epochs_before = 0;  // the latest epoch of the job's earlier runs
  bool must_find_state = false;     // the run goes on from a checkpoint
  uint64_t last_worker_before = 0;  // number of the latest of earlier runs; 0: not known
  bool progressed = false;          // some iteration was done in this run
  bool outrun = false;              // the store was older than the run: people choose where it goes on from
  bool from_store = false;          // they have chosen the store: the next epoch begins with a checkpoint that it has

 private:
  void SetCheckpoints(CheckpointList list);
  void Choose(int64_t micro_batch_size, int64_t sequence_length);
  absl::Status RestorePlan(const v1::JobDetail& detail);
  absl::Status RestoreEpoch(const v1::RecordedEpoch& recorded);
};

}  // namespace geopipe
