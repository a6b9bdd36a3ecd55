// Finds out why a job lost a worker, or failed. One death makes many complaints: a killed worker breaks its neighbours'
// connections, and their reports may arrive before the news of the death itself. The first evidence that can be a root
// cause decides; evidence that is only ever a consequence waits a grace period for a better one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/cluster/names.h"
#include "geopipe/v1/agent_service.pb.h"
#include "geopipe/v1/worker_service.pb.h"

namespace geopipe {

struct FailureEvidence {
  enum class Worth : uint8_t {
    kConsequence,  // only ever follows from something else: a peer's connection broke
    kUnexplained,  // a worker ended without saying why: its own report may still be on the way
    kRoot,         // a cause of its own
  };
  Worth worth = Worth::kConsequence;
  std::string sentence;           // names worker, site and what happened
  std::string_view kind = "cut";  // for counting; one of kLossKinds
  bool permanent = false;         // a worker that is started again would come to the same
  bool of_node = false;           // the trouble is the node's: it may pass, and another node may not have it
  bool diverged = false;          // its numbers are none any more: only an older state is of use
};

// Kinds of losses, in order: connections broke and nobody ended; a signal; an exit without a signal; an error of the
// worker's own; silence; an action that does not end; an agent came back without the worker; nothing is heard of the
// agent; an order was not carried out in time; no iteration ends; a checkpoint cannot be read; its node is unfit; the
// job store is older than the run.
inline constexpr std::string_view kLossKinds[] = {"cut",        "killed", "exited",      "failed", "silent",
                                                  "stuck",      "gone",   "unreachable", "late",   "no_progress",
                                                  "unreadable", "unfit",  "outrun"};

// Evidence of an exit that nobody asked for: by signal ("worker west/n0/0 (pid 12, site west) was killed by signal 9
// (SIGKILL)") or by itself, with the end of what it said; or of a start that came to nothing. `attached`: it had said
// hello; what ends before has its node's trouble.
FailureEvidence EvidenceOf(const WorkerKey& worker, const v1::WorkerExit& exit, bool attached);

// Evidence of a worker's report of its own failure. A broken or silent peer (UNAVAILABLE, DEADLINE_EXCEEDED, ABORTED,
// CANCELLED) is a consequence; everything else is a root cause, and permanent unless it is a bug or a device that has
// failed (INTERNAL, UNKNOWN): what is missing, does not fit or is damaged is so for the next worker, too, at least for
// a job that has yet to show that it works anywhere.
FailureEvidence EvidenceOf(const WorkerKey& worker, const v1::FailureReport& report);

class FailureDiagnosis {
 public:
  // Earlier evidence stays unless later evidence is worth more.
  void Add(int64_t now_ns, FailureEvidence evidence);

  bool pending() const { return best_.has_value(); }
  // Puts the grace period off by the time that this process was stopped.
  void Forgive(int64_t pause_ns) { since_ns_ += pause_ns; }

  // The cause, when it is time: at once for a root cause, else `grace_ns` after the first evidence, and not while
  // `more_may_come` (an agent of the job is silent and may yet turn out to be the cause).
  std::optional<FailureEvidence> Verdict(int64_t now_ns, int64_t grace_ns, bool more_may_come) const;

 private:
  std::optional<FailureEvidence> best_;
  int64_t since_ns_ = 0;
};

}  // namespace geopipe
