// The whole control plane in one thread: one coordinator, three sites of one node each, two jobs and a user, driven
// through faults from a seed. Coordinator, agents, keepers and the workers' control are the real cores; network, disks,
// planner and training are simulated. After every event what happened is held against the rules (ledger.h and below):
//
//   - one epoch of a job finishes iterations, and no epoch is used before it is durable;
//   - every rank finishes every iteration once, in order; each is stored once, complete, with its loss, and told to a
//     watcher once;
//   - every evaluation is told once, in order, with its loss, or as lost where a worker was;
//   - what was acknowledged to the user is there after any restart, and a pause comes about;
//   - jobs of a name are numbered one after the other, and an earlier one is kept and never written again;
//   - when the store is put back to an older one, only what came since is forgotten: no worker of a run that goes on is
//     stopped, nor its device given away, and no epoch begins beside it or with it before the user has chosen; no epoch
//     of a run is used twice;
//   - at most one worker runs on a device, and none outlives its right to run;
//   - no link of a site is probed on which a job has workers;
//   - a job fails only for a cause, and one that is cancelled with a checkpoint has all of its work in it;
//   - a minute after the last fault every job has come to its end, goes on, or says what it waits for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulation/coverage.h"
#include "tests/simulation/faults.h"

namespace geopipe::simulation {

struct Options {
  uint64_t seed = 1;
  int faults = 20;
  int kinds = static_cast<int>(FaultKind::kCount);     // the first of them: seeds that were named knew no later ones
  int64_t duration_ns = int64_t{600} * 1'000'000'000;  // with faults; a minute and more without follows
  bool trace = false;                                  // prints what happens
};

struct Outcome {
  std::string broken;  // the first rule that was broken; empty: none
  int64_t broken_ns = 0;
  std::vector<Fault> faults;
  // Counts over all processes.
  int64_t simulated_ns = 0;
  int64_t events = 0;
  int64_t iterations = 0;  // of all ranks
  int64_t completed = 0;   // jobs
  int64_t failed = 0;
  int64_t epochs = 0;  // that were deployed
  Coverage coverage;
};

// Runs with the faults that the seed draws.
Outcome Simulate(const Options& options);
// Runs with these faults instead.
Outcome Simulate(const Options& options, std::vector<Fault> faults);

}  // namespace geopipe::simulation
