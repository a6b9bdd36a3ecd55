// Does to a ProcessFederation what a run must survive, and measures it: for tests/integration/survival_test.cc, which
// asks for little of it, and tests/bench/survival_bench.cc, which asks for all.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "geopipe/v1/control_service.pb.h"
#include "tests/support/process_federation.h"

namespace geopipe {

// Iterations of the learning rate's schedule, however few a run does: runs then have equal beginnings.
inline constexpr int64_t kPlannedIterations = 4000;

// Arguments of `geopipectl apply` for a small job over these sites, one device each: its files are written to `folder`.
// On paced devices an iteration takes about half a second, whatever else this machine does. `more`: lines of the job's
// spec, indented by two. `data`: what the job trains on.
inline const std::filesystem::path kSurvivalData = std::filesystem::path(GEOPIPE_SOURCE_DIR) / "LICENSE";
absl::StatusOr<std::vector<std::string>> PacedJob(const std::filesystem::path& folder, const std::string& job,
                                                  const std::vector<std::string>& sites, int64_t iterations,
                                                  const std::string& more = "",
                                                  const std::filesystem::path& data = kSurvivalData);

// Submits one over all sites of the federation.
absl::Status SubmitPaced(ProcessFederation& federation, const std::string& job, int64_t iterations);

// Submits one whose iterations have 20,000 micro-batches, and reports of megabytes; nothing is computed in it. For
// links of 0.1 ms.
absl::Status SubmitLong(ProcessFederation& federation, const std::string& job, int64_t iterations);

// Submits one over all sites whose iterations take about eight seconds.
absl::Status SubmitSlow(ProcessFederation& federation, const std::string& job, int64_t iterations);

// "iteration loss grad_norm", one line each, in a form that is equal when the bits are.
std::string NumbersOf(const std::vector<v1::IterationSummary>& curve);

// The same of such a job on one site, without anything to disturb it and without pace.
absl::StatusOr<std::string> NumbersAlone(ProcessFederation& federation, int64_t iterations);

// Time at which the job's workers were started.
absl::StatusOr<int64_t> BegunUnixNs(const ProcessFederation& federation, const std::string& job);

// OK when `curve` has the iterations from 0 to `iterations` - 1, each once, in order and complete.
absl::Status CheckWhole(const std::vector<v1::IterationSummary>& curve, int64_t iterations);

// Processes that are killed, all at the same instant.
struct Victims {
  bool coordinator = false;
  std::vector<size_t> agents = {};  // sites
  std::vector<size_t> keepers = {};
};

struct KilledRun {
  std::vector<v1::IterationSummary> curve;
  // Times from the return of the processes (the coordinator listens; an agent was started) to the first iteration that
  // the coordinator has since heard of from all ranks, one for each kill.
  std::vector<int64_t> adopted_ns;
};

// Submits a job as SubmitPaced does, kills one after the other of `kills` with SIGKILL at random instants spread over
// the run, starts what was killed again at once, and waits for the job's end.
absl::StatusOr<KilledRun> TrainUnderKills(ProcessFederation& federation, const std::string& job, int64_t iterations,
                                          const std::vector<Victims>& kills, uint64_t seed);

// An agent is away for `away_ns`, which is longer than its orphan_grace: in the midst of an iteration that takes longer
// than that, too, and while its job is paused. The job is resumed while the agent is away, and runs to its end.
struct LongAbsences {
  std::vector<v1::IterationSummary> curve;
  std::string resumed;  // what `resume` has printed
};
absl::StatusOr<LongAbsences> TrainUnderLongAbsences(ProcessFederation& federation, const std::string& job,
                                                    int64_t iterations, int64_t away_ns);

// Half-open streams to one agent, from which on they carry nothing: how long each end took to notice.
struct HalfOpenNoticed {
  int64_t by_agent_ns = 0;
  int64_t by_coordinator_ns = 0;
};
// The streams stay so until proxy(site).Restore().
absl::StatusOr<HalfOpenNoticed> SwallowStreams(ProcessFederation& federation, const std::vector<size_t>& sites);

// A worker cut off from its peer, two network namespaces apart, and from its agent, which is stopped.
struct OrphanEnd {
  int64_t lived_ns = 0;                                   // from then to its end
  v1::JobState state_at_end = v1::JOB_STATE_UNSPECIFIED;  // of the job
  bool peer_lived = false;                                // at its end
  std::string cause;                                      // of the loss, after the agent has gone on
};
// Unavailable where namespaces and tun devices cannot be made.
absl::StatusOr<OrphanEnd> CutWorkerOff(int64_t orphan_grace_ns);

// Stops a process for so long.
void StopFor(int64_t pid, int64_t duration_ns);

// Submits a job as SubmitPaced does, sends one signal after the other to workers, at least two iterations apart, and
// waits for the job's end.
struct Loss {
  int signal = 0;
  size_t site = 0;
};
struct LossOutcome {
  // Times from the signal until the coordinator tells of a loss, until the job is RUNNING again, and until an iteration
  // done since is told.
  int64_t noticed_ns = 0;
  int64_t running_ns = 0;
  int64_t trained_ns = 0;
  v1::RecoverySummary recovery;
};
struct LossyRun {
  std::vector<v1::IterationSummary> curve;
  std::vector<LossOutcome> outcomes;  // one of each loss
};
absl::StatusOr<LossyRun> TrainUnderLosses(ProcessFederation& federation, const std::string& job, int64_t iterations,
                                          const std::vector<Loss>& losses);

// Submits a job over all sites that is neither paced nor of given costs, so that it can go on at fewer; on disk() of
// each site it writes a checkpoint every `every` iterations. An iteration takes about a tenth of a second.
absl::Status SubmitMoving(ProcessFederation& federation, const std::string& job, int64_t iterations, int64_t every,
                          int32_t replicate, int64_t grace_ns);

// Submits a job over all sites, with a checkpoint every `every` iterations and copies of it at another site, and loses
// one of the sites when one has been copied: its processes, all at once, and its disk. Where it `returns`, its agent is
// started again, with an empty disk, when the others have gone on. Waits for the job's end.
struct SiteLoss {
  size_t site = 0;
  int64_t every = 5;
  int64_t grace_ns = 5'000'000'000;
  bool returns = true;
};
struct SiteLossRun {
  std::vector<v1::IterationSummary> curve;
  int64_t running_ns = 0;  // from the loss until the job is RUNNING at the other sites
  int64_t trained_ns = 0;  // and until an iteration is told that was done there
  int64_t copied = 0;      // the newest checkpoint that had copies when the site was lost
  int64_t back_ns = 0;     // from the agent's return until the job is RUNNING at all sites; 0: it does not return
  v1::JobDetail detail;    // at the end
};
// REQUIRES: the sites have their own disks.
absl::StatusOr<SiteLossRun> TrainUnderSiteLoss(ProcessFederation& federation, const std::string& job,
                                               int64_t iterations, const SiteLoss& loss);

// Kills a worker of a job as often as it is started, and returns "<state>: <cause>" of the job's end.
absl::StatusOr<std::string> LoseWorkerAgainAndAgain(ProcessFederation& federation, const std::string& job, size_t site);

}  // namespace geopipe
