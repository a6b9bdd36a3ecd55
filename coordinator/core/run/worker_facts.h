// Facts that are heard of one worker: the latest process on its device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/cluster/names.h"
#include "geopipe/v1/worker_service.pb.h"
#include "optimizer/model/state_identity.h"

namespace geopipe {

struct EpochMember {
  WorkerKey worker;
  uint64_t incarnation = 0;

  friend bool operator==(const EpochMember&, const EpochMember&) = default;
};

// An order of those that are sent again when an agent may have lost them, as far as it takes to tell it from others.
struct Order {
  enum class Kind : uint8_t {
    kNone,
    kStart,    // number: incarnation
    kReplace,  // stop, for another is started in its place; number: incarnation
    kProfile,  // number: round
    kPrepare,  // number: epoch, as below
    kCommit,
    kEnd,  // iteration: that none is to be finished from; kOpen: after the one under way
  };
  static constexpr int64_t kOpen = -1;

  Kind kind = Kind::kNone;
  uint64_t number = 0;
  int64_t iteration = kOpen;

  friend bool operator==(const Order&, const Order&) = default;
};

struct WorkerFacts {
  enum class Stage : uint8_t {
    kStarting,  // has not said hello
    kAttached,  // has
    kEnded,     // its end was told
  };
  enum class Sight : uint8_t {
    kSeen,
    kUnseen,      // its agent came back without it
    kOutOfReach,  // its agent is not heard, and it counts as lost
  };

  EpochMember worker;
  Stage stage = Stage::kStarting;
  uint64_t epoch = 0;  // the latest that it knows of
  v1::WorkerPhase phase = v1::WORKER_PHASE_UNSPECIFIED;
  std::vector<StateIdentity> states = {};  // held or kept; of a worker that rests
  int64_t next_iteration = 0;              // the first that it has not finished
  Sight sight = Sight::kSeen;
  bool failed = false;       // has said in this epoch why it cannot go on
  bool told_all = false;     // its last report of this epoch's iterations and evaluations has come
  std::string trouble = {};  // why another is to be started in its place, if the job goes on; empty: it is well
  bool of_node = false;      // the trouble is its node's
  bool of_peer = false;      // or comes from another's: the worker was cut off before its epoch began
  // Latest time since which the process may live without an agent that knows it; unset: one does, or it has ended.
  std::optional<int64_t> alone_since_ns = std::nullopt;
  v1::DataCheckReport data_check = {};  // the latest in this life of the coordinator
  std::string slow_action = {};         // overdue action in its last heartbeat
  Order sent = {};                      // the latest to it, unless its agent may have lost that

  bool attached() const { return stage == Stage::kAttached; }
  // True when its state will not change by itself.
  bool Rests() const {
    return phase == v1::WORKER_PHASE_IDLE || phase == v1::WORKER_PHASE_ENDED || phase == v1::WORKER_PHASE_FINISHED;
  }
  // True when it has said that it no longer runs this epoch.
  bool HasLeft(uint64_t number) const {
    return epoch == number && (phase == v1::WORKER_PHASE_ENDED || phase == v1::WORKER_PHASE_FINISHED);
  }
  // Notes that it is at least as far as this in the epoch.
  void Advance(uint64_t number, v1::WorkerPhase reached) {
    phase = epoch == number ? std::max(phase, reached) : reached;
    epoch = number;
  }
};

}  // namespace geopipe
