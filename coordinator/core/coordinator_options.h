// Limits and intervals of the coordinator's core.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "coordinator/cluster/link_probing.h"
#include "runtime/manifest/coordinator_config.h"

namespace geopipe {

struct CoordinatorOptions {
  std::string version;
  uint64_t incarnation = 1;  // of this process; greater than any earlier one's
  std::string federation;    // of its store; agents with workers of another are refused; empty: none is
  int64_t heartbeat_interval_ns = 500'000'000;
  MembershipLimits membership;
  JobRunLimits run;
  LinkProbingOptions probing;
  size_t max_jobs = 1000;
  size_t max_finished_jobs = 1000;  // of them; beyond either limit the oldest finished one is forgotten
  size_t max_kept_runs = 10;        // earlier ones of a name, of the finished jobs; beyond it its oldest is forgotten
  size_t max_watches = 256;         // open at once
  size_t finished_logs_kept = 8;    // finished jobs whose iterations are held in memory
  // Shortest interval between two writes of progress, each followed by the acknowledgement of the reports in it.
  int64_t flush_interval_ns = 100'000'000;
  // A step that comes so long after the last one means that this process was stopped or starved: deadlines are put off.
  int64_t own_pause_ns = 1'000'000'000;
  // A silent agent's workers end by themselves after their orphan grace. The coordinator acts on the silence only so
  // much later, or two heartbeat intervals later if that is more.
  int64_t orphan_margin_ns = 5'000'000'000;
  int64_t default_orphan_grace_ns = 30'000'000'000;  // of agents that have not told theirs
};

}  // namespace geopipe
