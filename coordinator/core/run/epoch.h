// A job's training is a sequence of epochs. An epoch is one plan on one set of workers from one iteration on; all its
// ranks run it, or none finishes an iteration of it. What comes next is decided here and nowhere else, from what is
// known at the moment: start, adoption after a restart, pause and resume are the same question. (In the manner of the
// pure chain update of 3FS, https://github.com/deepseek-ai/3FS.)
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/cluster/names.h"
#include "geopipe/v1/worker_service.pb.h"
#include "optimizer/model/checkpoint_identity.h"

namespace geopipe {

inline constexpr size_t kEpochSecretBytes = 32;

struct EpochMember {
  WorkerKey worker;
  uint64_t incarnation = 0;

  friend bool operator==(const EpochMember&, const EpochMember&) = default;
};

// A value. Durable before any worker hears of it.
struct Epoch {
  uint64_t number = 0;               // from 1 on in the life of a job
  std::vector<EpochMember> members;  // by rank of the plan
  std::string secret;                // members prove it to each other; nobody else has it
  int64_t first_iteration = 0;       // the members begin with the state before it
  std::optional<CheckpointIdentity> from_checkpoint = std::nullopt;  // which they read from this; nullopt: they hold it

  friend bool operator==(const Epoch&, const Epoch&) = default;
};

// One worker, as far as it is known.
struct WorkerFacts {
  EpochMember worker;
  bool attached = false;            // it has said hello
  std::optional<std::string> lost;  // it will not be heard again, or cannot go on: the sentence that says why
  uint64_t epoch = 0;               // the latest that it knows of
  v1::WorkerPhase phase = v1::WORKER_PHASE_UNSPECIFIED;
  int64_t next_iteration = 0;  // its state is that before this iteration
};

struct EpochFacts {
  bool wanted = true;                // the user wants the job to run, not paused, and all its agents hear it
  std::vector<EpochMember> members;  // the plan's, by rank; empty: there is no plan
  std::vector<WorkerFacts> workers;  // of the job, at least all of the above and of the old epoch's members
  int64_t end_iteration = 0;         // of the job
  std::string secret;                // fresh, for a new epoch
  std::optional<CheckpointIdentity> resume_from =
      std::nullopt;  // that the first epoch begins with; nullopt: with the initial state
};

struct EpochDecision {
  enum class Kind : uint8_t { kWait, kNew, kFail };
  Kind kind = Kind::kWait;
  Epoch epoch = {};    // kNew
  std::string reason;  // kWait: what for. kFail: one sentence
};

// The rules:
//   1. A worker is lost that the plan needs, or an old epoch that has not ended, or, as long as there is neither, any
//      worker: fail.
//   2. The job is not wanted, or has no plan: wait.
//   3. The fence: no epoch begins while the old one could finish an iteration. Every iteration needs every member, so
//      the old one cannot as soon as one member has acknowledged its end.
//   4. A new epoch begins with one state: all its members are attached and hold the state before the same iteration
//      (if there is no old epoch the initial one, or they read one from a checkpoint). Members that may still come to
//      it are waited for; different states that nobody will change are a failure.
//   5. Nothing is left to be done at the end iteration: wait.
EpochDecision NextEpoch(const std::optional<Epoch>& old, const EpochFacts& facts);

}  // namespace geopipe
