// A run of a job with faults (chaos_plan.h): what was seen of it, what each fault has cost, and pictures of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "geopipe/v1/control_service.pb.h"
#include "tests/support/chaos_plan.h"

namespace geopipe {

struct ChaosSample {
  int64_t at_ns = 0;   // since training began
  bool heard = false;  // the coordinator has answered
  v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
  int64_t iterations = 0;
};

struct ChaosOutcome {
  ChaosFault fault;  // at_ns: when it began; duration_ns of kRestore: until a state was chosen
  int64_t cost_ns = 0;
  int64_t failed_calls = 0;  // of kDescriptors, kFork, kEio and kEstale
};

struct ChaosRun {
  std::vector<ChaosSample> samples;
  std::vector<ChaosOutcome> outcomes;  // of faults that came about
  std::vector<v1::IterationSummary> curve;
  std::vector<v1::IterationSummary> early;  // what was known when the store was restored
  v1::JobDetail detail;                     // at the end
  int64_t begun_unix_ns = 0;
  int64_t wall_ns = 0;       // from the first iteration's end to the job's
  int64_t iteration_ns = 0;  // of one that nothing disturbs, as planned
  int64_t median_ns = 0;     // of those that were done: what cost is measured by
  // Share of the time that undisturbed iterations would have taken.
  double effective() const { return EffectiveOf(wall_ns + iteration_ns); }
  // The same without the time that faults that keep a rank from training have cost while they lasted.
  double effective_between(size_t sites) const;

 private:
  double EffectiveOf(int64_t span_ns) const {
    return static_cast<double>(std::ssize(curve) * iteration_ns) / static_cast<double>(span_ns);
  }
};

// Fills in median_ns and what each fault has cost.
void CountChaosCosts(ChaosRun& run);

std::string ChaosTargetName(const ChaosFault& fault, const std::vector<std::string>& sites);

// A row of each fault: instant, kind, target, duration, cost and what it may cost, "ok" or "MISSED". And of each kind:
// how many there were, the median of the costs, and the worst one over what it may be.
std::string ChaosTable(const ChaosRun& run, const std::vector<std::string>& sites);
// Number of faults that have cost more than they may.
size_t ChaosMissed(const ChaosRun& run, size_t sites);

// The run as text, a row of each target with its faults (ChaosLetter) and one of the job: '#' trains, 'r' recovers, '.'
// was not heard of. And as an SVG picture.
std::string ChaosText(const ChaosRun& run, const std::vector<std::string>& sites, int64_t columns);
std::string ChaosSvg(const ChaosRun& run, const std::vector<std::string>& sites);

}  // namespace geopipe
