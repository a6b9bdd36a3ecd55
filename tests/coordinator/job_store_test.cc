#include "coordinator/job_store.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "coordinator/job_store_backup.h"
#include "runtime/base/files.h"
#include "tests/coordinator/job_stores.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;

const std::vector<std::pair<v1::JobState, std::string>> kLife = {{v1::JOB_STATE_PROFILING, "devices are free"},
                                                                 {v1::JOB_STATE_PLANNING, "measured"},
                                                                 {v1::JOB_STATE_DEPLOYING, "planned"},
                                                                 {v1::JOB_STATE_RUNNING, "committed"},
                                                                 {v1::JOB_STATE_COMPLETED, "done"}};

TEST_CASE("what was written is there when the store is opened again, after every transition") {
  const Folder folder;
  REQUIRE((*JobStore::Open(folder.path()))->InsertJob(NewDetail("tiny"), {}, "").ok());
  for (size_t i = 0; i < kLife.size(); ++i) {
    {
      auto store = *JobStore::Open(folder.path());
      v1::JobDetail outcome;
      outcome.mutable_summary()->set_name("tiny");
      outcome.mutable_summary()->set_iterations_done(static_cast<int64_t>(i));
      REQUIRE(store
                  ->AddTransition("tiny", static_cast<int64_t>(i) + 1, Transition(kLife[i].first, kLife[i].second),
                                  i == 2 ? &outcome : nullptr, nullptr, nullptr)
                  .ok());
    }
    const auto jobs = DetailsOf(**JobStore::Open(folder.path()));
    REQUIRE(jobs.size() == 1);
    CHECK(jobs[0].summary().state() == kLife[i].first);
    CHECK(jobs[0].summary().cause() == kLife[i].second);
    CHECK(jobs[0].transitions_size() == static_cast<int>(i) + 2);
    CHECK(jobs[0].summary().iterations_done() == (i >= 2 ? 2 : 0));
    CHECK(jobs[0].run().stop_after_iterations() == 7);
  }
}

TEST_CASE("a crash at any moment leaves the store as it was after some transition") {
  const Folder folder;
  auto store = *JobStore::Open(folder.path());
  REQUIRE(store->InsertJob(NewDetail("tiny"), {}, "").ok());
  for (size_t i = 0; i < kLife.size(); ++i) {
    REQUIRE(store
                ->AddTransition("tiny", static_cast<int64_t>(i) + 1, Transition(kLife[i].first, kLife[i].second),
                                nullptr, nullptr, nullptr)
                .ok());
    // The files as a power cut would leave them: no checkpoint, no clean close. The log may end anywhere.
    const Folder crashed;
    fs::copy_file(folder.path(), crashed.path());
    fs::copy_file(folder.path() + "-wal", crashed.path() + "-wal");
    CHECK(DetailsOf(**JobStore::Open(crashed.path()))[0].summary().state() == kLife[i].first);

    const Folder torn;
    fs::copy_file(folder.path(), torn.path());
    fs::copy_file(folder.path() + "-wal", torn.path() + "-wal");
    fs::resize_file(torn.path() + "-wal", fs::file_size(torn.path() + "-wal") - 100);
    const auto jobs = DetailsOf(**JobStore::Open(torn.path()));
    REQUIRE(jobs.size() == 1);
    CHECK(jobs[0].transitions_size() == static_cast<int>(i) + 1);  // all but the last
    CHECK(jobs[0].summary().state() == (i == 0 ? v1::JOB_STATE_PENDING : kLife[i - 1].first));
  }
}

TEST_CASE("jobs come back in order of submission, a new job replaces its namesake and the forgotten one") {
  const Folder folder;
  auto store = *JobStore::Open(folder.path());
  for (const std::string name : {"c", "a", "b"}) {
    REQUIRE(store->InsertJob(NewDetail(name), {}, "").ok());
  }
  REQUIRE(store->InsertJob(NewDetail("c"), {}, "a").ok());
  const auto jobs = DetailsOf(*store);
  REQUIRE(jobs.size() == 2);
  CHECK(jobs[0].summary().name() == "b");
  CHECK(jobs[1].summary().name() == "c");
  CHECK(jobs[1].transitions_size() == 1);
}

TEST_CASE("a transition is written once") {
  const Folder folder;
  auto store = *JobStore::Open(folder.path());
  REQUIRE(store->InsertJob(NewDetail("tiny"), {}, "").ok());
  CHECK_FALSE(
      store->AddTransition("tiny", 0, Transition(v1::JOB_STATE_FAILED, "again"), nullptr, nullptr, nullptr).ok());
  CHECK_FALSE(store->AddTransition("nothing", 0, Transition(v1::JOB_STATE_FAILED, ""), nullptr, nullptr, nullptr).ok());
  CHECK(DetailsOf(*store)[0].summary().state() == v1::JOB_STATE_PENDING);
}

TEST_CASE("iterations, partial reports, the record and links come back") {
  const Folder folder;
  {
    auto store = *JobStore::Open(folder.path());
    REQUIRE(store->InsertJob(NewDetail("tiny"), {}, "").ok());
    v1::JobRecord record;
    record.set_run_incarnation(77);
    const JobProgress with_it{.job = "tiny", .finished = {SummaryOf(0, 5.5)}, .partial = {PartialOf(1, 0)}};
    REQUIRE(store
                ->AddTransition("tiny", 1, Transition(v1::JOB_STATE_PROFILING, "devices are free"), nullptr, &record,
                                &with_it)
                .ok());
    StoredLink link{.from_site = "a", .to_site = "b", .value = {}, .from_traffic = true, .unix_time_ns = 9};
    link.value.set_latency_ns(20);
    REQUIRE(store
                ->AddProgress({{.job = "tiny",
                                .finished = {SummaryOf(1, 5.25), SummaryOf(2, 5.0)},
                                .partial = {PartialOf(3, 0), PartialOf(3, 2)}}},
                              {link})
                .ok());
    record.set_pause_wanted(true);
    REQUIRE(store->SetRecord("tiny", record, nullptr).ok());
  }
  auto store = *JobStore::Open(folder.path());
  const StoredState state = *store->Load();
  REQUIRE(state.jobs.size() == 1);
  const StoredJob& job = state.jobs[0];
  CHECK(job.record.run_incarnation() == 77);
  CHECK(job.record.pause_wanted());
  CHECK(job.next_iteration == 3);
  REQUIRE(job.iterations.size() == 3);
  CHECK(job.iterations[1].loss() == 5.25);
  REQUIRE(job.partial.size() == 2);  // that of iteration 1 went with it
  CHECK(job.partial[1].rank() == 2);
  REQUIRE(state.links.size() == 1);
  CHECK(state.links[0].value.latency_ns() == 20);
  CHECK(state.links[0].from_traffic);
  CHECK(state.links[0].unix_time_ns == 9);

  // An iteration that is told twice is stored once, as it was told first.
  REQUIRE(store->AddProgress({{.job = "tiny", .finished = {SummaryOf(2, 1.0)}, .partial = {}}}, {}).ok());
  CHECK(store->LoadIterations("tiny")->at(2).loss() == 5.0);
  REQUIRE(store->InsertJob(NewDetail("tiny"), {}, "").ok());
  CHECK(store->LoadIterations("tiny")->empty());
}

TEST_CASE("of a job's iterations the latest stay") {
  const Folder folder;
  auto store = *JobStore::Open(folder.path(), {.iterations_kept = 10});
  REQUIRE(store->InsertJob(NewDetail("tiny"), {}, "").ok());
  for (int64_t i = 0; i < 25; ++i) {
    REQUIRE(store->AddProgress({{.job = "tiny", .finished = {SummaryOf(i, 1)}, .partial = {}}}, {}).ok());
  }
  const auto iterations = *store->LoadIterations("tiny");
  CHECK(iterations.size() == 10);
  CHECK(iterations.front().iteration() == 15);
}

TEST_CASE("a job that goes on from its namesake has that one's iterations below where it goes on") {
  const Folder folder;
  auto store = *JobStore::Open(folder.path());
  REQUIRE(store->InsertJob(NewDetail("tiny"), {}, "").ok());
  REQUIRE(store->InsertJob(NewDetail("other"), {}, "").ok());
  JobProgress progress{.job = "tiny", .finished = {}, .partial = {PartialOf(4, 0)}};
  for (int64_t i = 0; i < 4; ++i) {
    progress.finished.push_back(SummaryOf(i, 1));
  }
  progress.timelines.emplace(1);
  REQUIRE(
      store->AddTransition("tiny", 1, Transition(v1::JOB_STATE_CANCELLED, "enough"), nullptr, nullptr, &progress).ok());
  v1::JobDetail again = NewDetail("tiny");
  again.set_manifest("another job called tiny");
  v1::JobRecord record;
  record.set_last_worker(7);
  REQUIRE(store->InsertJob(again, record, "", 3).ok());
  store.reset();
  store = *JobStore::Open(folder.path());
  const StoredState state = *store->Load();
  REQUIRE(state.jobs.size() == 2);
  const StoredJob& job = state.jobs[1];  // it was submitted last
  CHECK(job.detail.manifest() == "another job called tiny");
  CHECK(job.record.last_worker() == 7);
  CHECK(job.detail.transitions_size() == 1);
  CHECK(job.next_iteration == 3);
  CHECK(job.iterations.size() == 3);
  CHECK(job.partial.empty());
  CHECK(store->LoadTimelines("tiny")->empty());

  const auto begin_at = [&](int64_t iteration) {
    REQUIRE(store->AddProgress({{.job = "tiny", .finished = {}, .partial = {}, .begins_at = iteration}}, {}).ok());
    return store->LoadIterations("tiny")->size();
  };
  CHECK(begin_at(3) == 3);
  CHECK(begin_at(2) == 2);
  CHECK(begin_at(5) == 0);  // what does not reach up to it
}

TEST_CASE("of a job's timelines those that were told last stay") {
  const Folder folder;
  auto store = *JobStore::Open(folder.path());
  REQUIRE(store->InsertJob(NewDetail("tiny"), {}, "").ok());
  CHECK(store->LoadTimelines("tiny")->empty());
  const auto tell = [&](std::vector<int64_t> iterations) {
    JobProgress progress{.job = "tiny", .finished = {}, .partial = {}};
    progress.timelines.emplace();
    for (const int64_t iteration : iterations) {
      progress.timelines->emplace_back().set_iteration(iteration);
    }
    REQUIRE(store->AddProgress({progress}, {}).ok());
  };
  tell({3, 4});
  tell({7, 8});
  REQUIRE(store->AddProgress({{.job = "tiny", .finished = {SummaryOf(0, 1)}, .partial = {}}}, {}).ok());
  store.reset();
  store = *JobStore::Open(folder.path());
  const std::vector<v1::IterationTimeline> timelines = *store->LoadTimelines("tiny");
  REQUIRE(timelines.size() == 2);
  CHECK(timelines[0].iteration() == 7);
  CHECK(timelines[1].iteration() == 8);
  tell({});
  CHECK(store->LoadTimelines("tiny")->empty());
}

TEST_CASE("which sites are drained outlives the store") {
  const Folder folder;
  {
    auto store = *JobStore::Open(folder.path());
    CHECK(store->SetDrained("east", true).ok());
    CHECK(store->SetDrained("west", true).ok());
    CHECK(store->SetDrained("west", true).ok());
    CHECK(store->SetDrained("east", false).ok());
    CHECK(store->SetDrained("north", false).ok());
  }
  CHECK((*JobStore::Open(folder.path()))->Load()->drained_sites == std::vector<std::string>{"west"});
}

TEST_CASE("the incarnation grows with every start, whatever the clock says") {
  const Folder folder;
  uint64_t last = 0;
  for (const int64_t now : {int64_t{1} << 50, int64_t{5}, int64_t{1} << 40}) {
    const uint64_t next = *(*JobStore::Open(folder.path()))->NextIncarnation(now);
    CHECK(next >= last + (uint64_t{1} << 32));
    last = next;
  }
}

TEST_CASE("a store has a name that no other has, and keeps it, also without its write-ahead log") {
  const Folder folder;
  const Folder other;
  const std::string name = (*(*JobStore::Open(folder.path()))->Load()).federation;
  CHECK(name.size() == 16);
  CHECK((*(*JobStore::Open(other.path()))->Load()).federation != name);
  {
    auto store = *JobStore::Open(folder.path());
    REQUIRE(store->InsertJob(NewDetail("tiny"), {}, "").ok());
    std::filesystem::copy_file(folder.path(), folder.path() + ".main");  // without its log
  }
  CHECK((*(*JobStore::Open(folder.path() + ".main"))->Load()).federation == name);
}

TEST_CASE("a store of an earlier schema is read and goes on as one of this version") {
  const Folder folder;
  { REQUIRE((*JobStore::Open(folder.path()))->InsertJob(NewDetail("tiny"), {}, "").ok()); }
  const int schema = GENERATE(2, 3, 4, 5, 6);
  CAPTURE(schema);
  Execute(folder.path(),
          "UPDATE jobs SET run = substr(run, 1, length(run) - 4), outcome = substr(outcome, 1, length(outcome) - 4), "
          "record = substr(record, 1, length(record) - 4); UPDATE schema_version SET version = 6");
  if (schema < 6) {
    Execute(folder.path(),
            "DROP TABLE federation; DROP INDEX jobs_by_submission; UPDATE schema_version SET version = 5");
  }
  if (schema < 5) {
    Execute(folder.path(), "DROP TABLE timelines; UPDATE schema_version SET version = 4");
  }
  if (schema < 4) {
    Execute(folder.path(), "DROP TABLE drained_sites; UPDATE schema_version SET version = 3");
  }
  if (schema == 2) {
    Execute(folder.path(),
            "ALTER TABLE jobs DROP COLUMN record; DROP TABLE coordinator; DROP TABLE iterations; DROP TABLE "
            "partial_reports; DROP TABLE links; UPDATE schema_version SET version = 2");
  }
  for (int opened = 0; opened < 2; ++opened) {
    auto store = *JobStore::Open(folder.path());
    const StoredState state = *store->Load();
    REQUIRE(state.jobs.size() == 1);
    CHECK_FALSE(state.jobs[0].damaged);
    CHECK(state.jobs[0].record.run_incarnation() == 0);
    CHECK(state.federation.size() == 16);
    CHECK(store->AddProgress({{.job = "tiny", .finished = {SummaryOf(opened, 1)}, .partial = {}}}, {}).ok());
  }
}

TEST_CASE("a full disk is one sentence, and what was stored before stays readable") {
  const Folder folder;
  auto store = *JobStore::Open(folder.path(), {.max_bytes = 64 << 10});
  REQUIRE(store->InsertJob(NewDetail("small"), {}, "").ok());
  v1::JobDetail large = NewDetail("large");
  large.set_manifest(std::string(1 << 20, 'x'));
  const absl::Status status = store->InsertJob(large, {}, "");
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK(std::string(status.message()).find("the disk is full") != std::string::npos);
  CHECK(DetailsOf(*store).size() == 1);
  CHECK(store->InsertJob(NewDetail("another"), {}, "").ok());
}

TEST_CASE("a row that cannot be read costs its job, and no other") {
  const Folder folder;
  v1::JobRecord record;
  record.set_run_incarnation(7);
  for (const std::string name : {"one", "two", "three"}) {
    auto store = *JobStore::Open(folder.path());
    REQUIRE(store->InsertJob(NewDetail(name), record, "").ok());
    v1::IterationReport partial;
    partial.set_iteration(2);
    REQUIRE(
        store->AddProgress({{.job = name, .finished = {SummaryOf(0, 1), SummaryOf(1, 1)}, .partial = {partial}}}, {})
            .ok());
  }
  // Each leaves a message that parses, and is not the one that was written, or not that of its row.
  const char* damage =
      GENERATE("UPDATE jobs SET outcome = x'ff' WHERE name = 'two'",
               "UPDATE jobs SET record = x'ff' WHERE name = 'two'", "INSERT INTO iterations VALUES ('two', 2, x'ff')",
               "UPDATE jobs SET record = CAST(x'0808' || substr(record, 3) AS BLOB) WHERE name = 'two'",
               "UPDATE jobs SET record = (SELECT record FROM jobs WHERE name = 'one') WHERE name = 'two'",
               "UPDATE jobs SET manifest = replace(manifest, 'tiny', 'tine') || ' ' WHERE name = 'two'",
               "UPDATE jobs SET state = 5 WHERE name = 'two'", "UPDATE jobs SET run = x'' WHERE name = 'two'",
               "UPDATE iterations SET summary = (SELECT summary FROM iterations WHERE job = 'one' AND iteration = 1) "
               "WHERE job = "
               "'two' AND iteration = 1",
               "UPDATE partial_reports SET rank = 1 WHERE job = 'two'");
  CAPTURE(damage);
  Execute(folder.path(), damage);
  const StoredState state = *(*JobStore::Open(folder.path()))->Load();
  REQUIRE(state.jobs.size() == 3);
  CHECK_FALSE(state.jobs[0].damaged);
  CHECK(state.jobs[1].damaged);
  CHECK(state.jobs[1].detail.summary().name() == "two");
  CHECK_FALSE(state.jobs[2].damaged);
}

TEST_CASE("a link's measurement that cannot be read is forgotten, for it is measured again") {
  const Folder folder;
  const StoredLink link{.from_site = "a", .to_site = "b", .value = {}};
  REQUIRE((*JobStore::Open(folder.path()))->AddProgress({}, {link}).ok());
  CHECK((*(*JobStore::Open(folder.path()))->Load()).links.size() == 1);
  Execute(folder.path(), "UPDATE links SET to_site = 'c'");
  CHECK((*(*JobStore::Open(folder.path()))->Load()).links.empty());
}

TEST_CASE("a backup is the store of its moment, and is put back where nobody holds the store") {
  const Folder folder;
  std::string backup;
  {
    auto store = *JobStore::Open(folder.path());
    InsertFinished(*store, "old", 1);
    InsertFinished(*store, "old", 2, "old@1");
    REQUIRE(store->InsertJob(NewDetail("tiny"), {}, "").ok());
    backup = *store->Backup(1'796'000'000'000'000'000);
    CHECK_THAT(backup, Catch::Contains("/backups/jobs-20261130T") && Catch::EndsWith(".sqlite"));
    REQUIRE(store->InsertJob(NewDetail("later"), {}, "").ok());
    CHECK(RestoreJobStore(backup, folder.path(), 1).status().code() == absl::StatusCode::kUnavailable);
    CHECK(DetailsOf(*store).size() == 4);
  }
  const std::string name = (*(*JobStore::Open(folder.path()))->Load()).federation;
  SECTION("as it is") {
    const std::string aside = *RestoreJobStore(backup, folder.path(), 1'796'000'000'000'000'000);
    const StoredState state = *(*JobStore::Open(folder.path()))->Load();
    REQUIRE(state.jobs.size() == 3);
    CHECK(state.jobs[0].detail.summary().name() == "old@1");
    CHECK_FALSE(state.jobs[0].damaged);
    CHECK(state.federation == name);
    CHECK(DetailsOf(**JobStore::Open(aside)).size() == 4);
  }
  SECTION("over a store that is damaged") {
    std::ofstream(folder.path()) << std::string(5000, 'x');
    REQUIRE(RestoreJobStore(backup, folder.path(), 1).ok());
    CHECK(DetailsOf(**JobStore::Open(folder.path())).size() == 3);
  }
  SECTION("not when a byte of it has changed") {
    std::fstream(backup, std::ios::in | std::ios::out | std::ios::binary).seekp(100).put('x');
    const absl::Status status = RestoreJobStore(backup, folder.path(), 1).status();
    CHECK(status.code() == absl::StatusCode::kDataLoss);
    CHECK_THAT(std::string(status.message()), Catch::Contains("is not what was written: its checksum is "));
    CHECK(DetailsOf(**JobStore::Open(folder.path())).size() == 4);
  }
}

TEST_CASE("a store that cannot be used says why and what to do") {
  const Folder folder;
  SECTION("not a database") {
    std::ofstream(folder.path()) << std::string(5000, 'x');
    const absl::Status status = JobStore::Open(folder.path()).status();
    CHECK(status.code() == absl::StatusCode::kDataLoss);
    CHECK(std::string(status.message()).find("it is damaged") != std::string::npos);
  }
  SECTION("pages that are damaged") {
    REQUIRE((*JobStore::Open(folder.path()))->InsertJob(NewDetail("tiny"), {}, "").ok());
    std::fstream file(folder.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096 * 2 + 3);
    file << "\x7f\x7f\x7f\x7f";
    file.close();
    const absl::Status status = JobStore::Open(folder.path()).status();
    CHECK(status.code() == absl::StatusCode::kDataLoss);
    CHECK_THAT(std::string(status.message()), Catch::Contains("is damaged: its file ("));
  }
  SECTION("a newer version's") {
    REQUIRE(JobStore::Open(folder.path()).ok());
    Execute(folder.path(), "UPDATE schema_version SET version = 8");
    const absl::Status status = JobStore::Open(folder.path()).status();
    CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
    CHECK(std::string(status.message()).find("schema 8; this version knows 7") != std::string::npos);
  }
  SECTION("another program's, which is left as it is") {
    const std::string sql = GENERATE("CREATE TABLE bookmarks (url TEXT)", "PRAGMA application_id=252006",
                                     "CREATE TABLE schema_version (version); INSERT INTO schema_version VALUES (4)");
    CAPTURE(sql);
    Execute(folder.path(), sql.c_str());
    const std::string before = *ReadFile(folder.path(), 1 << 20);
    const absl::Status status = JobStore::Open(folder.path()).status();
    CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
    CHECK(status.message() == "the job store " + folder.path() +
                                  " is a database of another program; move it away or choose another state_dir");
    CHECK(*ReadFile(folder.path(), 1 << 20) == before);
  }
  SECTION("one from before stores had an application id") {
    REQUIRE((*JobStore::Open(folder.path()))->InsertJob(NewDetail("tiny"), {}, "").ok());
    Execute(folder.path(), "PRAGMA application_id=0");
    CHECK(DetailsOf(**JobStore::Open(folder.path())).size() == 1);
    CHECK(DetailsOf(**JobStore::Open(folder.path())).size() == 1);
  }
  SECTION("no such folder") {
    const absl::Status status = JobStore::Open((folder.folder.path() / "no" / "jobs.sqlite").string()).status();
    CHECK(status.code() == absl::StatusCode::kPermissionDenied);
  }
  SECTION("held by another") {
    auto holder = *JobStore::Open(folder.path());
    REQUIRE(holder->InsertJob(NewDetail("tiny"), {}, "").ok());
    const absl::Status status = JobStore::Open(folder.path(), {.busy_timeout_ns = 0}).status();
    CHECK(status.code() == absl::StatusCode::kUnavailable);
    CHECK(std::string(status.message()).find("another process holds it") != std::string::npos);
  }
}

}  // namespace
}  // namespace geopipe
