// Tests the trainer's thread with requests for checkpoints that come at points of its training which its own events
// mark: each is answered once, or left for the control that training returns to.
#include "runtime/worker/trainer.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "tests/runtime/worker/fake_cluster.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

constexpr int64_t kEndsAt = 4;

// A trainer that has prepared the only rank of a job, and the events that it and its writer have posted.
class TrainerRun {
 public:
  // `on_event` is called with each event on the thread that it comes from, before it is noted.
  explicit TrainerRun(std::function<void(Trainer&, const WorkerEvent&)> on_event) : on_event_(std::move(on_event)) {
    JobSpec job = SmallJob(dir_.Write("text", SomeText()));
    job.training.iterations = kEndsAt;
    job.checkpoint = {.path = dir_.path() + "/checkpoints", .every = 0, .keep = 100};
    Trainer::Hooks hooks;
    hooks.post = [this](WorkerEvent event) { Take(std::move(event)); };
    hooks.open_transport = [this](const UcxTransportOptions& options) { return OpenFakeTransport(network_, options); };
    trainer_ = std::make_unique<Trainer>(WorkerIdentity{.site = "here", .node = "n0", .device = 0}, Clock::Real(),
                                         std::move(hooks));
    trainer_->Run(RunPrepare{.epoch = 1, .command = PrepareCommandFor(job, {}, 1, 0).prepare()});
    Await<Prepared>(1);
  }
  ~TrainerRun() { FreeWriter(); }
  TrainerRun(const TrainerRun&) = delete;
  TrainerRun& operator=(const TrainerRun&) = delete;

  Trainer& trainer() { return *trainer_; }
  void Train() {
    trainer_->Run(RunCommit{.epoch = 1, .command = CommitCommandFor(1, kEndsAt).commit()});
    Await<TrainingReturned>(1);
  }
  // Lets the writer take copies, and write none before FreeWriter.
  void HoldWriter() {
    held_ = true;  // by the next order
    trainer_->Complete({.epoch = 1, .command = {}});
  }
  void FreeWriter() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }

  template <class Event>
  std::vector<Event> All() const {
    std::vector<Event> all;
    for (const WorkerEvent& event : events_) {
      if (const auto* each = std::get_if<Event>(&event)) {
        all.push_back(*each);
      }
    }
    return all;
  }
  // Waits until there are so many events of a kind; fails the test after a minute.
  template <class Event>
  std::vector<Event> Await(size_t count) {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, std::chrono::minutes(1), [&] { return All<Event>().size() >= count; }));
    return All<Event>();
  }

 private:
  void Take(WorkerEvent event) {
    on_event_(*trainer_, event);
    std::unique_lock lock(mutex_);
    if (std::holds_alternative<ManifestWritten>(event)) {
      changed_.wait(lock, [&] { return !held_; });
    }
    events_.push_back(std::move(event));
    changed_.notify_all();
  }

  const std::function<void(Trainer&, const WorkerEvent&)> on_event_;
  const TempDir dir_;
  InProcessNetwork network_{1};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  std::vector<WorkerEvent> events_;
  std::unique_ptr<Trainer> trainer_;
};

TEST_CASE("checkpoints that are asked for in training are answered at their iterations, or when these have passed") {
  TrainerRun run([](Trainer& trainer, const WorkerEvent& event) {
    const auto* taken = std::get_if<CheckpointTaken>(&event);
    if (std::holds_alternative<Connected>(event)) {
      trainer.Request({.iteration = 3});
      trainer.Request({.iteration = 2});
      trainer.Request({.iteration = 2});
    } else if (taken != nullptr && taken->iteration == 2) {
      trainer.Request({.iteration = 1});
    }
  });
  run.HoldWriter();
  run.Train();
  std::vector<std::tuple<int64_t, absl::StatusCode>> taken;
  for (const CheckpointTaken& each : run.Await<CheckpointTaken>(0)) {
    taken.emplace_back(each.iteration, each.status.code());
  }
  // The writer holds the first.
  CHECK(taken == std::vector<std::tuple<int64_t, absl::StatusCode>>{{2, absl::StatusCode::kOk},
                                                                    {1, absl::StatusCode::kFailedPrecondition},
                                                                    {3, absl::StatusCode::kUnavailable},
                                                                    {kEndsAt, absl::StatusCode::kUnavailable}});
  CHECK(run.Await<CheckpointTaken>(2).at(1).status.message() == "rank 0 has gone on to iteration 3");
  CHECK(run.trainer().TakeRequests().empty());
  run.FreeWriter();
  CHECK(run.Await<CheckpointWritten>(1).front().report.iteration() == 2);
}

TEST_CASE("requests that come behind the last state are left, and one copy answers all who ask until it is written") {
  TrainerRun run([trains = true](Trainer& trainer, const WorkerEvent& event) mutable {
    if (std::holds_alternative<CheckpointTaken>(event) && trains) {
      trainer.Request({.iteration = kEndsAt});
    } else if (std::holds_alternative<TrainingReturned>(event)) {
      trainer.Request({.iteration = 9});  // as the control may until it has taken this event
      trains = false;
    }
  });
  run.HoldWriter();
  run.Train();
  CHECK(run.trainer().TakeRequests() == std::vector<int64_t>{kEndsAt, 9});
  CHECK(run.trainer().TakeRequests().empty());

  const auto save = [&](size_t taken) {
    run.trainer().Run(RunCheckpoint{.epoch = 1, .iteration = kEndsAt});
    CHECK(run.Await<CheckpointTaken>(taken).back().status == absl::OkStatus());
  };
  save(2);
  run.FreeWriter();
  run.Await<CheckpointWritten>(1);
  run.trainer().Complete({.epoch = 1, .command = {}});  // after all that was to be written before it
  run.Await<ManifestWritten>(2);
  CHECK(run.Await<CheckpointWritten>(1).size() == 1);
  save(3);
  CHECK(run.Await<CheckpointWritten>(2).back().report.iteration() == kEndsAt);
}

}  // namespace
}  // namespace geopipe
