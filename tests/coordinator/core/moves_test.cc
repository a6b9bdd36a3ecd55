// A job that loses a site goes on at the others from the newest checkpoint that these have, and comes back to it.

#include "tests/coordinator/core/moves.h"

namespace geopipe {
namespace {

TEST_CASE("a site that is gone: the job goes on at the others from the newest checkpoint that they have") {
  Federation f = Made();
  RunSaved(f);
  Save(f, 1, 2);  // nobody has told of copies: what east wrote of it is lost
  Lose(f, "east");
  f.RunFor(9 * kSecond);
  CHECK(f.reached[v1::JOB_STATE_PENDING] == 0);
  f.RunFor(7 * kSecond);
  const v1::JobDetail left = f.DetailOf("tiny");
  REQUIRE(left.summary().state() == v1::JOB_STATE_PROFILING);
  CHECK(f.persisted["tiny"][5] == v1::JOB_STATE_RECOVERING);
  CHECK(left.transitions(6).cause() ==
        "node east/n0 has not been heard from for 10.0 s; the job goes on at north, west");
  CHECK(left.summary().iterations_done() == 2);  // the curve goes on

  ProfileAgain(f);
  REQUIRE(f.planning.size() == 1);
  const PlanningInput& input = f.planning[0].input;
  CHECK(input.job.placement.sites == std::vector<std::string>{"north", "west"});
  CHECK(input.job.search.micro_batch_size == std::vector<int64_t>{1});  // as before: the same samples, the same sums
  CHECK(input.job.search.sequence_length == std::vector<int64_t>{64});
  f.PlanNow();
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  const std::vector<v1::PrepareCommand> prepares = Prepares(f);
  REQUIRE(prepares.size() == 2);
  CHECK(prepares[0].from_checkpoint().iteration() == 1);
  CHECK(prepares[0].from_checkpoint().incarnation() == Federation::kRun);
  CHECK(prepares[0].first_iteration() == 1);
  CHECK(prepares[0].run_incarnation() > Federation::kRun);
  CHECK(ListedIn(f) == std::vector<int64_t>{1, 2});  // until it is certain that it goes on from the first
  f.PrepareAll();
  f.CommitAll();
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  CHECK(ListedIn(f) == std::vector<int64_t>{1});  // the other is of a future that is no more
  const v1::JobDetail detail = f.DetailOf("tiny");
  CHECK(detail.summary().epoch() == 2);
  REQUIRE(detail.recoveries_size() == 1);
  CHECK(detail.recoveries(0).source() == "checkpoint");
  CHECK(detail.recoveries(0).first_iteration() == 1);
  CHECK(detail.recoveries(0).ended_unix_time_ns() > 0);
  CHECK(detail.epochs(1).sites_size() == 2);
  f.IterateAll(1);
  CHECK(f.finished["tiny"] == 2);  // told before
  f.IterateAll(2);
  CHECK(f.finished["tiny"] == 3);

  CHECK(f.broken == "");
}

// The job has lost east and trains at the others, in epoch 2, with three iterations told.
Federation Moved() {
  Federation f = Made();
  RunSaved(f);
  Lose(f, "east");
  f.RunFor(16 * kSecond);
  Begin(f);
  f.IterateAll(1);
  f.IterateAll(2);
  return f;
}

TEST_CASE("a site that is back is used from the next checkpoint on") {
  Federation f = Moved();
  f.sites = {"north", "west"};
  f.Register("east", 2);
  f.RunFor(40 * kSecond);  // what has become of its worker nobody knows: it must have ended
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  CHECK(f.Commands(v1::WorkerCommand::kEndEpoch) == 0);
  Save(f, 2, 3);
  f.Step(Tick{});
  CHECK(f.Commands(v1::WorkerCommand::kEndEpoch) == 2);
  f.IterateAll(3);
  EndAt(f, 2, 4);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_REPLANNING);
  CHECK(f.CauseOf("tiny") == "east/n0 is back; its ranks rest before iteration 4");
  CHECK(f.Commands(v1::WorkerCommand::kCheckpoint) == 2);
  SECTION("in this life of the coordinator") {
    Save(f, 2, 4);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_PENDING);  // copies are for later
    f.RunFor(kSecond);
    f.sites = {"north", "east", "west"};
    FindListed(f);
    f.HelloAll();
    f.ProfileAll();
    CHECK(f.planning.back().input.job.placement.sites == f.sites);
    f.PlanNow();
    REQUIRE(Prepares(f).size() == 3);
    CHECK(Prepares(f)[0].from_checkpoint().iteration() == 4);
    CHECK(f.DetailOf("tiny").recoveries_size() == 1);  // nothing was lost
    CHECK(f.DetailOf("tiny").summary().iterations_done() == 4);
  }
  SECTION("the site is back without the data: the job goes on without it, as before") {
    Save(f, 2, 4);
    f.RunFor(kSecond);
    f.sites = {"north", "east", "west"};
    f.HelloAll();
    f.Answer("east", FailureReportOf(absl::StatusCode::kNotFound, "there is no data"));
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_PENDING);
    f.sites = {"north", "west"};
    f.RunFor(kSecond);
    Begin(f);
    CHECK(f.DetailOf("tiny").epochs(2).first_iteration() == 4);
    Save(f, 3, 5);
    f.RunFor(kSecond);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
    CHECK(f.Commands(v1::WorkerCommand::kEndEpoch) == 0);
  }
  SECTION("the state cannot be written: it goes on as it is") {
    v1::WorkerReport report = OfEpoch(2);
    report.mutable_checkpoint()->set_iteration(4);
    report.mutable_checkpoint()->set_error("/ckpt: no space");
    f.Answer("north", report);
    // It is tried again, for half a minute.
    for (int again = 1; again < 5; ++again) {
      CHECK(f.StateOf("tiny") == v1::JOB_STATE_REPLANNING);
      for (int tenths = 0; f.Commands(v1::WorkerCommand::kCheckpoint) == 0 && tenths < 100; ++tenths) {
        f.RunFor(kSecond / 10);
      }
      f.Answer("north", report);
    }
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
    REQUIRE(Prepares(f).size() == 2);
    CHECK_FALSE(Prepares(f)[0].has_from_checkpoint());
    CHECK(Prepares(f)[0].first_iteration() == 4);
    CHECK(Prepares(f)[0].state_epoch() == 2);
    f.PrepareAll();
    f.CommitAll();
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  }
  CHECK(f.broken == "");
}

TEST_CASE("a site that is back, but cannot run the job's backend any more, is as if it were gone") {
  Federation f = Made();
  f.run.backend = BackendKind::kCuda;
  RunSaved(f);
  Lose(f, "east");
  f.RunFor(16 * kSecond);
  Begin(f);
  f.IterateAll(1);
  f.IterateAll(2);
  const std::vector<std::string> left = f.sites;
  f.no_cuda = "no library; install it";
  f.Register("east", 2);
  f.sites = left;
  f.RunFor(40 * kSecond);
  Save(f, 2, 3);
  CopyAll(f, 2, 3);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  CHECK(f.Commands(v1::WorkerCommand::kEndEpoch) == 0);
  Lose(f, "west", 2, 3);
  f.RunFor(16 * kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PROFILING);  // at north alone
  CHECK_THAT(f.CauseOf("tiny"), Catch::Contains("1 devices at north are free"));
  CHECK(f.broken == "");
}

TEST_CASE("a job that has done all its iterations when it loses a site is completed at the others") {
  Federation f = Made();
  f.job.training.iterations = 3;
  RunSaved(f);
  f.IterateAll(2);
  Save(f, 1, 3);
  CopyAll(f, 1, 3);
  f.Answer("north", FinishedReportOf(0, 1, 3));  // the others' words are not heard
  f.Exit(DeviceAt("west"), 9);
  Lose(f, "east", 1, 3);
  f.RunFor(90 * kSecond);  // the other worker of west does not start in time, either: its node rests
  Begin(f);
  CHECK(f.DetailOf("tiny").epochs(1).first_iteration() == 3);
  for (int32_t rank = 0; rank < 2; ++rank) {
    f.Answer(f.sites[static_cast<size_t>(rank)], FinishedReportOf(rank, 2, 3));
  }
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_COMPLETED);
  CHECK(f.broken == "");
}

TEST_CASE("where no checkpoint is at the other sites the job waits for the one that is gone") {
  Federation f = Made(0);
  RunSaved(f, false);
  Lose(f, "east");
  f.RunFor(60 * kSecond);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  CHECK_THAT(f.CauseOf("tiny"),
             Catch::EndsWith("it cannot go on at the others: no checkpoint is complete at north, west, "
                             "more of it is at east/n0 (checkpoint.replicate: 1 keeps copies at other sites)"));
  // It is back, and its worker with it.
  f.Register("east", 1, {f.IdOf(DeviceAt("east"))}, 1, {StateOf(v1::WORKER_PHASE_ENDED, 1, 2)});
  f.RunFor(kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  CHECK(f.CauseOf("tiny") == "epoch 2 goes on from iteration 2");
  CHECK(f.broken == "");
}

TEST_CASE("a job that is to wait for its sites waits") {
  Federation f = Made();
  f.job.on_site_loss = OnSiteLoss::kWait;
  RunSaved(f);
  Lose(f, "east");
  f.RunFor(100 * kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  CHECK(f.CauseOf("tiny") == "it goes on when agent east/n0 can be heard");
}

TEST_CASE("a job whose iterations nobody was told of begins anew at the sites that are left") {
  Federation f = Made(0);
  f.DriveTo(v1::JOB_STATE_RUNNING);
  Lose(f, "west", 1, 0);
  f.RunFor(20 * kSecond);
  Begin(f);
  CHECK(f.DetailOf("tiny").epochs(1).cause() == "the job begins anew");
  f.IterateAll(0);
  CHECK(f.finished["tiny"] == 1);
  CHECK(f.broken == "");
}

TEST_CASE("a site that comes back within the grace is not left") {
  Federation f = Made();
  RunSaved(f);
  const v1::WorkerId worker = f.IdOf(DeviceAt("east"));
  Lose(f, "east");
  f.RunFor(8 * kSecond);
  f.Register("east", 1, {worker}, 1, {StateOf(v1::WORKER_PHASE_ENDED, 1, 2)});
  f.RunFor(20 * kSecond);
  CHECK(f.reached[v1::JOB_STATE_PENDING] == 0);
  CHECK(f.DetailOf("tiny").summary().epoch() == 2);
}

TEST_CASE("a second site may be gone as well: it is not left before that is known") {
  Federation f = Made();
  RunSaved(f);
  Lose(f, "east");
  f.RunFor(8 * kSecond);
  f.Close(f.sessions["west"]);
  f.RunFor(8 * kSecond);
  CHECK(f.reached[v1::JOB_STATE_PENDING] == 0);
  f.Register("west", 1, {f.IdOf(DeviceAt("west"))}, 1, {StateOf(v1::WORKER_PHASE_ENDED, 1, 2)});
  f.RunFor(kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PROFILING);
  CHECK(f.broken == "");
}

TEST_CASE("another life of the coordinator goes on with a job that has left its devices") {
  Federation f = Made();
  RunSaved(f);
  Lose(f, "east");
  f.RunFor(20 * kSecond);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_PROFILING);
  SECTION("its run had begun") {
    Federation g(NextLife(), f.Stored());
    g.job = f.job;
    g.sites = {"north", "west"};
    CHECK(g.DetailOf("tiny").summary().iterations_done() == 2);
    for (const std::string& site : g.sites) {
      g.Register(site, 1, {g.IdOf(DeviceAt(site))}, 1, {StateOf(v1::WORKER_PHASE_IDLE, 0, 0)});
    }
    g.job.search.micro_batch_size = {1};
    FindListed(g);
    g.ProfileAll();
    g.PlanNow();
    REQUIRE(Prepares(g).size() == 2);
    CHECK(Prepares(g)[0].from_checkpoint().iteration() == 1);
    CHECK(g.DetailOf("tiny").summary().epoch() == 2);
    CHECK(g.broken == "");
  }
  SECTION("it waited for devices") {
    StoredState stored = f.Stored();
    StoredJob& job = stored.jobs[0];
    job.detail.mutable_summary()->set_state(v1::JOB_STATE_PENDING);
    job.detail.mutable_transitions()->RemoveLast();
    Federation g(NextLife(), stored);
    g.job = f.job;
    g.sites = {"north", "west"};
    CHECK(g.DetailOf("tiny").summary().iterations_done() == 2);
    g.Register("north");
    g.RunFor(2 * kSecond);
    CHECK(g.StateOf("tiny") == v1::JOB_STATE_PENDING);
    CHECK(g.CauseOf("tiny") == "waiting for agent east/n0, which is silent");
    g.Register("west");
    g.RunFor(7 * kSecond);
    CHECK(g.StateOf("tiny") == v1::JOB_STATE_PENDING);
    g.RunFor(4 * kSecond);
    Begin(g);
    CHECK(g.DetailOf("tiny").epochs(1).first_iteration() == 1);
    CHECK(g.broken == "");
  }
}

}  // namespace
}  // namespace geopipe
