// The faults of a simulated federation and their times, drawn from the seed before it begins, so that a run can be
// repeated without some of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace geopipe::simulation {

enum class FaultKind : uint8_t {
  kCoordinatorCrash,
  kCoordinatorCrashAtCommit,  // when it orders a commit, within the duration
  kCoordinatorPause,
  kCoordinatorIsolated,  // no path to any site
  kAgentCrash,
  kAgentPause,
  kKeeperCrash,
  kKeeperPause,
  kWorkerCrash,
  kWorkerPause,
  kWorkerStuck,
  kWorkerCrashWhileCut,  // the path of another site is held
  kNodeReboot,
  kStateFolderLost,   // of a node, with its agent
  kEverybodyCrashes,  // coordinator and agents
  kPathReset,
  kPathHeld,
  kPathSwallowed,      // both ways
  kPathSwallowedUp,    // half-open: reports are lost
  kPathSwallowedDown,  // half-open: orders are lost
  kPathSlow,
  kDuplicates,
  kStoreFull,
  kProgressStoreFull,
  kNodeDiskFull,
  kClockJump,
  kDataPathCut,
  kSlowPlanner,
  kUserPauses,  // and resumes after the duration
  kUserCancels,
  kNodeLost,            // everything that runs on it, for long, and sometimes its disk
  kCheckpointDiskFull,  // of a node
  kNodeKillsWorkers,    // each, soon after its start
  kUserDrains,          // a site, and takes it into use after the duration
  kUserWantsCheckpoint,
  kStartsFail,           // on a node
  kFilesFail,            // on a node: none can be opened or read
  kMountAway,            // that of a node's checkpoints
  kKeeperAndWorkersDie,  // of a node, together: by a limit on their memory
  kStoreOlder,           // the coordinator comes back with its store as it was the duration before
  kNodeLeaves,           // its keeper is told to end, and after the duration it reboots
  kCount,
};

struct Fault {
  int64_t at_ns = 0;
  FaultKind kind = FaultKind::kCoordinatorCrash;
  uint32_t target = 0;  // which site, worker or job
  int64_t duration_ns = 0;
  int64_t effects = 0;  // crashes: so many effects later
};

// "at 12.345 s: agent crash, target 1, for 3.2 s".
std::string Describe(const Fault& fault);

// `count` faults of the first `kinds` kinds within `span_ns`, in order.
std::vector<Fault> DrawFaults(uint64_t seed, int count, int64_t span_ns,
                              int kinds = static_cast<int>(FaultKind::kCount));

}  // namespace geopipe::simulation
