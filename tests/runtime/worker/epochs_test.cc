// A rank's state outlives its epochs: whatever ends them, and wherever, losses and norms are the same bits.
#include <catch2/catch.hpp>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/worker/rank_job.h"
#include "tests/runtime/worker/fake_cluster.h"
#include "tests/support/sanitized.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

// Abandons an iteration after so many calls of one rank's engines. The others get as far as they can, but none updates
// its weights, as when a rank has not begun the iteration.
class Disturbance {
 public:
  static constexpr int64_t kEvaluation = -2;  // in place of an iteration: calls of evaluations

  void Arm(int64_t iteration, int32_t rank, int32_t call, std::function<void()> abandon) {
    const std::lock_guard lock(mutex_);
    iteration_ = iteration;
    rank_ = rank;
    call_ = call;
    abandon_ = std::move(abandon);
    fired_ = false;
    calls_ = 0;
  }
  void Disarm() { Arm(-1, -1, 0, nullptr); }

  void OnCall(int64_t iteration, int32_t rank) {
    std::unique_lock lock(mutex_);
    if (iteration == iteration_ && rank == rank_ && calls_++ == call_) {
      Fire(lock);
    }
  }
  // Called before the iteration's update. Cancelled: there is none.
  absl::Status OnEnd(int64_t iteration, int32_t rank) {
    std::unique_lock lock(mutex_);
    if (iteration != iteration_) {
      return absl::OkStatus();
    }
    if (rank == rank_ && !fired_) {
      Fire(lock);  // it makes fewer calls
    }
    changed_.wait(lock, [&] { return fired_; });
    return absl::CancelledError("stopped");
  }
  int32_t calls() const { return calls_; }

 private:
  void Fire(std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    abandon_();
    lock.lock();
    fired_ = true;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t iteration_ = -1;
  int32_t rank_ = -1;
  int32_t call_ = 0;
  int32_t calls_ = 0;
  bool fired_ = false;
  std::function<void()> abandon_;
};

class DisturbedEngine final : public StageEngine {
 public:
  DisturbedEngine(std::unique_ptr<StageEngine> engine, int32_t rank, Disturbance& disturbance)
      : engine_(std::move(engine)), rank_(rank), disturbance_(disturbance) {}

  absl::Status BeginIteration(int64_t iteration) override {
    iteration_ = iteration;
    return engine_->BeginIteration(iteration);
  }
  absl::StatusOr<Timed<Tensor>> Forward(int32_t micro_batch, Timed<Tensor> input) override {
    disturbance_.OnCall(iteration_, rank_);
    return engine_->Forward(micro_batch, std::move(input));
  }
  absl::StatusOr<Timed<Tensor>> BackwardInput(int32_t micro_batch, Timed<Tensor> grad_output) override {
    disturbance_.OnCall(iteration_, rank_);
    return engine_->BackwardInput(micro_batch, std::move(grad_output));
  }
  absl::StatusOr<Timed<Tensor>> Backward(int32_t micro_batch, Timed<Tensor> grad_output) override {
    disturbance_.OnCall(iteration_, rank_);
    return engine_->Backward(micro_batch, std::move(grad_output));
  }
  absl::StatusOr<Completion> BackwardWeight(int32_t micro_batch, int64_t from_ns) override {
    disturbance_.OnCall(iteration_, rank_);
    return engine_->BackwardWeight(micro_batch, from_ns);
  }
  absl::StatusOr<std::optional<Timed<Tensor>>> TakeTiedGradient() override { return engine_->TakeTiedGradient(); }
  absl::Status AddTiedGradient(Timed<Tensor> other) override { return engine_->AddTiedGradient(std::move(other)); }
  absl::StatusOr<Timed<ScalarReader>> ReadScalars(bool norm_terms) override {
    GP_ASSIGN_OR_RETURN(Timed<ScalarReader> reader, engine_->ReadScalars(norm_terms));
    GP_RETURN_IF_ERROR(disturbance_.OnEnd(iteration_, rank_));
    return reader;
  }
  absl::StatusOr<Completion> Update(int64_t iteration, std::optional<double> grad_norm, int64_t from_ns) override {
    return engine_->Update(iteration, grad_norm, from_ns);
  }
  absl::Status BeginEvaluation() override { return engine_->BeginEvaluation(); }
  absl::StatusOr<Timed<Tensor>> Evaluate(int64_t pass, int32_t micro_batch, Timed<Tensor> input) override {
    disturbance_.OnCall(Disturbance::kEvaluation, rank_);
    return engine_->Evaluate(pass, micro_batch, std::move(input));
  }
  absl::StatusOr<Timed<LossReader>> EndEvaluation(int64_t passes) override { return engine_->EndEvaluation(passes); }
  void AbandonIteration() override { engine_->AbandonIteration(); }

 private:
  std::unique_ptr<StageEngine> engine_;
  const int32_t rank_;
  Disturbance& disturbance_;
  int64_t iteration_ = 0;
};

class DisturbedJob final : public JobExtension {
 public:
  DisturbedJob(int32_t rank, Disturbance& disturbance) : rank_(rank), disturbance_(disturbance) {}

  absl::StatusOr<std::unique_ptr<StageEngine>> Engine(int32_t, const BuildEngine& build) override {
    GP_ASSIGN_OR_RETURN(std::unique_ptr<StageEngine> engine, build());
    return std::make_unique<DisturbedEngine>(std::move(engine), rank_, disturbance_);
  }
  std::optional<ChannelMessages> Messages(bool) override { return std::nullopt; }
  std::vector<ChannelSpec> Channels() override { return {}; }
  MakeFrameLayer Layer() override { return nullptr; }
  void OnTrain(MessageTransport&, ActionWatch&) override {}

 private:
  const int32_t rank_;
  Disturbance& disturbance_;
};

struct Numbers {
  std::vector<double> losses;
  std::vector<double> grad_norms;  // rank 0's

  friend bool operator==(const Numbers&, const Numbers&) = default;
};

// All ranks of one job, epoch after epoch.
class Ranks {
 public:
  Ranks(const JobSpec& job, const RunOptions& run, int32_t count) : job_(job), run_(run), count_(count) {
    auto network = std::make_unique<InProcessNetwork>(count);
    for (int32_t rank = 0; rank < count; ++rank) {
      auto made = RankJob::Prepare(Preparation(rank, 0), Clock::Real(), Open(*network),
                                   [this, rank](const RankPreparation&, Allocator&, Clock&) {
                                     return std::make_unique<DisturbedJob>(rank, disturbance);
                                   });
      INFO(made.status().ToString());
      REQUIRE(made.ok());
      jobs.push_back(*std::move(made));
      prepared_bytes_.push_back(Bytes(rank));
    }
    network_ = std::move(network);
  }
  ~Ranks() { EndSessions(); }

  int64_t next_iteration() const { return jobs.front()->next_iteration(); }

  void NextEpoch() {
    ++epoch_;
    auto network = std::make_unique<InProcessNetwork>(count_);
    for (int32_t rank = 0; rank < count_; ++rank) {
      const absl::Status status = jobs[rank]->NextEpoch(Preparation(rank, next_iteration()), Open(*network));
      INFO(status.ToString());
      REQUIRE(status.ok());
    }
    network_ = std::move(network);  // and with it the messages of the last epoch
    for (int32_t rank = 0; rank < count_; ++rank) {
      CHECK(Bytes(rank) == prepared_bytes_[rank]);
    }
  }

  void Train(int64_t end_iteration) {
    std::vector<absl::Status> statuses(count_);
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < count_; ++rank) {
      threads.emplace_back([&, rank] {
        statuses[rank] = jobs[rank]->Train(jobs[rank]->next_iteration(), end_iteration,
                                           {.on_report =
                                                [&, rank](IterationStats stats) {
                                                  if (on_report) {
                                                    on_report(rank);
                                                  }
                                                  const std::lock_guard lock(mutex_);
                                                  if (stats.loss.has_value()) {
                                                    numbers.losses.push_back(*stats.loss);
                                                  }
                                                  if (rank == 0) {
                                                    numbers.grad_norms.push_back(stats.grad_norm.value_or(0));
                                                  }
                                                },
                                            .on_evaluation =
                                                [&](const EvaluationStats& stats) {
                                                  const std::lock_guard lock(mutex_);
                                                  evaluations.emplace_back(stats.iteration, stats.loss.value_or(0));
                                                }});
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    for (int32_t rank = 0; rank < count_; ++rank) {
      INFO(statuses[rank].ToString());
      CHECK((statuses[rank].ok() || absl::IsCancelled(statuses[rank])));
      CHECK(jobs[rank]->next_iteration() == next_iteration());
    }
  }

  void EndAll(std::optional<int64_t> abandon_from) {
    for (const auto& job : jobs) {
      job->End(abandon_from);
    }
  }

  Disturbance disturbance;
  Numbers numbers;
  std::function<void(int32_t rank)> on_report;          // may be empty
  std::vector<std::pair<int64_t, double>> evaluations;  // the iteration behind each, and its loss
  std::vector<std::unique_ptr<RankJob>> jobs;

 private:
  RankPreparation Preparation(int32_t rank, int64_t first_iteration) const {
    v1::PrepareCommand command = PrepareCommandFor(job_, run_, count_, rank).prepare();
    command.set_first_iteration(first_iteration);
    return *DecodePreparation(epoch_, command);
  }
  static OpenTransport Open(InProcessNetwork& network) {
    return [&network](const UcxTransportOptions& options) { return OpenFakeTransport(network, options); };
  }
  // Bytes in use, without the backend's workspace, which grows to what its kernels need.
  int64_t Bytes(int32_t rank) const {
    const Allocator& allocator = jobs[rank]->allocator();
    return allocator.total().bytes - allocator.usage(MemoryCategory::kWorkspace).bytes;
  }
  void EndSessions() {
    network_.reset();
    jobs.clear();
  }

  const JobSpec job_;
  const RunOptions run_;
  const int32_t count_;
  uint64_t epoch_ = 1;
  std::unique_ptr<InProcessNetwork> network_;
  std::vector<int64_t> prepared_bytes_;
  std::mutex mutex_;
};

RunOptions RunOf(ScheduleKind kind, int32_t delta_n) {
  RunOptions run;
  run.schedule = kind;
  run.delta_n = {delta_n};
  return run;
}

constexpr int64_t kIterations = 10;

Numbers Undisturbed(const JobSpec& job) {
  Ranks ranks(job, {}, 1);
  ranks.Train(kIterations);
  REQUIRE(ranks.numbers.losses.size() == kIterations);
  return ranks.numbers;
}

// Abandons an iteration at every `stride`th call of every rank, each in an epoch of its own, and finishes some in
// between.
Numbers Disturbed(const JobSpec& job, const RunOptions& run, int32_t count, int32_t stride) {
  Ranks ranks(job, run, count);
  for (int32_t rank = 0; rank < count; ++rank) {
    bool again = true;
    for (int32_t call = rank % stride; again; call += stride) {
      // The first abandoned iteration of each rank follows a finished one, whose report is still to come.
      const int64_t iteration = ranks.next_iteration() + (call < stride ? 1 : 0);
      ranks.disturbance.Arm(iteration, rank, call, [&] { ranks.EndAll(iteration); });
      ranks.Train(kIterations);
      CHECK(ranks.next_iteration() == iteration);
      again = ranks.disturbance.calls() > call;
      ranks.disturbance.Disarm();
      ranks.NextEpoch();
    }
    ranks.Train(ranks.next_iteration() + 2);
    ranks.NextEpoch();
  }
  ranks.Train(kIterations);
  return ranks.numbers;
}

TEST_CASE("an iteration that is abandoned at any action leaves no trace in what follows") {
  const TempDir dir;
  JobSpec job = SmallJob(dir.Write("text", SomeText()));
  job.training.iterations = kIterations;
  for (const bool tied : {false, true}) {
    for (const bool clips : {false, true}) {
      if (kSanitized && tied != clips) {
        continue;
      }
      job.model.tie_word_embeddings = tied;
      job.training.grad_clip = clips ? std::optional(1.0) : std::nullopt;
      const Numbers reference = Undisturbed(job);
      CAPTURE(tied, clips);
      CHECK(Disturbed(job, RunOf(ScheduleKind::kOneFOneB, 0), 3, tied && clips ? 1 : 7) == reference);
      CHECK(Disturbed(job, RunOf(ScheduleKind::kGeoPipe, 1), 3, 7) == reference);
      CHECK(Disturbed(job, RunOf(ScheduleKind::kZbH1, 0), 2, 5) == reference);
      CHECK(Disturbed(job, RunOf(ScheduleKind::kZbV, 0), 3, 7) == reference);  // two stages a rank
      CHECK(Disturbed(job, RunOf(ScheduleKind::kInterleaved, 0), 2, 7) == reference);
      CHECK(Disturbed(job, RunOf(ScheduleKind::kOneFOneB, 0), 1, 5) == reference);
    }
  }
}

TEST_CASE("an evaluation that is abandoned leaves no trace, and is the first that the next epoch does") {
  const TempDir dir;
  JobSpec job = SmallJob(dir.Write("text", SomeText()));
  job.training.iterations = kIterations;
  const Numbers reference = Undisturbed(job);
  job.evaluation = {.every = 2, .data = job.data, .iterations = 2};
  Ranks undisturbed(job, {}, 1);
  undisturbed.Train(kIterations);
  CHECK(undisturbed.numbers == reference);
  REQUIRE(undisturbed.evaluations.size() == kIterations / 2);
  CHECK(undisturbed.evaluations.back().first == kIterations);

  constexpr int32_t kCalls = 16;  // of a rank, in one evaluation
  Ranks ranks(job, RunOf(ScheduleKind::kGeoPipe, 1), 3);
  for (int64_t evaluated = 2; evaluated <= kIterations; evaluated += 2) {
    const auto rank = static_cast<int32_t>(evaluated / 2 % 3);
    // Each epoch begins with the evaluation that the one before has abandoned.
    const int32_t call = (evaluated == 2 ? 0 : kCalls) + 5;
    ranks.disturbance.Arm(Disturbance::kEvaluation, rank, call, [&] { ranks.EndAll(evaluated); });
    ranks.Train(kIterations);
    CHECK(ranks.next_iteration() == evaluated);
    CHECK(std::ssize(ranks.evaluations) == evaluated / 2 - 1);
    ranks.NextEpoch();
  }
  ranks.disturbance.Disarm();
  ranks.Train(kIterations);
  CHECK(ranks.numbers == reference);
  CHECK(ranks.evaluations == undisturbed.evaluations);
}

TEST_CASE("the evaluation after the last iteration belongs to it: an epoch that is told to end still does it") {
  const TempDir dir;
  JobSpec job = SmallJob(dir.Write("text", SomeText()));
  job.training.iterations = 2;
  job.evaluation = {.every = 0, .data = job.data, .iterations = 1};
  Ranks ranks(job, {}, 2);
  // The report of iteration 0 comes while the rank is in iteration 1.
  ranks.on_report = [&](int32_t rank) { ranks.jobs[static_cast<size_t>(rank)]->End(std::nullopt); };
  ranks.Train(2);
  REQUIRE(ranks.evaluations.size() == 1);
  CHECK(ranks.evaluations[0].first == 2);
}

TEST_CASE("an epoch that is ended finishes the iteration under way, and the next goes on from there") {
  const TempDir dir;
  JobSpec job = SmallJob(dir.Write("text", SomeText()));
  job.training.iterations = kIterations;
  const Numbers reference = Undisturbed(job);
  Ranks ranks(job, RunOf(ScheduleKind::kGeoPipe, 1), 3);
  for (int64_t iteration = 0; iteration + 1 < kIterations; ++iteration) {
    ranks.Train(iteration + 1);
    CHECK(ranks.next_iteration() == iteration + 1);
    ranks.EndAll(std::nullopt);  // after the end it changes nothing
    ranks.NextEpoch();
  }
  ranks.Train(kIterations);
  CHECK(ranks.numbers == reference);

  Ranks ended(job, {}, 1);
  ended.jobs.front()->End(std::nullopt);
  ended.Train(kIterations);  // no iteration begins
  CHECK(ended.next_iteration() == 0);
}

TEST_CASE("each state is told once, also where the epoch ends before the iteration that would have been next") {
  const TempDir dir;
  const JobSpec job = SmallJob(dir.Write("text", SomeText()));
  InProcessNetwork network(1);
  const auto made =
      RankJob::Prepare(*DecodePreparation(1, PrepareCommandFor(job, {}, 1, 0).prepare()), Clock::Real(),
                       [&](const UcxTransportOptions& options) { return OpenFakeTransport(network, options); });
  REQUIRE(made.ok());
  RankJob& rank = **made;
  std::vector<int64_t> states;
  const auto on_state = [&](int64_t next_iteration) {
    states.push_back(next_iteration);
    if (next_iteration == 2) {
      rank.End(std::nullopt);
    }
  };
  REQUIRE(rank.Train(0, kIterations, {.on_report = [](const IterationStats&) {}, .on_state = on_state}).ok());
  CHECK(states == std::vector<int64_t>{0, 1, 2, 3});
}

TEST_CASE("an epoch that does not go on from the state is refused with both numbers") {
  const TempDir dir;
  const JobSpec job = SmallJob(dir.Write("text", SomeText()));
  InProcessNetwork network(1);
  const OpenTransport open = [&](const UcxTransportOptions& options) { return OpenFakeTransport(network, options); };
  v1::PrepareCommand command = PrepareCommandFor(job, {}, 1, 0).prepare();
  const auto made = RankJob::Prepare(*DecodePreparation(1, command), Clock::Real(), open);
  REQUIRE(made.ok());
  RankJob& rank = **made;
  REQUIRE(rank.Train(0, 2, {}).ok());
  CHECK(rank.Train(0, 2, {}) ==
        absl::FailedPreconditionError(
            "told to train from iteration 0, but the state of rank 0 is that before iteration 2"));
  command.set_first_iteration(3);
  CHECK(rank.NextEpoch(*DecodePreparation(2, command), open) ==
        absl::FailedPreconditionError(
            "told to go on from iteration 3, but the state of rank 0 is that before iteration 2"));
  CHECK(RankJob::Prepare(*DecodePreparation(2, command), Clock::Real(), open).status() ==
        absl::FailedPreconditionError(
            "told to go on from iteration 3 of epoch 0, but this worker has no such state of rank 0"));
  command.set_first_iteration(2);
  CHECK(rank.NextEpoch(*DecodePreparation(2, command), open).ok());
  JobSpec other = job;
  other.training.learning_rate = 0.5;
  CHECK_FALSE(rank.Serves(*DecodePreparation(3, PrepareCommandFor(other, {}, 1, 0).prepare())));
  CHECK(rank.Serves(*DecodePreparation(3, command)));
}

}  // namespace
}  // namespace geopipe
