// Memory of a job's ranks: planned with the plan, measured as they tell, and kept.
#include <catch2/catch.hpp>
#include <string>

#include "tests/coordinator/core/federation.h"
#include "tests/coordinator/core/restarts.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

v1::WorkerReport IterationWithPeaks(int32_t rank, int64_t iteration, int64_t activation_bytes) {
  v1::WorkerReport report = IterationReportOf(rank, 1, iteration);
  report.mutable_iteration()->mutable_peaks()->set_activation_bytes(activation_bytes);
  report.mutable_iteration()->mutable_peaks()->set_total_bytes(activation_bytes + 1);
  return report;
}

TEST_CASE("planned memory comes with the plan, and measured memory with what the ranks tell") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_PLANNING);
  CHECK(f.DetailOf("tiny").planned_memory().empty());
  f.PlanNow();
  f.PrepareAll();
  f.CommitAll();
  REQUIRE(f.DetailOf("tiny").planned_memory_size() == 3);
  CHECK(f.DetailOf("tiny").planned_memory(0).weight_bytes() > 0);
  // The first rank of a 1F1B pipeline has the most micro-batches in flight.
  CHECK(f.DetailOf("tiny").planned_memory(0).activation_bytes() >
        f.DetailOf("tiny").planned_memory(1).activation_bytes());
  CHECK(f.DetailOf("tiny").measured_memory().empty());
  f.Answer("west", IterationWithPeaks(2, 0, 70));
  f.Answer("north", IterationWithPeaks(0, 0, 90));
  f.Answer("west", IterationReportOf(2, 1, 1));  // nothing has changed
  const v1::JobDetail detail = f.DetailOf("tiny");
  REQUIRE(detail.measured_memory_size() == 2);
  CHECK(detail.measured_memory(0).rank() == 0);
  CHECK(detail.measured_memory(0).peaks().activation_bytes() == 90);
  CHECK(detail.measured_memory(1).rank() == 2);
  CHECK(detail.measured_memory(1).peaks().total_bytes() == 71);
  CHECK(f.broken == "");
}

TEST_CASE("what ranks have measured is there when the job has ended, and in the coordinator's next life") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  for (int64_t iteration = 0; iteration < 3; ++iteration) {
    for (int32_t rank = 0; rank < 3; ++rank) {
      f.Answer(f.sites[static_cast<size_t>(rank)], IterationWithPeaks(rank, iteration, 10 * (rank + 1)));
    }
  }
  v1::WorkerReport last = FinishedReportOf(2, 1, 3);
  last.mutable_finished()->mutable_peaks()->set_transport_bytes(5);
  f.Answer("west", last);
  f.Answer("north", FinishedReportOf(0, 1, 3));
  f.Answer("east", FinishedReportOf(1, 1, 3));
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_COMPLETED);
  Federation g(NextLife(), f.Stored());
  for (const v1::JobDetail& detail : {f.DetailOf("tiny"), g.DetailOf("tiny")}) {
    REQUIRE(detail.planned_memory_size() == 3);
    REQUIRE(detail.measured_memory_size() == 3);
    CHECK(detail.measured_memory(2).peaks().activation_bytes() == 30);
    CHECK(detail.measured_memory(2).peaks().transport_bytes() == 5);
  }
}

TEST_CASE("a coordinator that is restarted knows what was stored with the latest change, and hears of more") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.Answer("west", IterationWithPeaks(2, 0, 70));
  f.Step(PauseJob{f.next_call++, "tiny"});
  EndAll(f, 1);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);
  Federation g(NextLife(), f.Stored());
  ReturnAll(g, StateOf(v1::WORKER_PHASE_ENDED, 1, 1));
  REQUIRE(g.DetailOf("tiny").measured_memory_size() == 1);
  CHECK(g.DetailOf("tiny").measured_memory(0).peaks().activation_bytes() == 70);
}

TEST_CASE("nothing is planned of the memory of a run that computes nothing") {
  Federation f;
  f.run.backend = BackendKind::kModelled;
  f.DriveTo(v1::JOB_STATE_PROFILING);
  f.HelloAll();
  f.ProfileMessages();
  f.PlanNow();
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  CHECK(f.DetailOf("tiny").planned_memory().empty());
}

TEST_CASE("the warnings of a plan stand with it and are logged") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_PLANNING);
  REQUIRE(f.planning.size() == 1);
  const StartPlanning asked = f.planning[0];
  PlanResult plan = Federation::PlanFor(asked.input);
  plan.warnings = {"this costs much; do that"};
  f.Step(PlannerDone{asked.job, asked.incarnation, plan, "secret"});
  bool logged = false;
  for (const LogEntry& entry : f.Last<LogEntry>()) {
    logged = logged || (entry.level == LogLevel::kWarning && entry.text == plan.warnings[0]);
  }
  CHECK(logged);
  REQUIRE(f.DetailOf("tiny").warnings_size() == 1);
  CHECK(f.DetailOf("tiny").warnings(0) == plan.warnings[0]);
}

TEST_CASE("a job whose loss is not a number ends with where and with the checkpoint to go on from") {
  const bool has_path = GENERATE(true, false);
  Federation f(Federation::RecoveringOptions());
  f.job.training.iterations = 100;
  if (has_path) {
    f.job.checkpoint = {.path = "/checkpoints", .every = 2, .keep = 2};
  }
  const auto checkpoint = [&](int64_t iteration) {
    for (int32_t rank = 0; rank < 3; ++rank) {
      v1::WorkerReport report;
      report.set_epoch(1);
      report.mutable_checkpoint()->set_rank(rank);
      report.mutable_checkpoint()->set_iteration(iteration);
      v1::CheckpointFile& file = *report.mutable_checkpoint()->add_files();
      file.set_name("file-" + std::to_string(rank));
      file.set_bytes(100);
      f.Answer(f.sites[static_cast<size_t>(rank)], report);
    }
    for (const std::string& site : f.sites) {
      v1::WorkerReport report;
      report.set_epoch(1);
      report.mutable_manifest()->set_iteration(iteration);
      f.Answer(site, report);
    }
  };
  f.DriveTo(v1::JOB_STATE_RUNNING);
  const bool written = has_path && GENERATE(true, false);
  if (written) {
    checkpoint(2);
    checkpoint(4);
  }
  v1::WorkerReport failure =
      FailureReportOf(absl::StatusCode::kOutOfRange, "iteration 5, end on rank 2: the loss is nan on stage 2");
  failure.set_epoch(1);
  f.Answer("west", failure);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
  CHECK(f.CauseOf("tiny") ==
        std::string("worker west/n0/0 (site west) failed: iteration 5, end on rank 2: the loss is nan on stage 2; ") +
            (written    ? "last checkpoint: iteration 4"
             : has_path ? "no checkpoint was written"
                        : "no checkpoint was written: the job has no checkpoint.path"));
}

TEST_CASE("other failures say nothing of checkpoints") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  v1::WorkerReport failure = FailureReportOf(absl::StatusCode::kResourceExhausted, "no memory");
  failure.set_epoch(1);
  f.Answer("west", failure);
  CHECK(f.CauseOf("tiny") == "worker west/n0/0 (site west) failed: no memory");
}

}  // namespace
}  // namespace geopipe
