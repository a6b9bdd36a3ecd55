// Faults at random instants, done to a federation of real processes while a job trains, and what became of it in the
// course of time. For tests/bench/chaos_bench.cc.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "geopipe/v1/control_service.pb.h"
#include "tests/support/process_federation.h"

namespace geopipe {

struct ChaosFault {
  enum class Kind : uint8_t { kKill, kStop, kCut, kFull };
  Kind kind = Kind::kKill;
  size_t target = 0;  // ChaosTargets of the kind
  int64_t at_ns = 0;  // since training began
  int64_t duration_ns = 0;
};

// Targets of a kind of fault, by name: processes (coordinator; agent, keeper and worker of each site), links between
// two sites, disks of the coordinator and of each site.
std::vector<std::string> ChaosTargets(ChaosFault::Kind kind, const std::vector<std::string>& sites);

// Faults in `span_ns`, one in `every_ns` on average, at the instants of a Poisson process: of ten, four kill a process,
// three stop one for 1 to 20 s, two cut a link for 1 to 8 s, one fills a disk for 10 s; targets are uniform.
std::vector<ChaosFault> DrawChaos(uint64_t seed, size_t sites, int64_t span_ns, int64_t every_ns);

struct ChaosSample {
  int64_t at_ns = 0;   // since training began
  bool heard = false;  // the coordinator has answered
  v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
  int64_t iterations = 0;
};

struct ChaosRun {
  std::vector<ChaosSample> samples;
  std::vector<ChaosFault> faults;  // that came about
  std::vector<v1::IterationSummary> curve;
  v1::JobDetail detail;  // at the end
  int64_t begun_unix_ns = 0;
  int64_t wall_ns = 0;       // from the first iteration's end to the job's
  int64_t iteration_ns = 0;  // of one that nothing disturbs
  // Share of the time that undisturbed iterations would have taken.
  double effective() const {
    return static_cast<double>(std::ssize(curve) * iteration_ns) / static_cast<double>(wall_ns + iteration_ns);
  }
};

// Submits a paced job with `recovery: memory` and copied checkpoints, lets the faults happen while it trains, starts
// what is killed again a second later, and waits for the job's end.
absl::StatusOr<ChaosRun> TrainInChaos(ProcessFederation& federation, const std::string& job, int64_t iterations,
                                      const std::vector<ChaosFault>& faults);

// The run as text, a row of each target with its faults (k, s, c, f) and one of the job: '#' trains, 'r' recovers, '.'
// was not heard of. And as an SVG picture.
std::string ChaosText(const ChaosRun& run, const std::vector<std::string>& sites, int64_t columns);
std::string ChaosSvg(const ChaosRun& run, const std::vector<std::string>& sites);

}  // namespace geopipe
