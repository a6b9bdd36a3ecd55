// Shared by tests of restarts, pauses and silences: another life of the coordinator, agents that return to it, and
// epochs that end.
#pragma once

#include <string>

#include "tests/coordinator/core/federation.h"

namespace geopipe {

// The device that the tiny job uses at the site.
inline WorkerKey DeviceAt(const std::string& site) { return {site, "n0", 0}; }

// Options of the coordinator that is started after the first one.
inline CoordinatorOptions NextLife(CoordinatorOptions options = Federation::DefaultOptions()) {
  options.incarnation += uint64_t{1} << 32;
  return options;
}

// Adds a state from which a worker of the tiny job can go on.
inline void AddState(google::protobuf::RepeatedPtrField<v1::HeldState>* states, int64_t iteration, uint64_t epoch) {
  v1::HeldState& state = *states->Add();
  state.set_run_incarnation(Federation::kRun);
  state.set_iteration(iteration);
  state.set_epoch(epoch);
}

// The state that a returning agent reports of its worker.
inline v1::WorkerState StateOf(v1::WorkerPhase phase, uint64_t epoch, int64_t next_iteration, bool attached = true) {
  v1::WorkerState state;
  state.set_pid(100);
  state.set_attached(attached);
  state.mutable_status()->set_phase(phase);
  state.mutable_status()->set_epoch(epoch);
  state.mutable_status()->set_next_iteration(next_iteration);
  state.mutable_status()->set_run_incarnation(epoch > 0 ? Federation::kRun : 0);
  if (phase == v1::WORKER_PHASE_ENDED || phase == v1::WORKER_PHASE_FINISHED) {
    AddState(state.mutable_status()->mutable_states(), next_iteration, epoch);
  }
  return state;
}

// The agent of the site returns, with its worker alive.
inline void Return(Federation& f, const std::string& site, const v1::WorkerState& state, uint64_t agent = 1) {
  f.Register(site, agent, {f.IdOf(DeviceAt(site))}, 1, {state});
}

// The agents of all sites do.
inline void ReturnAll(Federation& f, const v1::WorkerState& state) {
  for (const std::string& site : f.sites) {
    Return(f, site, state);
  }
}

inline v1::WorkerReport EndedReportOf(int32_t rank, uint64_t epoch, int64_t next_iteration) {
  v1::WorkerReport report;
  report.set_epoch(epoch);
  report.mutable_ended()->set_rank(rank);
  report.mutable_ended()->set_next_iteration(next_iteration);
  AddState(report.mutable_ended()->mutable_states(), next_iteration, epoch);
  return report;
}

// All workers have ended the epoch before the iteration.
inline void EndAll(Federation& f, int64_t next_iteration, uint64_t epoch = 1) {
  for (size_t rank = 0; rank < f.sites.size(); ++rank) {
    f.Answer(f.sites[rank], EndedReportOf(static_cast<int32_t>(rank), epoch, next_iteration));
  }
}

}  // namespace geopipe
