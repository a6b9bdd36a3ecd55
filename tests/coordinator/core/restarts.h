// What tests of restarts, pauses and silences have in common: another life of the coordinator, agents that return to
// it, and epochs that end.
#pragma once

#include <string>

#include "tests/coordinator/core/federation.h"

namespace geopipe {

// The device that the tiny job uses at the site.
inline WorkerKey DeviceAt(const std::string& site) { return {site, "n0", 0}; }

// Options of the coordinator that is started after the first one.
inline CoordinatorOptions NextLife() {
  CoordinatorOptions options = Federation::DefaultOptions();
  options.incarnation += uint64_t{1} << 32;
  return options;
}

// What an agent that returns tells of its worker.
inline v1::WorkerState StateOf(v1::WorkerPhase phase, uint64_t epoch, int64_t next_iteration, bool attached = true) {
  v1::WorkerState state;
  state.set_pid(100);
  state.set_attached(attached);
  state.mutable_status()->set_phase(phase);
  state.mutable_status()->set_epoch(epoch);
  state.mutable_status()->set_next_iteration(next_iteration);
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

// All workers have ended the epoch before the iteration.
inline void EndAll(Federation& f, int64_t next_iteration, uint64_t epoch = 1) {
  for (size_t rank = 0; rank < f.sites.size(); ++rank) {
    v1::WorkerReport report;
    report.set_epoch(epoch);
    report.mutable_ended()->set_rank(static_cast<int32_t>(rank));
    report.mutable_ended()->set_next_iteration(next_iteration);
    f.Answer(f.sites[rank], report);
  }
}

}  // namespace geopipe
