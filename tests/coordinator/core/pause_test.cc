// Pauses: a job stops between two iterations and goes on from there in a new epoch, whoever was away or restarted in
// between.
#include <catch2/catch.hpp>

#include "tests/coordinator/core/federation.h"
#include "tests/coordinator/core/restarts.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

TEST_CASE("a job is paused at the end of an iteration and goes on from there in a new epoch") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.IterateAll(0);
  f.Step(PauseJob{90, "tiny"});
  REQUIRE(f.Last<ReplyToCall>().at(0).reply.ok());
  CHECK(f.Commands(v1::WorkerCommand::kEndEpoch) == 3);
  CHECK(f.Last<PersistRecord>().at(0).record.pause_wanted());
  f.Step(PauseJob{91, "tiny"});
  CHECK(std::get<v1::PauseJobResponse>(*f.Last<ReplyToCall>().at(0).reply).already());
  bool restarted = false;
  SECTION("undisturbed") {}
  SECTION("with a restart in between") { restarted = true; }

  f.Answer("north", EndedReportOf(0, 1, 1));
  // The others are told where the epoch ends: their current iteration cannot be finished.
  REQUIRE(f.Commands(v1::WorkerCommand::kEndEpoch) == 2);
  CHECK(f.Last<SendToAgent>().at(0).message.command().command().end_epoch().next_iteration() == 1);
  EndAll(f, 1);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);
  CHECK(f.CauseOf("tiny") == "paused before iteration 1");
  f.RunFor(100 * kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);

  Federation next(NextLife(), f.Stored());
  Federation& g = restarted ? next : f;
  if (restarted) {
    ReturnAll(g, StateOf(v1::WORKER_PHASE_ENDED, 1, 1));
    CHECK(g.StateOf("tiny") == v1::JOB_STATE_PAUSED);
  }
  g.Step(ResumeJob{92, "tiny", "second secret"});
  REQUIRE(g.Last<ReplyToCall>().at(0).reply.ok());
  // The epoch is stored with the state, at once: between two writes the coordinator may die, and would then wait for an
  // epoch that no worker has heard of.
  CHECK(g.Last<PersistRecord>().empty());
  REQUIRE(g.Last<PersistTransition>().size() == 1);
  CHECK(g.Last<PersistTransition>()[0].record->epoch().number() == 2);
  CHECK(g.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  CHECK(g.CauseOf("tiny") == "epoch 2 goes on from iteration 1");
  g.PrepareAll();
  REQUIRE(g.Commands(v1::WorkerCommand::kCommit) == 3);
  const v1::CommitCommand commit = g.Last<SendToAgent>().at(0).message.command().command().commit();
  CHECK(commit.start_iteration() == 1);
  CHECK(commit.secret() == "second secret");
  g.CommitAll();
  CHECK(g.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  g.Answer("north", IterationReportOf(0, 1, 1));  // of the epoch that ended: nothing
  g.IterateAll(1);
  g.IterateAll(2);
  for (int32_t rank = 0; rank < 3; ++rank) {
    g.Answer(g.sites[static_cast<size_t>(rank)], FinishedReportOf(rank, 2, 3));
  }
  const v1::JobDetail detail = g.DetailOf("tiny");
  CHECK(detail.summary().state() == v1::JOB_STATE_COMPLETED);
  CHECK(detail.summary().iterations_done() == 3);
  REQUIRE(detail.epochs_size() == 2);
  CHECK(detail.epochs(0).next_iteration() == 1);
  CHECK(detail.epochs(1).first_iteration() == 1);
  CHECK(detail.epochs(1).next_iteration() == 3);
  CHECK(g.broken == "");
}

TEST_CASE("a pause of a job that ends by what was heard before is refused") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.IterateAll(0);
  f.Close(f.sessions["west"]);
  f.Register("west", 2);  // without its worker; a better explanation may follow
  f.RunFor(kSecond - kSecond / 10);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  f.Advance(kSecond / 5);
  f.Step(PauseJob{90, "tiny"});
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
  CHECK(f.Last<ReplyToCall>().at(0).reply.status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(f.broken == "");
}

// A worker that does not hear of its epoch's end is left alone by its peers, and loses its state after its grace.
TEST_CASE("a pause comes about when all agents can be heard, and costs nothing before") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.Close(f.sessions["west"]);
  f.Step(PauseJob{90, "tiny"});
  REQUIRE(f.Last<ReplyToCall>().at(0).reply.ok());
  CHECK(f.Last<PersistRecord>().at(0).record.pause_wanted());
  CHECK(f.Commands(v1::WorkerCommand::kEndEpoch) == 0);
  CHECK(f.CauseOf("tiny") == "it pauses when agent west/n0 can be heard");
  SECTION("it comes back") {
    Return(f, "west", StateOf(v1::WORKER_PHASE_TRAINING, 1, 0), 2);
    f.Step(Tick{});
    CHECK(f.Commands(v1::WorkerCommand::kEndEpoch) == 3);
    CHECK(f.CauseOf("tiny") == "it pauses after the iteration under way");
    EndAll(f, 1);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);
    f.Step(ResumeJob{91, "tiny", "second secret"});
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  }
  SECTION("it was restarted, and so was the coordinator, which is asked before all are there") {
    Federation g(NextLife(), f.Stored());
    Return(g, "north", StateOf(v1::WORKER_PHASE_TRAINING, 1, 0));
    Return(g, "east", StateOf(v1::WORKER_PHASE_TRAINING, 1, 0));
    g.Step(ResumeJob{91, "tiny", "second secret"});
    g.Step(PauseJob{92, "tiny"});
    Return(g, "west", StateOf(v1::WORKER_PHASE_TRAINING, 1, 0), 2);
    g.Step(Tick{});
    EndAll(g, 1);
    CHECK(g.StateOf("tiny") == v1::JOB_STATE_PAUSED);
    g.Step(ResumeJob{93, "tiny", "third secret"});
    CHECK(g.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  }
  SECTION("the pause is taken back") {
    f.Step(ResumeJob{91, "tiny", "second secret"});
    REQUIRE(f.Last<ReplyToCall>().at(0).reply.ok());
    Return(f, "west", StateOf(v1::WORKER_PHASE_TRAINING, 1, 0), 2);
    f.RunFor(kSecond);
    CHECK(f.Commands(v1::WorkerCommand::kEndEpoch) == 0);
    for (int64_t i = 0; i < 3; ++i) {
      f.IterateAll(i);
    }
    f.FinishAll();
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_COMPLETED);
  }
  SECTION("the pause is taken back when it has just come back") {
    Return(f, "west", StateOf(v1::WORKER_PHASE_TRAINING, 1, 0), 2);
    f.Step(ResumeJob{91, "tiny", "second secret"});
    f.Step(Tick{});
    CHECK(f.Commands(v1::WorkerCommand::kEndEpoch) == 0);
  }
  SECTION("a peer is lost: that is no pause") {
    f.Exit(DeviceAt("north"), 9);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
  }
  SECTION("the coordinator is restarted, and orders it when all are there") {
    Federation g(NextLife(), f.Stored());
    ReturnAll(g, StateOf(v1::WORKER_PHASE_TRAINING, 1, 0));
    g.Step(Tick{});
    CHECK(g.Commands(v1::WorkerCommand::kEndEpoch) == 3);
    EndAll(g, 1);
    CHECK(g.StateOf("tiny") == v1::JOB_STATE_PAUSED);
  }
  CHECK(f.broken == "");
}

TEST_CASE("a paused job waits for an agent that is away, and is resumed when it is back") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.IterateAll(0);
  f.Step(PauseJob{90, "tiny"});
  EndAll(f, 1);
  f.Close(f.sessions["west"]);
  f.RunFor(3000 * kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);
  CHECK(f.CauseOf("tiny") == "paused before iteration 1");
  f.Step(ResumeJob{91, "tiny", "second secret"});
  REQUIRE(f.Last<ReplyToCall>().at(0).reply.ok());
  CHECK(f.Last<PersistRecord>().at(0).record.next_secret() == "second secret");
  f.RunFor(1000 * kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);
  CHECK(f.CauseOf("tiny") ==
        "it goes on when agent west/n0 can be heard; it cannot go on at the others: it has no checkpoint.path");
  f.Step(ResumeJob{92, "tiny", "third secret"});
  REQUIRE(f.Last<ReplyToCall>().at(0).reply.ok());
  CHECK(std::get<v1::ResumeJobResponse>(*f.Last<ReplyToCall>()[0].reply).already());
  SECTION("it comes back") {
    Return(f, "west", StateOf(v1::WORKER_PHASE_ENDED, 1, 1), 2);
    f.Step(Tick{});
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
    CHECK(f.CauseOf("tiny") == "epoch 2 goes on from iteration 1");
  }
  SECTION("the coordinator was restarted meanwhile") {
    Federation g(NextLife(), f.Stored());
    ReturnAll(g, StateOf(v1::WORKER_PHASE_ENDED, 1, 1));
    g.Step(Tick{});
    CHECK(g.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  }
  SECTION("it is to be paused after all") {
    f.Step(PauseJob{93, "tiny"});
    REQUIRE(f.Last<ReplyToCall>().at(0).reply.ok());
    Return(f, "west", StateOf(v1::WORKER_PHASE_ENDED, 1, 1), 2);
    f.RunFor(kSecond);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);
    f.Step(ResumeJob{94, "tiny", "fourth secret"});
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  }
  CHECK(f.broken == "");
}

TEST_CASE("what a worker did in an epoch says nothing of the next one") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.IterateAll(0);
  f.Step(PauseJob{90, "tiny"});
  EndAll(f, 1);
  f.Step(ResumeJob{91, "tiny", "second secret"});
  f.PrepareAll();
  f.CommitAll();
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  SECTION("it is paused before it has said more") {
    f.Step(PauseJob{92, "tiny"});
    CHECK(f.Commands(v1::WorkerCommand::kEndEpoch) == 3);
    EndAll(f, 1, 2);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);
  }
  SECTION("another process of its agent has not heard of it yet") {
    f.Close(f.sessions["west"]);
    Return(f, "west", StateOf(v1::WORKER_PHASE_UNSPECIFIED, 0, 0, false), 2);
    f.RunFor(2 * kSecond);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  }
  SECTION("a hello of before comes late") {
    f.Close(f.sessions["west"]);
    Return(f, "west", StateOf(v1::WORKER_PHASE_ENDED, 1, 1));
    f.Step(PauseJob{92, "tiny"});
    CHECK(f.Commands(v1::WorkerCommand::kEndEpoch) == 3);
  }
  CHECK(f.broken == "");
}

TEST_CASE("a pause that is taken back before it came about begins the next epoch at once") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.Step(PauseJob{90, "tiny"});
  f.Step(ResumeJob{91, "tiny", "second secret"});
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  EndAll(f, 1);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
}

TEST_CASE("a pause that is taken back and wanted again comes about, also while an agent is silent") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.Step(PauseJob{90, "tiny"});
  f.Step(ResumeJob{91, "tiny", "second secret"});
  f.Close(f.sessions["west"]);
  f.Step(PauseJob{92, "tiny"});
  f.Step(ResumeJob{93, "tiny", "third secret"});
  f.Step(PauseJob{94, "tiny"});
  Return(f, "west", StateOf(v1::WORKER_PHASE_TRAINING, 1, 0));
  EndAll(f, 1);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);
  f.Step(ResumeJob{95, "tiny", "fourth secret"});
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
}

TEST_CASE("a pause that is taken back goes on after a restart, too") {
  Federation before;
  before.DriveTo(v1::JOB_STATE_RUNNING);
  before.Step(PauseJob{90, "tiny"});
  before.Step(ResumeJob{91, "tiny", "second secret"});
  Federation f(NextLife(), before.Stored());
  ReturnAll(f, StateOf(v1::WORKER_PHASE_TRAINING, 1, 1));
  EndAll(f, 0);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
}

}  // namespace
}  // namespace geopipe
