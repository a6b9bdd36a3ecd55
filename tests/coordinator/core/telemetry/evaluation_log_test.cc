#include "coordinator/core/telemetry/evaluation_log.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace geopipe {
namespace {

EvaluationSpec Every(int64_t iterations) {
  EvaluationSpec spec;
  spec.every = iterations;
  spec.data.paths = {"/validation"};
  return spec;
}

v1::EvaluationReport ReportOf(int64_t iteration, double loss = 1) {
  v1::EvaluationReport report;
  report.set_iteration(iteration);
  report.set_loss(loss);
  return report;
}

std::vector<int64_t> Told(EvaluationLog& log) {
  std::vector<int64_t> told;
  for (const v1::EvaluationSummary& each : log.TakeNew()) {
    told.push_back(each.incomplete() ? -each.iteration() : each.iteration());
  }
  return told;
}

TEST_CASE("evaluations are due after every so many iterations, and after the last") {
  EvaluationLog log(Every(4), 10);
  std::vector<int64_t> due;
  while (log.next() != EvaluationLog::kNone) {
    due.push_back(log.next());
    REQUIRE(log.OnReport(ReportOf(due.back()), 1));
  }
  CHECK(due == std::vector<int64_t>{4, 8, 10});
  CHECK(Told(log) == due);
  EvaluationLog last_alone(Every(0), 10);
  CHECK(last_alone.next() == 10);
  CHECK(EvaluationLog(EvaluationSpec(), 10).next() == EvaluationLog::kNone);
  CHECK(EvaluationLog().next() == EvaluationLog::kNone);
}

TEST_CASE("each evaluation is told once, and none that is not due") {
  EvaluationLog log(Every(4), 10);
  CHECK_FALSE(log.OnReport(ReportOf(3), 1));
  CHECK_FALSE(log.OnReport(ReportOf(12), 1));
  CHECK(log.OnReport(ReportOf(4, 2.5), 7));
  CHECK_FALSE(log.OnReport(ReportOf(4, 3), 7));
  const std::vector<v1::EvaluationSummary> told = log.TakeNew();
  REQUIRE(told.size() == 1);
  CHECK(told[0].loss() == 2.5);
  CHECK(told[0].epoch() == 7);
  CHECK(log.TakeNew().empty());
}

TEST_CASE("evaluations whose reports will not come are told as incomplete, those of another run are not") {
  EvaluationLog log(Every(2), 10);
  log.PassOver(3);  // the run begins with iteration 4
  CHECK(log.next() == 4);
  log.GiveUpBefore(4);
  CHECK(Told(log).empty());
  log.GiveUpBefore(7);
  CHECK(Told(log) == std::vector<int64_t>{-4, -6});
  CHECK(log.OnReport(ReportOf(10), 1));
  CHECK(Told(log) == std::vector<int64_t>{-8, 10});
}

}  // namespace
}  // namespace geopipe
