// Tests what the job store keeps of a job whose name another takes.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/job_store.h"
#include "tests/coordinator/job_stores.h"

namespace geopipe {
namespace {

std::vector<double> LossesOf(JobStore& store, const std::string& job) {
  const absl::StatusOr<std::vector<v1::IterationSummary>> iterations = store.LoadIterations(job);
  REQUIRE(iterations.ok());
  std::vector<double> losses;
  for (const v1::IterationSummary& each : *iterations) {
    losses.push_back(each.loss());
  }
  return losses;
}

TEST_CASE("a job whose name is taken is kept under another, with all that it had, and is sealed as that") {
  const Folder folder;
  {
    auto store = *JobStore::Open(folder.path());
    InsertFinished(*store, "tiny", 1);
    InsertFinished(*store, "other", 1);
    InsertFinished(*store, "tiny", 2, "tiny@1", 2);
    InsertFinished(*store, "tiny", 3, "tiny@2");
  }
  auto store = *JobStore::Open(folder.path());
  const StoredState state = *store->Load();
  REQUIRE(state.jobs.size() == 4);
  const std::vector<std::pair<std::string, int64_t>> names{{"tiny@1", 1}, {"other", 1}, {"tiny@2", 2}, {"tiny", 3}};
  for (size_t i = 0; i < names.size(); ++i) {
    const auto& [name, number] = names[i];
    const StoredJob& job = state.jobs[i];
    CAPTURE(name);
    CHECK_FALSE(job.damaged);
    CHECK(job.detail.summary().name() == name);
    CHECK(job.detail.summary().run() == number);
    CHECK(job.detail.summary().state() == v1::JOB_STATE_CANCELLED);
    CHECK(job.detail.summary().iterations_done() == 3);
    CHECK(job.detail.run().stop_after_iterations() == 7);
    CHECK(job.detail.manifest() == fmt::format("run {} of {}", number, name.substr(0, name.find('@'))));
    REQUIRE(job.detail.transitions_size() == 2);
    CHECK(job.detail.transitions(1).cause() == fmt::format("end of {}", number));
    CHECK(job.next_iteration == 3);
    REQUIRE(store->LoadTimelines(name)->size() == 1);
    CHECK(store->LoadTimelines(name)->front().iteration() == number);
  }
  CHECK(LossesOf(*store, "tiny@1") == std::vector<double>{10, 10, 10});
  CHECK(LossesOf(*store, "tiny@2") == std::vector<double>{10, 10, 20});  // it has gone on from the first
  CHECK(LossesOf(*store, "tiny") == std::vector<double>{30, 30, 30});

  // It is forgotten as any other.
  REQUIRE(store->InsertJob(NewDetail("last"), {}, "tiny@1").ok());
  CHECK(DetailsOf(*store).size() == 4);
  CHECK(LossesOf(*store, "tiny@1").empty());
  CHECK(LossesOf(*store, "tiny@2").size() == 3);
}

TEST_CASE("a job that cannot be kept under the name leaves everything as it was") {
  const Folder folder;
  auto store = *JobStore::Open(folder.path());
  InsertFinished(*store, "tiny", 1);
  InsertFinished(*store, "tiny", 2, "tiny@1");
  CHECK_FALSE(store->InsertJob(NewDetail("tiny"), {}, "", 0, "tiny@1").ok());
  CHECK(DetailsOf(*store).size() == 2);
  CHECK(LossesOf(*store, "tiny@1") == std::vector<double>{10, 10, 10});
  CHECK(LossesOf(*store, "tiny") == std::vector<double>{20, 20, 20});
}

TEST_CASE("damage is damage still when its row is kept under another name, and a kept row that is damaged says so") {
  const Folder folder;
  InsertFinished(**JobStore::Open(folder.path()), "tiny", 1);
  const bool before = GENERATE(true, false);
  const auto keep = [&] { InsertFinished(**JobStore::Open(folder.path()), "tiny", 2, "tiny@1"); };
  if (!before) {
    keep();
  }
  const std::string name = before ? "tiny" : "tiny@1";
  // Each message can still be parsed; its seal alone tells.
  const auto [damage, of_curve] =
      GENERATE(table<std::string, bool>({{"UPDATE jobs SET outcome = CAST(substr(outcome, 1, length(outcome) - 5) || "
                                          "x'02' || substr(outcome, -4) AS BLOB)",
                                          false},
                                         {"UPDATE jobs SET manifest = manifest || ' '", false},
                                         {"UPDATE jobs SET record = x'ff'", false},
                                         {"UPDATE iterations SET summary = CAST(substr(summary, 1, length(summary) - "
                                          "5) || x'02' || substr(summary, -4) AS BLOB)",
                                          true}}));
  CAPTURE(before, damage);
  Execute(folder.path(), fmt::format("{} WHERE {} = '{}'", damage, of_curve ? "job" : "name", name).c_str());
  if (before) {
    keep();
  }
  auto store = *JobStore::Open(folder.path());
  const StoredState state = *store->Load();
  REQUIRE(state.jobs.size() == 2);
  CHECK(state.jobs[0].detail.summary().name() == "tiny@1");
  CHECK(state.jobs[0].damaged == !of_curve);
  CHECK(store->LoadIterations("tiny@1").ok() == !of_curve);
  CHECK_FALSE(state.jobs[1].damaged);
  CHECK(store->LoadIterations("tiny").ok());
}

TEST_CASE("a kept row is not that of another name or run") {
  const Folder folder;
  {
    auto store = *JobStore::Open(folder.path());
    InsertFinished(*store, "tiny", 1);
    InsertFinished(*store, "tiny", 2, "tiny@1");
  }
  Execute(folder.path(), GENERATE("UPDATE jobs SET name = 'tiny@7' WHERE name = 'tiny@1'",
                                  "UPDATE jobs SET name = 'other@1' WHERE name = 'tiny@1'",
                                  "UPDATE jobs SET name = 'tiny@' WHERE name = 'tiny@1'"));
  const StoredState state = *(*JobStore::Open(folder.path()))->Load();
  CHECK(state.jobs.at(0).damaged);
  CHECK_FALSE(state.jobs.at(1).damaged);
}

}  // namespace
}  // namespace geopipe
