// A job that loses a site goes on at the others from the newest checkpoint that these have, comes back to it, and
// leaves sites that are drained.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/coordinator/core/federation.h"
#include "tests/coordinator/core/restarts.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

// A checkpoint after every iteration, copies at other sites.
Federation Made(int32_t replicate = 1) {
  Federation f(Federation::RecoveringOptions());
  f.job.checkpoint = {.path = "/ckpt", .every = 1, .keep = 5, .replicate = replicate};
  f.job.training.iterations = 9;
  f.job.grace_ns = 10 * kSecond;
  return f;
}

v1::WorkerReport OfEpoch(uint64_t epoch) {
  v1::WorkerReport report;
  report.set_epoch(epoch);
  return report;
}

// Complete on all nodes.
void Save(Federation& f, uint64_t epoch, int64_t iteration) {
  for (size_t rank = 0; rank < f.sites.size(); ++rank) {
    v1::WorkerReport report = OfEpoch(epoch);
    report.mutable_checkpoint()->set_rank(static_cast<int32_t>(rank));
    report.mutable_checkpoint()->set_iteration(iteration);
    v1::CheckpointFile& file = *report.mutable_checkpoint()->add_files();
    file.set_name("of-" + f.sites[rank]);
    file.set_bytes(100);
    f.Answer(f.sites[rank], report);
  }
  for (const std::string& site : f.sites) {
    v1::WorkerReport report = OfEpoch(epoch);
    report.mutable_manifest()->set_iteration(iteration);
    f.Answer(site, report);
  }
}

void Copy(Federation& f, const std::string& site, uint64_t epoch, int64_t iteration, const std::string& error = "") {
  v1::WorkerReport report = OfEpoch(epoch);
  report.mutable_replica()->set_iteration(iteration);
  report.mutable_replica()->set_error(error);
  f.Answer(site, report);
}

void CopyAll(Federation& f, uint64_t epoch, int64_t iteration) {
  for (const std::string& site : f.sites) {
    Copy(f, site, epoch, iteration);
  }
}

// Two iterations are told, the checkpoint before the second is complete and copied.
void RunSaved(Federation& f, bool copies = true) {
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.IterateAll(0);
  Save(f, 1, 1);
  if (copies) {
    CopyAll(f, 1, 1);
  }
  f.IterateAll(1);
}

// The site is not heard any more; the others' connections broke.
void Lose(Federation& f, const std::string& site, uint64_t epoch = 1, int64_t next = 2) {
  f.Close(f.sessions[site]);
  std::erase(f.sites, site);
  for (const std::string& left : f.sites) {
    v1::WorkerReport report = FailureReportOf(absl::StatusCode::kUnavailable, "a peer is gone");
    report.set_epoch(epoch);
    report.mutable_failure()->set_parked(true);
    report.mutable_failure()->set_next_iteration(next);
    AddState(report.mutable_failure()->mutable_states(), next, epoch);
    f.Answer(left, report);
  }
}

// When it profiles, each node finds what is listed.
void FindListed(Federation& f) {
  f.found.clear();
  const v1::JobDetail detail = f.DetailOf("tiny");
  for (const v1::CheckpointSummary& checkpoint : detail.checkpoints()) {
    f.found.push_back(checkpoint.identity());
  }
}

// The run that follows, up to RUNNING.
void Begin(Federation& f) {
  FindListed(f);
  f.job.search.micro_batch_size = {1};  // that it had
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_PROFILING);
  f.HelloAll();
  f.ProfileAll();
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_PLANNING);
  f.PlanNow();
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  f.PrepareAll();
  f.CommitAll();
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
}

void EndAt(Federation& f, uint64_t epoch, int64_t next) {
  for (size_t rank = 0; rank < f.sites.size(); ++rank) {
    v1::WorkerReport report = EndedReportOf(static_cast<int32_t>(rank), epoch, next);
    report.mutable_ended()->mutable_states(0)->set_run_incarnation(f.Stored().jobs[0].record.run_incarnation());
    f.Answer(f.sites[rank], report);
  }
}

std::vector<v1::PrepareCommand> Prepares(const Federation& f) {
  std::vector<v1::PrepareCommand> prepares;
  for (const SendToAgent& send : f.Last<SendToAgent>()) {
    if (send.message.command().command().has_prepare()) {
      prepares.push_back(send.message.command().command().prepare());
    }
  }
  return prepares;
}

std::vector<int64_t> ListedIn(Federation& f) {
  std::vector<int64_t> listed;
  const v1::JobDetail detail = f.DetailOf("tiny");
  for (const v1::CheckpointSummary& checkpoint : detail.checkpoints()) {
    listed.push_back(checkpoint.identity().iteration());
  }
  return listed;
}

TEST_CASE("what a node has of a checkpoint is copied to the next site, and counts when all copies are whole") {
  Federation f = Made();
  f.DriveTo(v1::JOB_STATE_RUNNING);
  for (const std::string& site : f.sites) {
    v1::WorkerReport report = OfEpoch(1);
    report.mutable_heartbeat()->mutable_status()->set_phase(v1::WORKER_PHASE_TRAINING);
    report.mutable_heartbeat()->mutable_status()->set_epoch(1);
    report.mutable_heartbeat()->mutable_status()->set_exchange_address(site + ":1");
    f.Answer(site, report);
  }
  f.IterateAll(0);
  Save(f, 1, 1);
  REQUIRE(f.Commands(v1::WorkerCommand::kReplicate) == 3);
  for (const SendToAgent& send : f.Last<SendToAgent>()) {
    const v1::ReplicateCommand& replicate = send.message.command().command().replicate();
    const std::string& to = send.message.command().worker().site();
    const std::string from = to == "east" ? "north" : to == "west" ? "east" : "west";  // in the plan's order, in a ring
    CHECK(replicate.iteration() == 1);
    REQUIRE(replicate.sources_size() == 1);
    CHECK(replicate.sources(0).address() == from + ":1");
    CHECK(replicate.sources(0).files(0) == "of-" + from);
    CHECK(replicate.bytes_per_second() > 0);
  }
  CHECK(ListedIn(f) == std::vector<int64_t>{1});  // it is complete as it is
  Copy(f, "north", 1, 1);
  Copy(f, "east", 1, 1);
  CHECK(f.DetailOf("tiny").checkpoints(0).replicated_unix_time_ns() == 0);
  CHECK(f.DetailOf("tiny").checkpoints(0).parts(0).holders_size() == 1);
  Copy(f, "west", 1, 1);
  CHECK(f.DetailOf("tiny").checkpoints(0).replicated_unix_time_ns() > 0);
  const v1::JobDetail copied = f.DetailOf("tiny");
  for (const v1::CheckpointPart& part : copied.checkpoints(0).parts()) {
    CHECK(part.holders_size() == 2);
  }
  // An error is told, and the next checkpoint is as good as any.
  f.IterateAll(1);
  Save(f, 1, 2);
  Copy(f, "north", 1, 2, "no space");
  CHECK(f.DetailOf("tiny").checkpoint_trouble() ==
        "no copies of the checkpoint of iteration 2: node north/n0: no space");
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  CHECK(f.broken == "");
}

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

  f.job.search.micro_batch_size = {1};
  FindListed(f);
  f.HelloAll();
  f.ProfileAll();
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
  CHECK(ListedIn(f) == std::vector<int64_t>{1});  // the other is of a future that is no more
  f.PrepareAll();
  f.CommitAll();
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
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
  f.RunFor(80 * kSecond);
  Begin(f);
  CHECK(f.DetailOf("tiny").epochs(1).first_iteration() == 3);
  for (int32_t rank = 0; rank < 2; ++rank) {
    f.Answer(f.sites[static_cast<size_t>(rank)], FinishedReportOf(rank, 2, 3));
  }
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_COMPLETED);
  CHECK(f.broken == "");
}

TEST_CASE("a plan that leaves out the nodes that have the state is none: the job waits rather than begin anew") {
  Federation f = Made();
  RunSaved(f);
  Lose(f, "east");
  f.RunFor(16 * kSecond);
  f.job.search.micro_batch_size = {1};
  FindListed(f);
  f.HelloAll();
  f.ProfileAll();
  StartPlanning request = f.planning.back();
  std::erase_if(request.input.cluster.sites, [](const SiteSpec& site) { return site.name != "west"; });
  f.Step(PlannerDone{request.job, request.incarnation, Federation::PlanFor(request.input), "secret"});
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PENDING);
  f.RunFor(kSecond);
  CHECK(f.CauseOf("tiny") == "waiting for agent east/n0, which is not heard");
  CHECK(ListedIn(f) == std::vector<int64_t>{1});
  CHECK(f.broken == "");
}

TEST_CASE("a node that has lost its disk has no part of a checkpoint any more") {
  Federation f = Made();
  RunSaved(f);
  Lose(f, "east");
  f.RunFor(16 * kSecond);
  f.job.search.micro_batch_size = {1};
  f.found.clear();  // nobody has any
  f.HelloAll();
  f.ProfileAll();
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PENDING);
  f.RunFor(kSecond);
  CHECK(f.CauseOf("tiny") ==
        "waiting for more of its sites: no checkpoint is complete at north, west (checkpoint.replicate: 1 keeps copies "
        "at "
        "other sites)");
  CHECK(f.broken == "");
}

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

TEST_CASE("where no checkpoint is at the other sites the job waits for the one that is gone") {
  Federation f = Made(0);
  RunSaved(f, false);
  Lose(f, "east");
  f.RunFor(60 * kSecond);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  CHECK_THAT(f.CauseOf("tiny"),
             Catch::EndsWith("it cannot go on at the others: no checkpoint is complete at north, west "
                             "(checkpoint.replicate: 1 keeps copies at other sites)"));
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
    CHECK(g.CauseOf("tiny") == "waiting for agent east/n0, which is not heard");
    g.Register("west");
    g.RunFor(7 * kSecond);
    CHECK(g.StateOf("tiny") == v1::JOB_STATE_PENDING);
    g.RunFor(4 * kSecond);
    Begin(g);
    CHECK(g.DetailOf("tiny").epochs(1).first_iteration() == 1);
    CHECK(g.broken == "");
  }
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
    // What east has written is copied, and nothing else.
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
    CHECK(f.Last<ReplyToCall>()[0].reply.status().message() == "site east is in use already");
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

TEST_CASE("a checkpoint that is large has its time to be read") {
  Federation f = Made();
  RunSaved(f);
  for (size_t rank = 0; rank < f.sites.size(); ++rank) {  // another, of 6 GB
    v1::WorkerReport report = OfEpoch(1);
    report.mutable_checkpoint()->set_rank(static_cast<int32_t>(rank));
    report.mutable_checkpoint()->set_iteration(2);
    report.mutable_checkpoint()->add_files()->set_bytes(2'000'000'000);
    f.Answer(f.sites[rank], report);
  }
  for (const std::string& site : f.sites) {
    v1::WorkerReport report = OfEpoch(1);
    report.mutable_manifest()->set_iteration(2);
    f.Answer(site, report);
  }
  CopyAll(f, 1, 2);
  Lose(f, "east");
  f.RunFor(16 * kSecond);
  f.job.search.micro_batch_size = {1};
  FindListed(f);
  f.HelloAll();
  f.ProfileAll();
  f.PlanNow();
  f.RunFor(350 * kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  f.RunFor(20 * kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  CHECK(f.broken == "");
}

TEST_CASE("a checkpoint that cannot be read is passed over, and the last one is not") {
  Federation f = Made();
  RunSaved(f);
  Save(f, 1, 2);
  CopyAll(f, 1, 2);
  Lose(f, "east");
  f.RunFor(20 * kSecond);
  f.job.search.micro_batch_size = {1};
  FindListed(f);
  f.HelloAll();
  f.ProfileAll();
  f.PlanNow();
  REQUIRE(Prepares(f).size() == 2);
  CHECK(Prepares(f)[0].from_checkpoint().iteration() == 2);
  const auto fail = [&](int64_t iteration) {
    v1::WorkerReport report = FailureReportOf(absl::StatusCode::kDataLoss, "a file is damaged everywhere");
    v1::CheckpointIdentity& identity = *report.mutable_failure()->mutable_unreadable();
    identity.set_iteration(iteration);
    identity.set_incarnation(Federation::kRun);
    identity.set_epoch(1);
    identity.set_sequence_length(64);
    f.Answer("north", report);
  };
  fail(2);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  CHECK(ListedIn(f) == std::vector<int64_t>{1});
  CHECK(f.DetailOf("tiny").recoveries(0).kind() == "unreachable");
  f.Exit(DeviceAt("north"), 0, 1);
  f.RunFor(5 * kSecond);
  f.Answer("north", HelloReport());
  v1::WorkerReport ended = EndedReportOf(1, 2, 2);
  f.Answer("west", ended);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  CHECK(f.DetailOf("tiny").epochs(2).first_iteration() == 1);
  fail(1);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
  CHECK(f.CauseOf("tiny") == "worker north/n0/0 (site north) failed: a file is damaged everywhere");
  CHECK(f.broken == "");
}

}  // namespace
}  // namespace geopipe
