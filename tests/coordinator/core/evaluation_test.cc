// Evaluations of a job, as its user hears of them: each once, whatever is lost and repeated.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/coordinator/core/federation.h"
#include "tests/coordinator/core/restarts.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

constexpr int32_t kKilled = 9;

// Three iterations, evaluated after every one of them or every two, and after the last.
JobSpec EvaluatedJob(int64_t every) {
  JobSpec job = Federation::TinyJob();
  job.evaluation.every = every;
  job.evaluation.data.paths = {"/validation"};
  return job;
}

v1::WorkerReport EvaluationReportOf(int32_t rank, uint64_t epoch, int64_t iteration, double loss) {
  v1::WorkerReport report;
  report.set_epoch(epoch);
  report.mutable_evaluation()->set_iteration(iteration);
  report.mutable_evaluation()->set_rank(rank);
  report.mutable_evaluation()->set_loss(loss);
  report.mutable_evaluation()->set_duration_ns(5);
  return report;
}

// Evaluations in the detail: the iterations before each, negative where its report is lost.
std::vector<int64_t> Evaluations(Federation& f) {
  std::vector<int64_t> told;
  const v1::JobDetail detail = f.DetailOf("tiny");
  for (const v1::EvaluationSummary& each : detail.evaluations()) {
    told.push_back(each.incomplete() ? -each.iteration() : each.iteration());
  }
  return told;
}

int64_t EvaluateFrom(const Federation& f) {
  int64_t from = -1;
  for (const SendToAgent& send : f.Last<SendToAgent>()) {
    if (send.message.has_command() && send.message.command().command().has_commit()) {
      from = send.message.command().command().commit().evaluate_from();
    }
  }
  return from;
}

// Words for what a watcher hears of iterations ("0"), evaluations ("after 2") and the end.
std::vector<std::string> Heard(const Federation& f, CallId call) {
  std::vector<std::string> heard;
  for (const SendToWatcher& sent : f.Last<SendToWatcher>()) {
    for (const v1::WatchJobResponse& message : sent.messages) {
      if (sent.call != call) {
        continue;
      }
      if (message.has_iteration()) {
        heard.push_back(std::to_string(message.iteration().iteration()));
      } else if (message.has_evaluation()) {
        heard.push_back("after " + std::to_string(message.evaluation().iteration()));
      } else if (message.has_transition() && message.transition().state() == v1::JOB_STATE_COMPLETED) {
        heard.emplace_back("completed");
      }
    }
  }
  return heard;
}

TEST_CASE("evaluations are told once each, behind the iterations before them") {
  Federation f;
  f.job = EvaluatedJob(2);
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.IterateAll(0);
  f.Answer("north", IterationReportOf(0, 1, 1));
  f.Answer("west", IterationReportOf(2, 1, 1));
  const CallId call = f.next_call++;
  f.Step(WatchStart{.call = call, .name = "tiny", .from_iteration = 0, .credits = 100});
  CHECK(Heard(f, call) == std::vector<std::string>{"0"});
  f.Answer("west", EvaluationReportOf(2, 1, 2, 4.5));
  CHECK(Heard(f, call).empty());  // iteration 1 is not complete
  CHECK(Evaluations(f) == std::vector<int64_t>{2});
  f.Answer("east", IterationReportOf(1, 1, 1));
  CHECK(Heard(f, call) == std::vector<std::string>{"1", "after 2"});
  f.Answer("west", EvaluationReportOf(2, 1, 2, 4.25));  // of a replica, or repeated
  CHECK(f.DetailOf("tiny").evaluations(0).loss() == 4.5);
  f.IterateAll(2);
  f.Answer("west", EvaluationReportOf(2, 1, 3, 4.125));
  CHECK(Heard(f, call) == std::vector<std::string>{"after 3"});
  f.FinishAll();
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_COMPLETED);
  CHECK(Heard(f, call) == std::vector<std::string>{"completed"});
  CHECK(Evaluations(f) == std::vector<int64_t>{2, 3});
  CHECK(f.broken == "");
}

TEST_CASE("an evaluation that a loss has cut off is done first by the next epoch, one that is told is not done again") {
  Federation f(Federation::RecoveringOptions());
  f.job = EvaluatedJob(1);
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.IterateAll(0);
  f.Answer("west", EvaluationReportOf(2, 1, 1, 4.5));
  f.IterateAll(1);
  f.Exit(DeviceAt("west"), kKilled);  // while it evaluates what iteration 1 has made
  const int64_t first = GENERATE(2, 1);
  for (int32_t rank : {0, 1}) {
    v1::WorkerReport ended = EndedReportOf(rank, 1, 2);
    AddState(ended.mutable_ended()->mutable_states(), 1, 1);
    f.Answer(f.sites[static_cast<size_t>(rank)], ended);
  }
  v1::WorkerReport hello = HelloReport();
  v1::WorkerStatus& status = *hello.mutable_hello()->mutable_status();
  status.set_phase(v1::WORKER_PHASE_IDLE);
  AddState(status.mutable_states(), first, 1);
  f.Answer("west", hello);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  f.PrepareAll();
  CHECK(EvaluateFrom(f) == 2);
  f.CommitAll();
  for (int64_t i = first; i < 2; ++i) {
    f.IterateAll(i);
  }
  f.Answer("west", EvaluationReportOf(2, 2, 2, 4.25));
  f.IterateAll(2);
  CHECK(Evaluations(f) == std::vector<int64_t>{1, 2});
  CHECK(f.broken == "");
}

TEST_CASE("an evaluation whose report is lost is told as such") {
  Federation f;
  f.job = EvaluatedJob(1);
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.IterateAll(0);
  CHECK(Evaluations(f).empty());
  f.IterateAll(1);
  CHECK(Evaluations(f) == std::vector<int64_t>{-1});
  f.Answer("west", EvaluationReportOf(2, 1, 2, 4.25));
  f.IterateAll(2);
  f.FinishAll();
  CHECK(Evaluations(f) == std::vector<int64_t>{-1, 2, -3});
}

TEST_CASE("an evaluation that was done while its agent was away is waited for when the agent is back") {
  Federation f(Federation::RecoveringOptions());
  f.job = EvaluatedJob(2);
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.IterateAll(0);
  f.Close(f.sessions["west"]);
  for (int32_t rank : {0, 1}) {
    const std::string& site = f.sites[static_cast<size_t>(rank)];
    f.Answer(site, IterationReportOf(rank, 1, 1));
    f.Answer(site, IterationReportOf(rank, 1, 2));
    f.Answer(site, FinishedReportOf(rank, 1, 3));
  }
  f.RunFor(150 * kSecond);
  Return(f, "west", StateOf(v1::WORKER_PHASE_FINISHED, 1, 3));
  f.RunFor(kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  CHECK(Evaluations(f).empty());
  f.RunFor(5 * kSecond);  // nothing comes
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_COMPLETED);
}

TEST_CASE("another life of the coordinator knows the evaluations") {
  Federation before(Federation::RecoveringOptions());
  before.job = EvaluatedJob(1);
  before.DriveTo(v1::JOB_STATE_RUNNING);
  before.IterateAll(0);
  before.Answer("west", EvaluationReportOf(2, 1, 1, 4.5));
  before.RunFor(kSecond);
  Federation f(NextLife(), before.Stored());
  CHECK(Evaluations(f) == std::vector<int64_t>{1});
  ReturnAll(f, StateOf(v1::WORKER_PHASE_TRAINING, 1, 1));
  f.Answer("west", EvaluationReportOf(2, 1, 1, 4.0));  // sent again
  f.IterateAll(1);
  f.Answer("west", EvaluationReportOf(2, 1, 2, 4.25));
  CHECK(Evaluations(f) == std::vector<int64_t>{1, 2});
  CHECK(f.DetailOf("tiny").evaluations(0).loss() == 4.5);
}

TEST_CASE("ranks that read different validation data do not train") {
  Federation f;
  f.job = EvaluatedJob(1);
  f.DriveTo(v1::JOB_STATE_DEPLOYING);
  for (int32_t rank = 0; rank < 3; ++rank) {
    v1::WorkerReport report = PreparedReportOf(rank, 1);
    if (rank != 1) {
      report.mutable_prepared()->set_validation_bytes(100);
      report.mutable_prepared()->set_validation_checksum(static_cast<uint64_t>(rank));
    }
    f.Answer(f.sites[static_cast<size_t>(rank)], report);
  }
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
  CHECK(f.CauseOf("tiny") ==
        "north/n0/0 and west/n0/0 read different validation data: 100 bytes with checksum 0000000000000000 and 100 "
        "bytes with checksum 0000000000000002; give both the same files");
}

TEST_CASE("a job that goes on from an earlier checkpoint than its newest evaluates from there on") {
  Federation f(Federation::RecoveringOptions());
  f.job = EvaluatedJob(1);
  f.job.training.iterations = 6;
  f.job.checkpoint = {.path = "/checkpoints", .every = 1, .keep = 3};
  f.run.resume = true;
  for (const uint64_t iteration : {2, 4}) {
    v1::CheckpointIdentity& found = f.found.emplace_back();
    found.set_iteration(iteration);
    found.set_incarnation(7);
    found.set_epoch(1);
    found.set_sequence_length(64);
  }
  f.DriveTo(v1::JOB_STATE_DEPLOYING);
  v1::WorkerReport unread = FailureReportOf(absl::StatusCode::kDataLoss, "a file is damaged everywhere");
  unread.set_epoch(1);
  *unread.mutable_failure()->mutable_unreadable() = f.found.back();
  f.Answer("west", unread);
  f.Answer("west", HelloReport());
  f.Answer("north", EndedReportOf(0, 1, 4));
  f.Answer("east", EndedReportOf(1, 1, 4));
  REQUIRE(f.CauseOf("tiny") == "epoch 2 goes on from the checkpoint of iteration 2");
  f.PrepareAll();
  CHECK(EvaluateFrom(f) == 2);
}

}  // namespace
}  // namespace geopipe
