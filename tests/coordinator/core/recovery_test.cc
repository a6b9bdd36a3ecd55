// A job that loses workers: it starts others in their place, ends the epoch on those that are left, and goes on from
// the newest state that all can have.
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <vector>

#include "proto/wire/telemetry_wire.h"
#include "tests/coordinator/core/federation.h"
#include "tests/coordinator/core/restarts.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

constexpr int32_t kKilled = 9;

// Workers that were started by the last step.
std::vector<v1::StartWorkers> Started(const Federation& f) {
  std::vector<v1::StartWorkers> started;
  for (const SendToAgent& send : f.Last<SendToAgent>()) {
    if (send.message.has_start_workers()) {
      started.push_back(send.message.start_workers());
    }
  }
  return started;
}

v1::WorkerReport HelloWith(std::vector<StateIdentity> states) {
  v1::WorkerReport report = HelloReport();
  v1::WorkerStatus& status = *report.mutable_hello()->mutable_status();
  status.set_phase(v1::WORKER_PHASE_IDLE);
  for (const StateIdentity& state : states) {
    AddState(status.mutable_states(), state.iteration, state.epoch);
  }
  return report;
}

// A report of the end of epoch `epoch`: the rank holds the state before `next` and has kept the one before that.
v1::WorkerReport EndedWith(int32_t rank, uint64_t epoch, int64_t next) {
  v1::WorkerReport report = EndedReportOf(rank, epoch, next);
  AddState(report.mutable_ended()->mutable_states(), next - 1, epoch);
  return report;
}

// Two of three iterations are told.
void Run(Federation& f) {
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.IterateAll(0);
  f.IterateAll(1);
}

// The survivors have ended the epoch, the state before iteration 2 in their hands.
void EndSurvivors(Federation& f, uint64_t epoch = 1, int64_t next = 2) {
  f.Answer("north", EndedWith(0, epoch, next));
  f.Answer("east", EndedWith(1, epoch, next));
}

// The rest of the job in epoch `epoch`, from `first` on.
void GoOn(Federation& f, uint64_t epoch, int64_t first) {
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  f.PrepareAll();
  REQUIRE(f.Commands(v1::WorkerCommand::kCommit) == 3);
  CHECK(f.Last<SendToAgent>().at(0).message.command().command().commit().start_iteration() == first);
  f.CommitAll();
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  for (int64_t i = first; i < 3; ++i) {
    f.IterateAll(i);
  }
  for (int32_t rank = 0; rank < 3; ++rank) {
    f.Answer(f.sites[static_cast<size_t>(rank)], FinishedReportOf(rank, epoch, 3));
  }
  const v1::JobDetail detail = f.DetailOf("tiny");
  CHECK(detail.summary().state() == v1::JOB_STATE_COMPLETED);
  CHECK(detail.summary().iterations_done() == 3);
  CHECK(f.finished["tiny"] == 3);  // each told once
  CHECK(f.broken == "");
}

TEST_CASE("a worker that is killed is started again, and all go on from the newest state that they have") {
  Federation f(Federation::RecoveringOptions());
  Run(f);
  const uint64_t before = f.IdOf(DeviceAt("west")).incarnation();
  f.Exit(DeviceAt("west"), kKilled);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  CHECK_THAT(f.CauseOf("tiny"), Catch::StartsWith("worker west/n0/0 (site west, pid 100) was killed by signal 9"));
  // The epoch under way is ended on the workers that are left; the new process has an incarnation of its own, which is
  // durable before the process starts.
  CHECK(f.Commands(v1::WorkerCommand::kEndEpoch) == 2);
  CHECK(f.Stops() == 0);
  REQUIRE(Started(f).size() == 1);
  CHECK(Started(f)[0].incarnation() > before);
  REQUIRE(f.Last<PersistRecord>().size() == 1);
  CHECK(f.Last<PersistRecord>()[0].record.crew(2).incarnation() == Started(f)[0].incarnation());
  for (const SendToAgent& send : f.Last<SendToAgent>()) {
    if (send.message.has_command()) {
      CHECK(send.message.command().command().end_epoch().has_next_iteration());
      CHECK(send.message.command().command().end_epoch().next_iteration() == 0);
    }
  }

  SECTION("kept in memory") {
    f.Answer("west", HelloWith({{2, 1}, {1, 1}}));
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
    EndSurvivors(f);
    CHECK(f.CauseOf("tiny") == "epoch 2 goes on from iteration 2");
    GoOn(f, 2, 2);
  }
  SECTION("kept in memory, one iteration earlier") {
    EndSurvivors(f);
    f.Answer("west", HelloWith({{1, 1}}));
    CHECK(f.CauseOf("tiny") == "epoch 2 goes on from iteration 1");
    GoOn(f, 2, 1);
  }
  SECTION("kept by another run") {
    EndSurvivors(f);
    v1::WorkerReport hello = HelloWith({{2, 1}});
    hello.mutable_hello()->mutable_status()->mutable_states(0)->set_run_incarnation(Federation::kRun - 1);
    f.Answer("west", hello);
    CHECK(f.CauseOf("tiny") == "epoch 2 begins anew");
    GoOn(f, 2, 0);
  }
  SECTION("nowhere: all begin anew") {
    EndSurvivors(f);
    f.Answer("west", HelloWith({}));
    CHECK(f.CauseOf("tiny") == "epoch 2 begins anew");
    GoOn(f, 2, 0);
  }
  const v1::JobDetail detail = f.DetailOf("tiny");
  REQUIRE(detail.recoveries_size() == 1);
  CHECK(detail.recoveries(0).kind() == "killed");
  CHECK(detail.recoveries(0).reached_iteration() == 2);
  CHECK(detail.recoveries(0).ended_unix_time_ns() > 0);
  REQUIRE(detail.recoveries(0).workers_size() == 1);
  CHECK(detail.recoveries(0).workers(0).site() == "west");
  CHECK(detail.epochs_size() == 2);
}

// Two replicas at each of three sites, whose devices keep modelled time. Calls `report` for each, by rank.
void AnswerReplicas(Federation& f, const std::function<v1::WorkerReport(int32_t rank)>& report) {
  for (int32_t rank = 0; rank < 6; ++rank) {
    f.Report({f.sites[static_cast<size_t>(rank) / 2], "n0", rank % 2}, report(rank));
  }
}

v1::DeviceVersions Gpu() {
  v1::DeviceVersions gpu;
  gpu.set_name("NVIDIA H200");
  gpu.set_architecture("sm_90");
  gpu.set_multiprocessors(132);
  gpu.set_driver("580");
  gpu.set_runtime("13.0");
  gpu.set_cublas_lt("13.1");
  gpu.set_kernels("0a");
  return gpu;
}

// Applies the job with two replicas of each of three stages, as far as its plan.
void PlanReplicas(Federation& f) {
  for (const std::string& site : f.sites) {
    f.Register(site, 1, {}, 2);
  }
  f.job.parallelism.data = 2;
  f.run.backend = BackendKind::kModelled;
  f.Step(ApplyJob{1, f.job, f.run});
  AnswerReplicas(f, [](int32_t) { return HelloReport(); });
  AnswerReplicas(f, [&](int32_t rank) {
    v1::WorkerReport measured;
    *measured.mutable_profile()->mutable_message() = ToProto(MessageCost{.site = f.sites[static_cast<size_t>(rank) / 2],
                                                                         .node = "n0",
                                                                         .device = rank % 2,
                                                                         .bytes = 1024,
                                                                         .whole_ns = 2,
                                                                         .fixed_ns = 1});
    return measured;
  });
  f.PlanNow();
}

TEST_CASE("replicas of a stage must compute on the same instructions") {
  Federation f(Federation::RecoveringOptions());
  PlanReplicas(f);
  AnswerReplicas(f, [](int32_t rank) {
    v1::WorkerReport report = PreparedReportOf(rank, 1);
    report.mutable_prepared()->set_instructions(rank == 3 ? "AVX2" : "AMX");
    return report;
  });
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
  CHECK(f.CauseOf("tiny").find("east/n0/0 computes on AMX and east/n0/1 on AVX2, so that replicas of a stage would") ==
        0);
}

TEST_CASE("replicas of a stage must compute on the same device, with the same libraries") {
  using Change = void (*)(v1::DeviceVersions&);
  const auto [change, difference, remedy] = GENERATE(table<Change, std::string, std::string>({
      {[](v1::DeviceVersions& device) { device.set_name("NVIDIA H100"); },
       "computes on NVIDIA H200 and east/n0/1 on NVIDIA H100", "on nodes with devices of one kind"},
      {[](v1::DeviceVersions& device) { device.set_architecture("sm_80"); }, "computes on sm_90 and east/n0/1 on sm_80",
       "on nodes with devices of one kind"},
      {[](v1::DeviceVersions& device) { device.set_multiprocessors(114); },
       "computes on 132 multiprocessors and east/n0/1 on 114 multiprocessors", "on nodes with devices of one kind"},
      {[](v1::DeviceVersions& device) { device.set_driver("570"); },
       "computes with driver 580 and east/n0/1 with driver 570", "the same driver, or install it on all of them"},
      {[](v1::DeviceVersions& device) { device.set_runtime("12.9"); },
       "computes with CUDA runtime 13.0 and east/n0/1 with CUDA runtime 12.9", "the same CUDA libraries"},
      {[](v1::DeviceVersions& device) { device.set_cublas_lt("12.9"); },
       "computes with cuBLASLt 13.1 and east/n0/1 with cuBLASLt 12.9", "the same CUDA libraries"},
      {[](v1::DeviceVersions& device) { device.set_kernels("0b"); },
       "computes with GPU kernels 0a and east/n0/1 with GPU kernels 0b", "the same build of GeoPipe"},
  }));
  const bool within_a_stage = GENERATE(true, false);
  CAPTURE(difference, within_a_stage);
  Federation f(Federation::RecoveringOptions());
  PlanReplicas(f);
  AnswerReplicas(f, [&, change = change](int32_t rank) {
    v1::WorkerReport report = PreparedReportOf(rank, 1);
    v1::DeviceVersions& device = *report.mutable_prepared()->mutable_device();
    device = Gpu();
    if (rank == 3 || (!within_a_stage && rank == 2)) {
      change(device);
    }
    return report;
  });
  if (within_a_stage) {
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
    CHECK_THAT(f.CauseOf("tiny"),
               Catch::StartsWith("east/n0/0 " + difference + ", so that replicas of a stage would") &&
                   Catch::Contains(remedy));
    return;
  }
  AnswerReplicas(f, [](int32_t rank) { return CommittedReportOf(rank, 1); });
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  CHECK_THAT(f.CauseOf("tiny"), Catch::Contains("; north/n0/0 computes ") &&
                                    Catch::Contains(": losses repeat to the bit only while layers stay "));
}

TEST_CASE("a lost replica is given the state by the other one, also when the coordinator is restarted meanwhile") {
  Federation f(Federation::RecoveringOptions());
  PlanReplicas(f);
  AnswerReplicas(f, [](int32_t rank) { return PreparedReportOf(rank, 1); });
  AnswerReplicas(f, [](int32_t rank) { return CommittedReportOf(rank, 1); });
  for (const int64_t iteration : {0, 1}) {
    AnswerReplicas(f, [&](int32_t rank) { return IterationReportOf(rank, 1, iteration); });
  }
  const WorkerKey lost{"west", "n0", 1};
  f.Exit(lost, kKilled);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  for (int32_t rank = 0; rank < 5; ++rank) {
    f.Report({f.sites[static_cast<size_t>(rank) / 2], "n0", rank % 2}, EndedWith(rank, 1, 2));
  }
  f.Report(lost, HelloWith({}));
  CHECK(f.CauseOf("tiny") == "epoch 2 goes on from iteration 2");
  REQUIRE(f.Commands(v1::WorkerCommand::kPrepare) == 6);
  for (const SendToAgent& send : f.Last<SendToAgent>()) {
    const v1::PrepareCommand& prepare = send.message.command().command().prepare();
    CAPTURE(prepare.rank());
    CHECK(prepare.first_iteration() == 2);
    CHECK(prepare.state_epoch() == 1);
    CHECK(prepare.given_state_bytes() > 0);
    CHECK(prepare.has_state_of_rank() == (prepare.rank() >= 4));
    CHECK((prepare.rank() < 4 || prepare.state_of_rank() == 4));
  }
  const StoredState stored = f.Stored();
  REQUIRE(stored.jobs.size() == 1);
  const v1::JobRecord& record = stored.jobs[0].record;
  CHECK(std::vector<int32_t>(record.epoch().state_ranks().begin(), record.epoch().state_ranks().end()) ==
        std::vector<int32_t>{-1, -1, -1, -1, 4, 4});
  CHECK(f.broken == "");

  Federation g(NextLife(Federation::RecoveringOptions()), stored);
  CHECK(g.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  const v1::WorkerState resting = StateOf(v1::WORKER_PHASE_ENDED, 1, 2);
  const v1::WorkerState fresh = StateOf(v1::WORKER_PHASE_IDLE, 0, 0);
  for (const std::string& site : f.sites) {
    g.Register(site, 1, {f.IdOf({site, "n0", 0}), f.IdOf({site, "n0", 1})}, 2,
               {resting, site == "west" ? fresh : resting});
  }
  std::map<int32_t, int32_t> givers;  // by rank
  for (const SendToAgent& send : g.Last<SendToAgent>()) {
    if (send.message.command().command().has_prepare()) {
      const v1::PrepareCommand& prepare = send.message.command().command().prepare();
      givers[prepare.rank()] = prepare.has_state_of_rank() ? prepare.state_of_rank() : -1;
    }
  }
  CHECK(givers == std::map<int32_t, int32_t>{{0, -1}, {1, -1}, {2, -1}, {3, -1}, {4, 4}, {5, 4}});
  CHECK(g.broken == "");
}

TEST_CASE("a job with checkpoints goes back to the newest that is listed") {
  Federation f(Federation::RecoveringOptions());
  f.job.checkpoint = {.path = "/ckpt", .every = 1, .keep = 2};
  Run(f);
  for (int64_t iteration = 1; iteration <= 2; ++iteration) {
    for (int32_t rank = 0; rank < 3; ++rank) {
      v1::WorkerReport files;
      files.set_epoch(1);
      files.mutable_checkpoint()->set_rank(rank);
      files.mutable_checkpoint()->set_iteration(iteration);
      f.Answer(f.sites[static_cast<size_t>(rank)], files);
    }
    for (const std::string& site : f.sites) {
      v1::WorkerReport manifest;
      manifest.set_epoch(1);
      manifest.mutable_manifest()->set_iteration(iteration);
      if (iteration == 1 || site != "west") {  // the second is not listed
        f.Answer(site, manifest);
      }
    }
  }
  f.Exit(DeviceAt("west"), kKilled);
  EndSurvivors(f);
  f.Answer("west", HelloWith({}));
  CHECK(f.CauseOf("tiny") == "epoch 2 goes on from the checkpoint of iteration 1");
  const v1::PrepareCommand prepare = f.Last<SendToAgent>().back().message.command().command().prepare();
  CHECK(prepare.from_checkpoint().iteration() == 1);
  CHECK(prepare.from_checkpoint().epoch() == 1);
  CHECK(f.DetailOf("tiny").recoveries(0).source() == "checkpoint");
}

TEST_CASE("a worker that is stopped is ended before another takes its place") {
  Federation f(Federation::RecoveringOptions());
  Run(f);
  AgentMessage event{f.sessions["west"], {}};
  event.message.set_incarnation(1);
  v1::WorkerSilent& silent = *f.AddReport(event).mutable_silent();
  *silent.mutable_worker() = f.IdOf(DeviceAt("west"));
  silent.set_silent_ns(4 * kSecond);
  f.RunFor(4 * kSecond);
  f.Step(std::move(event));
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  CHECK(f.DetailOf("tiny").recoveries(0).kind() == "silent");
  bool stopped = false;
  for (const SendToAgent& send : f.Last<SendToAgent>()) {
    if (send.message.has_stop_workers()) {
      stopped = true;
      CHECK(send.message.stop_workers().grace_ns() == 0);
    }
    CHECK((!send.message.has_start_workers() || stopped));
  }
  CHECK(stopped);
  CHECK(Started(f).size() == 1);
  CHECK(f.DetailOf("tiny").recoveries(0).lost_ns() == 4 * kSecond);  // since nothing came of it
  f.Answer("west", HelloWith({{2, 1}}));
  EndSurvivors(f);
  GoOn(f, 2, 2);
}

TEST_CASE("a worker that is lost five times within an hour is one too often, and all causes are told") {
  Federation f(Federation::RecoveringOptions());
  Run(f);
  for (uint64_t loss = 1; loss <= 4; ++loss) {
    f.Exit(DeviceAt("west"), loss % 2 == 0 ? kKilled : 6);
    f.RunFor(20 * kSecond);           // longer and longer, for nothing comes of it
    f.Answer("west", HelloWith({}));  // else its node could not start it, which is no loss
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  }
  f.Exit(DeviceAt("west"), 11);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
  const std::string cause = f.CauseOf("tiny");
  CHECK_THAT(cause, Catch::StartsWith("worker west/n0/0 was lost 5 times within an hour: (1) worker west/n0/0"));
  for (const std::string_view part : {"(1) ", "(2) ", "(3) ", "(4) ", "(5) ", "SIGABRT", "SIGKILL", "SIGSEGV"}) {
    CHECK_THAT(cause, Catch::Contains(std::string(part)));
  }
  CHECK(f.broken == "");
}

TEST_CASE("a job that loses workers again before anything came of it waits longer and longer") {
  Federation f(Federation::RecoveringOptions());
  Run(f);
  f.Exit(DeviceAt("west"), kKilled);
  CHECK(Started(f).size() == 1);  // at once
  f.Exit(DeviceAt("west"), kKilled);
  CHECK(Started(f).empty());
  const auto wait = [&] {
    int64_t waited = 0;
    while (Started(f).empty() && waited < 100 * kSecond) {
      f.RunFor(kSecond / 10);
      waited += kSecond / 10;
    }
    return waited;
  };
  const int64_t first = wait();
  CHECK(first >= kSecond / 2);
  CHECK(first <= 2 * kSecond);
  f.Exit(DeviceAt("west"), kKilled);
  const int64_t second = wait();
  CHECK(second >= kSecond);
  CHECK(second <= 3 * kSecond);
  f.Answer("west", HelloWith({{2, 1}}));
  EndSurvivors(f);
  f.PrepareAll();
  f.CommitAll();
  f.IterateAll(2);  // it has come to something
  f.Exit(DeviceAt("west"), kKilled);
  CHECK(Started(f).size() == 1);
  CHECK(f.broken == "");
}

TEST_CASE("what another worker would come to as well is the end of the job") {
  Federation f(Federation::RecoveringOptions());
  Run(f);
  v1::WorkerReport failure = FailureReportOf(absl::StatusCode::kResourceExhausted, "no room for 3 GiB of activations");
  failure.set_epoch(1);
  f.Answer("west", failure);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
  CHECK(f.CauseOf("tiny") == "worker west/n0/0 (site west) failed: no room for 3 GiB of activations");
}

TEST_CASE("connections that broke and nobody's end: all go on from what they hold") {
  Federation f(Federation::RecoveringOptions());
  Run(f);
  for (int32_t rank = 0; rank < 3; ++rank) {
    v1::WorkerReport failure = FailureReportOf(absl::StatusCode::kUnavailable, "the connection to rank 1 broke");
    failure.set_epoch(1);
    failure.mutable_failure()->set_parked(true);
    failure.mutable_failure()->set_next_iteration(2);
    AddState(failure.mutable_failure()->mutable_states(), 2, 1);
    f.Answer(f.sites[static_cast<size_t>(rank)], failure);
  }
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);  // one that was killed may still turn out to be the cause
  f.RunFor(2 * kSecond);
  CHECK(f.CauseOf("tiny") == "epoch 2 goes on from iteration 2");
  CHECK(f.DetailOf("tiny").recoveries(0).kind() == "cut");
  CHECK(f.DetailOf("tiny").recoveries(0).workers_size() == 0);
  SECTION("to the end") { GoOn(f, 2, 2); }
  SECTION("and one that ends by itself after that is a loss of its own") {
    f.PrepareAll();
    f.CommitAll();
    f.Exit(DeviceAt("west"), 0, 3);
    f.RunFor(2 * kSecond);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
    CHECK(f.DetailOf("tiny").recoveries(1).kind() == "exited");
  }
}

TEST_CASE("a coordinator that is restarted while a job recovers goes on with it") {
  Federation f(Federation::RecoveringOptions());
  Run(f);
  f.Exit(DeviceAt("west"), kKilled);
  CoordinatorOptions life = NextLife();
  life.run.restarts_per_hour = 4;
  SECTION("before the worker is up") {
    Federation g(life, f.Stored());
    CHECK(g.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
    Return(g, "north", StateOf(v1::WORKER_PHASE_ENDED, 1, 2));
    Return(g, "east", StateOf(v1::WORKER_PHASE_TRAINING, 1, 2));
    g.Register("west", 1);
    // Workers that have not ended the epoch are told again, and one that is not there is started again.
    CHECK(g.Commands(v1::WorkerCommand::kEndEpoch) == 1);
    REQUIRE(Started(g).size() == 1);
    CHECK(Started(g)[0].incarnation() == f.IdOf(DeviceAt("west")).incarnation());
    g.Answer("east", EndedWith(1, 1, 2));
    g.Answer("west", HelloWith({{2, 1}}));
    g.RunFor(kSecond);
    CHECK(g.CauseOf("tiny") == "epoch 2 goes on from iteration 2");
    GoOn(g, 2, 2);
  }
  SECTION("when all were lost, and all are up") {
    f.Exit(DeviceAt("north"), kKilled);
    f.Exit(DeviceAt("east"), kKilled);
    f.RunFor(5 * kSecond);
    Federation g(life, f.Stored());
    v1::WorkerState up = StateOf(v1::WORKER_PHASE_IDLE, 0, 0);
    AddState(up.mutable_status()->mutable_states(), 2, 1);
    ReturnAll(g, up);
    g.RunFor(kSecond);
    CHECK(g.CauseOf("tiny") == "epoch 2 goes on from iteration 2");
    GoOn(g, 2, 2);
  }
  SECTION("and losses before it count") {
    for (int loss = 2; loss <= 4; ++loss) {
      f.RunFor(20 * kSecond);
      f.Answer("west", HelloWith({}));
      f.Exit(DeviceAt("west"), kKilled);
    }
    f.RunFor(20 * kSecond);
    Federation g(life, f.Stored());
    Return(g, "north", StateOf(v1::WORKER_PHASE_ENDED, 1, 2));
    Return(g, "east", StateOf(v1::WORKER_PHASE_ENDED, 1, 2));
    Return(g, "west", StateOf(v1::WORKER_PHASE_IDLE, 0, 0));
    g.Exit(DeviceAt("west"), kKilled);
    g.RunFor(2 * kSecond);
    CHECK(g.StateOf("tiny") == v1::JOB_STATE_FAILED);
    CHECK_THAT(g.CauseOf("tiny"), Catch::StartsWith("worker west/n0/0 was lost 5 times within an hour"));
  }
}

TEST_CASE("a worker that cannot even abandon its iteration while others recover is replaced, too") {
  Federation f(Federation::RecoveringOptions());
  Run(f);
  f.Exit(DeviceAt("west"), kKilled);
  f.Answer("west", HelloWith({{2, 1}}));
  v1::WorkerReport ended;
  ended.set_epoch(1);
  ended.mutable_ended()->set_next_iteration(2);
  AddState(ended.mutable_ended()->mutable_states(), 2, 1);
  f.Answer("north", ended);
  v1::WorkerReport report;
  report.set_epoch(1);
  v1::WorkerStatus& status = *report.mutable_heartbeat()->mutable_status();
  status.set_epoch(1);
  status.set_phase(v1::WORKER_PHASE_TRAINING);
  status.set_next_iteration(2);
  status.set_action("abandonment");
  for (const int64_t seconds : {4, 5}) {  // one heartbeat of a host that was stopped means nothing
    status.set_action_ns(seconds * kSecond);
    f.Answer("east", report);
    CHECK(f.Stops() == 0);
  }
  status.set_action_ns(6 * kSecond);
  f.Answer("east", report);
  CHECK_THAT(
      f.DetailOf("tiny").recoveries(0).workers(1).cause(),
      Catch::Equals("worker east/n0/0 (site east) is stuck: abandonment of iteration 2 has taken 6.0 s so far and "
                    "should take 5.0 s at most"));
  CHECK(f.Stops() == 1);
}

// Its agent may have kept the order of an earlier coordinator.
TEST_CASE("a worker that ends as it should while its job recovers is replaced all the same") {
  Federation f(Federation::RecoveringOptions());
  Run(f);
  f.IterateAll(2);
  f.Answer("north", FinishedReportOf(0, 1, 3));
  f.Exit(DeviceAt("west"), kKilled);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  f.Exit(DeviceAt("north"), 0, 0);
  f.RunFor(5 * kSecond);
  const v1::RecoverySummary recovery = f.DetailOf("tiny").recoveries(0);
  REQUIRE(recovery.workers_size() == 2);
  CHECK(recovery.workers(1).site() == "north");
}

TEST_CASE("a worker whose orders wait for longer than a preparation may take is replaced, whatever the epoch") {
  CoordinatorOptions options = Federation::RecoveringOptions();
  Federation f(options);
  Run(f);
  f.Exit(DeviceAt("west"), kKilled);
  f.Answer("west", HelloWith({{2, 1}}));
  EndSurvivors(f);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  v1::WorkerReport report;
  report.set_epoch(1);
  v1::WorkerStatus& status = *report.mutable_heartbeat()->mutable_status();
  status.set_epoch(1);
  status.set_phase(v1::WORKER_PHASE_ENDED);
  status.set_next_iteration(2);
  status.set_action("copy of the state");
  const int64_t limit_ns = options.run.prepare_timeout_ns;
  for (const int64_t action_ns : {limit_ns - kSecond, limit_ns}) {
    status.set_action_ns(action_ns);
    f.Answer("east", report);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  }
  status.set_action_ns(limit_ns + kSecond);
  f.Answer("east", report);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  CHECK_THAT(f.CauseOf("tiny"),
             Catch::StartsWith("worker east/n0/0 (site east) is stuck: copy of the state of iteration 2 has taken"));
  CHECK(f.Stops() == 1);
}

TEST_CASE("a pause that is under way when a worker is lost comes about when the job is well again") {
  Federation f(Federation::RecoveringOptions());
  Run(f);
  f.Step(PauseJob{90, "tiny"});
  f.Exit(DeviceAt("west"), kKilled);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  EndSurvivors(f);
  f.Answer("west", HelloWith({{2, 1}}));
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);
  CHECK(f.CauseOf("tiny") == "paused before iteration 2");
  CHECK(f.DetailOf("tiny").recoveries(0).first_iteration() == 2);
  SECTION("and a worker that is lost meanwhile is started again, too") {
    f.Exit(DeviceAt("east"), kKilled);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
    f.RunFor(5 * kSecond);
    f.Answer("east", HelloWith({{2, 1}}));
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);
  }
  f.Step(ResumeJob{91, "tiny", "fresh"});
  CHECK(f.CauseOf("tiny") == "epoch 2 goes on from iteration 2");
  GoOn(f, 2, 2);
}

TEST_CASE("a pause that a silent agent delays keeps what its worker has done, though that is told later") {
  Federation f(Federation::RecoveringOptions());
  f.orphan_grace_ns = 30 * kSecond;
  f.job.training.iterations = 9;
  Run(f);
  f.Step(PauseJob{90, "tiny"});
  for (const std::string site : {"north", "west"}) {
    f.Answer(site, IterationReportOf(site == "north" ? 0 : 2, 1, 2));
  }
  f.Answer("north", EndedWith(0, 1, 3));
  f.Answer("west", EndedWith(2, 1, 3));
  f.Close(f.sessions["east"]);
  f.RunFor(60 * kSecond);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  Return(f, "east", StateOf(v1::WORKER_PHASE_ENDED, 1, 3));
  f.RunFor(kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);
  CHECK(f.CauseOf("tiny") == "paused before iteration 3");
}

TEST_CASE("a node that is gone is waited for, and its workers are started again when it is back") {
  Federation f(Federation::RecoveringOptions());
  f.orphan_grace_ns = 30 * kSecond;
  Run(f);
  f.Close(f.sessions["west"]);
  for (const std::string_view site : {"north", "east"}) {
    v1::WorkerReport failure = FailureReportOf(absl::StatusCode::kUnavailable, "the connection to rank 2 broke");
    failure.set_epoch(1);
    failure.mutable_failure()->set_parked(true);
    failure.mutable_failure()->set_next_iteration(2);
    AddState(failure.mutable_failure()->mutable_states(), 2, 1);
    f.Answer(std::string(site), failure);
  }
  f.RunFor(20 * kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);  // its agent may be away while they go on
  f.RunFor(40 * kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  CHECK(f.DetailOf("tiny").recoveries(0).kind() == "unreachable");
  CHECK_THAT(f.CauseOf("tiny"), Catch::StartsWith("it goes on when agent west/n0 can be heard"));
  f.RunFor(1000 * kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  SECTION("it was rebooted") {
    f.Register("west", 2);
    f.RunFor(kSecond);
    CHECK(Started(f).empty());  // it is not said that the worker has ended
    f.Exit(DeviceAt("west"), 0, -1);
    f.RunFor(kSecond);
    f.Answer("west", HelloWith({}));
    CHECK(f.CauseOf("tiny") == "epoch 2 begins anew");
    GoOn(f, 2, 0);
  }
  SECTION("its state folder is lost, and nobody knows of the worker: its grace is waited for") {
    const uint64_t before = f.IdOf(DeviceAt("west")).incarnation();
    f.Register("west", 2);
    f.RunFor(30 * kSecond);
    CHECK(f.IdOf(DeviceAt("west")).incarnation() == before);
    f.RunFor(6 * kSecond);
    CHECK(f.IdOf(DeviceAt("west")).incarnation() > before);
    f.Answer("west", HelloWith({}));
    GoOn(f, 2, 0);
  }
  SECTION("it was only out of reach") {
    Return(f, "west", StateOf(v1::WORKER_PHASE_ENDED, 1, 2), 2);
    f.RunFor(kSecond);
    CHECK(f.CauseOf("tiny") == "epoch 2 goes on from iteration 2");
    GoOn(f, 2, 2);
  }
}

TEST_CASE("a job that loses a worker before it has a plan begins again") {
  const JobState state = GENERATE(v1::JOB_STATE_PROFILING, v1::JOB_STATE_PLANNING);
  Federation f(Federation::RecoveringOptions());
  f.DriveTo(state);
  const uint64_t before = f.IdOf(DeviceAt("east")).incarnation();
  f.Answer("west", HelloReport());
  f.Exit(DeviceAt("west"), kKilled);
  CHECK(f.persisted["tiny"].back() == v1::JOB_STATE_PENDING);
  CHECK(f.Stops() >= 2);
  CHECK(f.Last<StopPlanning>().size() == (state == v1::JOB_STATE_PLANNING ? 1 : 0));
  for (const std::string site : {"north", "east"}) {
    f.Exit(DeviceAt(site), 0, 0);  // as they were told to
  }
  f.RunFor(kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PROFILING);
  CHECK(f.IdOf(DeviceAt("east")).incarnation() > before);
  f.HelloAll();
  f.ProfileAll();
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_PLANNING);
  f.PlanNow();
  GoOn(f, 1, 0);
  CHECK(f.DetailOf("tiny").recoveries_size() == 1);
}

TEST_CASE(
    "a job that begins again and again fails with all causes, and one whose worker ends by itself fails at once") {
  Federation f(Federation::RecoveringOptions());
  f.DriveTo(v1::JOB_STATE_PROFILING);
  SECTION("killed") {
    for (int loss = 1; loss <= 5; ++loss) {
      REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_PROFILING);
      f.Answer("west", HelloReport());
      f.Exit(DeviceAt("west"), kKilled);
      for (const std::string site : {"north", "east"}) {
        f.Exit(DeviceAt(site), 0, 0);
      }
      f.RunFor(40 * kSecond);
    }
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
    CHECK_THAT(f.CauseOf("tiny"), Catch::StartsWith("worker west/n0/0 was lost 5 times within an hour"));
  }
  SECTION("by itself") {
    f.Answer("west", HelloReport());
    f.Exit(DeviceAt("west"), 0, 1, "no such device");
    f.RunFor(2 * kSecond);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
  }
}

TEST_CASE("a worker that is lost while its epoch is rolled out is started again") {
  Federation f(Federation::RecoveringOptions());
  f.DriveTo(v1::JOB_STATE_DEPLOYING);
  f.Answer("north", PreparedReportOf(0, 1));
  f.Exit(DeviceAt("west"), kKilled);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  f.Answer("north", EndedReportOf(0, 1, 0));
  f.Answer("east", EndedReportOf(1, 1, 0));
  f.Answer("west", HelloWith({}));
  CHECK(f.CauseOf("tiny") == "epoch 2 begins anew");
  GoOn(f, 2, 0);
}

TEST_CASE("a worker that is lost when it has done the last iteration is started again for the last state") {
  Federation f(Federation::RecoveringOptions());
  Run(f);
  f.IterateAll(2);
  f.Answer("west", FinishedReportOf(2, 1, 3));
  f.Answer("north", FinishedReportOf(0, 1, 3));
  f.Exit(DeviceAt("east"), kKilled);  // it has not told
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  f.Answer("east", HelloWith({{3, 1}, {2, 1}}));
  CHECK(f.CauseOf("tiny") == "epoch 2 goes on from iteration 3");
  GoOn(f, 2, 3);
}

}  // namespace
}  // namespace geopipe
