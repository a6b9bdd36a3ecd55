// Whole lives of jobs, driven by hand.
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <map>

#include "proto/wire/telemetry_wire.h"
#include "tests/coordinator/core/federation.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

constexpr JobState kLiveStates[] = {v1::JOB_STATE_PENDING, v1::JOB_STATE_PROFILING, v1::JOB_STATE_PLANNING,
                                    v1::JOB_STATE_DEPLOYING, v1::JOB_STATE_RUNNING};

WorkerKey At(const std::string& site) { return {site, "n0", 0}; }

TEST_CASE("a job lives from PENDING to COMPLETED, every state durable before what follows from it") {
  Federation f;
  f.Step(ApplyJob{1, Federation::TinyJob(), {}});
  REQUIRE(f.Last<PersistNewJob>().size() == 1);
  CHECK(std::holds_alternative<PersistNewJob>(f.last.front()));
  CHECK(f.Last<ReplyToCall>().at(0).reply.ok());
  CHECK(f.CauseOf("tiny") == "waiting for site north: 0 of 1 devices");

  f.Register("north");
  f.Register("east");
  CHECK(f.CauseOf("tiny") == "waiting for site west: 0 of 1 devices");
  f.Register("west");
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PROFILING);
  CHECK(f.Last<SendToAgent>().size() == 4);  // the welcome, and workers at all three sites

  f.HelloAll();
  // micro_batch_size 3 does not divide 512 tokens: two rounds, and the second only after the first.
  CHECK(f.Commands(v1::WorkerCommand::kProfile) == 3);
  CHECK(f.Last<SendToAgent>().at(0).message.command().command().profile().memory_limit_bytes() == 1 << 30);
  f.ProfileAll();
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PLANNING);
  REQUIRE(f.planning.size() == 1);
  CHECK(f.planning[0].input.profile->entries.size() == 6);
  CHECK(f.planning[0].input.profile->messages.size() == 3);  // once, not in every round
  CHECK(f.planning[0].input.cluster.links.size() == 3);

  f.PlanNow();
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  REQUIRE(f.Commands(v1::WorkerCommand::kPrepare) == 3);
  const v1::PrepareCommand prepare = f.Last<SendToAgent>().at(1).message.command().command().prepare();
  CHECK(prepare.rank() == 1);
  CHECK(prepare.memory_limit_bytes() == 1 << 30);
  CHECK(prepare.staging_limit_bytes() == kHostBytesPerDevice);
  CHECK(prepare.shapes_size() == 2);  // to both other sites: terms of the gradient norm go everywhere
  CHECK(prepare.shapes(0).from_site() == "east");

  f.PrepareAll();
  REQUIRE(f.Commands(v1::WorkerCommand::kCommit) == 3);
  const v1::CommitCommand commit = f.Last<SendToAgent>().at(0).message.command().command().commit();
  CHECK(commit.peers_size() == 3);
  CHECK(commit.peers(2).address() == "address 2");
  CHECK(commit.secret() == "secret");
  CHECK(commit.end_iteration() == 3);

  f.CommitAll();
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  for (int64_t i = 0; i < 3; ++i) {
    f.IterateAll(i);
  }
  CHECK(f.DetailOf("tiny").summary().iterations_done() == 3);
  f.FinishAll();
  const v1::JobDetail detail = f.DetailOf("tiny");
  CHECK(detail.summary().state() == v1::JOB_STATE_COMPLETED);
  CHECK(detail.summary().last_loss() == 3.0);
  CHECK(detail.measured().iteration_ns() == 1000);
  CHECK(detail.measured().bubble_ratio() == Approx(0.5));
  CHECK(f.Stops() == 3);
  CHECK(f.broken == "");
}

TEST_CASE("workers shape the network of their site where its agents do") {
  Federation f;
  const auto per = GENERATE(v1::NETWORK_SHARE_DEVICE, v1::NETWORK_SHARE_NODE);
  f.network.emplace().set_bandwidth_bytes_per_s(1e9);
  f.network->set_latency_ns(5000);
  f.network->set_per(per);
  f.Step(ApplyJob{1, Federation::TinyJob(), {}});
  for (const char* site : {"north", "east", "west"}) {
    f.Register(site);
  }
  f.HelloAll();
  f.ProfileAll();
  REQUIRE(f.planning.size() == 1);
  CHECK(f.planning.at(0).input.cluster.sites.at(0).network.latency_ns == 5000);
  f.PlanNow();
  REQUIRE(f.Commands(v1::WorkerCommand::kPrepare) == 3);
  const v1::PrepareCommand prepare = f.Last<SendToAgent>().at(1).message.command().command().prepare();
  REQUIRE(prepare.shapes_size() == 3);  // two links, and the network of its own site
  CHECK(prepare.shapes(2).from_site() == "east");
  CHECK(prepare.shapes(2).to_site() == "east");
  CHECK(prepare.shapes(2).latency_ns() == 5000);
  CHECK(prepare.shapes(2).bandwidth_bytes_per_s() == 1e9);
  CHECK(prepare.shapes(2).is_per_device() == (per == v1::NETWORK_SHARE_DEVICE));
}

TEST_CASE("a job can be cancelled in every state, and its workers are stopped") {
  for (const JobState state : kLiveStates) {
    INFO(JobStateName(state));
    Federation f;
    f.DriveTo(state);
    REQUIRE(f.StateOf("tiny") == state);
    f.Step(CancelJob{50, "tiny", "not wanted"});
    CHECK(f.Last<ReplyToCall>().at(0).reply.ok());
    CHECK(f.Stops() == (state == v1::JOB_STATE_PENDING ? 0 : 3));
    CHECK(f.Last<StopPlanning>().size() == (state == v1::JOB_STATE_PLANNING ? 1 : 0));
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_CANCELLED);
    CHECK(f.CauseOf("tiny") == "not wanted");
    f.Step(CancelJob{51, "tiny", ""});
    REQUIRE(f.Last<ReplyToCall>().at(0).reply.ok());
    CHECK(std::get<v1::CancelJobResponse>(*f.Last<ReplyToCall>()[0].reply).already());
    CHECK(f.broken == "");
  }
}

TEST_CASE("a killed worker fails its job in every state, by site and signal") {
  for (const JobState state :
       {v1::JOB_STATE_PROFILING, v1::JOB_STATE_PLANNING, v1::JOB_STATE_DEPLOYING, v1::JOB_STATE_RUNNING}) {
    INFO(JobStateName(state));
    Federation f;
    f.DriveTo(state);
    f.Exit(At("east"), 9);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
    CHECK(f.CauseOf("tiny") ==
          "worker east/n0/0 (site east, pid 100) was killed by signal 9 (SIGKILL); likely the "
          "out-of-memory killer (check dmesg) or a manual kill");
    CHECK(f.broken == "");
  }
}

TEST_CASE("a neighbour's broken connection waits for the death that caused it") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.Answer("north", FailureReportOf(absl::StatusCode::kUnavailable, "the connection to rank 1 broke"));
  f.Exit(At("north"), 0, 1, "error: the connection to rank 1 broke");
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  SECTION("it shows in time") {
    f.Exit(At("east"), 11);
    CHECK(f.CauseOf("tiny") == "worker east/n0/0 (site east, pid 100) was killed by signal 11 (SIGSEGV)");
  }
  SECTION("there is none") {
    f.RunFor(kSecond + kSecond / 10);
    CHECK(f.CauseOf("tiny") == "worker north/n0/0 (site north) failed: the connection to rank 1 broke");
  }
  SECTION("an agent is away: it may be the cause") {
    f.Close(f.sessions["west"]);
    f.RunFor(2 * kSecond);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
    f.RunFor(30 * kSecond);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
    f.RunFor(4 * kSecond);  // by now its worker, if it is cut off, has ended by itself
    CHECK(f.CauseOf("tiny").find("agent west/n0 (site west) has not been heard from for 35.") == 0);
  }
  CHECK(f.broken == "");
}

TEST_CASE("a worker's own failure is the cause at once, and ends as it said") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_DEPLOYING);
  f.Answer("west", FailureReportOf(absl::StatusCode::kNotFound, "data/train.bin: No such file or directory"));
  CHECK(f.CauseOf("tiny") == "worker west/n0/0 (site west) failed: data/train.bin: No such file or directory");
}

TEST_CASE("a worker that ends without a word is named with its last words") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.Exit(At("west"), 0, 127, "loading\nlibfoo.so: not found\n");
  f.RunFor(kSecond + kSecond / 10);
  CHECK(f.CauseOf("tiny") ==
        "worker west/n0/0 (site west, pid 100) exited by itself with code 127; its last words: libfoo.so: not found");
}

TEST_CASE("each phase has a deadline that names who is missing") {
  const auto [state, needle, seconds] = GENERATE(table<JobState, std::string, int64_t>(
      {{v1::JOB_STATE_PROFILING, "workers did not start within 60.0 s: east/n0/0, west/n0/0", 61},
       {v1::JOB_STATE_PLANNING, "the planner found no plan", 121},
       {v1::JOB_STATE_DEPLOYING, "workers did not prepare epoch 1 within 60.0 s: east/n0/0, west/n0/0", 61},
       {v1::JOB_STATE_RUNNING, "iteration 0 has not finished within 600.0 s", 601}}));
  Federation f;
  f.DriveTo(state);
  if (state == v1::JOB_STATE_PROFILING) {
    f.Answer("north", HelloReport());
  } else if (state == v1::JOB_STATE_PLANNING) {
    f.RunFor(500 * kSecond);  // others are planned first
    f.Step(PlannerBegun{"tiny", f.planning.back().incarnation});
  } else if (state == v1::JOB_STATE_DEPLOYING) {
    f.Answer("north", PreparedReportOf(0, 1));
  }
  f.RunFor((seconds - 2) * kSecond);
  CHECK(f.StateOf("tiny") == state);
  f.RunFor(2 * kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
  CHECK(f.CauseOf("tiny").find(needle) == 0);
  CHECK(f.broken == "");
}

TEST_CASE("answers of another epoch or incarnation change nothing") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_DEPLOYING);
  for (int32_t rank = 0; rank < 3; ++rank) {
    f.Answer(f.sites[rank], PreparedReportOf(rank, 9));
  }
  CHECK(f.Commands(v1::WorkerCommand::kCommit) == 0);
  AgentMessage stale{f.sessions["north"], {}};
  stale.message.set_incarnation(1);
  v1::WorkerExit& exit = *f.AddReport(stale).mutable_exit();
  *exit.mutable_worker() = MakeWorkerId(At("north"), "tiny", 1);
  exit.set_signal(9);
  f.Step(stale);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  f.Step(PlannerDone{"tiny", 1, absl::InternalError("late"), ""});
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
}

TEST_CASE("ranks that read data must have read the same") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_DEPLOYING);
  f.Answer("north", PreparedReportOf(0, 1, 7));
  v1::WorkerReport reads_none = PreparedReportOf(1, 1, 0);
  reads_none.mutable_prepared()->set_data_bytes(0);
  f.Answer("east", reads_none);
  f.Answer("west", PreparedReportOf(2, 1, 8));
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
  CHECK(f.CauseOf("tiny").find("north/n0/0 and west/n0/0 read different training data") == 0);
}

TEST_CASE("stages may compute on different instructions, which is said") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_DEPLOYING);
  const char* const instructions[] = {"AMX", "AMX", "AVX2"};
  for (int32_t rank = 0; rank < 3; ++rank) {
    v1::WorkerReport report = PreparedReportOf(rank, 1, 7);
    report.mutable_prepared()->set_instructions(instructions[rank]);
    f.Answer(f.sites[rank], report);
  }
  for (int32_t rank = 0; rank < 3; ++rank) {
    f.Answer(f.sites[rank], CommittedReportOf(rank, 1));
  }
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  CHECK(f.CauseOf("tiny") ==
        "all 3 ranks have committed epoch 1; north/n0/0 computes on AMX and west/n0/0 on AVX2: losses repeat to the "
        "bit only while layers stay on such processors");
}

TEST_CASE("all ranks must compute with the same number of threads") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_DEPLOYING);
  const auto prepared = [](int32_t rank, int32_t threads) {
    v1::WorkerReport report = PreparedReportOf(rank, 1, 7);
    report.mutable_prepared()->set_threads(threads);
    return report;
  };
  f.Answer("north", prepared(0, 2));
  f.Answer("east", prepared(1, 2));
  SECTION("they do") {
    f.Answer("west", prepared(2, 2));
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  }
  SECTION("they don't") {
    f.Answer("west", prepared(2, 4));
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
    CHECK(f.CauseOf("tiny").find("north/n0/0 computes with 2 threads and west/n0/0 with 4") == 0);
  }
}

TEST_CASE("the cause of DEPLOYING says the plan in figures, and of ΔN nothing where a plan has none") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_PLANNING);
  const StartPlanning asked = f.planning.back();
  PlanResult plan = Federation::PlanFor(asked.input);
  std::string delta_n;
  SECTION("with crossings") {
    plan.plan.delta_n = {2, 1};
    delta_n = ", delta_n [2,1]";
  }
  SECTION("without") { plan.plan.delta_n.clear(); }
  f.Step(PlannerDone{asked.job, asked.incarnation, plan, "secret"});
  CHECK(f.CauseOf("tiny") == "planned: 1f1b nonblocking, micro_batch_size 1, sequence_length 64" + delta_n +
                                 ", 8 micro-batches, 3 stages, predicted 0.000 s per iteration");
}

TEST_CASE("no plan: the planner's sentence is the cause") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_PLANNING);
  f.Step(PlannerDone{"tiny", f.planning[0].incarnation, absl::FailedPreconditionError("stage 0 needs 71 GiB"), ""});
  CHECK(f.CauseOf("tiny") == "no plan: stage 0 needs 71 GiB");
  CHECK(f.Stops() == 3);
}

TEST_CASE("two sites without a link cannot train together") {
  Federation f;
  f.sites = {"north"};  // declares nothing
  f.Register("north");
  f.Register("east");
  f.sites = {"north", "east"};
  f.Step(ApplyJob{1, Federation::TinyJob({"north", "east"}), {}});
  f.HelloAll();
  f.ProfileAll();
  // East declared its link to north, which is enough; west is not there at all.
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PLANNING);

  Federation g;
  g.sites = {};
  g.Register("north");
  g.Register("east");
  g.sites = {"north", "east"};
  g.Step(ApplyJob{1, Federation::TinyJob({"north", "east"}), {}});
  g.HelloAll();
  g.ProfileAll();
  CHECK(g.StateOf("tiny") == v1::JOB_STATE_FAILED);
  CHECK(g.CauseOf("tiny").find("sites north and east have no declared link") == 0);
}

TEST_CASE("a second job waits for the devices of the first, by name, and gets them") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  JobSpec second = Federation::TinyJob({"east"});
  second.name = "second";
  f.Step(ApplyJob{90, second, {}});
  CHECK(f.CauseOf("second") == "waiting for job tiny, which holds devices of site east: 0 of 1 devices are free");
  f.Step(CancelJob{91, "tiny", ""});
  CHECK(f.StateOf("second") == v1::JOB_STATE_PENDING);
  f.Heartbeat(f.sessions["east"]);  // it has obeyed
  CHECK(f.StateOf("second") == v1::JOB_STATE_PROFILING);
  CHECK(f.broken == "");
}

TEST_CASE("jobs that ask for the same wait for the same, in their order, whatever comes after them") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  const auto apply = [&](const std::string& name, const std::string& site) {
    JobSpec job = Federation::TinyJob({site});
    job.name = name;
    f.Step(ApplyJob{90, job, {}});
  };
  apply("second", "east");
  apply("third", "east");
  apply("fourth", "west");
  apply("fifth", "south");
  const std::string waits = "waiting for job tiny, which holds devices of site ";
  CHECK(f.CauseOf("second") == waits + "east: 0 of 1 devices are free");
  CHECK(f.CauseOf("third") == waits + "east: 0 of 1 devices are free");
  CHECK(f.CauseOf("fourth") == waits + "west: 0 of 1 devices are free");
  f.Step(CancelJob{91, "tiny", ""});
  f.Heartbeat(f.sessions["east"]);
  f.Heartbeat(f.sessions["west"]);
  CHECK(f.StateOf("second") == v1::JOB_STATE_PROFILING);
  CHECK(f.CauseOf("third") == "waiting for job second, which holds devices of site east: 0 of 1 devices are free");
  CHECK(f.StateOf("fourth") == v1::JOB_STATE_PROFILING);
  CHECK(f.CauseOf("fifth") == "waiting for site south: 0 of 1 devices");
  f.Register("south");
  CHECK(f.StateOf("fifth") == v1::JOB_STATE_PROFILING);
  CHECK(f.CauseOf("third") == "waiting for job second, which holds devices of site east: 0 of 1 devices are free");
  CHECK(f.broken == "");
}

TEST_CASE("of finished jobs the oldest is forgotten where too many are kept, and of others none") {
  CoordinatorOptions options = Federation::DefaultOptions();
  options.max_jobs = 4;
  options.max_finished_jobs = 2;
  Federation f(options);
  const auto apply = [&](const std::string& name) {
    JobSpec job = Federation::TinyJob({"north"});
    job.name = name;
    f.Step(ApplyJob{90, job, {}});
    const std::vector<PersistNewJob> stored = f.Last<PersistNewJob>();
    return stored.empty() ? "refused" : stored[0].forget;
  };
  CHECK(apply("first") == "");
  f.Step(CancelJob{91, "first", ""});
  CHECK(apply("second") == "");
  CHECK(apply("third") == "");
  f.Step(CancelJob{91, "third", ""});
  CHECK(apply("fourth") == "first");
  CHECK(apply("fifth") == "");
  CHECK(apply("sixth") == "third");
  CHECK(apply("seventh") == "refused");
}

TEST_CASE("a name can be used again when its job is over, and not before") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.Step(ApplyJob{90, Federation::TinyJob(), {}});
  CHECK(f.Last<ReplyToCall>().at(0).reply.status().code() == absl::StatusCode::kAlreadyExists);
  f.Step(CancelJob{91, "tiny", ""});
  f.Step(ApplyJob{92, Federation::TinyJob(), {}});
  CHECK(f.Last<ReplyToCall>().at(0).reply.ok());
  f.RunFor(kSecond / 10);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PROFILING);
  CHECK(f.broken == "");
}

TEST_CASE("a job that cannot be stored leaves everything as it was") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_COMPLETED);
  f.Step(WatchStart{80, "tiny", 0, 1});  // room for one message: the watch stays open
  f.refuses_jobs = true;
  f.Step(ApplyJob{90, Federation::TinyJob(), {}, true});
  // All effects behind the refused write are given up: none may reach the job that stays.
  CHECK(std::holds_alternative<PersistNewJob>(f.last.front()));
  CHECK(f.Last<PersistTransition>().empty());
  CHECK(f.Last<SendToAgent>().empty());
  f.Step(PersistFailed{"tiny", 90, absl::ResourceExhaustedError("disk full")});
  CHECK(f.Last<ReplyToCall>().at(0).reply.status() == absl::InternalError("disk full"));
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_COMPLETED);
  f.Step(WatchMore{80, 100});
  CHECK_FALSE(f.Last<SendToWatcher>().empty());
}

TEST_CASE("a modelled job measures its messages alone, it may stop early") {
  Federation f;
  RunOptions run;
  run.backend = BackendKind::kModelled;
  run.stop_after_iterations = 2;
  for (const std::string& site : f.sites) {
    f.Register(site);
  }
  f.Step(ApplyJob{1, Federation::TinyJob(), run});
  f.HelloAll();
  REQUIRE(f.Commands(v1::WorkerCommand::kProfile) == 3);
  const v1::ProfileCommand asked = f.Last<SendToAgent>().at(0).message.command().command().profile();
  CHECK(asked.skip_compute());
  CHECK(asked.message_bytes() > 0);
  f.ProfileMessages();
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PLANNING);
  CHECK(f.planning.at(0).input.profile->entries.empty());
  CHECK(f.planning.at(0).input.profile->messages.size() == 3);
  f.PlanNow();
  f.PrepareAll();
  CHECK(f.Last<SendToAgent>().at(0).message.command().command().commit().end_iteration() == 2);
}

TEST_CASE("where messages take nothing of a run's own: rehearsed links, inside one host, and devices that keep time") {
  struct Case {
    bool pace = true;
    bool one_host = true;
    std::string unshaped = {};  // its links
    bool sites = true;          // keep time
    bool link_to_west = true;
    bool other_link = true;
  };
  for (const Case& each : {Case{}, Case{.unshaped = "west", .link_to_west = false},
                           Case{.one_host = false, .link_to_west = false, .other_link = false},
                           Case{.pace = false, .sites = false, .link_to_west = false, .other_link = false}}) {
    Federation f;
    f.one_host = each.one_host;
    for (const std::string& site : f.sites) {
      f.shaped = site != each.unshaped;
      f.Register(site);
    }
    RunOptions run;
    run.pace = each.pace;
    f.Step(ApplyJob{1, Federation::TinyJob(), run});
    f.HelloAll();
    f.ProfileAll();
    REQUIRE(f.planning.size() == 1);
    const ClusterSpec& cluster = f.planning[0].input.cluster;
    for (const SiteSpec& site : cluster.sites) {
      CHECK(site.keeps_time == each.sites);
    }
    CHECK(cluster.FindLink("east", "west")->keeps_time == each.link_to_west);
    CHECK(cluster.FindLink("north", "east")->keeps_time == each.other_link);
  }
}

TEST_CASE("every rank of the grid is prepared, and none is stopped as idle") {
  Federation f;
  for (const std::string& site : f.sites) {
    f.Register(site, 1, {}, 4);
  }
  JobSpec job = Federation::TinyJob();
  job.parallelism.data = 2;
  job.parallelism.tensor = 2;
  RunOptions modelled;
  modelled.backend = BackendKind::kModelled;
  f.Step(ApplyJob{1, job, modelled});
  const auto answer_all = [&](const std::function<v1::WorkerReport(const WorkerKey&)>& report) {
    for (const std::string& site : f.sites) {
      for (int32_t device = 0; device < 4; ++device) {
        f.Report({site, "n0", device}, report({site, "n0", device}));
      }
    }
  };
  answer_all([](const WorkerKey&) { return HelloReport(); });
  answer_all([](const WorkerKey& key) {
    v1::WorkerReport measured;
    *measured.mutable_profile()->mutable_message() = ToProto(MessageCost{
        .site = key.site, .node = key.node, .device = key.device, .bytes = 1024, .whole_ns = 2, .fixed_ns = 1});
    return measured;
  });
  f.PlanNow();
  CHECK(f.Stops() == 0);
  REQUIRE(f.Commands(v1::WorkerCommand::kPrepare) == 12);
  std::map<WorkerKey, int32_t> ranks;
  for (const SendToAgent& send : f.Last<SendToAgent>()) {
    ranks[KeyOf(send.message.command().worker())] = send.message.command().command().prepare().rank();
  }
  CHECK(ranks.at({"north", "n0", 1}) == 1);
  CHECK(ranks.at({"east", "n0", 0}) == 4);
  CHECK(ranks.at({"west", "n0", 3}) == 11);
  answer_all([&](const WorkerKey& key) { return PreparedReportOf(ranks.at(key), 1); });
  REQUIRE(f.Commands(v1::WorkerCommand::kCommit) == 12);
  CHECK(f.Last<SendToAgent>().at(0).message.command().command().commit().peers_size() == 12);
  answer_all([&](const WorkerKey& key) { return CommittedReportOf(ranks.at(key), 1); });
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  answer_all([&](const WorkerKey& key) { return IterationReportOf(ranks.at(key), 1, 0); });
  CHECK(f.DetailOf("tiny").summary().iterations_done() == 1);
  CHECK(f.broken == "");
}

TEST_CASE("devices that are no rank are stopped and given to the next job, whose plan bears their numbers") {
  Federation f;
  for (const std::string& site : f.sites) {
    f.Register(site, 1, {}, site == "east" ? 2 : 1);
  }
  f.Step(ApplyJob{1, Federation::TinyJob(), {}});
  f.HelloAll();
  f.Report({"east", "n0", 1}, HelloReport());
  CHECK(f.Commands(v1::WorkerCommand::kProfile) == 4);
  RunOptions modelled;
  f.Step(CancelJob{2, "tiny", ""});
  modelled.backend = BackendKind::kModelled;
  f.RunFor(kSecond / 10);
  f.Step(ApplyJob{3, Federation::TinyJob(), modelled});
  f.HelloAll();
  f.Report({"east", "n0", 1}, HelloReport());
  f.ProfileMessages();
  v1::WorkerReport measured;
  *measured.mutable_profile()->mutable_message() =
      ToProto(MessageCost{.site = "east", .node = "n0", .device = 1, .bytes = 1024, .whole_ns = 2, .fixed_ns = 1});
  f.Report({"east", "n0", 1}, measured);
  JobSpec next = Federation::TinyJob({"east"});
  next.name = "next";
  f.Step(ApplyJob{4, next, modelled});
  CHECK(f.StateOf("next") == v1::JOB_STATE_PENDING);
  f.PlanNow();
  REQUIRE(f.Stops() == 1);
  std::vector<v1::ConnectResponse> to_east;
  for (const SendToAgent& send : f.Last<SendToAgent>()) {
    if (send.message.has_stop_workers() || send.message.has_start_workers()) {
      to_east.push_back(send.message);
    }
  }
  REQUIRE(to_east.size() == 2);
  CHECK(to_east[0].stop_workers().job() == "tiny");
  CHECK(to_east[0].stop_workers().devices(0) == 1);
  CHECK(to_east[1].start_workers().job() == "next");
  CHECK(to_east[1].start_workers().devices_size() == 1);
  CHECK(to_east[1].start_workers().devices(0) == 1);
  f.Exit({"east", "n0", 1}, 0, 0);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  CHECK(f.StateOf("next") == v1::JOB_STATE_PROFILING);
  f.PrepareAll();
  CHECK(f.broken == "");
}

}  // namespace
}  // namespace geopipe
