// A job's life and what is heard of its crew at one moment, and what follows from both. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/life/crew_facts.h"
#include "coordinator/core/life/job_life.h"
#include "runtime/manifest/coordinator_config.h"

namespace geopipe {

struct Situation {
  const JobLife& life;
  const CrewFacts& crew;
  const RunTelemetry& told;
  const JobRunLimits& limits;
  int64_t now_ns = 0;

  // --- The epoch ---
  const WorkerFacts& Of(const WorkerKey& worker) const { return crew.workers.at(worker); }
  // True when the worker has done the last iteration.
  bool Finished(const WorkerFacts& worker) const;
  bool AllFinished() const;
  bool AllLeft() const;
  bool SomeLeft() const;
  // True when some rank has finished the last iteration: all have taken part in it, and only reports are missing.
  bool AllDone() const { return life.state == v1::JOB_STATE_RUNNING && crew.reached >= life.end(); }
  // True when the state after the last iteration is safe, or nobody wants it.
  bool LastSaved() const;
  // True when the job is about to leave its epoch: it pauses, or goes on elsewhere.
  bool Leaves() const { return life.wants.pause || life.wants.move || life.ending; }
  bool MayMove() const;
  // True when workers that rest may still tell figures of the epoch that has ended. With the next one they would belong
  // to none.
  bool MayTellMore() const;
  // Bytes of the values and two moments of the largest rank, where replicas give each other states.
  int64_t GivenStateBytes() const;

  // --- Agents ---
  // True when none of the nodes is heard: the coordinator may itself be cut off while the workers go on.
  bool AllSilent() const;
  bool SomeSilent() const;
  // Names agents that are silent or may not hear, as a sentence's subject: "agent a", "agents a, b".
  std::string UnheardNames() const;

  // --- Losses ---
  bool MayRecover() const;
  // True when it has had an epoch, or goes on from one of an earlier application, and so has shown that it works:
  // trouble of nodes does not end it then.
  bool HasTrained() const {
    return life.progressed || life.epochs_before > 0 || !life.checkpoints.resumable.empty() ||
           (life.epoch.has_value() && (life.committed || life.epoch->number > 1));
  }
  // True when the job may go on after this, in its run or with another.
  bool Survives(const FailureEvidence& why) const;
  // True when a worker may be started in the place of this one, which is lost.
  bool MayStart(const WorkerKey& worker) const;

  // --- Limits of time ---
  static constexpr int64_t kNoDeadlineNs = std::numeric_limits<int64_t>::max();
  int64_t DeadlineNs() const;
  std::string DeadlineSentence() const;
  // Limit on an iteration and an evaluation before it: several times what the plan says.
  int64_t SlowestIterationNs() const;
  // Limit on a worker's preparation for the epoch. REQUIRES: there is one.
  int64_t PrepareLimitNs() const;
  // The longest that what a worker tells to be under way should take: a compute action as planned, the abandonment of
  // an iteration as the longest of these, an order that others wait for as a preparation.
  int64_t StuckAfterNs(std::string_view action) const;
  // Time after which workers without an agent have ended by themselves. `rests`: also those that are paused or have
  // finished.
  int64_t GraceNs(const NodeSilence& silence, bool rests) const;
  // Time after which a worker of the node that no agent knows any more has ended.
  int64_t AloneNs(const NodeKey& node) const;
  // True when the worker lets no other go on: it has exited, rests, is waited for itself, or was cut off for longer
  // than its grace. One that is merely out of reach may train on, and renew the right to run of others that are.
  bool IsQuiet(const WorkerKey& key, const WorkerFacts& worker) const;

 private:
  int64_t LimitNs() const;
};

}  // namespace geopipe
