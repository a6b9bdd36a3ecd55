// Workers write checkpoints while they train, and any plan goes on from them with the bits of a run that never stopped.
#include "runtime/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "proto/wire/session_wire.h"
#include "runtime/base/files.h"
#include "runtime/checkpoint/checkpoint_folders.h"
#include "runtime/checkpoint/checkpoint_units.h"
#include "runtime/checkpoint/export/hf_export.h"
#include "runtime/checkpoint/verify.h"
#include "tests/runtime/worker/fake_cluster.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

constexpr int64_t kEnd = 10;
constexpr uint64_t kIncarnation = 77;

struct Folder {
  TempDir dir;
  std::string text = dir.Write("text", SomeText());
  std::string root = dir.path() + "/checkpoints";

  JobSpec Job(int64_t every) const {
    JobSpec job = SmallJob(text);
    job.training.iterations = kEnd;
    job.training.grad_clip = 1.0;
    job.checkpoint = {.path = root, .every = every, .keep = 100};
    return job;
  }
};

v1::CheckpointIdentity Identity(int64_t iteration) {
  v1::CheckpointIdentity identity;
  identity.set_iteration(iteration);
  identity.set_incarnation(kIncarnation);
  identity.set_epoch(1);
  identity.set_sequence_length(16);
  return identity;
}

// The workers of one job in its epoch 1.
class Run {
 public:
  Run(JobSpec job, int32_t pipeline_ranks)
      : job_(std::move(job)),
        pipeline_ranks_(pipeline_ranks),
        ranks_(static_cast<int32_t>(pipeline_ranks * job_.parallelism.data * job_.parallelism.tensor)),
        cluster_(ranks_) {
    mark.set_id("job-5");
  }

  // Says what the worker could not do; empty when it is prepared.
  std::string Prepare(int32_t rank, std::optional<v1::CheckpointIdentity> from = std::nullopt) {
    v1::WorkerCommand command = PrepareCommandFor(job_, {}, pipeline_ranks_, rank);
    command.mutable_prepare()->set_run_incarnation(run_incarnation);
    *command.mutable_prepare()->mutable_checkpoint_mark() = mark;
    if (from.has_value()) {
      command.mutable_prepare()->set_first_iteration(from->iteration());
      *command.mutable_prepare()->mutable_from_checkpoint() = *from;
    }
    cluster_.Command(rank, command);
    return cluster_
        .Await(rank, [](const v1::WorkerReport& report) { return report.has_prepared() || report.has_failure(); })
        .failure()
        .message();
  }
  void PrepareAll(std::optional<v1::CheckpointIdentity> from = std::nullopt) {
    for (int32_t rank = 0; rank < ranks_; ++rank) {
      REQUIRE(Prepare(rank, from).empty());
    }
  }
  void Commit(int64_t from, int64_t to) {
    for (int32_t rank = 0; rank < ranks_; ++rank) {
      v1::WorkerCommand command = CommitCommandFor(ranks_, to);
      command.mutable_commit()->set_start_iteration(from);
      cluster_.Command(rank, command);
    }
  }
  void AwaitFinished() {
    for (int32_t rank = 0; rank < ranks_; ++rank) {
      cluster_.Await(rank, [](const v1::WorkerReport& report) { return report.has_finished(); });
    }
  }
  v1::CheckpointReport AwaitCheckpoint(int32_t rank, int64_t iteration) {
    return cluster_
        .Await(rank,
               [&](const v1::WorkerReport& report) {
                 return report.has_checkpoint() && report.checkpoint().iteration() == iteration;
               })
        .checkpoint();
  }
  // Lets the first worker complete the checkpoint from what all have reported; returns its error.
  std::string Complete(int64_t iteration) {
    v1::WorkerCommand command;
    command.set_epoch(1);
    command.mutable_write_manifest()->set_iteration(iteration);
    for (int32_t rank = 0; rank < ranks_; ++rank) {
      const v1::CheckpointReport report = AwaitCheckpoint(rank, iteration);
      CHECK(report.error().empty());
      CHECK(report.rank() == rank);
      command.mutable_write_manifest()->mutable_files()->MergeFrom(report.files());
    }
    cluster_.Command(0, command);
    return cluster_
        .Await(0,
               [&](const v1::WorkerReport& report) {
                 return report.has_manifest() && report.manifest().iteration() == iteration;
               })
        .manifest()
        .error();
  }
  void Checkpoint(int32_t rank, int64_t iteration) {
    v1::WorkerCommand command;
    command.set_epoch(1);
    command.mutable_checkpoint()->set_iteration(iteration);
    cluster_.Command(rank, command);
  }
  // Numbers of each iteration.
  std::map<int64_t, std::pair<double, double>> Numbers() {
    std::map<int64_t, std::pair<double, double>> numbers;
    for (int32_t rank = 0; rank < ranks_; ++rank) {
      for (const v1::WorkerReport& report : cluster_.reports(rank)) {
        CHECK(ValidateMessage(report).ok());
        if (report.iteration().has_loss()) {
          numbers[report.iteration().iteration()].first = report.iteration().loss();
        }
        if (report.has_iteration() && rank == 0) {
          numbers[report.iteration().iteration()].second = report.iteration().grad_norm();
        }
      }
    }
    return numbers;
  }
  FakeCluster& cluster() { return cluster_; }

  uint64_t run_incarnation = kIncarnation;
  v1::CheckpointMark mark;

 private:
  const JobSpec job_;
  const int32_t pipeline_ranks_;
  const int32_t ranks_;
  FakeCluster cluster_;
};

std::map<int64_t, std::pair<double, double>> From(std::map<int64_t, std::pair<double, double>> numbers, int64_t first) {
  numbers.erase(numbers.begin(), numbers.lower_bound(first));
  return numbers;
}

TEST_CASE("ranks write checkpoints when they are due and at the end, from which any plan goes on with the same bits") {
  const Folder folder;
  std::map<int64_t, std::pair<double, double>> expected;
  {
    Run run(folder.Job(/*every=*/3), 3);
    run.PrepareAll();
    run.Commit(0, kEnd);
    run.AwaitFinished();
    for (const int64_t iteration : {3, 10}) {
      CAPTURE(iteration);
      CHECK(run.Complete(iteration).empty());
      CHECK(VerifyCheckpoint(CheckpointFolder(folder.root, iteration))->empty());
    }
    for (const int64_t iteration : {6, 9}) {  // iterations are quicker than disks here
      const std::string error = run.AwaitCheckpoint(0, iteration).error();
      CHECK((error.empty() || error.starts_with("the one before is still being written")));
    }
    expected = run.Numbers();
    REQUIRE(expected.size() == kEnd);
  }
  CHECK(ListCheckpoints(folder.root)->complete.size() == 2);
  for (const int32_t ranks : {1, 2}) {
    const int64_t first = 3;
    CAPTURE(ranks);
    Run run(folder.Job(/*every=*/0), ranks);
    run.PrepareAll(Identity(first));
    run.Commit(first, kEnd);
    run.AwaitFinished();
    CHECK(run.Numbers() == From(expected, first));
    CHECK(run.Complete(kEnd).empty());
    CHECK(VerifyCheckpoint(CheckpointFolder(folder.root, kEnd))->empty());
  }
}

JobSpec OnGrid(JobSpec job, int64_t tensor, int64_t data, int32_t zero_stage) {
  job.parallelism.tensor = tensor;
  job.parallelism.data = data;
  job.parallelism.zero_stage = zero_stage;
  return job;
}

TEST_CASE("tensor ranks and replicas write their parts, from which any grid goes on") {
  const Folder folder;
  const int64_t first = 3;
  std::map<int64_t, std::pair<double, double>> expected;
  {
    Run run(OnGrid(folder.Job(/*every=*/first), 2, 2, 1), 1);
    run.PrepareAll();
    run.Commit(0, 2 * first);
    run.AwaitFinished();
    CHECK(run.Complete(first).empty());
    expected = From(run.Numbers(), first);
    REQUIRE(expected.size() == first);
  }
  const std::string written = CheckpointFolder(folder.root, first);
  CHECK(VerifyCheckpoint(written)->empty());
  CHECK(std::filesystem::exists(
      fmt::format("{}/layer-00005.weights.{}.t1-d1.safetensors", written, CheckpointTag(kIncarnation, 1))));
  {
    Run run(OnGrid(folder.Job(/*every=*/0), 2, 2, 3), 2);
    run.PrepareAll(Identity(first));
    run.Commit(first, 2 * first);
    run.AwaitFinished();
    CHECK(run.Complete(2 * first).empty());
    CHECK(VerifyCheckpoint(CheckpointFolder(folder.root, 2 * first))->empty());
  }
  for (const auto& [tensor, data] : {std::pair(2, 2), std::pair(1, 1), std::pair(2, 1)}) {
    CAPTURE(tensor, data);
    Run run(OnGrid(folder.Job(/*every=*/0), tensor, data, 1), 1);
    run.PrepareAll(Identity(first));
    run.Commit(first, 2 * first);
    run.AwaitFinished();
    const std::map<int64_t, std::pair<double, double>> numbers = run.Numbers();
    REQUIRE(numbers.size() == expected.size());
    CHECK((tensor == 1 || data == 1 || numbers == expected));
    for (const auto& [iteration, pair] : numbers) {
      CHECK(pair.first == Approx(expected[iteration].first).epsilon(2e-5));
    }
  }
}

TEST_CASE("a job begins with the weights of a checkpoint, as with those that are exported from it") {
  const Folder folder;
  {
    Run run(folder.Job(/*every=*/3), 1);
    run.PrepareAll();
    run.Commit(0, 4);
    run.AwaitFinished();
    CHECK(run.Complete(3).empty());
  }
  const std::string exported = folder.dir.path() + "/exported";
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(CheckpointFolder(folder.root, 3));
  REQUIRE(checkpoint.ok());
  REQUIRE(ExportHf(*checkpoint, exported, {}).ok());
  const auto train = [&](const std::string& init_from) {
    JobSpec job = folder.Job(/*every=*/0);
    job.checkpoint.path.clear();
    job.init_from = init_from;
    Run run(job, 2);
    run.PrepareAll();
    run.Commit(0, 3);
    run.AwaitFinished();
    return run.Numbers();
  };
  const auto begun = train(checkpoint->folder());
  REQUIRE(begun.size() == 3);
  CHECK(begun == train(exported));
  CHECK(begun != train(""));
  JobSpec other = folder.Job(/*every=*/0);
  other.checkpoint.path.clear();
  other.init_from = checkpoint->folder();
  other.model.hidden_size *= 2;
  const std::string refused = Run(other, 1).Prepare(0);
  CHECK_THAT(refused, Catch::Contains("manifest.json: ") && Catch::Contains("hidden_size"));
}

TEST_CASE("a worker goes back to a checkpoint, with another plan too, and repeats what it did") {
  const Folder folder;
  Run run(folder.Job(/*every=*/4), 1);
  run.PrepareAll();
  run.Commit(0, 6);
  run.AwaitFinished();
  CHECK(run.Complete(4).empty());
  const auto expected = run.Numbers();

  JobSpec job = folder.Job(/*every=*/4);
  v1::WorkerCommand prepare = PrepareCommandFor(job, {}, 1, 0);
  prepare.set_epoch(2);
  prepare.mutable_prepare()->set_first_iteration(4);
  run.cluster().Command(0, prepare);
  // The worker holds the state before iteration 6, so without a checkpoint it cannot go on from iteration 4.
  const auto failed = run.cluster().Await(0, [](const v1::WorkerReport& report) { return report.has_failure(); });
  CHECK(failed.failure().message() ==
        "told to go on from iteration 4 of epoch 0, but this worker has no such state of rank 0");

  std::filesystem::remove_all(folder.root);
  std::filesystem::create_directory(folder.root);
  Run again(folder.Job(/*every=*/4), 1);
  again.PrepareAll();
  again.Commit(0, 6);
  again.AwaitFinished();
  CHECK(again.Complete(4).empty());
  *prepare.mutable_prepare()->mutable_from_checkpoint() = Identity(4);
  again.cluster().Command(0, prepare);
  again.cluster().Await(0, [](const v1::WorkerReport& report) { return report.epoch() == 2 && report.has_prepared(); });
  v1::WorkerCommand commit = CommitCommandFor(1, 6);
  commit.set_epoch(2);
  commit.mutable_commit()->set_start_iteration(4);
  again.cluster().Command(0, commit);
  again.cluster().Await(0, [](const v1::WorkerReport& report) { return report.epoch() == 2 && report.has_finished(); });
  std::vector<double> losses;
  for (const v1::WorkerReport& report : again.cluster().reports(0)) {
    if (report.epoch() == 2 && report.iteration().has_loss()) {
      losses.push_back(report.iteration().loss());
    }
  }
  CHECK(losses == std::vector<double>{expected.at(4).first, expected.at(5).first});
}

TEST_CASE("a checkpoint that is asked for comes with the iteration, or at once where the rank rests before it") {
  const Folder folder;
  Run run(folder.Job(/*every=*/0), 1);
  run.PrepareAll();
  run.Checkpoint(0, 3);
  CHECK(run.AwaitCheckpoint(0, 3).error() == "rank 0 holds the state before iteration 0, not 3");
  run.Commit(0, kEnd);
  run.AwaitFinished();
  run.AwaitCheckpoint(0, kEnd);
  std::filesystem::remove_all(CheckpointFolder(folder.root, kEnd));
  run.Checkpoint(0, kEnd);
  run.Checkpoint(0, 4);
  CHECK(run.AwaitCheckpoint(0, 4).error() == "rank 0 holds the state before iteration 10, not 4");
  CHECK(run.Complete(kEnd).empty());
  CHECK(VerifyCheckpoint(CheckpointFolder(folder.root, kEnd))->empty());
}

// A file system that is not mounted looks like this: its folder is there, and empty.
TEST_CASE("nothing is written where the folder of checkpoints does not bear the job's mark") {
  const Folder folder;
  const std::string mounted = folder.root + ".mounted";
  const auto unmount = [&] {
    std::filesystem::rename(folder.root, mounted);
    std::filesystem::create_directory(folder.root);
  };
  const auto mount = [&] {
    std::filesystem::remove(folder.root);  // fails where something was written into it
    std::filesystem::rename(mounted, folder.root);
  };
  {
    Run run(folder.Job(/*every=*/0), 1);
    run.PrepareAll();
    CHECK(*ReadFile(folder.root + "/.geopipe-checkpoints", 100) == "job-5\n");
    unmount();
    run.Commit(0, kEnd);
    run.AwaitFinished();
    CHECK_THAT(run.AwaitCheckpoint(0, kEnd).error(), Catch::Contains("mount its file system"));
    mount();
    run.Checkpoint(0, kEnd);
    run.cluster().Await(0, [](const v1::WorkerReport& report) { return report.checkpoint().files_size() > 0; });
  }
  unmount();
  Run run(folder.Job(/*every=*/0), 1);
  run.mark.set_expected(true);
  SECTION("by a worker that is started again, which trains") {
    run.PrepareAll();
    const v1::WorkerReport prepared =
        run.cluster().Await(0, [](const v1::WorkerReport& report) { return report.has_prepared(); });
    CHECK_THAT(prepared.prepared().checkpoint_trouble(), Catch::Contains("lacks the file .geopipe-checkpoints"));
    run.Commit(0, kEnd);
    run.AwaitFinished();
    CHECK_THAT(run.AwaitCheckpoint(0, kEnd).error(), Catch::Contains("mount its file system"));
  }
  SECTION("and no file is fetched into it") {
    CHECK_THAT(run.Prepare(0, Identity(kEnd)), Catch::Contains("mount its file system"));
    const v1::WorkerReport failed =
        run.cluster().Await(0, [](const v1::WorkerReport& report) { return report.has_failure(); });
    CHECK(failed.failure().of_node());
    CHECK_FALSE(failed.failure().has_unreadable());
  }
  mount();
}

TEST_CASE("a checkpoint that is asked for beyond the end of the epoch is told to be missing when that has ended") {
  const Folder folder;
  Run run(folder.Job(/*every=*/0), 1);
  run.PrepareAll();
  run.Commit(0, 1'000'000);
  run.Checkpoint(0, 900'000);
  v1::WorkerCommand end;
  end.set_epoch(1);
  end.mutable_end_epoch();
  run.cluster().Command(0, end);
  CHECK_THAT(run.AwaitCheckpoint(0, 900'000).error(),
             Catch::StartsWith("rank 0 holds the state before iteration ") && Catch::EndsWith(", not 900000"));
  CHECK(std::ranges::count_if(run.cluster().reports(0),
                              [](const v1::WorkerReport& report) { return report.has_checkpoint(); }) == 1);
}

TEST_CASE("a folder that cannot be written costs the checkpoint, one sentence, and nothing else") {
  const Folder folder;
  JobSpec job = folder.Job(/*every=*/4);
  job.checkpoint.path = folder.text + "/below-a-file";
  Run run(job, 2);
  run.PrepareAll();
  run.Commit(0, kEnd);
  run.AwaitFinished();
  for (const int64_t iteration : {4, 8, 10}) {
    CAPTURE(iteration);
    for (const int32_t rank : {0, 1}) {
      const v1::CheckpointReport report = run.AwaitCheckpoint(rank, iteration);
      CHECK(report.files().empty());
      CHECK(report.error() == "cannot make the folder " + job.checkpoint.path +
                                  ": Not a directory; choose another folder for checkpoints");
    }
  }
  CHECK(run.Numbers().size() == kEnd);
}

TEST_CASE("a checkpoint that is not the state of the job before the iteration is refused with both values") {
  const Folder folder;
  {
    Run run(folder.Job(/*every=*/0), 1);
    run.PrepareAll();
    run.Commit(0, 2);
    run.AwaitFinished();
    REQUIRE(run.Complete(2).empty());
  }
  const std::string at = CheckpointFolder(folder.root, 2);
  const auto refused = [&](JobSpec job, const v1::CheckpointIdentity& from) {
    Run run(std::move(job), 1);
    run.run_incarnation = kIncarnation + 1;
    return run.Prepare(0, from);
  };
  const JobSpec job = folder.Job(0);
  JobSpec other = job;
  other.training.seed = 9;
  CHECK(refused(other, Identity(2)) == at + ": training.seed is 1, not 9; another would skip or repeat samples: "
                                            "give the job the same");
  other = job;
  other.training.tokens_per_iteration *= 2;
  CHECK_THAT(refused(other, Identity(2)), Catch::Contains("tokens"));
  other = job;
  other.model.rope_theta = 5;
  CHECK_THAT(refused(other, Identity(2)), Catch::StartsWith(at) && Catch::Contains("rope_theta"));
  v1::CheckpointIdentity foreign = Identity(2);
  foreign.set_epoch(3);
  CHECK(refused(job, foreign) == at + ": the epoch is 1, not 3; checkpoint.path is of another run here than on other "
                                      "nodes");
  foreign = Identity(2);
  foreign.set_incarnation(3);
  CHECK(refused(job, foreign) == at + ": the run is 77, not 3; checkpoint.path is of another run here than on other "
                                      "nodes");
  CHECK_THAT(refused(job, Identity(3)), Catch::Contains("iteration-0000000003"));
}

TEST_CASE("a worker says which checkpoints it finds, or why there can be none") {
  const Folder folder;
  Run run(folder.Job(/*every=*/0), 1);
  v1::WorkerCommand command;
  command.mutable_profile()->set_skip_compute(true);
  command.mutable_profile()->set_checkpoint_path(folder.root);
  const auto is_profile = [](const v1::WorkerReport& report) { return report.has_profile(); };
  run.cluster().Command(0, command);
  CHECK(run.cluster().Await(0, is_profile).profile().checkpoints().empty());
  CHECK(std::filesystem::is_empty(folder.root));
  run.PrepareAll();
  run.Commit(0, 2);
  run.AwaitFinished();
  REQUIRE(run.Complete(2).empty());

  FakeCluster later(1);
  later.Command(0, command);
  const v1::ProfileReport found = later.Await(0, is_profile).profile();
  REQUIRE(found.checkpoints_size() == 1);
  CHECK(found.checkpoints(0).DebugString() == Identity(2).DebugString());

  command.mutable_profile()->set_checkpoint_path(folder.text + "/x");
  FakeCluster unwritable(1);
  unwritable.Command(0, command);
  const auto failed = unwritable.Await(0, [](const v1::WorkerReport& report) { return report.has_failure(); });
  CHECK_THAT(failed.failure().message(), Catch::Contains("choose another folder for checkpoints"));
}

}  // namespace
}  // namespace geopipe
