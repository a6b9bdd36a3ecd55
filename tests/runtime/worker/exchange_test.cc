// Nodes that have each other's checkpoint files: copies are fetched while a job trains, and what a node lacks or has
// damaged is fetched when its ranks prepare. Each worker is a node, with a folder of its own.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <ranges>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_folders.h"
#include "runtime/checkpoint/verify.h"
#include "tests/runtime/worker/fake_cluster.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

using Catch::Contains;

constexpr uint64_t kRunIncarnation = 77;
constexpr int64_t kSaved = 2;  // iterations before the checkpoint
constexpr int64_t kTrained = 4;
const std::string kRunSecret = "the secret of this run";

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void FlipLastByte(const std::string& path) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(-1, std::ios::end);
  const char last = static_cast<char>(file.get());
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(last ^ 1));
}

v1::CheckpointIdentity Saved(int64_t iteration = kSaved) {
  v1::CheckpointIdentity identity;
  identity.set_iteration(iteration);
  identity.set_incarnation(kRunIncarnation);
  identity.set_epoch(1);
  identity.set_sequence_length(16);
  return identity;
}

// The nodes of one life of a job: rank i has the folder `roots[i]`.
class Nodes {
 public:
  Nodes(JobSpec job, std::vector<std::string> roots)
      : job_(std::move(job)), roots_(std::move(roots)), cluster_(std::ssize(roots_)) {
    job_.training.iterations = kTrained;
  }

  void Prepare(int32_t rank, std::optional<v1::CheckpointIdentity> from = std::nullopt,
               const std::vector<v1::FileSource>& sources = {}, uint64_t run_incarnation = kRunIncarnation) {
    JobSpec job = job_;
    job.checkpoint = {.path = roots_[rank], .every = 0, .keep = 100};
    v1::WorkerCommand command =
        PrepareCommandFor(job, {}, ranks() / static_cast<int32_t>(job.parallelism.tensor), rank);
    command.set_epoch(epoch);
    v1::PrepareCommand& prepare = *command.mutable_prepare();
    prepare.set_run_incarnation(run_incarnation);
    prepare.set_exchange_secret(kRunSecret);
    prepare.mutable_file_sources()->Assign(sources.begin(), sources.end());
    if (from.has_value()) {
      prepare.set_first_iteration(from->iteration());
      *prepare.mutable_from_checkpoint() = *from;
    }
    cluster_.Command(rank, command);
  }
  // Empty: it is prepared.
  v1::FailureReport Prepared(int32_t rank) {
    return cluster_
        .Await(rank, [](const v1::WorkerReport& report) { return report.has_prepared() || report.has_failure(); })
        .failure();
  }
  // Returns the losses.
  std::vector<double> Train(int64_t from, int64_t to) {
    for (int32_t rank = 0; rank < ranks(); ++rank) {
      v1::WorkerCommand command = CommitCommandFor(ranks(), to);
      command.mutable_commit()->set_start_iteration(from);
      cluster_.Command(rank, command);
    }
    std::map<int64_t, double> by_iteration;  // the same on all ranks of the last stage
    for (int32_t rank = 0; rank < ranks(); ++rank) {
      cluster_.Await(rank, [](const v1::WorkerReport& report) { return report.has_finished(); });
      for (const v1::WorkerReport& report : cluster_.reports(rank)) {
        if (report.iteration().has_loss()) {
          by_iteration[report.iteration().iteration()] = report.iteration().loss();
        }
      }
    }
    std::vector<double> losses;
    std::ranges::copy(by_iteration | std::views::values, std::back_inserter(losses));
    return losses;
  }
  // Completes the checkpoint on every node, from what all ranks have written.
  void Complete(int64_t iteration) {
    v1::WorkerCommand command;
    command.set_epoch(1);
    command.mutable_write_manifest()->set_iteration(iteration);
    for (int32_t rank = 0; rank < ranks(); ++rank) {
      const v1::CheckpointReport report =
          cluster_
              .Await(rank,
                     [&](const v1::WorkerReport& each) {
                       return each.has_checkpoint() && each.checkpoint().iteration() == iteration;
                     })
              .checkpoint();
      REQUIRE(report.error().empty());
      command.mutable_write_manifest()->mutable_files()->MergeFrom(report.files());
    }
    for (int32_t rank = 0; rank < ranks(); ++rank) {
      cluster_.Command(rank, command);
      const v1::WorkerReport report =
          cluster_.Await(rank, [](const v1::WorkerReport& each) { return each.has_manifest(); });
      REQUIRE(report.manifest().error().empty());
    }
  }
  v1::FileSource Source(int32_t rank, const std::vector<std::string>& files = {}) {
    v1::FileSource source;
    source.set_site("site" + std::to_string(rank));
    source.set_address(cluster_.file_server(rank).address());
    source.mutable_files()->Assign(files.begin(), files.end());
    return source;
  }
  v1::ReplicaReport Replicate(int32_t rank, const std::vector<v1::FileSource>& sources, int64_t iteration = kSaved,
                              double bytes_per_second = 0) {
    const auto count = [&] {
      const std::vector<v1::WorkerReport> reports = cluster_.reports(rank);
      return std::ranges::count_if(reports, [](const v1::WorkerReport& each) { return each.has_replica(); });
    };
    v1::WorkerCommand command;
    command.set_epoch(epoch);
    command.mutable_replicate()->set_iteration(iteration);
    command.mutable_replicate()->set_bytes_per_second(bytes_per_second);
    command.mutable_replicate()->mutable_sources()->Assign(sources.begin(), sources.end());
    auto after = count() + 1;
    cluster_.Command(rank, command);
    v1::ReplicaReport found;
    cluster_.Await(rank, [&, left = after](const v1::WorkerReport& report) mutable {
      found = report.replica();
      return report.has_replica() && --left == 0;
    });
    return found;
  }

  uint64_t epoch = 1;

  int32_t ranks() const { return static_cast<int32_t>(roots_.size()); }
  FakeCluster& cluster() { return cluster_; }

 private:
  JobSpec job_;
  const std::vector<std::string> roots_;
  FakeCluster cluster_;
};

// A checkpoint of two ranks, each on a node: two stages, or the `tensor` ranks of one.
struct TwoNodes {
  explicit TwoNodes(int64_t tensor = 1) {
    job.parallelism.tensor = tensor;
    Nodes run(job, {roots[0], roots[1]});
    for (const int32_t rank : {0, 1}) {
      run.Prepare(rank);
      REQUIRE(run.Prepared(rank).message().empty());
    }
    run.Train(0, kSaved);
    run.Complete(kSaved);
    {
      Nodes undisturbed(job, std::vector(static_cast<size_t>(tensor), dir.path() + "/undisturbed"));
      for (int32_t rank = 0; rank < undisturbed.ranks(); ++rank) {
        undisturbed.Prepare(rank);
        REQUIRE(undisturbed.Prepared(rank).message().empty());
      }
      expected = undisturbed.Train(0, kTrained);
    }
    expected.erase(expected.begin(), expected.begin() + kSaved);
    const Checkpoint checkpoint = Checkpoint::Open(folder(0)).value();
    for (const FileEntry& file : checkpoint.manifest().files) {
      files.push_back(file.name);
      of[std::filesystem::exists(folder(0) + "/" + file.name) ? 0 : 1].push_back(file.name);
    }
    REQUIRE_FALSE(of[0].empty());
    REQUIRE_FALSE(of[1].empty());
  }

  std::string folder(int32_t node) const { return CheckpointFolder(roots[node], kSaved); }

  const TempDir dir;
  JobSpec job = SmallJob(dir.Write("text", SomeText()));
  const std::vector<std::string> roots{dir.path() + "/a", dir.path() + "/b", dir.path() + "/c"};
  std::vector<double> expected;  // losses behind the checkpoint
  std::vector<std::string> files;
  std::array<std::vector<std::string>, 2> of;  // the files of each node
};

TEST_CASE("a node that has nothing of a checkpoint fetches its manifest and its ranks' files, and goes on from there") {
  const TwoNodes before;
  Nodes sources(before.job, {before.roots[0], before.roots[1]});
  sources.Prepare(0, Saved());
  sources.Prepare(1, Saved());
  Nodes run(before.job, {before.roots[2]});
  run.Prepare(0, Saved(), {sources.Source(0), sources.Source(1)});
  CHECK(run.Prepared(0).message().empty());
  CHECK(VerifyCheckpoint(before.folder(2))->empty());
  for (const int node : {0, 1}) {
    for (const std::string& file : before.of[node]) {
      CHECK(BytesOf(before.folder(node) + "/" + file) == BytesOf(before.folder(2) + "/" + file));
    }
  }
  CHECK(run.Train(kSaved, kTrained) == before.expected);
}

TEST_CASE("two nodes that need each other's files prepare at the same time") {
  const TwoNodes before;
  Nodes run(before.job, {before.roots[1], before.roots[0]});
  run.Prepare(0, Saved(), {run.Source(1)});
  run.Prepare(1, Saved(), {run.Source(0)});
  for (const int32_t rank : {0, 1}) {
    CHECK(run.Prepared(rank).message().empty());
  }
  CHECK(run.Train(kSaved, kTrained) == before.expected);
}

TEST_CASE("only what a rank needs is fetched") {
  const TwoNodes before;
  Nodes run(before.job, {before.roots[0], before.roots[2]});
  run.Prepare(0, Saved(), {});
  run.Prepare(1, Saved(), {run.Source(0)});
  // Rank 0's node has all the files it needs; rank 1's lacks all of its own, and the source has none of them.
  CHECK(run.Prepared(0).message().empty());
  const v1::FailureReport failure = run.Prepared(1);
  CHECK_THAT(failure.message(), Contains("of the checkpoint before iteration 2 cannot be fetched (site0 at ") &&
                                    Contains(" is not there); copy the file from a node that has it or choose another "
                                             "checkpoint"));
  CHECK(failure.unreadable().DebugString() == Saved().DebugString());
  CHECK(run.cluster().AwaitExit(1).code == 1);
  CHECK(std::distance(std::filesystem::directory_iterator(before.folder(2)), {}) == 1);  // the manifest
}

TEST_CASE("a tensor rank fetches its own parts and what ranks share, not the parts of others") {
  const TwoNodes before(/*tensor=*/2);
  Nodes run(before.job, {before.roots[0], before.roots[2]});
  Nodes sources(before.job, {before.roots[0], before.roots[1]});
  sources.Prepare(0, Saved());
  sources.Prepare(1, Saved());
  run.Prepare(0, Saved(), {sources.Source(0), sources.Source(1)});
  run.Prepare(1, Saved(), {sources.Source(0), sources.Source(1)});
  for (const int32_t rank : {0, 1}) {
    CHECK(run.Prepared(rank).message().empty());
  }
  int32_t fetched = 0;
  for (const std::string& file : before.files) {
    CAPTURE(file);
    const bool is_others = file.find(".t0-d0.") != std::string::npos;
    CHECK(std::filesystem::exists(before.folder(2) + "/" + file) == !is_others);
    fetched += is_others ? 0 : 1;
  }
  CHECK(fetched == 2 * (8 + 7));  // eight units' matrices, seven units' norms
  CHECK(run.Train(kSaved, kTrained) == before.expected);
}

TEST_CASE("copies are fetched on order, and stand in for a node that is lost or a file that is damaged") {
  const TwoNodes before;
  {
    Nodes run(before.job, {before.roots[0], before.roots[1]});
    run.Prepare(0, Saved());
    run.Prepare(1, Saved());
    REQUIRE(run.Prepared(0).message().empty());
    REQUIRE(run.Prepared(1).message().empty());
    constexpr double kBytesPerSecond = 500'000;
    const v1::ReplicaReport report = run.Replicate(1, {run.Source(0, before.of[0])}, kSaved, kBytesPerSecond);
    CHECK(report.error().empty());
    CHECK(report.iteration() == kSaved);
    CHECK(static_cast<double>(report.duration_ns() + 100'000'000) >=
          static_cast<double>(report.bytes()) * 1e9 / kBytesPerSecond);
    CHECK(VerifyCheckpoint(before.folder(1))->empty());
    int64_t bytes = 0;
    for (const std::string& file : before.of[0]) {
      bytes += static_cast<int64_t>(std::filesystem::file_size(before.folder(0) + "/" + file));
    }
    CHECK(report.bytes() == bytes);
    const v1::ReplicaReport again = run.Replicate(1, {run.Source(0, before.of[0])});
    CHECK(again.error().empty());
    CHECK(again.bytes() == 0);
  }
  SECTION("the other node is lost with its folder") {
    std::filesystem::remove_all(before.roots[0]);
    Nodes run(before.job, {before.roots[1]});
    run.Prepare(0, Saved());
    CHECK(run.Prepared(0).message().empty());
    CHECK(run.Train(kSaved, kTrained) == before.expected);
  }
  SECTION("files are damaged, cut short and gone, and so is the manifest") {
    const std::string& damaged = before.of[0].at(0);
    FlipLastByte(before.folder(0) + "/" + damaged);
    std::filesystem::resize_file(before.folder(0) + "/" + before.of[0].at(1), 10);
    std::filesystem::remove(before.folder(0) + "/" + before.of[0].at(2));
    FlipLastByte(before.folder(0) + "/manifest.json");
    Nodes run(before.job, {before.roots[0], before.roots[1]});
    run.Prepare(1, Saved());
    run.Prepare(0, Saved(), {run.Source(1)});
    CHECK(run.Prepared(0).message().empty());
    CHECK(run.Prepared(1).message().empty());
    for (const std::string& file : before.of[0]) {
      CAPTURE(file);
      CHECK(BytesOf(before.folder(0) + "/" + file) == BytesOf(before.folder(1) + "/" + file));
    }
    CHECK(run.Train(kSaved, kTrained) == before.expected);
  }
  SECTION("a file is damaged everywhere") {
    for (const int node : {0, 1}) {
      FlipLastByte(before.folder(node) + "/" + before.of[0].front());
    }
    Nodes run(before.job, {before.roots[0], before.roots[1]});
    run.Prepare(1, std::nullopt, {}, kRunIncarnation + 1);
    run.Prepare(0, Saved(), {run.Source(1)});
    const v1::FailureReport failure = run.Prepared(0);
    CHECK_THAT(failure.message(), Catch::StartsWith(before.of[0].front() + " of the checkpoint before iteration 2") &&
                                      Contains("(site1 at ") && Contains(" is damaged there: its checksum is "));
    CHECK(failure.unreadable().DebugString() == Saved().DebugString());
    CHECK(failure.code() == static_cast<int>(absl::StatusCode::kDataLoss));
  }
}

TEST_CASE("of a tensor that two files hold, the damaged copy is fetched again and not the other one") {
  const TwoNodes before;
  const auto head = std::ranges::find_if(before.of[1], [](const std::string& file) {
    return file.starts_with("head.weights.");  // with a copy of the embedding's weights
  });
  REQUIRE(head != before.of[1].end());
  const std::string intact = BytesOf(before.folder(1) + "/" + *head);
  std::filesystem::create_directories(before.folder(2));
  for (const auto& file : std::filesystem::directory_iterator(before.folder(1))) {
    std::filesystem::copy(file.path(), before.folder(2));
  }
  {
    const Checkpoint checkpoint = Checkpoint::Open(before.folder(1)).value();
    const auto entry = std::ranges::find(checkpoint.manifest().files, *head, &FileEntry::name);
    REQUIRE(entry->tensors.back().range.name == "model.embed_tokens.weight");
  }
  FlipLastByte(before.folder(2) + "/" + *head);
  const std::string untouched =
      before.folder(2) + "/" +
      *std::ranges::find_if(before.of[1], [](const std::string& file) { return file.starts_with("head.moments."); });
  const auto written = std::filesystem::last_write_time(untouched);

  Nodes run(before.job, {before.roots[0], before.roots[2]});
  Nodes sources(before.job, {before.roots[0], before.roots[1]});
  sources.Prepare(0, Saved());
  sources.Prepare(1, Saved());
  run.Prepare(0, Saved());
  run.Prepare(1, Saved(), {sources.Source(0), sources.Source(1)});
  CHECK(run.Prepared(0).message().empty());
  CHECK(run.Prepared(1).message().empty());
  CHECK(BytesOf(before.folder(2) + "/" + *head) == intact);
  CHECK(std::filesystem::last_write_time(untouched) == written);
  for (const std::string& file : before.of[0]) {
    CHECK_FALSE(std::filesystem::exists(before.folder(2) + "/" + file));
  }
  CHECK(run.Train(kSaved, kTrained) == before.expected);
}

TEST_CASE("a checkpoint of another run in the place of the one that is wanted gives way to it") {
  const TwoNodes before;
  {
    Nodes other(before.job, {before.roots[2]});
    other.Prepare(0, std::nullopt, {}, kRunIncarnation + 1);
    REQUIRE(other.Prepared(0).message().empty());
    other.Train(0, kSaved);
    other.Complete(kSaved);
  }
  Nodes sources(before.job, {before.roots[0], before.roots[1]});
  sources.Prepare(0, Saved());
  sources.Prepare(1, Saved());
  Nodes run(before.job, {before.roots[2]});
  run.Prepare(0, Saved(), {sources.Source(0), sources.Source(1)});
  CHECK(run.Prepared(0).message().empty());
  CHECK(Checkpoint::Open(before.folder(2))->manifest().incarnation == kRunIncarnation);
  CHECK(run.Train(kSaved, kTrained) == before.expected);
}

TEST_CASE("without anybody to ask a checkpoint that cannot be read is told as such, with the file") {
  const TwoNodes before;
  Nodes run(before.job, {before.roots[0]});  // has the first rank's files alone
  run.Prepare(0, Saved());
  const v1::FailureReport failure = run.Prepared(0);
  CHECK_THAT(failure.message(), Contains(": is not on this node; copy the file from the node that wrote it"));
  CHECK(failure.unreadable().DebugString() == Saved().DebugString());

  Nodes other(before.job, {before.roots[0]});
  other.Prepare(0, Saved(9));
  CHECK(other.Prepared(0).unreadable().iteration() == 9);
}

TEST_CASE("a checkpoint is named that a source cannot give at the moment, and not for what is wrong here") {
  const TwoNodes before;
  SECTION("a source that cannot be reached, which may have it") {
    v1::FileSource nobody;
    nobody.set_site("east");
    nobody.set_address("not an address");
    Nodes run(before.job, {before.roots[2]});
    run.Prepare(0, Saved(), {nobody});
    const v1::FailureReport failure = run.Prepared(0);
    CHECK_THAT(failure.message(), Contains("check the network between the sites"));
    CHECK(failure.code() == static_cast<int>(absl::StatusCode::kUnavailable));
    CHECK(failure.has_unreadable());
  }
  SECTION("a folder that cannot be written") {
    Nodes run(before.job, {before.job.data.paths.front() + "/below-a-file", before.roots[1]});
    run.Prepare(1);
    run.Prepare(0, Saved(), {run.Source(1)});
    const v1::FailureReport failure = run.Prepared(0);
    CHECK_THAT(failure.message(), Contains("Not a directory; choose another folder for checkpoints"));
    CHECK_FALSE(failure.has_unreadable());
  }
}

TEST_CASE("a replica that cannot be had is told in a sentence") {
  const TwoNodes before;
  Nodes run(before.job, {before.roots[0], before.roots[1]});
  run.Prepare(0, Saved());
  run.Prepare(1, Saved());
  REQUIRE(run.Prepared(0).message().empty());
  REQUIRE(run.Prepared(1).message().empty());
  CHECK_THAT(run.Replicate(1, {run.Source(0, {"other.safetensors"})}).error(),
             Contains("names no file other.safetensors; order files of this checkpoint"));
  CHECK_THAT(run.Replicate(1, {}, 9).error(), Contains("manifest.json: is missing, so its folder is no complete"));
  std::filesystem::remove(before.folder(0) + "/" + before.of[0].front());
  const v1::ReplicaReport report = run.Replicate(1, {run.Source(0, before.of[0])});
  CHECK_THAT(report.error(), Contains(before.of[0].front() + " is not there"));
  CHECK(report.bytes() > 0);  // what there is is worth having
  for (const std::string& file : before.of[0]) {
    CHECK(std::filesystem::exists(before.folder(1) + "/" + file) == (file != before.of[0].front()));
  }
  FlipLastByte(before.folder(1) + "/manifest.json");
  CHECK_THAT(run.Replicate(1, {run.Source(0, before.of[0])}).error(), Contains("manifest.json"));
}

TEST_CASE("copies of another run or epoch are not fetched") {
  const TwoNodes before;
  Nodes run(before.job, {before.roots[0], before.roots[1]});
  uint64_t incarnation = kRunIncarnation;
  std::string is_not;
  SECTION("run") {
    ++incarnation;
    is_not = "not of run 78, epoch 1";
  }
  SECTION("epoch") {
    run.epoch = 2;
    is_not = "not of run 77, epoch 2";
  }
  for (const int32_t rank : {0, 1}) {
    run.Prepare(rank, std::nullopt, {}, incarnation);
    REQUIRE(run.Prepared(rank).message().empty());
  }
  CHECK(run.Replicate(1, {run.Source(0, before.of[0])}).error() ==
        before.folder(1) + ": is of run 77, epoch 1, " + is_not +
            "; checkpoint.path is of another run here than on other nodes");
}

TEST_CASE("a worker that is told to end while it waits for a source does so") {
  const TwoNodes before;
  auto silent = TcpListener::Listen("127.0.0.1", {});
  REQUIRE(silent.ok());
  v1::FileSource source;
  source.set_site("east");
  source.set_address(silent->address());
  Nodes run(before.job, {before.roots[2]});
  run.Prepare(0, Saved(), {source});
  const auto client = silent->Accept(StopEvent::Never());  // it is there, and hears nothing
  REQUIRE(client.ok());
  run.cluster().worker(0).Stop("enough");
  CHECK(run.cluster().AwaitExit(0).code == 0);
  CHECK(run.cluster().worker(0).WaitEnded(10'000'000'000));
}

TEST_CASE("a checkpoint that is listed outlives those that follow it, and so does what is newer than all that are") {
  const TempDir dir;
  const std::string root = dir.path() + "/checkpoints";
  JobSpec job = SmallJob(dir.Write("text", SomeText()));
  job.training.iterations = 4;
  job.checkpoint = {.path = root, .every = 0, .keep = 1};
  FakeCluster cluster(1);
  v1::WorkerCommand prepare = PrepareCommandFor(job, {}, 1, 0);
  const std::map<int64_t, std::vector<int64_t>> listed{{1, {}}, {2, {1}}, {3, {1, 2}}, {4, {1, 3}}};
  for (const auto& [iteration, kept] : listed) {
    prepare.set_epoch(iteration);
    prepare.mutable_prepare()->set_first_iteration(iteration - 1);
    prepare.mutable_prepare()->set_state_epoch(iteration - 1);
    cluster.Command(0, prepare);
    v1::WorkerCommand commit = CommitCommandFor(1, iteration);
    commit.set_epoch(iteration);
    commit.mutable_commit()->set_start_iteration(iteration - 1);
    cluster.Command(0, commit);
    v1::WorkerCommand manifest;
    manifest.set_epoch(iteration);
    manifest.mutable_write_manifest()->set_iteration(iteration);
    manifest.mutable_write_manifest()->mutable_kept_iterations()->Assign(kept.begin(), kept.end());
    const int64_t of = iteration;
    *manifest.mutable_write_manifest()->mutable_files() =
        cluster.Await(0, [of](const v1::WorkerReport& each) { return each.checkpoint().iteration() == of; })
            .checkpoint()
            .files();
    cluster.Command(0, manifest);
    cluster.Await(0, [of](const v1::WorkerReport& each) { return each.manifest().iteration() == of; });
  }
  const CheckpointList list = *ListCheckpoints(root);
  REQUIRE(list.complete.size() == 3);
  CHECK(list.complete[0].iteration == 1);
  CHECK(list.complete[1].iteration == 3);
  CHECK(list.complete[2].iteration == 4);
}

}  // namespace
}  // namespace geopipe
