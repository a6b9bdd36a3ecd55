// Consequences of something that happened to a run of a job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/cluster/measured_links.h"
#include "coordinator/core/life/decision.h"
#include "coordinator/core/life/orders.h"
#include "coordinator/core/run/job_state.h"
#include "coordinator/core/run/run_checkpoints.h"

namespace geopipe {

struct Reaction {
  struct Change {
    JobState to = v1::JOB_STATE_UNSPECIFIED;
    std::string cause;
  };
  // A loss after which the job is to go on: it moves to RECOVERING, or is in it already, or, where it has no epoch yet,
  // back to PENDING. Durable before anything is started again.
  struct Loss {
    std::string kind;                 // FailureEvidence
    std::string cause;                // one sentence
    std::vector<LostWorker> workers;  // to be started again
    int64_t delay_ns = 0;             // before anything is
    int64_t stalled_ns = 0;           // time without progress before it was noticed
  };
  std::optional<Change> change = std::nullopt;
  std::vector<NodeMessage> sends = {};           // to be sent now; they do not depend on `change`
  int64_t iterations_finished = 0;               // number that became complete
  std::vector<TrafficObservation> traffic = {};  // of the links, when an iteration told
  // A checkpoint that is complete on all nodes; `checkpoint_trouble`: an attempt failed.
  std::optional<ListedCheckpoint> checkpoint = std::nullopt;
  std::optional<ListedCheckpoint> copied = std::nullopt;  // now at another site as well
  bool unlisted = false;                                  // some are listed no more: durable before `sends`
  std::optional<std::string> checkpoint_trouble = std::nullopt;
  std::optional<Loss> loss = std::nullopt;
  bool changed = false;       // the life has, without a transition: durable before `sends` and due orders
  std::string log = {};       // about it
  bool wants_secret = false;  // TakeSecret is to be called with a fresh one
  bool wants_plan = false;    // SetPlan is to be called
  bool stays = false;         // the job is not cancelled, for its checkpoint cannot be written
};

}  // namespace geopipe
