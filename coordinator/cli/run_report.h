// The report of a finished (or failed) run: the closing summary for people and the JSON for programs.
#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <string>
#include <vector>

#include "coordinator/cli/render/plan_output.h"
#include "geopipe/v1/control_service.pb.h"

namespace geopipe {

struct RunReport {
  v1::JobDetail detail;
  std::vector<v1::IterationSummary> iterations;
  std::string deviation;            // the largest between plan and measurement, a sentence; empty: not compared
  int64_t start_error_p95_ns = -1;  // PlanComparison's; -1: not compared
  double stolen_share = -1;         // of the processor time this host wanted while the job ran; -1: not known
  std::map<std::string, std::string> artifacts;  // kind ("report", "trace", "logs") to path
};

// {"job","state","cause","plan","predicted","measured","memory","iterations":[…],"evaluations":[…],"artifacts"}, and
// where they are known "largest_deviation", "start_error_p95_s" and "stolen_share". Doubles are printed so that they
// read back to the same bits. Plan, prediction and memory, which is RankMemoryToJson's, are null when the run never got
// that far.
absl::StatusOr<Json> RunReportToJson(const RunReport& report);

// Explains a longer measurement where a hypervisor gave a notable share of the processors to other guests; else empty.
std::string StolenNote(double stolen_share);

// Predicted against measured iteration time, bubble, loss first to last, where the artifacts are.
absl::StatusOr<std::string> ClosingSummary(const RunReport& report);

// One line per finished iteration: "iteration  12/200  loss 3.1234  grad norm 1.23  0.412 s  9,942 tokens/s".
std::string IterationLine(const v1::IterationSummary& iteration, int64_t iterations_total,
                          int64_t tokens_per_iteration);

// One line per evaluation: "validation after 100 iterations  loss 3.4567  0.912 s".
std::string EvaluationLine(const v1::EvaluationSummary& evaluation);
// {"iterations","loss","duration_s"}; the last two are null where nothing is computed, or its report is lost.
Json EvaluationToJson(const v1::EvaluationSummary& evaluation);
// "validation    loss 3.4567 after 200 iterations; first 3.9000 after 20, lowest 3.4012 after 180"; empty when there is
// no loss.
std::string ValidationText(const v1::JobDetail& detail);

// "warning    checkpoint of iteration 30: …"; what is waited for is "waiting", what is over "note".
std::string NoticeLine(const v1::JobNotice& notice);

// The error of a job that has ended, but not COMPLETED: its state and cause; its exit code is kExitInfeasible when no
// plan fits.
absl::Status NotCompleted(const v1::JobSummary& summary);

// Mean of the last `count` losses; fewer when there are fewer. REQUIRES: !iterations.empty().
double MeanOfLastLosses(const std::vector<v1::IterationSummary>& iterations, size_t count);

}  // namespace geopipe
