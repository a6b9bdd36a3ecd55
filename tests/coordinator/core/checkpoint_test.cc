// Checkpoints as the coordinator sees them: complete when all ranks and then all nodes have told, never before.
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "coordinator/core/run/run_checkpoints.h"
#include "tests/coordinator/core/federation.h"
#include "tests/coordinator/core/restarts.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

void Configure(Federation& f, int64_t every = 2) {
  f.job.checkpoint = {.path = "/checkpoints", .every = every, .keep = 2};
}

v1::WorkerReport FilesOf(int32_t rank, int64_t iteration, const std::string& error = "", uint64_t epoch = 1) {
  v1::WorkerReport report;
  report.set_epoch(epoch);
  v1::CheckpointReport& checkpoint = *report.mutable_checkpoint();
  checkpoint.set_rank(rank);
  checkpoint.set_iteration(iteration);
  checkpoint.set_error(error);
  checkpoint.set_duration_ns(1000);
  if (error.empty()) {
    v1::CheckpointFile& file = *checkpoint.add_files();
    file.set_name("file-" + std::to_string(rank));
    file.set_bytes(100);
  }
  return report;
}

v1::WorkerReport ManifestOf(int64_t iteration, const std::string& error = "", uint64_t epoch = 1) {
  v1::WorkerReport report;
  report.set_epoch(epoch);
  report.mutable_manifest()->set_iteration(iteration);
  report.mutable_manifest()->set_error(error);
  return report;
}

void TellFiles(Federation& f, int64_t iteration) {
  for (int32_t rank = 0; rank < 3; ++rank) {
    f.Answer(f.sites[rank], FilesOf(rank, iteration));
  }
}

void TellManifests(Federation& f, int64_t iteration) {
  for (const std::string& site : f.sites) {
    f.Answer(site, ManifestOf(iteration));
  }
}

std::vector<int64_t> Listed(Federation& f) {
  std::vector<int64_t> listed;
  const v1::JobDetail detail = f.DetailOf("tiny");
  for (const v1::CheckpointSummary& checkpoint : detail.checkpoints()) {
    listed.push_back(checkpoint.identity().iteration());
  }
  return listed;
}

v1::CheckpointIdentity Identity(int64_t iteration, uint64_t incarnation = 5) {
  v1::CheckpointIdentity identity;
  identity.set_iteration(iteration);
  identity.set_incarnation(incarnation);
  identity.set_epoch(2);
  identity.set_sequence_length(64);
  return identity;
}

TEST_CASE("a checkpoint is listed when every rank has written its files and then every node its manifest") {
  Federation f;
  Configure(f);
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.Answer("north", FilesOf(0, 2));
  f.Answer("east", FilesOf(1, 2));
  f.Answer("east", FilesOf(1, 2));
  CHECK(f.Commands(v1::WorkerCommand::kWriteManifest) == 0);
  f.Answer("west", FilesOf(2, 2));
  REQUIRE(f.Commands(v1::WorkerCommand::kWriteManifest) == 3);
  const v1::WorkerCommand command = f.Last<SendToAgent>().at(0).message.command().command();
  CHECK(command.epoch() == 1);
  CHECK(command.write_manifest().iteration() == 2);
  REQUIRE(command.write_manifest().files_size() == 3);
  CHECK(command.write_manifest().files(2).name() == "file-2");
  f.Answer("north", ManifestOf(2));
  f.Answer("east", ManifestOf(2));
  CHECK(Listed(f).empty());
  CHECK(f.Last<PersistRecord>().empty());
  f.Answer("west", ManifestOf(2));
  REQUIRE(f.Last<PersistRecord>().size() == 1);
  REQUIRE(f.Last<PersistRecord>()[0].outcome.has_value());
  CHECK(Listed(f) == std::vector<int64_t>{2});
  CHECK(f.DetailOf("tiny").checkpoints(0).bytes() == 300);
  CHECK(f.broken == "");

  // It is there in the coordinator's next life.
  Federation g(NextLife(), f.Stored());
  CHECK(Listed(g) == std::vector<int64_t>{2});
}

TEST_CASE("a rank that writes nothing tells so, and its node has no part of the checkpoint but gets the manifest") {
  Federation f;
  Configure(f);
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.Answer("north", FilesOf(0, 2));
  f.Answer("west", FilesOf(2, 2));
  CHECK(f.Commands(v1::WorkerCommand::kWriteManifest) == 0);
  v1::WorkerReport nothing = FilesOf(1, 2);
  nothing.mutable_checkpoint()->clear_files();
  f.Answer("east", nothing);
  CHECK(f.Commands(v1::WorkerCommand::kWriteManifest) == 3);
  CHECK(f.Last<SendToAgent>().at(0).message.command().command().write_manifest().files_size() == 2);
  TellManifests(f, 2);
  CHECK(Listed(f) == std::vector<int64_t>{2});
  const v1::JobDetail detail = f.DetailOf("tiny");
  REQUIRE(detail.checkpoints(0).parts_size() == 2);
  for (const v1::CheckpointPart& part : detail.checkpoints(0).parts()) {
    CHECK(part.holders(0).site() != "east");
  }
  CHECK(f.broken == "");
}

TEST_CASE("as many checkpoints stay listed as the job keeps, and one that is written again is listed once") {
  Federation f;
  Configure(f);
  f.job.training.iterations = 100;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  for (const int64_t iteration : {2, 4, 6}) {
    TellFiles(f, iteration);
    TellManifests(f, iteration);
  }
  CHECK(Listed(f) == std::vector<int64_t>{4, 6});
}

TEST_CASE("an error of a rank or of a node ends the attempt with its sentence, and the next one is as good as any") {
  Federation f;
  Configure(f);
  f.job.training.iterations = 100;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.Answer("north", FilesOf(0, 2));
  f.Answer("east", FilesOf(1, 2, "/c/x: cannot be written: No space left on device"));
  f.Answer("west", FilesOf(2, 2));
  CHECK(f.Commands(v1::WorkerCommand::kWriteManifest) == 0);
  CHECK(f.DetailOf("tiny").checkpoint_trouble() ==
        "no checkpoint of iteration 2: worker east/n0/0 (site east): /c/x: cannot be written: No space left on device");
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  TellFiles(f, 4);
  REQUIRE(f.Commands(v1::WorkerCommand::kWriteManifest) == 3);
  f.Answer("north", ManifestOf(4));
  f.Answer("east", ManifestOf(4, "no room"));
  f.Answer("west", ManifestOf(4));
  CHECK(f.DetailOf("tiny").checkpoint_trouble() == "no checkpoint of iteration 4: node east/n0: no room");
  CHECK(Listed(f).empty());
  TellFiles(f, 6);
  TellManifests(f, 6);
  CHECK(Listed(f) == std::vector<int64_t>{6});
  CHECK(f.DetailOf("tiny").checkpoint_trouble().empty());
  // Ranks that never tell do not pile up.
  for (int64_t iteration = 8; iteration <= 16; iteration += 2) {
    f.Answer("north", FilesOf(0, iteration));
  }
  CHECK(f.DetailOf("tiny").checkpoint_trouble() ==
        "no checkpoint of iteration 8: it was not complete when that of iteration 16 began");
}

TEST_CASE("reports of another epoch complete nothing") {
  Federation f;
  Configure(f);
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.IterateAll(0);
  f.Answer("north", FilesOf(0, 1));
  f.Answer("east", FilesOf(1, 1));
  f.Step(PauseJob{90, "tiny"});
  EndAll(f, 1);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);
  f.Step(ResumeJob{92, "tiny", "second secret"});
  f.PrepareAll();
  f.CommitAll();
  f.Answer("west", FilesOf(2, 1));                   // of epoch 1
  f.Answer("west", FilesOf(2, 1, "", /*epoch=*/2));  // of an epoch whose others say nothing of it
  CHECK(f.Commands(v1::WorkerCommand::kWriteManifest) == 0);
}

TEST_CASE("a job is completed when its last state is safe, and it is ordered again as long as it is not") {
  Federation f;
  Configure(f, /*every=*/0);
  f.DriveTo(v1::JOB_STATE_RUNNING);
  for (int64_t iteration = 0; iteration < 3; ++iteration) {
    f.IterateAll(iteration);
  }
  f.FinishAll();
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  CHECK(f.CauseOf("tiny") == "all iterations are done; the last state is being written");
  SECTION("it was written") {
    TellFiles(f, 3);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
    TellManifests(f, 3);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_COMPLETED);
    CHECK(Listed(f) == std::vector<int64_t>{3});
  }
  SECTION("a disk was full") {
    const bool overtaken = GENERATE(false, true);
    if (overtaken) {  // the manifests of an earlier one come last
      TellFiles(f, 2);
    }
    f.Answer("east", FilesOf(1, 3, "no room"));
    if (overtaken) {
      TellManifests(f, 2);
      CHECK(Listed(f) == std::vector<int64_t>{2});
    }
    CHECK(f.CauseOf("tiny") ==
          "all iterations are done; the last state cannot be written and is tried again: no "
          "checkpoint of iteration 3: worker east/n0/0 (site east): no room");
    if (GENERATE(false, true)) {  // it rests until people have made room
      f.Step(PauseJob{90, "tiny"});
      REQUIRE(f.Last<ReplyToCall>().at(0).reply.ok());
      REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);
      CHECK(f.CauseOf("tiny") == "paused with all iterations done, before its last state could be written");
      f.RunFor(60 * kSecond);
      CHECK(f.Commands(v1::WorkerCommand::kCheckpoint) == 0);
      for (int32_t rank = 0; rank < 3; ++rank) {
        v1::WorkerReport finished = FinishedReportOf(rank, 1, 3);
        AddState(finished.mutable_finished()->mutable_states(), 3, 1);
        f.Answer(f.sites[static_cast<size_t>(rank)], finished);
      }
      f.Step(ResumeJob{91, "tiny", "second secret"});
      REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
      CHECK(f.CauseOf("tiny") == "epoch 2 goes on from iteration 3");
      return;
    }
    f.RunFor(9 * kSecond);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
    int asked = 0;
    for (int i = 0; i < 30 && asked == 0; ++i) {
      f.RunFor(kSecond / 10);
      asked = f.Commands(v1::WorkerCommand::kCheckpoint);
    }
    REQUIRE(asked == 3);
    CHECK(f.Last<SendToAgent>().at(0).message.command().command().checkpoint().iteration() == 3);
    TellFiles(f, 3);
    TellManifests(f, 3);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_COMPLETED);
  }
  SECTION("the reports went to an earlier life of the coordinator") {
    f.Answer("north", FilesOf(0, 3));
    Federation g(NextLife(), f.Stored());
    g.job = f.job;
    ReturnAll(g, StateOf(v1::WORKER_PHASE_FINISHED, 1, 3));
    g.Answer("east", FilesOf(1, 3));
    g.Answer("west", FilesOf(2, 3));
    CHECK(g.Commands(v1::WorkerCommand::kWriteManifest) == 0);
    CHECK(g.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  }
  CHECK(f.broken == "");
}

TEST_CASE(
    "a checkpoint that is asked for comes before an iteration that no rank can have passed, or that of the pause") {
  Federation f;
  Configure(f, /*every=*/0);
  f.job.training.iterations = 100'000'000;
  f.iteration_ns = kSecond;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.IterateAll(0);
  f.Step(CheckpointJob{90, "tiny"});
  REQUIRE(f.Last<ReplyToCall>().at(0).reply.ok());
  CHECK(std::get<v1::CheckpointJobResponse>(*f.Last<ReplyToCall>().at(0).reply).iteration() == 5);
  REQUIRE(f.Commands(v1::WorkerCommand::kCheckpoint) == 3);
  CHECK(f.Last<SendToAgent>().at(0).message.command().command().checkpoint().iteration() == 5);
  f.Step(CheckpointJob{91, "tiny"});
  CHECK(f.Commands(v1::WorkerCommand::kCheckpoint) == 0);
  TellFiles(f, 5);
  TellManifests(f, 5);
  CHECK(Listed(f) == std::vector<int64_t>{5});
  f.Step(PauseJob{92, "tiny"});
  f.Step(CheckpointJob{93, "tiny"});
  CHECK(f.Last<ReplyToCall>().at(0).reply.status().message() ==
        "job tiny is about to pause; a checkpoint can be asked for while it is RUNNING or PAUSED");
  for (int64_t iteration = 1; iteration < 7; ++iteration) {
    f.IterateAll(iteration);
  }
  EndAll(f, 7);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);
  f.Step(CheckpointJob{94, "tiny"});
  REQUIRE(f.Commands(v1::WorkerCommand::kCheckpoint) == 3);
  TellFiles(f, 7);
  TellManifests(f, 7);
  CHECK(Listed(f) == std::vector<int64_t>{5, 7});
  f.Step(CheckpointJob{95, "tiny"});
  CHECK(std::get<v1::CheckpointJobResponse>(*f.Last<ReplyToCall>().at(0).reply).iteration() == 7);
  CHECK(f.Commands(v1::WorkerCommand::kCheckpoint) == 0);
  CHECK(f.broken == "");
}

TEST_CASE("a job that is applied with --resume begins with the newest checkpoint that its nodes have") {
  Federation f;
  Configure(f);
  f.job.training.iterations = 6;
  f.run.resume = true;
  f.found = {Identity(2), Identity(4)};
  f.DriveTo(v1::JOB_STATE_DEPLOYING);
  f.finished["tiny"] = 4;
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  const v1::PrepareCommand prepare = f.Last<SendToAgent>().at(0).message.command().command().prepare();
  CHECK(prepare.first_iteration() == 4);
  CHECK(prepare.from_checkpoint().DebugString() == Identity(4).DebugString());
  bool restarted = false;
  SECTION("undisturbed") {}
  SECTION("with a restart in between") { restarted = true; }
  Federation next(NextLife(), f.Stored());
  Federation& g = restarted ? next : f;
  if (restarted) {
    g.job = f.job;
    g.finished = f.finished;
    ReturnAll(g, StateOf(v1::WORKER_PHASE_IDLE, 0, 0));
    REQUIRE(g.Commands(v1::WorkerCommand::kPrepare) == 3);
    for (const SendToAgent& send : g.Last<SendToAgent>()) {
      const v1::WorkerCommand& command = send.message.command().command();
      CHECK(command.prepare().from_checkpoint().iteration() == (command.has_prepare() ? 4 : 0));
    }
  }
  g.PrepareAll();
  REQUIRE(g.Commands(v1::WorkerCommand::kCommit) == 3);
  CHECK(g.Last<SendToAgent>().at(0).message.command().command().commit().start_iteration() == 4);
  g.CommitAll();
  g.IterateAll(4);
  g.IterateAll(5);
  const v1::JobDetail detail = g.DetailOf("tiny");
  CHECK(detail.summary().iterations_done() == 6);
  CHECK(detail.epochs(0).cause() == "the job goes on from the checkpoint of iteration 4");
  CHECK(g.broken == "");
}

TEST_CASE("where the newest checkpoint of --resume cannot be read, the job goes on from the one before") {
  Federation f(Federation::RecoveringOptions());
  Configure(f);
  f.job.training.iterations = 6;
  f.run.resume = true;
  f.found = {Identity(2), Identity(4)};
  f.DriveTo(v1::JOB_STATE_DEPLOYING);
  f.Step(WatchStart{70, "tiny", 0, 1000});
  const auto fail = [](Federation& at, int64_t iteration) {
    v1::WorkerReport report = FailureReportOf(absl::StatusCode::kDataLoss, "a file is damaged everywhere");
    report.set_epoch(iteration == 4 ? 1 : 2);
    *report.mutable_failure()->mutable_unreadable() = Identity(iteration);
    at.Answer("west", report);
  };
  fail(f, 4);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  f.Exit(DeviceAt("west"), 0, 1);
  f.Answer("west", HelloReport());
  for (const std::string site : {"north", "east"}) {
    v1::WorkerReport ended = EndedReportOf(site == "north" ? 0 : 1, 1, 4);
    f.Answer(site, ended);
  }
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  CHECK(f.CauseOf("tiny") == "epoch 2 goes on from the checkpoint of iteration 2");

  SECTION("which nobody can read either") {
    fail(f, 2);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
    CHECK(f.CauseOf("tiny") == "worker west/n0/0 (site west) failed: a file is damaged everywhere");
    return;
  }
  f.finished["tiny"] = 2;
  bool restarted = false;
  SECTION("undisturbed") {}
  SECTION("with a restart in between") { restarted = true; }
  Federation next(NextLife(Federation::RecoveringOptions()), f.Stored());
  Federation& g = restarted ? next : f;
  if (restarted) {
    g.job = f.job;
    g.finished = f.finished;
    ReturnAll(g, StateOf(v1::WORKER_PHASE_IDLE, 0, 0));
    REQUIRE(g.Commands(v1::WorkerCommand::kPrepare) == 3);
    g.Step(WatchStart{70, "tiny", 0, 1000});
  }
  g.PrepareAll();
  g.CommitAll();
  std::vector<int64_t> watched;
  for (int64_t iteration = 2; iteration < 6; ++iteration) {
    g.IterateAll(iteration);
    for (const SendToWatcher& send : g.Last<SendToWatcher>()) {
      for (const v1::WatchJobResponse& message : send.messages) {
        if (message.has_iteration()) {
          watched.push_back(message.iteration().iteration());
        }
      }
    }
  }
  CHECK(watched == std::vector<int64_t>{2, 3, 4, 5});
  CHECK(g.DetailOf("tiny").summary().iterations_done() == 6);
  CHECK(g.broken == "");
}

TEST_CASE("a run that begins anew leaves other runs' checkpoints alone") {
  Federation f;
  Configure(f);
  f.found = {Identity(2)};
  f.DriveTo(v1::JOB_STATE_PROFILING);
  f.HelloAll();
  f.ProfileAll();
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
  CHECK(f.CauseOf("tiny") ==
        "checkpoint.path /checkpoints: node east/n0 has checkpoints of another run there, "
        "iterations 2; apply the job with --resume, or choose another folder");
}

TEST_CASE("what a run cannot begin with is refused in one sentence") {
  const auto of = [](int64_t iteration, uint64_t incarnation = 1) {
    return CheckpointIdentity{.iteration = iteration, .incarnation = incarnation, .epoch = 1, .sequence_length = 64};
  };
  using Found = std::map<NodeKey, std::vector<CheckpointIdentity>>;
  const auto refused = [](const Found& found, int64_t end = 100, const std::vector<int64_t>& lengths = {64}) {
    return std::string(ResumableCheckpoints("/c", true, found, end, lengths).status().message());
  };
  const NodeKey a{"a", "0"};
  const NodeKey b{"b", "0"};
  const auto resumable = [](const Found& found, int64_t end = 9, const std::vector<int64_t>& lengths = {64}) {
    return ResumableCheckpoints("/c", true, found, end, lengths).value();
  };
  using Identities = std::vector<CheckpointIdentity>;
  CHECK(ResumableCheckpoints("/c", false, {{a, {}}, {b, {}}}, 9, {64}).value().empty());
  // Node b fetches the files that it lacks.
  CHECK(resumable({{a, {of(1), of(3), of(2)}}, {b, {of(2), of(1)}}}, 9, {32, 64}) == Identities{of(1), of(2), of(3)});
  CHECK(resumable({{a, {of(1), of(2)}}, {b, {of(1), of(2, 7)}}}) == Identities{of(1), of(2, 7)});
  CHECK(resumable({{a, {of(1), of(2, 7)}}, {b, {of(1), of(2)}}}) == Identities{of(1), of(2, 7)});
  CHECK(resumable({{a, {of(1), of(2)}}, {b, {}}}) == Identities{of(1), of(2)});
  CheckpointIdentity shorter = of(4);
  shorter.sequence_length = 32;
  CHECK(resumable({{a, {of(3), shorter, of(5)}}}, 9, {32, 64}) == Identities{of(3), of(5)});
  Identities many;
  for (int64_t iteration = 1; iteration <= 20; ++iteration) {
    many.push_back(of(iteration));
  }
  CHECK(resumable({{a, many}}, 99) == Identities(many.end() - kMaxResumable, many.end()));
  CHECK(refused({{a, {}}, {b, {}}}) ==
        "checkpoint.path /c: no node has a checkpoint (a/0 has none, b/0 has none); copy one there, or apply the job "
        "without --resume");
  CHECK(refused({{a, {of(2)}}, {b, {of(2, 7)}}}) ==
        "checkpoint.path /c: iteration 2 is of another run on node b/0 than on node a/0; give the job a folder that is "
        "the same on all nodes, or remove there what is not this job's");
  CHECK_THAT(refused({{a, {of(3), of(2)}}, {b, {of(3, 7), of(1)}}}), Catch::Contains("iteration 3 is of another run"));
  CHECK(refused({{a, {of(100)}}}) ==
        "checkpoint.path /c: the newest checkpoint is the state before iteration 100, and "
        "the job has 100; give it more training.iterations");
  CHECK(refused({{a, {of(1)}}}, 100, {16, 32}) ==
        "checkpoint.path /c: the newest checkpoint was trained with sequence length 64, and another would skip or "
        "repeat samples; add it to search.sequence_length [16, 32]");
}

}  // namespace
}  // namespace geopipe
