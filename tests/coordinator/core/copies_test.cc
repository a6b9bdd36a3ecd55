// Tests where the files of a checkpoint are, and what follows when nodes that had them are gone.

#include "tests/coordinator/core/moves.h"

namespace geopipe {
namespace {

// Makes all workers train and serve their files.
void TellAddresses(Federation& f) {
  for (const std::string& site : f.sites) {
    v1::WorkerReport report = OfEpoch(1);
    report.mutable_heartbeat()->mutable_status()->set_phase(v1::WORKER_PHASE_TRAINING);
    report.mutable_heartbeat()->mutable_status()->set_epoch(1);
    report.mutable_heartbeat()->mutable_status()->set_exchange_address(site + ":1");
    f.Answer(site, report);
  }
}

TEST_CASE("what a node has of a checkpoint is copied to the next site, and counts when all copies are whole") {
  Federation f = Made();
  f.DriveTo(v1::JOB_STATE_RUNNING);
  TellAddresses(f);
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
  // An error is reported, and the next checkpoint is as good as any.
  f.IterateAll(1);
  Save(f, 1, 2);
  Copy(f, "north", 1, 2, "no space");
  CHECK(f.DetailOf("tiny").checkpoint_trouble() ==
        "no copies of the checkpoint of iteration 2: node north/n0: no space");
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  CHECK(f.broken == "");
}

TEST_CASE("copies are slow where iterations are predicted to take centuries") {
  Federation f = Made();
  f.iteration_ns = 1'500'000'000'000'000'000;  // ten of which are more than 64 bits hold
  f.DriveTo(v1::JOB_STATE_RUNNING);
  TellAddresses(f);
  f.IterateAll(0);
  Save(f, 1, 1);
  REQUIRE(f.Commands(v1::WorkerCommand::kReplicate) == 3);
  for (const SendToAgent& send : f.Last<SendToAgent>()) {
    CHECK(send.message.command().command().replicate().bytes_per_second() == 1e6);
  }
  f.RunFor(60 * kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  CHECK(f.broken == "");
}

TEST_CASE("of a node that has written nothing there is nothing to copy, though it takes copies of others") {
  Federation f = Made();
  f.DriveTo(v1::JOB_STATE_RUNNING);
  TellAddresses(f);
  f.IterateAll(0);
  for (size_t rank = 0; rank < f.sites.size(); ++rank) {
    v1::WorkerReport report = OfEpoch(1);
    report.mutable_checkpoint()->set_rank(static_cast<int32_t>(rank));
    report.mutable_checkpoint()->set_iteration(1);
    if (f.sites[rank] != "east") {
      report.mutable_checkpoint()->add_files()->set_name("of-" + f.sites[rank]);
    }
    f.Answer(f.sites[rank], report);
  }
  for (const std::string& site : f.sites) {
    v1::WorkerReport report = OfEpoch(1);
    report.mutable_manifest()->set_iteration(1);
    f.Answer(site, report);
  }
  REQUIRE(f.Commands(v1::WorkerCommand::kReplicate) == 2);
  for (const SendToAgent& send : f.Last<SendToAgent>()) {
    const v1::ReplicateCommand& replicate = send.message.command().command().replicate();
    const std::string& to = send.message.command().worker().site();
    REQUIRE(replicate.sources_size() == 1);
    CHECK(replicate.sources(0).files(0) == (to == "east" ? "of-north" : "of-west"));
  }
  Copy(f, "east", 1, 1);
  Copy(f, "north", 1, 1);
  CHECK(f.DetailOf("tiny").checkpoints(0).replicated_unix_time_ns() > 0);
  CHECK(f.DetailOf("tiny").checkpoints(0).parts_size() == 2);
  CHECK(f.broken == "");
}

// The job has lost a site, and its plan for the others leaves out a node that has the state.
void LosePlan(Federation& f) {
  RunSaved(f);
  Lose(f, "east");
  f.RunFor(16 * kSecond);
  ProfileAgain(f);
  StartPlanning request = f.planning.back();
  std::erase_if(request.input.cluster.sites, [](const SiteSpec& site) { return site.name != "west"; });
  f.Step(PlannerDone{request.job, request.incarnation, Federation::PlanFor(request.input), "secret"});
}

TEST_CASE("a plan that leaves out the nodes that have the state is none: the job waits rather than begin anew") {
  Federation f = Made();
  LosePlan(f);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PENDING);
  f.RunFor(kSecond);
  CHECK(f.CauseOf("tiny") == "waiting for agent east/n0, which is silent");
  CHECK(ListedIn(f) == std::vector<int64_t>{1});
  // Meanwhile another may have the others: nobody knows how long it waits.
  JobSpec other = Federation::TinyJob({"north"});
  other.name = "other";
  f.Step(ApplyJob{90, other, {}});
  f.Step(Tick{});
  CHECK(f.StateOf("other") == v1::JOB_STATE_PROFILING);
  CHECK(f.broken == "");
}

TEST_CASE("nodes are promised to a job whose workers are about to end there") {
  Federation f = Made();
  RunSaved(f);
  Lose(f, "east");
  for (int i = 0; i < 300 && f.StateOf("tiny") != v1::JOB_STATE_PENDING; ++i) {
    f.RunFor(kSecond / 10);
  }
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_PENDING);
  CHECK_THAT(f.CauseOf("tiny"), Catch::StartsWith("waiting for its workers on "));
  JobSpec other = Federation::TinyJob({"north"});
  other.name = "other";
  f.Step(ApplyJob{90, other, {}});
  f.Heartbeat(f.sessions.at("north"));  // its agent has stopped the worker there
  CHECK(f.StateOf("other") == v1::JOB_STATE_PENDING);
  f.Heartbeat(f.sessions.at("west"));
  CHECK(f.StateOf("other") == v1::JOB_STATE_PENDING);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PROFILING);
  CHECK(f.broken == "");
}

TEST_CASE("nodes are not promised to a job that waits for a worker of which no agent knows") {
  Federation f = Made();
  RunSaved(f);
  f.Close(f.sessions["west"]);
  f.Register("west", 2);  // without its worker, which may live
  Lose(f, "east");
  for (int i = 0; i < 300 && f.StateOf("tiny") != v1::JOB_STATE_PENDING; ++i) {
    f.RunFor(kSecond / 10);
  }
  f.RunFor(kSecond);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_PENDING);
  CHECK_THAT(f.CauseOf("tiny"), Catch::StartsWith("waiting for its workers on west/n0 "));
  JobSpec other = Federation::TinyJob({"north"});
  other.name = "other";
  f.Step(ApplyJob{90, other, {}});
  f.Step(Tick{});
  CHECK(f.StateOf("other") == v1::JOB_STATE_PROFILING);
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
        "waiting for more of its sites: no checkpoint is complete at north, west, more of it is at east/n0 "
        "(checkpoint.replicate: 1 keeps copies at other sites)");
  CHECK(f.broken == "");
}

// Answers the preparation of all ranks; that at `troubled` finds its folder without the mark.
void PrepareMarked(Federation& f, uint64_t epoch, const std::string& troubled = "") {
  for (size_t rank = 0; rank < f.sites.size(); ++rank) {
    v1::WorkerReport report = PreparedReportOf(static_cast<int32_t>(rank), epoch);
    report.mutable_prepared()->set_checkpoint_trouble(f.sites[rank] == troubled ? "/ckpt: lacks a file" : "");
    f.Answer(f.sites[rank], report);
  }
}

// Site, and whether its folder of checkpoints must have the mark of the job; all are given the same one.
std::map<std::string, bool> ExpectedMarks(Federation& f) {
  std::map<std::string, bool> expected;
  for (const SendToAgent& send : f.Last<SendToAgent>()) {
    const v1::RelayedCommand& relayed = send.message.command();
    if (relayed.command().has_prepare() || relayed.command().has_profile()) {
      const v1::CheckpointMark& mark = relayed.command().has_prepare() ? relayed.command().prepare().checkpoint_mark()
                                                                       : relayed.command().profile().checkpoint_mark();
      CHECK(mark.id() == "tiny-3e9");
      expected[relayed.worker().site()] = mark.expected();
    }
  }
  return expected;
}

TEST_CASE("the folders of a job's checkpoints have one mark in all its runs, and must have it once they had it") {
  using Marks = std::map<std::string, bool>;
  Federation f = Made();
  f.DriveTo(v1::JOB_STATE_PLANNING);
  f.PlanNow();
  CHECK(ExpectedMarks(f) == Marks{{"east", false}, {"north", false}, {"west", false}});
  PrepareMarked(f, 1, "west");
  CHECK(f.DetailOf("tiny").checkpoint_trouble() ==
        "worker west/n0/0 (site west) writes no checkpoint: /ckpt: lacks a file");
  f.CommitAll();
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  f.IterateAll(0);
  CHECK(f.Stored().jobs[0].record.marked_size() == 2);
  f.IterateAll(1);

  StoredState stored = f.Stored();
  stored.federation = "here";
  Federation later(NextLife(Federation::RecoveringOptions()), stored);
  later.known_federation = "here";
  later.job = f.job;
  ReturnAll(later, StateOf(v1::WORKER_PHASE_TRAINING, 1, 2));
  REQUIRE(later.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  Save(later, 1, 2);  // for which its worker has marked the folder at west, too
  CHECK(later.Stored().jobs[0].record.marked_size() == 3);
  later.Exit(DeviceAt("north"), 9);
  later.Answer("east", EndedReportOf(1, 1, 2));
  later.Answer("west", EndedReportOf(2, 1, 2));
  later.Answer("north", HelloReport());
  REQUIRE(later.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  CHECK(ExpectedMarks(later) == Marks{{"east", true}, {"north", true}, {"west", true}});
  CHECK(later.broken == "");
  CHECK(f.broken == "");
}

TEST_CASE("what a job goes on from outlives a coordinator that ends while the job waits for nodes") {
  Federation f = Made();
  LosePlan(f);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_PENDING);
  StoredState stored = f.Stored();
  stored.federation = "here";
  Federation later(NextLife(Federation::RecoveringOptions()), stored);
  later.Register("east", 2);  // on a new machine: it has never obeyed anybody, and tells so until it is welcomed
  const auto at = [&](const auto& is_it) { return std::ranges::find_if(later.last, is_it) - later.last.begin(); };
  CHECK(at([](const Effect& effect) { return std::holds_alternative<PersistRecord>(effect); }) <
        at([](const Effect& effect) { return std::holds_alternative<SendToAgent>(effect); }));
  later.known_federation = "here";
  for (const std::string site : {"north", "west"}) {
    later.Register(site, 2);
  }
  later.RunFor(kSecond);
  REQUIRE(later.StateOf("tiny") == v1::JOB_STATE_PROFILING);
  later.HelloAll();
  CHECK(ExpectedMarks(later) == std::map<std::string, bool>{{"east", false}, {"north", true}, {"west", true}});
  CHECK(later.broken == "");
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
  PlanAgain(f);
  f.RunFor(350 * kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  f.RunFor(20 * kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  CHECK(f.broken == "");
}

// The worker at north cannot read it.
void FailToRead(Federation& f, int64_t iteration, uint64_t epoch) {
  v1::WorkerReport report = FailureReportOf(absl::StatusCode::kDataLoss, "a file is damaged everywhere");
  report.set_epoch(epoch);
  v1::CheckpointIdentity& identity = *report.mutable_failure()->mutable_unreadable();
  identity.set_iteration(iteration);
  identity.set_incarnation(Federation::kRun);
  identity.set_epoch(1);
  identity.set_sequence_length(64);
  f.Answer("north", report);
}

// Other than the one that could not read the checkpoint of iteration 2.
void StartAnother(Federation& f, uint64_t epoch) {
  f.Exit(DeviceAt("north"), 0, 1);
  f.RunFor(5 * kSecond);
  f.Answer("north", HelloReport());
  for (size_t rank = 1; rank < f.sites.size(); ++rank) {
    f.Answer(f.sites[rank], EndedReportOf(static_cast<int32_t>(rank), epoch, 2));
  }
}

TEST_CASE("a checkpoint that cannot be read is passed over, and the last one is not") {
  Federation f = Made();
  RunSaved(f);
  Save(f, 1, 2);
  CopyAll(f, 1, 2);
  f.Exit(DeviceAt("north"), 9);
  StartAnother(f, 1);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  CHECK(f.DetailOf("tiny").epochs(1).first_iteration() == 2);
  FailToRead(f, 2, 2);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  CHECK(ListedIn(f) == std::vector<int64_t>{1});
  CHECK(f.DetailOf("tiny").recoveries(1).kind() == "unreadable");
  StartAnother(f, 2);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  CHECK(f.DetailOf("tiny").epochs(2).first_iteration() == 1);
  FailToRead(f, 1, 3);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
  CHECK(f.CauseOf("tiny") == "worker north/n0/0 (site north) failed: a file is damaged everywhere");
  CHECK(f.broken == "");
}

TEST_CASE("a checkpoint of which only another site has all files is waited for, where there is no other") {
  Federation f = Made();
  RunSaved(f);
  Save(f, 1, 2);
  CopyAll(f, 1, 2);
  Lose(f, "east");
  f.RunFor(20 * kSecond);
  PlanAgain(f);
  REQUIRE(Prepares(f).size() == 2);
  CHECK(Prepares(f)[0].from_checkpoint().iteration() == 2);
  FailToRead(f, 2, 2);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  CHECK(ListedIn(f) == std::vector<int64_t>{1, 2});  // east may be back
  StartAnother(f, 2);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  CHECK(f.DetailOf("tiny").epochs(2).first_iteration() == 1);
  FailToRead(f, 1, 3);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PENDING);
  f.RunFor(kSecond);
  const std::string waits =
      "waiting for more of its sites: no checkpoint is complete at north, west, more of it is at east/n0 "
      "(checkpoint.replicate: 1 keeps copies at other sites)";
  CHECK(f.CauseOf("tiny") == waits);
  SECTION("it is back") {
    f.sites = {"north", "east", "west"};
    f.Register("east", 2);
    f.RunFor(60 * kSecond);  // until its worker of before must have ended
    PlanAgain(f);
    CHECK(Prepares(f)[0].from_checkpoint().iteration() == 2);  // nothing was done after it
    CHECK(f.broken == "");
  }
  SECTION("also by another life of the coordinator") {
    Federation g(NextLife(Federation::RecoveringOptions()), f.Stored());
    g.Register("north");
    g.Register("west");
    g.RunFor(60 * kSecond);
    CHECK(g.CauseOf("tiny") == waits);
    CHECK(g.broken == "");
  }
}

}  // namespace
}  // namespace geopipe
