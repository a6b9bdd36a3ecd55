// A job leaves sites that are drained when its state is at the others, and no new job gets them.

#include "tests/coordinator/core/moves.h"

namespace geopipe {
namespace {

TEST_CASE("a site of a job with given costs may be drained: the job stays") {
  Federation f;
  f.run.explicit_costs = PipelineCosts();
  f.run.backend = BackendKind::kModelled;
  f.run.explicit_costs->shape = PipelineShape::Linear(3, 8);
  f.run.explicit_costs->forward_ns.assign(3, 1000);
  f.run.explicit_costs->input_grad_ns.assign(3, 2000);
  f.run.explicit_costs->weight_grad_ns.assign(3, 0);
  f.run.explicit_costs->boundaries.assign(
      2, BoundaryCost{.crosses = true, .link = "", .message_bytes = 8, .latency_ns = 10, .serialization_ns = 10});
  for (const std::string& site : f.sites) {
    f.Register(site);
  }
  f.Step(ApplyJob{f.next_call++, f.job, f.run});
  INFO(f.CauseOf("tiny"));
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_PROFILING);
  f.Step(DrainSite{f.next_call++, "east"});
  const auto drained = std::get<v1::DrainSiteResponse>(*f.Last<ReplyToCall>()[0].reply);
  REQUIRE(drained.jobs_size() == 1);
  CHECK(drained.jobs(0).stays());
}

TEST_CASE("jobs leave a site that is drained when their state is at the others, and come back when it is uncordoned") {
  Federation f = Made(0);
  RunSaved(f, false);
  f.Step(DrainSite{f.next_call++, "east"});
  REQUIRE(f.Last<PersistDrained>().size() == 1);
  const auto drained = std::get<v1::DrainSiteResponse>(*f.Last<ReplyToCall>()[0].reply);
  REQUIRE(drained.jobs_size() == 1);
  CHECK_FALSE(drained.jobs(0).stays());
  CHECK(drained.jobs(0).words() == "it goes on at north, west when its state is safe there");
  f.RunFor(kSecond / 10);
  CHECK(f.Commands(v1::WorkerCommand::kEndEpoch) == 3);
  EndAt(f, 1, 2);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_REPLANNING);
  CHECK(f.CauseOf("tiny") == "site east is drained; its ranks rest before iteration 2");
  REQUIRE(f.Commands(v1::WorkerCommand::kCheckpoint) == 3);
  SECTION("at once") {
    Save(f, 1, 2);
    // The files that east has written are copied, and nothing else.
    REQUIRE(f.Commands(v1::WorkerCommand::kReplicate) == 1);
    const v1::RelayedCommand command = f.Last<SendToAgent>()[0].message.command();
    CHECK(command.worker().site() == "north");  // east is left out of the ring
    CHECK(command.command().replicate().sources(0).files(0) == "of-east");
    CHECK(command.command().replicate().bytes_per_second() == 0);  // nothing trains
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_REPLANNING);
    Copy(f, "north", 1, 2);
    f.sites = {"north", "west"};
    f.RunFor(kSecond);
    Begin(f);
    CHECK(f.DetailOf("tiny").epochs(1).first_iteration() == 2);
    f.IterateAll(2);
    Save(f, 2, 3);
    f.RunFor(kSecond);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);  // the site is still drained
    f.Step(UncordonSite{f.next_call++, "east"});
    f.IterateAll(3);
    Save(f, 2, 4);
    f.RunFor(kSecond / 10);
    CHECK(f.Commands(v1::WorkerCommand::kEndEpoch) == 2);
    f.Step(UncordonSite{f.next_call++, "east"});
    CHECK(std::get<v1::UncordonSiteResponse>(*f.Last<ReplyToCall>()[0].reply).already());
  }
  SECTION("a coordinator that is restarted meanwhile knows what is to be copied") {
    Federation g(NextLife(), f.Stored());
    ReturnAll(g, StateOf(v1::WORKER_PHASE_ENDED, 1, 2));
    g.RunFor(kSecond / 10);
    Save(g, 1, 2);
    CHECK(g.Commands(v1::WorkerCommand::kReplicate) == 1);
    Copy(g, "north", 1, 2);
    CHECK(g.StateOf("tiny") == v1::JOB_STATE_PENDING);
    CHECK(g.broken == "");
  }
  SECTION("an agent is restarted meanwhile, and what it was told is lost with it") {
    f.Close(f.sessions["west"]);
    f.Register("west", 2, {f.IdOf(DeviceAt("west"))}, 1, {StateOf(v1::WORKER_PHASE_ENDED, 1, 2)});
    f.RunFor(kSecond / 10);
    CHECK(f.Commands(v1::WorkerCommand::kCheckpoint) == 3);
    Save(f, 1, 2);
    Copy(f, "north", 1, 2);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_PENDING);
  }
  SECTION("a worker is lost meanwhile: that comes first") {
    f.Exit(DeviceAt("north"), 9);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  }
  CHECK(f.broken == "");
}

TEST_CASE("a job that cannot leave a drained site stays, and says why") {
  Federation f(Federation::RecoveringOptions());
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.Step(DrainSite{f.next_call++, "east"});
  const auto drained = std::get<v1::DrainSiteResponse>(*f.Last<ReplyToCall>()[0].reply);
  CHECK(drained.jobs(0).stays());
  CHECK(drained.jobs(0).words() == "it has no checkpoint.path to take its state along");
  f.RunFor(kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  CHECK(f.CauseOf("tiny") ==
        "it cannot leave site east, which is drained: it has no checkpoint.path to take its state along");
  f.Step(DrainSite{f.next_call++, "nowhere"});
  CHECK(f.Last<ReplyToCall>()[0].reply.status().message() ==
        "no agent of site \"nowhere\" is known; `geopipectl get sites` lists them");
  f.Step(DrainNotStored{"east", true, 7, absl::ResourceExhaustedError("the disk is full")});
  f.RunFor(kSecond / 10);
  CHECK(f.CauseOf("tiny") == "all 3 ranks have committed epoch 1");
}

TEST_CASE("jobs leave a node that goes down when their state is at the others, and come back when it is back") {
  Federation f = Made(0);
  RunSaved(f, false);
  f.leaving[{"east", "n0"}] = 60 * kSecond;
  f.RunFor(kSecond / 10);
  CHECK(f.Commands(v1::WorkerCommand::kCheckpoint) == 0);  // it leaves, and writes its state then
  CHECK(f.Commands(v1::WorkerCommand::kEndEpoch) == 3);
  EndAt(f, 1, 2);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_REPLANNING);
  CHECK(f.CauseOf("tiny") == "node east/n0 goes down; its ranks rest before iteration 2");
  Save(f, 1, 2);
  CHECK(f.Commands(v1::WorkerCommand::kReplicate) == 1);
  Copy(f, "north", 1, 2);
  f.sites = {"north", "west"};
  f.RunFor(kSecond);
  Begin(f);
  CHECK(f.DetailOf("tiny").epochs(1).first_iteration() == 2);
  f.IterateAll(2);
  Save(f, 2, 3);
  f.RunFor(kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  f.Close(f.sessions["east"]);  // it is down, and back after a while
  f.RunFor(60 * kSecond);
  f.leaving.clear();
  f.Register("east", 2);
  f.IterateAll(3);
  Save(f, 2, 4);
  f.RunFor(kSecond / 10);
  CHECK(f.Commands(v1::WorkerCommand::kEndEpoch) == 2);
  CHECK(f.broken == "");
}

TEST_CASE("a job that cannot leave a node that goes down has its state written before, once, and waits for the node") {
  Federation f = Made(0);
  f.job.on_site_loss = OnSiteLoss::kWait;
  f.iteration_ns = kSecond;
  RunSaved(f, false);
  SECTION("while it runs") {
    f.leaving[{"east", "n0"}] = 60 * kSecond;
    f.RunFor(kSecond / 10);
    REQUIRE(f.Commands(v1::WorkerCommand::kCheckpoint) == 3);
    f.RunFor(5 * kSecond);
    CHECK(f.Commands(v1::WorkerCommand::kCheckpoint) == 0);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
    Save(f, 1, 6);
    f.IterateAll(2);
    f.leaving.clear();  // it stays after all
    f.RunFor(kSecond);
    f.leaving[{"east", "n0"}] = 60 * kSecond;
    f.RunFor(kSecond / 10);
    CHECK(f.Commands(v1::WorkerCommand::kCheckpoint) == 3);
  }
  SECTION("while it is paused") {
    f.Step(PauseJob{90, "tiny"});
    EndAt(f, 1, 2);
    REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);
    f.leaving[{"east", "n0"}] = 60 * kSecond;
    f.RunFor(kSecond / 10);
    CHECK(f.Commands(v1::WorkerCommand::kCheckpoint) == 3);
  }
}

TEST_CASE("a state that cannot be written before a node goes down is tried again, seconds later") {
  Federation f = Made(0);
  f.job.on_site_loss = OnSiteLoss::kWait;
  f.iteration_ns = kSecond;
  RunSaved(f, false);
  f.leaving[{"east", "n0"}] = 60 * kSecond;
  f.RunFor(kSecond / 10);
  REQUIRE(f.Commands(v1::WorkerCommand::kCheckpoint) == 3);
  FailToSave(f, 1, 6);
  f.RunFor(4 * kSecond);
  CHECK(f.Commands(v1::WorkerCommand::kCheckpoint) == 0);
  f.RunFor(kSecond);
  CHECK(f.Commands(v1::WorkerCommand::kCheckpoint) == 3);
}

TEST_CASE("a job that recovers leaves a node that goes down at once, and a new one gets none of its devices") {
  Federation f = Made(1);
  RunSaved(f);
  Federation other = Made(1);
  RunSaved(other);
  other.Exit(DeviceAt("west"), 9);
  other.leaving[{"east", "n0"}] = 60 * kSecond;
  other.RunFor(5 * kSecond);
  CHECK(other.StateOf("tiny") == v1::JOB_STATE_RECOVERING);  // the lost worker is started again first
  f.Exit(DeviceAt("east"), 9);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  f.leaving[{"east", "n0"}] = 60 * kSecond;
  f.RunFor(kSecond / 10);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PENDING);
  CHECK_THAT(f.DetailOf("tiny").transitions().rbegin()->cause(),
             Catch::StartsWith("node east/n0 goes down; the job goes on at north, west"));
  f.Step(ListSites{f.next_call++});
  const auto sites = std::get<v1::ListSitesResponse>(*f.Last<ReplyToCall>()[0].reply);
  CHECK(sites.sites(0).nodes(0).leaving());
  CHECK(sites.sites(0).nodes(0).leaves_within_ns() <= 60 * kSecond);
  Federation g;
  for (const std::string& site : g.sites) {
    g.Register(site);
  }
  g.leaving[{"east", "n0"}] = 60 * kSecond;
  g.RunFor(kSecond);
  g.Step(ApplyJob{g.next_call++, g.job, g.run});
  g.RunFor(kSecond);
  CHECK(g.StateOf("tiny") == v1::JOB_STATE_PENDING);
}

TEST_CASE("no new job gets devices of a site that is drained") {
  Federation f;
  for (const std::string& site : f.sites) {
    f.Register(site);
  }
  f.Step(DrainSite{f.next_call++, "east"});
  f.Step(ApplyJob{f.next_call++, f.job, f.run});
  CHECK(f.CauseOf("tiny") == "waiting for site east, which is drained; `geopipectl uncordon site east` gives it back");
  SECTION("until it is taken into use") {
    f.Step(UncordonSite{f.next_call++, "east"});
    f.Step(Tick{});
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_PROFILING);
  }
  SECTION("nor after a restart") {
    Federation g(NextLife(), f.Stored());
    for (const std::string& site : g.sites) {
      g.Register(site);
    }
    CHECK(g.StateOf("tiny") == v1::JOB_STATE_PENDING);
  }
}

}  // namespace
}  // namespace geopipe
