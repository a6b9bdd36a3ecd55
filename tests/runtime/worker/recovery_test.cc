// A rank whose process is gone goes on from what it has kept in memory, to the same bits.
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/worker/rank_job.h"
#include "tests/runtime/worker/fake_cluster.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

constexpr int64_t kLast = 8;

// The memory that a keeper holds, and one process after the other that is given it.
class KeptRank {
 public:
  explicit KeptRank(JobSpec job) : job_(std::move(job)), memory_(memfd_create("kept-rank-test", MFD_CLOEXEC)) {
    REQUIRE(memory_.valid());
  }
  KeptRank(const KeptRank&) = delete;
  KeptRank& operator=(const KeptRank&) = delete;
  ~KeptRank() { job.reset(); }  // before what it was given

  // The earlier process is gone, with all it had.
  absl::Status Begin(uint64_t epoch, const StateIdentity& from, int64_t memory_limit_bytes = 0, int32_t ranks = 1) {
    job.reset();
    kept_ = std::make_unique<KeptStates>(KeptStates::Open(UniqueFd(dup(memory_.get()))).value());
    return BeginInPlace(epoch, from, memory_limit_bytes, ranks);
  }
  // Begins likewise, in the process that there is.
  absl::Status BeginInPlace(uint64_t epoch, const StateIdentity& from, int64_t memory_limit_bytes = 0,
                            int32_t ranks = 1) {
    job.reset();
    network_ = std::make_unique<InProcessNetwork>(ranks);
    v1::PrepareCommand command = PrepareCommandFor(job_, {}, ranks, 0).prepare();
    command.set_first_iteration(from.iteration);
    command.set_state_epoch(from.epoch);
    command.set_run_incarnation(77);
    if (memory_limit_bytes > 0) {
      command.set_memory_limit_bytes(memory_limit_bytes);
    }
    auto made = RankJob::Prepare(
        *DecodePreparation(epoch, command), Clock::Real(),
        [this](const UcxTransportOptions& options) { return OpenFakeTransport(*network_, options); }, nullptr,
        kept_.get());
    if (made.ok()) {
      job = *std::move(made);
    }
    return made.status();
  }

  // Trains up to `end`, keeping each state. Returns the losses.
  std::vector<double> Train(int64_t end) {
    std::vector<double> losses;
    const absl::Status status =
        job->Train(job->next_iteration(), end,
                   {.on_report = [&](const IterationStats& stats) { losses.push_back(*stats.loss); },
                    .on_state = [&](int64_t) { CHECK(job->KeepState().ok()); }});
    INFO(status.ToString());
    CHECK(status.ok());
    return losses;
  }

  // Flips a bit of a kept state: of the one that lies first, or of the other.
  void Damage(bool first) {
    const off_t at = lseek(memory_.get(), 0, SEEK_END) / 4 * (first ? 1 : 3);
    char byte = 0;
    REQUIRE(pread(memory_.get(), &byte, 1, at) == 1);
    byte = static_cast<char>(byte ^ 0x40);
    REQUIRE(pwrite(memory_.get(), &byte, 1, at) == 1);
  }
  // The states that a process finds which is given the memory.
  std::vector<StateIdentity> Found() const { return KeptStates::Open(UniqueFd(dup(memory_.get())))->List(77); }

  std::unique_ptr<RankJob> job;

 private:
  const JobSpec job_;
  UniqueFd memory_;
  std::unique_ptr<KeptStates> kept_;
  std::unique_ptr<InProcessNetwork> network_;
};

JobSpec KeepingJob(const TempDir& dir) {
  JobSpec job = SmallJob(dir.Write("text", SomeText()));
  job.training.iterations = kLast;
  job.recovery = Recovery::kMemory;
  return job;
}

TEST_CASE("a rank goes on from either of its last two states in another process, with the same losses") {
  const TempDir dir;
  KeptRank undisturbed(KeepingJob(dir));
  REQUIRE(undisturbed.Begin(1, {}).ok());
  const std::vector<double> expected = undisturbed.Train(kLast);
  REQUIRE(std::ssize(expected) == kLast);

  KeptRank rank(KeepingJob(dir));
  REQUIRE(rank.Begin(1, {}).ok());
  CHECK(rank.job->kept_states().empty());
  std::vector<double> losses = rank.Train(3);
  CHECK(rank.job->state() == StateIdentity{3, 1});
  CHECK(rank.job->kept_states() == std::vector<StateIdentity>{{3, 1}, {2, 1}});

  REQUIRE(rank.Begin(2, {3, 1}).ok());
  CHECK(rank.job->state() == StateIdentity{3, 1});
  for (const double loss : rank.Train(5)) {
    losses.push_back(loss);
  }
  CHECK(losses == std::vector<double>(expected.begin(), expected.begin() + 5));
  CHECK(rank.job->kept_states() == std::vector<StateIdentity>{{5, 2}, {4, 2}});

  REQUIRE(rank.Begin(3, {4, 2}).ok());  // one iteration is repeated
  CHECK(rank.Train(kLast) == std::vector<double>(expected.begin() + 4, expected.end()));

  REQUIRE(rank.Begin(4, {}).ok());  // or all
  CHECK(rank.Train(kLast) == expected);
}

TEST_CASE("a rank whose process has damaged one of its states goes on from the other, with the same losses") {
  const TempDir dir;
  KeptRank undisturbed(KeepingJob(dir));
  REQUIRE(undisturbed.Begin(1, {}).ok());
  const std::vector<double> expected = undisturbed.Train(kLast);
  std::set<int64_t> lost;
  for (const bool first : {true, false}) {
    KeptRank rank(KeepingJob(dir));
    REQUIRE(rank.Begin(1, {}).ok());
    rank.Train(3);
    rank.Damage(first);
    const std::vector<StateIdentity> found = rank.Found();
    REQUIRE(found.size() == 1);
    lost.insert(found[0].iteration == 3 ? 2 : 3);
    CHECK(rank.Begin(2, {found[0].iteration == 3 ? 2 : 3, 1}).message().find("has no such state of rank 0") !=
          std::string::npos);
    REQUIRE(rank.Begin(2, found[0]).ok());
    CHECK(rank.job->kept_states() == found);
    CHECK(rank.Train(kLast) == std::vector<double>(expected.begin() + found[0].iteration, expected.end()));
    CHECK(rank.job->kept_states() == std::vector<StateIdentity>{{kLast, 2}, {kLast - 1, 2}});
  }
  CHECK(lost == std::set<int64_t>{2, 3});

  // The same process, told to go back to a state that it has kept itself.
  KeptRank rank(KeepingJob(dir));
  REQUIRE(rank.Begin(1, {}).ok());
  rank.Train(3);
  rank.Damage(true);
  const absl::Status one = rank.BeginInPlace(2, {3, 1});
  const absl::Status other = rank.BeginInPlace(2, {2, 1});
  CHECK(one.ok() != other.ok());
  CHECK(absl::IsInternal(one.ok() ? other : one));
}

TEST_CASE("a state that is not kept is refused, and so is one of another epoch") {
  const TempDir dir;
  KeptRank rank(KeepingJob(dir));
  REQUIRE(rank.Begin(1, {}).ok());
  rank.Train(3);
  const std::string no_such = "told to go on from iteration 1 of epoch 1, but this worker has no such state of rank 0";
  CHECK(rank.Begin(2, {1, 1}).message() == no_such);
  CHECK_FALSE(rank.Begin(2, {3, 2}).ok());
  CHECK(rank.Begin(2, {3, 1}).ok());
  JobSpec forgets = KeepingJob(dir);
  forgets.recovery = Recovery::kCheckpoint;
  KeptRank other(forgets);
  REQUIRE(other.Begin(1, {}).ok());
  other.Train(3);
  CHECK(other.job->kept_states().empty());
  CHECK_FALSE(other.Begin(2, {3, 1}).ok());
}

// Ranks 0 and 1 are replicas, ranks 2 and 3 those of the next stage. What a worker of the cluster does in an epoch.
void TrainReplicas(FakeCluster& cluster, const JobSpec& job, uint64_t epoch, const std::vector<int32_t>& workers,
                   StateIdentity from, int64_t end, const std::vector<int32_t>& givers) {
  const auto ranks = static_cast<int32_t>(workers.size());
  for (int32_t rank = 0; rank < ranks; ++rank) {
    v1::WorkerCommand command = PrepareCommandFor(job, {}, ranks / 2, rank);
    command.set_epoch(epoch);
    command.mutable_prepare()->set_run_incarnation(77);
    command.mutable_prepare()->set_first_iteration(from.iteration);
    command.mutable_prepare()->set_state_epoch(from.epoch);
    command.mutable_prepare()->set_given_state_bytes(1'000'000);
    if (givers[rank] >= 0) {
      command.mutable_prepare()->set_state_of_rank(givers[rank]);
    }
    cluster.Command(workers[rank], command);
    const v1::WorkerReport report = cluster.Await(workers[rank], [&](const v1::WorkerReport& each) {
      return each.epoch() == epoch && (each.has_prepared() || each.has_failure());
    });
    INFO(report.failure().message());
    REQUIRE(report.has_prepared());
  }
  for (const int32_t worker : workers) {
    v1::WorkerCommand command = CommitCommandFor(ranks, end);
    command.set_epoch(epoch);
    command.mutable_commit()->set_start_iteration(from.iteration);
    cluster.Command(worker, command);
  }
  for (const int32_t worker : workers) {
    cluster.Await(worker, [&](const v1::WorkerReport& each) { return each.epoch() == epoch && each.has_finished(); });
  }
}

std::vector<double> LossesOf(FakeCluster& cluster, int32_t worker, uint64_t epoch) {
  std::vector<double> losses;
  for (const v1::WorkerReport& report : cluster.reports(worker)) {
    if (report.epoch() == epoch && report.iteration().has_loss()) {
      losses.push_back(report.iteration().loss());
    }
  }
  return losses;
}

TEST_CASE("a worker without a state is given it by a replica, and goes on with the same bits") {
  const TempDir dir;
  JobSpec job = SmallJob(dir.Write("text", SomeText()));
  job.training.iterations = kLast;
  job.parallelism.data = 2;
  job.precision = GENERATE(Precision::kFp32, Precision::kBf16);
  FakeCluster undisturbed(4);
  TrainReplicas(undisturbed, job, 1, {0, 1, 2, 3}, {}, kLast, {-1, -1, -1, -1});
  const std::vector<double> expected = LossesOf(undisturbed, 2, 1);
  REQUIRE(std::ssize(expected) == kLast);

  FakeCluster cluster(6);
  TrainReplicas(cluster, job, 1, {0, 1, 2, 3}, {}, 3, {-1, -1, -1, -1});
  // Two are lost, one of each stage: workers 4 and 5 are others.
  TrainReplicas(cluster, job, 2, {4, 1, 2, 5}, {3, 1}, 5, {1, 1, 2, 2});
  CHECK(LossesOf(cluster, 2, 2) == std::vector<double>(expected.begin() + 3, expected.begin() + 5));
  CHECK(LossesOf(cluster, 5, 2) == LossesOf(cluster, 2, 2));
  // The receivers have the state now; nobody lacks it where all are told the same.
  TrainReplicas(cluster, job, 3, {4, 1, 2, 5}, {5, 2}, kLast, {0, 0, 3, 3});
  CHECK(LossesOf(cluster, 5, 3) == std::vector<double>(expected.begin() + 5, expected.end()));
}

TEST_CASE("a worker that waits for a state has none to tell of") {
  const TempDir dir;
  JobSpec job = SmallJob(dir.Write("text", SomeText()));
  job.parallelism.data = 2;
  v1::PrepareCommand command = PrepareCommandFor(job, {}, 1, 1).prepare();
  command.set_first_iteration(3);
  command.set_state_epoch(1);
  InProcessNetwork network(2);
  const auto prepare = [&](int32_t giver) {
    command.set_state_of_rank(giver);
    absl::StatusOr<RankPreparation> preparation = DecodePreparation(2, command);
    if (!preparation.ok()) {
      return absl::StatusOr<std::unique_ptr<RankJob>>(preparation.status());
    }
    return RankJob::Prepare(*std::move(preparation), Clock::Real(),
                            [&](const UcxTransportOptions& options) { return OpenFakeTransport(network, options); });
  };
  {
    const auto job_of_rank = prepare(0);
    INFO(job_of_rank.status());
    REQUIRE(job_of_rank.ok());
    CHECK_FALSE((*job_of_rank)->holds_state());
    CHECK((*job_of_rank)->next_iteration() == 3);
  }
  CHECK(prepare(1).status().message() ==
        "told to go on from iteration 3 of epoch 1, but this worker has no such state of rank 1");
  CHECK(prepare(2).status().message() ==
        "prepare.state_of_rank is 2, which has another state than rank 1: only replicas whose states are not divided "
        "(zero_stage 0) can give it");
  job.parallelism.zero_stage = 1;
  *command.mutable_plan() = PrepareCommandFor(job, {}, 1, 1).prepare().plan();
  CHECK(absl::IsInvalidArgument(prepare(0).status()));
}

TEST_CASE("what is kept counts as memory of the device, and is refused by name where it does not fit") {
  const TempDir dir;
  JobSpec job = KeepingJob(dir);
  KeptRank rank(job);
  REQUIRE(rank.Begin(1, {}).ok());
  const int64_t kept = rank.job->allocator().usage(MemoryCategory::kRecovery).bytes;
  const int64_t weights = rank.job->allocator().usage(MemoryCategory::kWeights).bytes;
  CHECK(kept == 6 * weights);  // 24 bytes for each 4
  // All that is taken up to then.
  const int64_t all =
      rank.job->allocator().total().bytes - rank.job->allocator().usage(MemoryCategory::kTransport).bytes;
  const absl::Status refused = rank.Begin(1, {}, all - 1);
  CHECK(absl::IsResourceExhausted(refused));
  CHECK_THAT(std::string(refused.message()), Catch::Contains("for recovery do not fit into the device's memory"));
}

}  // namespace
}  // namespace geopipe
