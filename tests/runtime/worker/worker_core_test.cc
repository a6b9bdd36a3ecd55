#include "runtime/worker/worker_core.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "proto/wire/session_wire.h"
#include "runtime/manifest/job_manifest.h"
#include "tests/runtime/worker/fake_cluster.h"
#include "tests/support/sanitized.h"
#include "tests/support/sparse_file.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

bool IsPrepared(const v1::WorkerReport& report) { return report.has_prepared(); }
bool IsFinished(const v1::WorkerReport& report) { return report.has_finished(); }
bool IsFailure(const v1::WorkerReport& report) { return report.has_failure(); }

void PrepareAll(FakeCluster& cluster, const JobSpec& job, const RunOptions& run, int32_t ranks) {
  for (int32_t rank = 0; rank < ranks; ++rank) {
    cluster.Command(rank, PrepareCommandFor(job, run, ranks, rank));
  }
  for (int32_t rank = 0; rank < ranks; ++rank) {
    cluster.Await(rank, [](const v1::WorkerReport& report) { return IsPrepared(report) || IsFailure(report); });
    INFO(cluster.reports(rank).back().ShortDebugString());
    REQUIRE(cluster.reports(rank).back().has_prepared());
  }
}

struct Numbers {
  std::vector<double> losses;
  std::vector<double> grad_norms;  // as rank 0 says
  std::vector<double> validation_losses;

  friend bool operator==(const Numbers&, const Numbers&) = default;
};

// A whole job over so many pipeline ranks.
Numbers Train(const JobSpec& job, const RunOptions& run, int32_t ranks) {
  FakeCluster cluster(ranks);
  PrepareAll(cluster, job, run, ranks);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    cluster.Command(rank, CommitCommandFor(ranks, job.training.iterations));
  }
  Numbers numbers;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    cluster.Await(rank, [](const v1::WorkerReport& report) { return IsFinished(report) || IsFailure(report); });
    INFO(cluster.reports(rank).back().ShortDebugString());
    for (const v1::WorkerReport& report : cluster.reports(rank)) {
      CHECK(ValidateMessage(report).ok());
      CHECK(report.epoch() == 1);
      if (report.iteration().has_loss()) {
        numbers.losses.push_back(report.iteration().loss());
      }
      if (report.has_evaluation()) {
        numbers.validation_losses.push_back(report.evaluation().loss());
      }
      if (rank == 0 && report.iteration().has_grad_norm()) {
        numbers.grad_norms.push_back(report.iteration().grad_norm());
      }
    }
    CHECK(cluster.reports(rank).back().has_finished());
    CHECK_FALSE(cluster.worker(rank).WaitExit(0));  // it stays, for peers that still need its acknowledgements
    cluster.worker(rank).Stop("done");
    CHECK(cluster.AwaitExit(rank).code == 0);
  }
  return numbers;
}

TEST_CASE("losses and norms are the same bits for every schedule, every delta_n and every number of ranks and stages") {
  const TempDir dir;
  JobSpec job = SmallJob(dir.Write("text", SomeText()));
  job.training.grad_clip = 1.0;
  const auto options = [](ScheduleKind kind, int32_t delta_n, CommMode comm = CommMode::kNonBlocking) {
    RunOptions run;
    run.schedule = kind;
    run.delta_n = {delta_n};
    run.comm = comm;
    return run;
  };
  for (const bool tied : {false, true}) {
    job.model.tie_word_embeddings = tied;
    job.evaluation = {};
    const Numbers alone = Train(job, {}, 1);
    job.evaluation = {.every = 2, .data = job.data, .iterations = 2};
    job.evaluation.data.shuffle = false;
    const Numbers reference = Train(job, {}, 1);
    CHECK(reference.losses == alone.losses);
    CHECK(reference.grad_norms == alone.grad_norms);
    REQUIRE(reference.losses.size() == 4);
    REQUIRE(reference.grad_norms.size() == 4);
    REQUIRE(reference.validation_losses.size() == 2);  // after 2 and 4 iterations
    CHECK(reference.validation_losses.back() < reference.validation_losses.front());
    CHECK(reference.losses.back() < reference.losses.front());
    for (const int32_t ranks : {1, 2, 3, 6}) {
      if (kSanitized && ranks % 2 != 0) {
        continue;
      }
      CAPTURE(tied, ranks);
      CHECK(Train(job, options(ScheduleKind::kGpipe, 0), ranks) == reference);
      CHECK(Train(job, options(ScheduleKind::kOneFOneB, 0), ranks) == reference);
      CHECK(Train(job, options(ScheduleKind::kGeoPipe, 1), ranks) == reference);
      CHECK(Train(job, options(ScheduleKind::kGeoPipe, 3), ranks) == reference);
      CHECK(Train(job, options(ScheduleKind::kZbH1, 0), ranks) == reference);
      CHECK(Train(job, options(ScheduleKind::kZbH2, 0), ranks) == reference);
      CHECK(Train(job, options(ScheduleKind::kGeoPipeZb, 2), ranks) == reference);
      CHECK(Train(job, options(ScheduleKind::kAuto, 0), ranks) == reference);
    }
    for (const int32_t ranks : {1, 2, 3}) {  // of six layers, two stages a rank
      CAPTURE(tied, ranks);
      CHECK(Train(job, options(ScheduleKind::kZbV, 0), ranks) == reference);
      CHECK(Train(job, options(ScheduleKind::kInterleaved, 0), ranks) == reference);  // of 8 micro-batches
    }
    CHECK(Train(job, options(ScheduleKind::kGeoPipe, 1, CommMode::kBlocking), 3) == reference);
    CHECK(Train(job, options(ScheduleKind::kInterleaved, 0, CommMode::kBlocking), 2) == reference);
  }
}

TEST_CASE("a schedule that is given trains to the same bits, wherever its stages are") {
  const TempDir dir;
  JobSpec job = SmallJob(dir.Write("text", SomeText()));
  job.training.grad_clip = 1.0;
  const Numbers reference = Train(job, {}, 1);
  const auto given = [](const PipelineShape& shape, bool split) {
    RunOptions run;
    std::string& csv = run.schedule_csv;
    for (int32_t device = 0; device < shape.devices; ++device) {  // all forwards, then all backwards, stage by stage
      for (int32_t stage = 0; stage < shape.stages; ++stage) {
        for (int32_t m = 0; m < shape.micro_batches && shape.placement[stage] == device; ++m) {
          csv += fmt::format("{}F{},", stage, m);
        }
      }
      for (int32_t stage = shape.stages - 1; stage >= 0; --stage) {
        for (int32_t m = 0; m < shape.micro_batches && shape.placement[stage] == device; ++m) {
          csv += split ? fmt::format("{}I{},{}W{},", stage, m, stage, m) : fmt::format("{}B{},", stage, m);
        }
      }
      csv += '\n';
    }
    return run;
  };
  for (const PipelineShape& shape :
       {PipelineShape{2, 2, 8, {1, 0}}, PipelineShape{3, 3, 8, {2, 0, 1}}, PipelineShape{2, 4, 8, {0, 0, 1, 1}},
        PipelineShape{3, 6, 8, {1, 2, 0, 0, 2, 1}}}) {
    for (const bool split : {false, true}) {
      CAPTURE(shape.placement, split);
      CHECK(Train(job, given(shape, split), shape.devices) == reference);
    }
  }
}

TEST_CASE("first and last stage tell what they read, the others read nothing") {
  const TempDir dir;
  const JobSpec job = SmallJob(dir.Write("text", SomeText()));
  FakeCluster cluster(3);
  PrepareAll(cluster, job, {}, 3);
  const v1::PreparedReport first = cluster.Await(0, IsPrepared).prepared();
  const v1::PreparedReport middle = cluster.Await(1, IsPrepared).prepared();
  const v1::PreparedReport last = cluster.Await(2, IsPrepared).prepared();
  CHECK(first.data_bytes() == static_cast<int64_t>(SomeText().size()));
  CHECK(first.data_bytes() == last.data_bytes());
  CHECK(first.data_checksum() == last.data_checksum());
  CHECK(first.data_checksum() != 0);
  CHECK(middle.data_bytes() == 0);
  CHECK(middle.data_checksum() == 0);
  CHECK(first.address() == "address of rank 0");
}

TEST_CASE("all of the data is checked while a job trains on it, and both ends find the same") {
  const TempDir dir;
  const JobSpec job = SmallJob(dir.Write("text", SomeText()));
  FakeCluster cluster(3);
  PrepareAll(cluster, job, {}, 3);
  const v1::DataCheckReport first = cluster.AwaitDataCheck(0);
  CHECK(first.data_bytes() == static_cast<int64_t>(SomeText().size()));
  CHECK(first.chunk_bytes() == 16 * kMiB);
  CHECK(first.checksums_size() == 1);
  CHECK(first.SerializeAsString() == cluster.AwaitDataCheck(2).SerializeAsString());
}

TEST_CASE("a token outside the vocabulary that preparation has not met ends the worker") {
  const TempDir dir;
  JobSpec job = SmallJob(Resize(dir, "tokens", 40 * kMiB));
  job.data.format = DataFormat::kTokens;
  Poke(job.data.paths.front(), 20 * kMiB + 5000, "\x02\x01");  // between the blocks that preparation reads
  FakeCluster cluster(1);
  PrepareAll(cluster, job, {}, 1);
  const std::string sentence = job.data.paths.front() +
                               ": token 258 at position 10488260 is outside model.vocab_size 258; was the file made "
                               "with another tokenizer, or with another data.dtype than 16-bit?";
  CHECK(cluster.Await(0, IsFailure).failure().message() == sentence);
  CHECK(cluster.AwaitExit(0).reason == sentence);
}

TEST_CASE("a worker to which no rehearsal was added refuses a modelled job") {
  RunOptions run;
  run.backend = BackendKind::kModelled;
  FakeCluster cluster(1);
  cluster.Command(0, PrepareCommandFor(SmallJob("/nowhere"), run, 1, 0));
  CHECK(cluster.Await(0, IsFailure).failure().message() == "backend modelled is not built into this worker; use cpu");
}

TEST_CASE("a profile is measured and reported") {
  FakeCluster cluster(1);
  v1::WorkerCommand command;
  v1::ProfileCommand& profile = *command.mutable_profile();
  JobSpec job = SmallJob("/nowhere");
  job.model.num_hidden_layers = 1;
  profile.set_manifest(WriteManifest(job));
  profile.set_round(3);
  profile.set_micro_batch_size(1);
  profile.set_sequence_length(8);
  profile.set_backend(v1::BACKEND_KIND_CPU);
  cluster.Command(0, command);
  const v1::WorkerReport report =
      cluster.Await(0, [](const v1::WorkerReport& r) { return r.has_profile() || r.has_failure(); });
  INFO(report.ShortDebugString());
  REQUIRE(report.has_profile());
  CHECK(report.profile().round() == 3);
  CHECK(report.profile().entry().site() == "site0");
  CHECK(report.profile().entry().block().forward_ns() > 0);
}

TEST_CASE("a profile is one of the job's backend") {
  FakeCluster cluster(1);
  v1::WorkerCommand command;
  command.mutable_profile()->set_manifest(WriteManifest(SmallJob("/nowhere")));
  command.mutable_profile()->set_micro_batch_size(1);
  command.mutable_profile()->set_sequence_length(8);
  command.mutable_profile()->set_backend(v1::BACKEND_KIND_CUDA);
  cluster.Command(0, command);
  CHECK_THAT(cluster.Await(0, IsFailure).failure().message(), Catch::StartsWith("GPUs cannot be used: "));
}

TEST_CASE("what cannot be prepared is one failure with a clear sentence, and the worker is over") {
  FakeCluster cluster(1);
  cluster.Command(0, PrepareCommandFor(SmallJob("/no/such/file"), {}, 1, 0));
  const v1::FailureReport failure = cluster.Await(0, IsFailure).failure();
  CHECK(failure.message() == "/no/such/file: no such file on this node");
  CHECK(failure.code() == static_cast<int>(absl::StatusCode::kNotFound));
  CHECK(cluster.worker(0).WaitEnded(60'000'000'000));
  CHECK(cluster.AwaitExit(0).code == 1);
  CHECK(cluster.AwaitExit(0).reason == failure.message());
  cluster.worker(0).Stop("afterwards");
  CHECK(cluster.AwaitExit(0).code == 1);
  CHECK(cluster.reports(0).size() == 1);
}

TEST_CASE("a wrong secret and an unknown command are failures") {
  const TempDir dir;
  const JobSpec job = SmallJob(dir.Write("text", SomeText()));
  FakeCluster cluster(3);
  cluster.Command(1, {});
  CHECK(cluster.Await(1, IsFailure).failure().message() == "a command of a kind that this version does not know");
  cluster.Command(2, PrepareCommandFor(job, {}, 1, 0));
  cluster.Await(2, IsPrepared);
  v1::WorkerCommand commit = CommitCommandFor(1, 1);
  commit.mutable_commit()->set_secret("guess");
  cluster.Command(2, commit);
  CHECK(cluster.Await(2, IsFailure).failure().message() == "wrong secret");
}

// The order is the coordinator's: end without a number, then with the one that a rank has told, then the next epoch.
TEST_CASE("an epoch is ended in the midst of training, and the next one goes on with the same bits") {
  const TempDir dir;
  JobSpec job = SmallJob(dir.Write("text", SomeText()));
  job.training.iterations = 200;
  const Numbers reference = Train(job, {}, 1);
  constexpr int32_t kRanks = 3;
  constexpr uint64_t kEpochs = 5;
  FakeCluster cluster(kRanks);
  int64_t first_iteration = 0;
  for (uint64_t epoch = 1; epoch <= kEpochs; ++epoch) {
    const auto of_epoch = [epoch](const v1::WorkerReport& report) { return report.epoch() == epoch; };
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      v1::WorkerCommand prepare = PrepareCommandFor(job, {}, kRanks, rank);
      prepare.set_epoch(epoch);
      prepare.mutable_prepare()->set_first_iteration(first_iteration);
      prepare.mutable_prepare()->set_state_epoch(epoch - 1);
      cluster.Command(rank, prepare);
      cluster.Await(rank, [&](const v1::WorkerReport& r) { return of_epoch(r) && r.has_prepared(); });
    }
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      v1::WorkerCommand commit = CommitCommandFor(kRanks, job.training.iterations);
      commit.set_epoch(epoch);
      commit.mutable_commit()->set_start_iteration(first_iteration);
      cluster.Command(rank, commit);
    }
    if (epoch == kEpochs) {
      break;
    }
    const int64_t seen = first_iteration + static_cast<int64_t>(epoch);
    cluster.Await(kRanks - 1,
                  [&](const v1::WorkerReport& r) { return of_epoch(r) && r.iteration().iteration() >= seen; });
    v1::WorkerCommand end;
    end.set_epoch(epoch);
    end.mutable_end_epoch();
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      cluster.Command(rank, end);
    }
    const auto is_ended = [&](const v1::WorkerReport& r) { return of_epoch(r) && r.has_ended(); };
    const int64_t ended = cluster.AwaitAny(is_ended).ended().next_iteration();
    // Ranks that have begun this iteration wait for the one that has not; one in the iteration before finishes it.
    end.mutable_end_epoch()->set_next_iteration(ended);
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      cluster.Command(rank, end);
    }
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      CHECK(cluster.Await(rank, is_ended).ended().next_iteration() == ended);
    }
    first_iteration = ended;
    REQUIRE(first_iteration < job.training.iterations);
  }
  Numbers numbers;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    CHECK(cluster.Await(rank, IsFinished).finished().iterations() == job.training.iterations);
    for (const v1::WorkerReport& report : cluster.reports(rank)) {
      if (report.iteration().has_loss()) {
        numbers.losses.push_back(report.iteration().loss());
      }
      if (rank == 0 && report.iteration().has_grad_norm()) {
        numbers.grad_norms.push_back(report.iteration().grad_norm());
      }
    }
  }
  CHECK(numbers == reference);
}

}  // namespace
}  // namespace geopipe
