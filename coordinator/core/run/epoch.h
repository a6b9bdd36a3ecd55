// A job's training is a sequence of epochs. An epoch is one plan on one set of workers from one iteration on; either
// all its ranks run it, or none finishes an iteration of it. The next step is decided here and nowhere else, from what
// is known at the moment: start, adoption after a restart, pause, resume and recovery are the same question. (In the
// manner of the pure chain update of 3FS, https://github.com/deepseek-ai/3FS.)
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/run/worker_facts.h"
#include "optimizer/model/checkpoint_identity.h"
#include "optimizer/model/state_identity.h"

namespace geopipe {

inline constexpr size_t kEpochSecretBytes = 32;

// A value. Durable before any worker hears of it.
struct Epoch {
  uint64_t number = 0;               // from 1 on in the life of a job
  std::vector<EpochMember> members;  // by rank of the plan
  std::string secret;                // members prove it to each other; nobody else has it
  int64_t first_iteration = 0;       // the members begin with the state before it
  uint64_t state_epoch = 0;          // of that state (StateIdentity), which they hold or have kept
  std::optional<CheckpointIdentity> from_checkpoint = std::nullopt;  // which they read from this instead
  // Member of each rank's replica group that gives the state to those that lack it, by rank; kNobody where all have it.
  // Empty: nobody lacks it.
  std::vector<int32_t> state_ranks = {};
  static constexpr int32_t kNobody = -1;

  friend bool operator==(const Epoch&, const Epoch&) = default;
};

struct EpochFacts {
  bool wanted = true;                // the job is to run, and all its agents hear it
  std::vector<EpochMember> members;  // the plan's, by rank; empty: there is no plan
  // Replica group of each rank: ranks of one group hold the same states. Empty: there are no replicas.
  std::vector<int32_t> replica_groups = {};
  std::vector<WorkerFacts> workers;  // of the job, at least all of the above and of the old epoch's members
  uint64_t epochs_before = 0;        // the latest epoch of the job's earlier runs
  int64_t end_iteration = 0;         // of the job
  int64_t told_iterations = 0;       // iterations whose figures are all known
  std::string secret;                // fresh, for a new epoch
  std::vector<CheckpointIdentity> checkpoints = {};  // complete on the nodes of the members
  bool may_go_back = false;       // members have been lost: where no state is held by all, an older one is good enough
  bool may_begin_at_end = false;  // the job was paused with all iterations done, before its last state was written
};

struct EpochDecision {
  enum class Kind : uint8_t { kWait, kNew, kFail };
  Kind kind = Kind::kWait;
  Epoch epoch = {};    // kNew
  std::string reason;  // kWait: what for. kFail: one sentence
};

// In order:
//   1. The fence: no epoch begins while the old one could finish an iteration. Every iteration needs every member, so
//      the old one cannot as soon as one member has acknowledged its end, or has a successor on its device, which is
//      not started before the member has ended.
//   2. Wait while the job is not wanted, or has no plan.
//   3. A new epoch begins with one state, the newest that all its members can have: all are attached, and hold it or
//      have kept it, or get it from a replica that has it, or read it from a checkpoint, or begin anew. Members
//      that may still come to it are waited for. Once there was an epoch, only a loss is a reason to go back to a
//      checkpoint or the beginning; where none can go on, fail. After a loss, the newest common state before which the
//      figures of all iterations are told is preferred: a repeated iteration is told again, while figures that went
//      with a worker would leave a gap.
//   4. Wait when nothing is left to be done at the end iteration, unless a member that has done it was lost, or
//      the last state is still to be written.
EpochDecision NextEpoch(const std::optional<Epoch>& old, const EpochFacts& facts);

}  // namespace geopipe
