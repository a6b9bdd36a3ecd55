// Faults of chaos_plan.h, done to a federation of real processes while a job trains. For tests/bench/chaos_bench.cc.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/chaos_plan.h"
#include "tests/support/chaos_run.h"
#include "tests/support/process_federation.h"

namespace geopipe {

// Submits a paced job with `recovery: memory`, copied checkpoints and training data on the sites' disks, lets the
// faults happen while it trains, starts what has ended again within a second, and waits for the job's end. A fault
// waits until the last one is over, its recovery too (all agents, keepers and workers are there, the job trains), and 3
// s with two iterations have passed since. `run` tells of a run that ends in an error, too; the error says what it
// waited for. REQUIRES: the federation has own disks, of a size, and bad_environments.
absl::Status TrainInChaos(ProcessFederation& federation, const std::string& job, int64_t iterations,
                          const std::vector<ChaosFault>& faults, ChaosRun& run);

}  // namespace geopipe
