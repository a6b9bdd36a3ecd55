// Shared by tests of the job store: stores in folders of their own, and what is written to them.
#pragma once

#include <fmt/format.h>
#include <sqlite3.h>

#include <catch2/catch.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/job_store.h"
#include "runtime/base/files.h"

namespace geopipe {

struct Folder {
  TempFolder folder = *TempFolder::Create("geopipe-store-");
  std::string path() const { return (folder.path() / "jobs.sqlite").string(); }
};

inline v1::JobTransition Transition(v1::JobState state, const std::string& cause) {
  v1::JobTransition transition;
  transition.set_state(state);
  transition.set_unix_time_ns(1'700'000'000'000'000'000);
  transition.set_cause(cause);
  return transition;
}

inline v1::JobDetail NewDetail(const std::string& name) {
  v1::JobDetail detail;
  detail.mutable_summary()->set_name(name);
  detail.mutable_summary()->set_state(v1::JOB_STATE_PENDING);
  detail.set_manifest("a job called " + name);
  detail.mutable_run()->set_stop_after_iterations(7);
  *detail.add_transitions() = Transition(v1::JOB_STATE_PENDING, "submitted");
  return detail;
}

inline void Execute(const std::string& path, const char* sql) {
  sqlite3* db = nullptr;
  REQUIRE(sqlite3_open(path.c_str(), &db) == SQLITE_OK);
  CHECK(sqlite3_exec(db, sql, nullptr, nullptr, nullptr) == SQLITE_OK);
  sqlite3_close(db);
}

inline std::vector<v1::JobDetail> DetailsOf(JobStore& store) {
  std::vector<v1::JobDetail> details;
  const StoredState state = *store.Load();
  for (const StoredJob& job : state.jobs) {
    details.push_back(job.detail);
  }
  return details;
}

inline v1::IterationSummary SummaryOf(int64_t iteration, double loss) {
  v1::IterationSummary summary;
  summary.set_iteration(iteration);
  summary.set_loss(loss);
  return summary;
}

inline v1::IterationReport PartialOf(int64_t iteration, int32_t rank) {
  v1::IterationReport report;
  report.set_iteration(iteration);
  report.set_rank(rank);
  return report;
}

// A job that is over, as its run `number`, with three iterations and a timeline.
inline void InsertFinished(JobStore& store, const std::string& name, int64_t number, std::string_view keep_as = {},
                           int64_t keep_below = 0) {
  v1::JobDetail detail = NewDetail(name);
  detail.mutable_summary()->set_run(number);
  detail.set_manifest(fmt::format("run {} of {}", number, name));
  REQUIRE(store.InsertJob(detail, {}, "", keep_below, keep_as).ok());
  JobProgress progress{.job = name, .finished = {}, .partial = {PartialOf(3, 0)}};
  for (int64_t i = keep_below; i < 3; ++i) {
    progress.finished.push_back(SummaryOf(i, static_cast<double>(10 * number)));
  }
  progress.timelines.emplace(1);
  progress.timelines->front().set_iteration(number);
  v1::JobDetail outcome;
  *outcome.mutable_summary() = detail.summary();
  outcome.mutable_summary()->set_iterations_done(3);
  REQUIRE(store
              .AddTransition(name, 1, Transition(v1::JOB_STATE_CANCELLED, fmt::format("end of {}", number)), &outcome,
                             nullptr, &progress)
              .ok());
}

}  // namespace geopipe
