#include "runtime/worker/worker_control.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "optimizer/base/splitmix64.h"
#include "tests/runtime/worker/control_harness.h"

namespace geopipe {
namespace {

TEST_CASE("a worker prepares, trains and finishes, each told once with its number and epoch") {
  Harness worker;
  worker.Open();
  CHECK(worker.phase() == v1::WORKER_PHASE_IDLE);
  worker.Command(PrepareOf(3));
  CHECK(worker.phase() == v1::WORKER_PHASE_PREPARING);
  CHECK(worker.Last<RunPrepare>().epoch == 3);
  CHECK(worker.Last<EnterEpoch>().epoch == 3);
  worker.Step(PreparedOf(3));
  CHECK(worker.phase() == v1::WORKER_PHASE_PREPARED);
  worker.Command(CommitOf(3, 2));
  CHECK(worker.Last<RunCommit>().command.end_iteration() == 2);
  worker.Step(Connected{3});
  worker.Step(FinishedOf(3, 0));
  worker.Step(FinishedOf(3, 1));
  worker.Step(ReturnedOf(3, 2));
  CHECK(worker.phase() == v1::WORKER_PHASE_FINISHED);
  REQUIRE(worker.reports.size() == 5);
  for (size_t i = 0; i < 5; ++i) {
    CHECK(worker.reports[i].sequence() == i + 1);
    CHECK(worker.reports[i].epoch() == 3);
  }
  CHECK(worker.reports[0].prepared().address() == "here");
  CHECK(worker.reports[1].committed().rank() == 1);
  CHECK(worker.reports[3].iteration().iteration() == 1);
  CHECK(worker.reports[4].finished().iterations() == 2);
  worker.Pass(1);
  CHECK(worker.commands_taken == 2);
  CHECK(worker.Count<ExitWorker>() == 0);
}

TEST_CASE("a command that comes twice is answered again, and one of an older epoch or not prepared is passed over") {
  Harness worker;
  worker.Open();
  worker.Command(CommitOf(1));
  CHECK(worker.LastLog() == "passed over: commit of epoch 1, which is not prepared");
  worker.Command(PrepareOf(2));
  worker.Command(PrepareOf(2));  // waits for the first, and is then answered too
  CHECK(worker.Count<RunPrepare>() == 1);
  worker.Step(PreparedOf(2));
  CHECK(worker.Count<RunPrepare>() == 1);
  CHECK(worker.reports.size() == 2);
  worker.Command(PrepareOf(1));
  CHECK(worker.LastLog() == "passed over: prepare of epoch 1; this worker is in epoch 2");
  worker.Command(CommitOf(1));
  worker.Command(CommitOf(3));
  CHECK(worker.LastLog() == "passed over: commit of epoch 3, which is not prepared");
  worker.Command(EndOf(1));
  CHECK(worker.LastLog() == "passed over: end of epoch 1; this worker is in epoch 2");
  CHECK(worker.reports.size() == 2);
  worker.Command(CommitOf(2));
  worker.Command(CommitOf(2));
  CHECK(worker.reports.size() == 2);
  worker.Step(Connected{2});
  worker.Command(CommitOf(2));
  worker.Command(PrepareOf(2));
  CHECK(worker.Count<RunCommit>() == 1);
  REQUIRE(worker.reports.size() == 5);
  CHECK(worker.reports[3].has_committed());
  CHECK(worker.reports[4].has_prepared());
  worker.Command(PrepareOf(3));
  CHECK(worker.LastLog() == "passed over: prepare of epoch 3, for epoch 2 has not ended");
  // Results of another epoch change nothing.
  worker.Step(FinishedOf(1, 7));
  worker.Step(ReturnedOf(1, 8));
  CHECK(worker.phase() == v1::WORKER_PHASE_TRAINING);
  CHECK(worker.reports.size() == 5);
}

TEST_CASE("an epoch is ended, first without and then with a number, and the next one prepared") {
  Harness worker;
  worker.Open();
  Train(worker, 1);
  worker.Command(EndOf(1));
  CHECK_FALSE(worker.Last<EndTraining>().abandon_from.has_value());
  worker.Command(EndOf(1, 4));
  CHECK(worker.Last<EndTraining>().abandon_from == 4);
  worker.Step(ReturnedOf(1, 4, absl::CancelledError("stopped")));
  CHECK(worker.phase() == v1::WORKER_PHASE_ENDED);
  REQUIRE(worker.reports.size() == 3);
  CHECK(worker.reports[2].ended().next_iteration() == 4);
  CHECK(worker.reports[2].ended().rank() == 1);
  worker.Command(EndOf(1, 4));
  CHECK(worker.Count<EndTraining>() == 2);
  CHECK(worker.reports.back().has_ended());
  CHECK(worker.reports.size() == 4);

  worker.Command(PrepareOf(2, 4));
  worker.Step(PreparedOf(2, 4));
  worker.Command(EndOf(2));  // nothing has begun
  CHECK(worker.phase() == v1::WORKER_PHASE_ENDED);
  CHECK(worker.reports.back().ended().next_iteration() == 4);
  worker.Command(CommitOf(2));
  CHECK(worker.LastLog() == "passed over: commit of epoch 2, which is not prepared");
  Train(worker, 3, 4);
  CHECK(worker.control().status().next_iteration() == 4);
  CHECK(worker.control().status().epoch() == 3);
}

TEST_CASE("a worker tells how long it has been abandoning an iteration while nothing is computed") {
  Harness worker;
  worker.Open();
  Train(worker, 1);
  const auto beat = [&] { worker.Beat(); };
  worker.Command(EndOf(1, 1));  // the iteration under way is the one before
  worker.Pass(5, beat);
  CHECK(worker.heartbeats.back().heartbeat().status().action().empty());
  worker.Step(FinishedOf(1, 0));
  worker.Pass(2, beat);
  CHECK(worker.heartbeats.back().heartbeat().status().action() == "abandonment");
  CHECK(worker.heartbeats.back().heartbeat().status().action_ns() == 2 * kSecondNs);
  worker.Jump(60 * kSecondNs);  // the process was stopped
  worker.Pass(1, beat);
  CHECK(worker.heartbeats.back().heartbeat().status().action_ns() < 5 * kSecondNs);
  worker.Jump(kSecondNs);
  worker.Step(WorkerTick{.next_iteration = 1, .action = "1F3", .action_ns = 7});
  CHECK(worker.heartbeats.back().heartbeat().status().action() == "1F3");
  worker.Pass(1, beat);
  CHECK(worker.heartbeats.back().heartbeat().status().action_ns() == kSecondNs);  // since the action has ended
  worker.Step(ReturnedOf(1, 1, absl::CancelledError("abandoned")));
  worker.Pass(1, beat);
  CHECK(worker.heartbeats.back().heartbeat().status().action().empty());
}

TEST_CASE("a worker tells how long commands have been waiting for an order that it cannot get over") {
  Harness worker;
  worker.Open();
  const auto beat = [&] { worker.Beat(); };
  const auto action = [&] { return worker.heartbeats.back().heartbeat().status().action(); };
  worker.Command(PrepareOf(1));
  worker.Pass(3, beat);
  CHECK(action().empty());  // nobody waits for it
  worker.Command(EndOf(1));
  worker.Pass(2, beat);
  CHECK(action() == "preparation");
  worker.Command(PrepareOf(2));
  worker.Pass(2, beat);
  CHECK(worker.heartbeats.back().heartbeat().status().action_ns() == 4 * kSecondNs);  // since the first waits
  worker.Step(PreparedOf(1));
  worker.Pass(1, beat);
  CHECK(action().empty());
  CHECK(worker.Last<RunPrepare>().epoch == 2);
}

TEST_CASE("an end that comes with the last iteration is answered besides the finish") {
  Harness worker;
  worker.Open();
  Train(worker, 1);
  worker.Command(EndOf(1));
  worker.Step(ReturnedOf(1, 10));
  CHECK(worker.phase() == v1::WORKER_PHASE_FINISHED);
  REQUIRE(worker.reports.size() == 4);
  CHECK(worker.reports[2].finished().iterations() == 10);
  CHECK(worker.reports[3].ended().next_iteration() == 10);
}

TEST_CASE("consequences of another's loss park the worker, own errors end it after the report") {
  for (const absl::Status& status : {absl::UnavailableError("silent"), absl::DeadlineExceededError("stuck"),
                                     absl::AbortedError("aborted"), absl::CancelledError("cancelled")}) {
    Harness worker;
    worker.Open();
    Train(worker, 1);
    worker.Step(ReturnedOf(1, 3, status));
    CHECK(worker.phase() == v1::WORKER_PHASE_ENDED);
    CHECK(worker.reports.back().failure().parked());
    CHECK(worker.reports.back().failure().next_iteration() == 3);
    CHECK(worker.reports.back().failure().code() == static_cast<int>(status.code()));
    worker.Pass(20, [&] { worker.Beat(); });
    CHECK(worker.Count<ExitWorker>() == 0);
    worker.Command(EndOf(1));
    CHECK(worker.reports.back().ended().next_iteration() == 3);
    Train(worker, 2, 3);
  }
  Harness worker;
  worker.Open();
  Train(worker, 1);
  worker.Step(ReturnedOf(1, 3, absl::OutOfRangeError("the loss is nan")));
  CHECK(worker.reports.back().failure().message() == "the loss is nan");
  CHECK_FALSE(worker.reports.back().failure().parked());
  CHECK(worker.Last<ExitWorker>().code == 1);
  CHECK(worker.Count<InterruptTrainer>() == 1);
  worker.effects.clear();
  worker.Pass(10);
  CHECK(worker.effects.empty());
}

TEST_CASE("a worker that is stopped flushes, waits for the coordinator where it acknowledges, and not for ever") {
  Harness unheard;  // of an agent whose coordinator has taken nothing yet
  unheard.Open();
  Train(unheard, 1);
  unheard.Command(StopOf());
  CHECK(unheard.Last<ExitWorker>().code == 0);
  CHECK(unheard.Count<InterruptTrainer>() == 1);

  Harness worker;
  worker.Open();
  Train(worker, 1);
  worker.Beat(1);
  worker.Command(StopOf());
  CHECK(worker.Count<ExitWorker>() == 0);
  worker.Beat(2);
  CHECK(worker.Last<ExitWorker>().reason == "enough");
  CHECK(worker.Last<ExitWorker>().has_words);

  Harness slow;
  slow.Open();
  Train(slow, 1);
  slow.Beat(1);
  slow.Step(ShutdownRequested{"signal"});
  CHECK(slow.Count<ExitWorker>() == 0);
  CHECK(slow.control().next_deadline_ns() <= slow.now_ns() + kSecondNs);
  slow.Pass(1);
  CHECK(slow.Last<ExitWorker>().code == 0);
}

TEST_CASE("what a worker can go on from is told between two epochs, newest first, and not while it changes") {
  WorkerControlOptions options = Harness::Options();
  options.kept = {.run_incarnation = 7, .held = std::nullopt, .kept = {{4, 1}, {5, 1}}};
  const v1::WorkerStatus idle = WorkerControl(options, 0).status();
  REQUIRE(idle.states_size() == 2);  // of an earlier process
  CHECK(idle.states(0).iteration() == 5);
  CHECK(idle.states(0).epoch() == 1);
  CHECK(idle.states(0).run_incarnation() == 7);

  Harness worker;
  worker.Open();
  Train(worker, 2, 5);
  CHECK(worker.control().status().states_size() == 0);
  RunStates states = StatesAt(2, 8);
  states.kept = {{7, 2}, {8, 2}};
  worker.Step(
      TrainingReturned{.epoch = 2, .status = absl::UnavailableError("a peer is gone"), .states = states, .peaks = {}});
  const v1::FailureReport parked = worker.reports.back().failure();
  REQUIRE(parked.states_size() == 2);  // the one that is held is kept, too
  CHECK(parked.states(0).iteration() == 8);
  CHECK(parked.states(1).iteration() == 7);
  CHECK(worker.control().status().states_size() == 2);
}

// A list of that many chunks.
DataChecked CheckedOf(int chunks) {
  v1::DataCheckReport report;
  report.set_data_bytes(1000);
  report.set_chunk_bytes(100);
  report.mutable_checksums()->Resize(chunks, 7);
  return {.report = report};
}

TEST_CASE("what the check of the data has found is told at once, again every minute, and before the finish") {
  Harness worker;
  const auto told = [&] {
    std::vector<int> chunks;
    for (const v1::WorkerReport& report : std::exchange(worker.heartbeats, {})) {
      if (report.has_data_check()) {
        chunks.push_back(report.data_check().checksums_size());
        CHECK(report.epoch() == 3);
        CHECK(report.data_check().data_bytes() == 1000);
      }
    }
    return chunks;
  };
  worker.Open();
  Train(worker, 3);
  const size_t numbered = worker.reports.size();
  worker.Beat(numbered);
  worker.Pass(100, [&] { worker.Beat(); });
  CHECK(told().empty());
  worker.Step(CheckedOf(1));
  CHECK(told() == std::vector<int>{1});
  worker.Pass(59, [&] { worker.Beat(); });
  CHECK(told().empty());
  worker.Pass(61, [&] { worker.Beat(); });
  CHECK(told() == std::vector<int>{1, 1});
  worker.Break();
  worker.Step(CheckedOf(2));
  CHECK(told().empty());
  worker.Until<DialAgent>();
  worker.Open();
  worker.Beat();
  worker.Pass(2, [&] { worker.Beat(); });
  CHECK(told() == std::vector<int>{2});
  CHECK(worker.reports.size() == numbered);
  const size_t effects = worker.effects.size();
  worker.Step(ReturnedOf(3, 10));
  std::vector<v1::WorkerReport::ReportCase> last;
  for (size_t i = effects; i < worker.effects.size(); ++i) {
    if (const auto* send = std::get_if<TellAgent>(&worker.effects[i])) {
      last.push_back(send->request.report().report_case());
    }
  }
  CHECK(last == std::vector{v1::WorkerReport::kDataCheck, v1::WorkerReport::kFinished});
}

TEST_CASE("data that cannot be trained on ends the worker, whatever it is at") {
  Harness worker;
  worker.Open();
  Train(worker, 3);
  worker.Step(DataChecked{.report = absl::InvalidArgumentError("/data: token 9 is none")});
  CHECK(worker.reports.back().failure().message() == "/data: token 9 is none");
  CHECK_FALSE(worker.reports.back().failure().parked());
  CHECK(worker.Count<InterruptTrainer>() == 1);
  CHECK(worker.Last<ExitWorker>().code == 1);
  CHECK(worker.Last<ExitWorker>().reason == "/data: token 9 is none");
}

TEST_CASE("profiles are measured one after the other, and told again when asked again") {
  Harness worker;
  worker.Open();
  v1::WorkerCommand command;
  command.mutable_profile()->set_round(1);
  worker.Command(command);
  CHECK(worker.phase() == v1::WORKER_PHASE_PROFILING);
  worker.Command(PrepareOf(1));  // waits
  CHECK(worker.Count<RunPrepare>() == 0);
  v1::ProfileReport report;
  report.set_round(1);
  worker.Step(Profiled{report});
  CHECK(worker.Count<RunPrepare>() == 1);
  CHECK(worker.reports.back().profile().round() == 1);
  worker.Step(PreparedOf(1));
  worker.Command(command);
  CHECK(worker.LastLog() == "passed over: profile round 1, for epoch 1 is prepared");

  Harness again;
  again.Open();
  again.Command(command);
  again.Step(Profiled{report});
  again.Command(command);
  CHECK(again.Count<RunProfile>() == 1);
  CHECK(again.reports.size() == 2);
}

// Random events on a worker whose trainer answers at random.
class RandomRun {
 public:
  explicit RandomRun(SplitMix64& random) : random_(random) {}

  void Step() {
    Do(random_.Next() % 14);
    for (; seen_ < worker_.effects.size(); ++seen_) {
      std::visit([this](const auto& effect) { Check(effect); }, worker_.effects[seen_]);
    }
  }

 private:
  void Do(uint64_t what) {
    const uint64_t other = 1 + random_.Next() % 4;
    const bool answers = busy_ && random_.Next() % 2 == 0;
    if (what == 0) {
      worker_.Open();
    } else if (what == 1) {
      worker_.Break();
    } else if (what == 2) {
      worker_.Beat(random_.Next() % (sequence_ + 1));
    } else if (what <= 4) {
      worker_.Command(PrepareOf(other));
    } else if (what <= 6) {
      worker_.Command(CommitOf(other));
    } else if (what == 7) {
      worker_.Command(EndOf(other));
    } else if (what <= 9 && answers && worker_.phase() == v1::WORKER_PHASE_PREPARING) {
      busy_ = false;
      worker_.Step(PreparedOf(epoch_));
    } else if (what == 10 && worker_.phase() == v1::WORKER_PHASE_TRAINING) {
      worker_.Step(Connected{epoch_});
    } else if (what == 11 && answers && worker_.phase() == v1::WORKER_PHASE_TRAINING) {
      busy_ = false;
      const bool ended = random_.Next() % 2 == 0;
      worker_.Step(ended ? ReturnedOf(epoch_, 10) : ReturnedOf(epoch_, 3, absl::UnavailableError("gone")));
    } else if (what == 12) {
      worker_.Pass(static_cast<int64_t>(random_.Next() % 3));
    } else if (random_.Next() % 50 == 0) {
      worker_.Step(ShutdownRequested{"random"});
    }
  }

  void Check(const RunPrepare& effect) {
    CHECK_FALSE(busy_);
    CHECK(effect.epoch >= epoch_);
    busy_ = true;
    epoch_ = effect.epoch;
  }
  void Check(const RunCommit& effect) {
    CHECK_FALSE(busy_);
    CHECK(effect.epoch == epoch_);
    busy_ = true;
  }
  void Check(const TellAgent& effect) {
    const uint64_t number = effect.request.report().sequence();
    CHECK(number <= sequence_ + 1);
    sequence_ = std::max(sequence_, number);
  }
  void Check(const ExitWorker&) { CHECK(++exits_ == 1); }
  template <class Effect>
  void Check(const Effect&) {
    CHECK(exits_ == 0);
  }

  SplitMix64& random_;
  Harness worker_;
  bool busy_ = false;
  uint64_t epoch_ = 0;
  uint64_t sequence_ = 0;
  size_t seen_ = 0;
  int exits_ = 0;
};

// Rules that hold whatever comes, in whatever order: reports are numbered without a gap, orders to the trainer never
// overlap, and there is one exit.
TEST_CASE("random events break no rule") {
  constexpr uint64_t kSeed = 16;
  INFO("seed " << kSeed);
  SplitMix64 random(kSeed);
  for (int round = 0; round < 300; ++round) {
    RandomRun run(random);
    for (int i = 0; i < 300; ++i) {
      run.Step();
    }
  }
}

}  // namespace
}  // namespace geopipe
