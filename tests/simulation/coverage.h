// Counts what the simulation has seen: pairs of a transition of a job and a fault that was under way, or over for less
// than ten seconds.
#pragma once

#include <compare>
#include <cstdint>
#include <set>

#include "coordinator/core/run/job_state.h"
#include "tests/simulation/faults.h"

namespace geopipe::simulation {

class Coverage {
 public:
  static constexpr int64_t kAfterNs = 10'000'000'000;

  void Add(JobState from, JobState to, FaultKind fault) { seen_.insert({from, to, fault}); }
  void Add(const Coverage& other) { seen_.insert(other.seen_.begin(), other.seen_.end()); }
  int64_t pairs() const { return static_cast<int64_t>(seen_.size()); }
  // Pairs that can be.
  static int64_t possible() {
    int64_t transitions = 0;
    for (int from = v1::JOB_STATE_PENDING; from <= v1::JobState_MAX; ++from) {
      for (int to = v1::JOB_STATE_PENDING; to <= v1::JobState_MAX; ++to) {
        transitions += MayFollow(static_cast<JobState>(from), static_cast<JobState>(to)) ? 1 : 0;
      }
    }
    return transitions * static_cast<int64_t>(FaultKind::kCount);
  }

 private:
  struct Pair {
    JobState from;
    JobState to;
    FaultKind fault;
    friend auto operator<=>(const Pair&, const Pair&) = default;
  };
  std::set<Pair> seen_;
};

}  // namespace geopipe::simulation
