#include "runtime/rehearsal/worker/rehearsed_job.h"

#include <catch2/catch.hpp>
#include <vector>

#include "runtime/worker/rank_job.h"
#include "tests/runtime/worker/fake_cluster.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

TEST_CASE("a job that rehearses nothing is left alone") {
  Allocator allocator(1 << 20);
  RankPreparation preparation;
  CHECK(RehearseJob(preparation, allocator, Clock::Real()) == nullptr);
  preparation.run.pace = true;
  CHECK(RehearseJob(preparation, allocator, Clock::Real()) != nullptr);
}

TEST_CASE("a modelled job needs no data, and reports times but no loss") {
  JobSpec job = SmallJob("/nowhere");
  RunOptions run;
  run.backend = BackendKind::kModelled;
  FakeCluster cluster(2, RehearseJob);
  for (int32_t stage = 0; stage < 2; ++stage) {
    cluster.Command(stage, PrepareCommandFor(job, run, 2, stage));
    cluster.Await(stage, [](const v1::WorkerReport& report) { return report.has_prepared(); });
  }
  cluster.Command(0, CommitCommandFor(2, 2));
  cluster.Command(1, CommitCommandFor(2, 2));
  for (int32_t stage = 0; stage < 2; ++stage) {
    cluster.Await(stage, [](const v1::WorkerReport& report) { return report.has_finished(); });
    int iterations = 0;
    for (const v1::WorkerReport& report : cluster.reports(stage)) {
      if (report.has_iteration()) {
        ++iterations;
        CHECK_FALSE(report.iteration().has_loss());
        CHECK_FALSE(report.iteration().has_grad_norm());
        CHECK(report.iteration().actions_size() == 32);  // F, B and the messages of 8 micro-batches
        CHECK(report.iteration().busy_ns() >= 8 * 3000);
      }
    }
    CHECK(iterations == 2);
  }
}

TEST_CASE("a modelled job runs all ranks of its tensor and data degrees, also with several stages each") {
  JobSpec job = SmallJob("/nowhere");
  job.parallelism.data = 2;
  job.parallelism.tensor = 2;
  RunOptions run;
  run.backend = BackendKind::kModelled;
  run.schedule = GENERATE(ScheduleKind::kOneFOneB, ScheduleKind::kInterleaved, ScheduleKind::kZbV);
  constexpr int32_t kRanks = 2 * 2 * 2;
  FakeCluster cluster(kRanks, RehearseJob);
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    cluster.Command(rank, PrepareCommandFor(job, run, 2, rank));
    cluster.Await(rank, [](const v1::WorkerReport& report) { return report.has_prepared(); });
    cluster.Command(rank, CommitCommandFor(kRanks, 2));
  }
  const auto is_over = [](const v1::WorkerReport& report) { return report.has_finished() || report.has_failure(); };
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    const v1::WorkerReport last = cluster.Await(rank, is_over);
    INFO(last.ShortDebugString());
    REQUIRE(last.has_finished());
    CHECK(last.finished().rank() == rank);
  }
}

TEST_CASE("a rank that is slow holds up its tensor ranks in every action, and its replicas in every iteration") {
  JobSpec job = SmallJob("/nowhere");
  job.parallelism.data = 2;
  job.parallelism.tensor = 2;
  RunOptions run;
  run.backend = BackendKind::kModelled;
  constexpr int32_t kRanks = 2 * 2 * 2;
  constexpr int64_t kSlowNs = 5 * kMs;
  constexpr int64_t kMicroBatches = 4;  // of a replica
  FakeCluster cluster(kRanks, RehearseJob);
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    v1::WorkerCommand prepare = PrepareCommandFor(job, run, 2, rank);
    if (rank == 7) {  // the last pipeline rank's second tensor rank of the second replica
      prepare.mutable_prepare()->mutable_costs()->set_forward_ns(1, kSlowNs);
    }
    cluster.Command(rank, prepare);
    cluster.Await(rank, [](const v1::WorkerReport& report) { return report.has_prepared(); });
    cluster.Command(rank, CommitCommandFor(kRanks, 2));
  }
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    cluster.Await(rank, [](const v1::WorkerReport& report) { return report.has_finished(); });
    for (const v1::WorkerReport& report : cluster.reports(rank)) {
      if (!report.has_iteration()) {
        continue;
      }
      INFO("rank " << rank << " iteration " << report.iteration().iteration());
      if (report.iteration().iteration() == 0) {
        CHECK(report.iteration().duration_ns() >= (kMicroBatches - 1) * kSlowNs);
      }
      std::vector<int64_t> forwards_ns;
      for (const v1::ActionTiming& action : report.iteration().actions()) {
        if (action.action().starts_with("1F")) {
          forwards_ns.push_back(action.start_ns());
        }
      }
      REQUIRE(forwards_ns.size() == (rank < 4 ? 0 : kMicroBatches));
      if (rank == 6) {
        CHECK(forwards_ns.back() - forwards_ns.front() >= (kMicroBatches - 1) * kSlowNs);
      }
    }
  }
}

TEST_CASE("stopped while it waits for a peer, or sleeps in a paced action, a worker ends without a failure") {
  JobSpec job = SmallJob("/nowhere");
  RunOptions run;
  run.backend = BackendKind::kModelled;
  FakeCluster cluster(2, RehearseJob);
  for (int32_t stage = 0; stage < 2; ++stage) {
    v1::WorkerCommand prepare = PrepareCommandFor(job, run, 2, stage);
    prepare.mutable_prepare()->mutable_costs()->set_forward_ns(0, int64_t{3600} * 1'000'000'000);
    cluster.Command(stage, prepare);
    cluster.Command(stage, CommitCommandFor(2, 1));
    cluster.Await(stage, [](const v1::WorkerReport& report) { return report.has_committed(); });
  }
  v1::WorkerCommand stop;
  stop.mutable_stop()->set_reason("cancelled");
  for (int32_t stage = 0; stage < 2; ++stage) {
    cluster.Command(stage, stop);
    CHECK(cluster.worker(stage).WaitEnded(60'000'000'000));
    CHECK(cluster.AwaitExit(stage).code == 0);
    CHECK_FALSE(cluster.reports(stage).back().has_failure());
  }
}

}  // namespace
}  // namespace geopipe
