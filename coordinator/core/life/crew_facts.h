// Facts that were heard of a job's crew in this life of the coordinator: its workers and their agents, answers that are
// awaited, and since when. Only hearing and time change it; an order that was sent is noted, too.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/cluster/names.h"
#include "coordinator/core/run/failure.h"
#include "coordinator/core/run/plan_rollout.h"
#include "coordinator/core/run/profiling.h"
#include "coordinator/core/run/restarts.h"
#include "coordinator/core/run/run_checkpoints.h"
#include "coordinator/core/run/worker_facts.h"
#include "coordinator/core/telemetry/evaluation_log.h"
#include "coordinator/core/telemetry/iteration_log.h"
#include "coordinator/core/telemetry/memory_log.h"

namespace geopipe {

// Facts by which a run judges the silence of a node's agent.
struct NodeSilence {
  NodeKey node;
  bool is_silent = false;  // it is not heard; else it may not hear, for it has not answered on its stream yet
  int64_t silent_ns = 0;   // since it was last heard
  int64_t grace_ns = 0;    // its workers, if they are cut off and make no progress, end by themselves after so long, or
                           // what their epoch says if that is more
  int64_t margin_ns = 0;   // and nobody acts on it before so long afterwards
};

// Devices for which the job might leave some of its own, as the coordinator sees it.
struct Exit {
  enum class Why : uint8_t {
    kNone,
    kGone,  // nodes have not been heard for the job's grace
    kMove,  // a site is drained, a node goes down, or nodes that it had are back
  };
  Why why = Why::kNone;
  std::string cause;
};

// Facts that the coordinator knows beside those of the run's own crew.
struct Surroundings {
  std::set<NodeKey> leaving;  // nodes that the job has to leave
  Exit exit;
  std::string closing;  // the job is to be cancelled for this reason when its state is in a checkpoint; empty: not
  std::optional<int64_t> unfit_since_ns = std::nullopt;  // since when nodes' troubles keep it from its next iteration
};

// A checkpoint that some node could not read, though nobody has found it damaged.
struct Unread {
  CheckpointIdentity checkpoint;
  int64_t since_ns = 0;
  int64_t passed_over_until_ns = 0;
};

// Attempts to have a state written.
struct Saving {
  int tries = 0;
  int64_t not_before_ns = 0;  // the next is not ordered earlier
};

struct CrewFacts {
  std::map<WorkerKey, WorkerFacts> workers;
  Surroundings around;
  // The run's nodes that were not heard, or may not have heard, at the latest look. A look comes with each tick and not
  // with each report: reports that a returned node repeats come in one after the other.
  std::vector<NodeSilence> silences;
  std::set<NodeKey> undriven;  // have returned, and were not sent again what they may have missed

  // --- Answers ---
  std::string later;       // agents tell of something in the run that its record does not know: what; empty: nothing
  bool succeeded = false;  // it is a later run of the job
  std::string fault;       // a report that ends the job: the sentence that says why; empty: none
  FailureDiagnosis diagnosis;
  Restarts restarts{0, 0};
  bool measuring = false;
  ProfileRounds rounds;
  std::map<NodeKey, std::vector<CheckpointIdentity>> found_checkpoints;
  bool plan_asked = false;
  bool secret_asked = false;
  PlanRollout rollout;
  std::vector<Unread> unread;
  std::string lacking;             // its nodes lack files of the checkpoint that they were to read, others have them
  std::optional<int64_t> ends_at;  // some member has ended the epoch there, so all will
  int64_t reached = 0;             // iterations that some rank has finished
  RunCheckpoints checkpoints;
  std::string checkpoint_trouble;  // of the latest attempt; empty: none
  int64_t troubled_iteration = 0;  // that it was of; one that is complete later may be older
  bool heard_all = true;           // no report of a checkpoint can have been lost with an earlier coordinator
  Saving saving;                   // of the state that the ranks rest with

  // --- Times, monotonic ---
  struct Times {
    int64_t since_ns = 0;       // the state or phase under way has its limit from then on
    bool planning = false;      // the planner has begun; until then it is busy with other jobs
    int64_t progress_ns = 0;    // of the last report of progress by some rank
    int64_t told_ns = 0;        // of the last report of an iteration
    int64_t returned_ns = 0;    // the last agent that was back: its workers may have something to tell
    int64_t quiet_ns = 0;       // no known worker can have finished an iteration since
    int64_t recover_at_ns = 0;  // not before then is anything started again
    int64_t move_not_before_ns = 0;
    int64_t last_tick_ns = 0;
    bool progressed = false;  // since progress_ns was set
  };
  Times times;

  // True when every agent can be heard, and hears.
  bool all_hear() const { return silences.empty(); }
  bool heard(const NodeKey& node) const;
  std::vector<NodeKey> unheard() const;
  // A phase begins: its orders go to all, and its limit of time counts from now on.
  void BeginPhase(int64_t now_ns) {
    times.since_ns = now_ns;
    undriven.clear();
  }
  // Checkpoints of these to begin with: all but those that are passed over at the moment, unless no other is there.
  std::vector<CheckpointIdentity> Readable(int64_t now_ns, std::vector<CheckpointIdentity> checkpoints) const;
  // Puts deadlines off by time in which nobody could answer.
  void Forgive(int64_t pause_ns);
};

// The ranks have told this of the run's iterations.
struct RunTelemetry {
  IterationLog iterations;
  EvaluationLog evaluations;
  int64_t evaluated_before = 0;    // the last evaluation that earlier runs have told
  MemoryLog memory;                // of the plan's ranks
  int64_t observed_iteration = 0;  // the latest whose traffic was looked at; the first is not: links begin then
};

}  // namespace geopipe
