// Training that goes on from a checkpoint is the training that never stopped, to the last bit, whatever stages wrote it
// and whatever stages read it.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/checkpoint/checkpoint_folders.h"
#include "runtime/checkpoint/state/checkpoint_sources.h"
#include "runtime/checkpoint/state/state_snapshot.h"
#include "runtime/checkpoint/verify.h"
#include "runtime/model/init.h"
#include "tests/runtime/checkpoint/state/taken_snapshot.h"
#include "tests/runtime/checkpoint/written_checkpoint.h"
#include "tests/runtime/model/pipeline_driver.h"
#include "tests/support/seed.h"
#include "tests/support/seeded_device.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

constexpr int64_t kIterations = 10;

// Iterations up to `to` on so many stages.
struct Leg {
  int64_t to = 0;
  int64_t stages = 1;
};

struct Numbers {
  std::vector<IterationResult> iterations;
  std::map<std::string, std::string> files;  // of the last checkpoint, by name

  friend bool operator==(const Numbers&, const Numbers&) = default;
};

// Begins to copy the state of all stages, trains on, and then writes the copies: the state before `iteration`.
std::string Save(PipelineDriver& pipeline, const TransformerStageOptions& options, const std::vector<LayerRange>& split,
                 const std::string& root, int64_t iteration) {
  std::vector<StateSnapshot> snapshots(split.size());
  std::vector<Completion> copies;
  for (size_t i = 0; i < split.size(); ++i) {
    const absl::StatusOr<Completion> copied =
        BeginSnapshot(snapshots[i], options.model, split[i], pipeline.stage(i).parameters().all());
    REQUIRE(copied.ok());
    copies.push_back(*copied);
    pipeline.stage(i).UpdateAfter(*copied);
  }
  pipeline.Iterate(iteration, DriveOrder::k1F1B);
  for (const Completion& copied : copies) {
    REQUIRE(HostDevice().Wait(copied, DeviceDeadlineNs()).ok());
  }
  CheckpointManifest manifest = ManifestOf(options.model, iteration);
  const std::string folder = *BeginCheckpoint(root, iteration);
  for (const StateSnapshot& snapshot : snapshots) {
    const absl::Status status = snapshot.Write(folder, "1-1", manifest.files);
    INFO(status);
    REQUIRE(status.ok());
  }
  REQUIRE(WriteCheckpointManifest(folder, manifest).ok());
  return folder;
}

CheckpointState Restored(const std::string& folder, const ModelSpec& model) {
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(folder);
  INFO(checkpoint.status());
  REQUIRE(checkpoint.ok());
  REQUIRE(checkpoint->CheckSameModel(model).ok());
  return CheckpointState(*std::move(checkpoint));
}

// Each leg begins with the checkpoint that the one before has left, in engines of its own. `seed`: of the device; none:
// the processor.
Numbers Train(const TransformerStageOptions& options, const std::vector<Leg>& legs,
              std::optional<uint64_t> seed = std::nullopt) {
  const TempDir root;
  RandomTokens tokens(options.model.vocab_size, options.sequence_length);
  RandomWeights fresh(/*seed=*/5);
  Numbers numbers;
  std::string folder;
  int64_t iteration = 0;
  for (const Leg& leg : legs) {
    std::optional<CheckpointState> state;
    if (!folder.empty()) {
      state.emplace(Restored(folder, options.model));
    }
    WeightSource& source = state.has_value() ? static_cast<WeightSource&>(*state) : fresh;
    const std::vector<LayerRange> split = Split(options.model, leg.stages);
    std::optional<SeededDevice> device;
    PipelineDriver pipeline(options, split, tokens, source,
                            seed.has_value() ? std::optional(On(device.emplace(*seed))) : std::nullopt);
    for (; iteration < leg.to; ++iteration) {
      numbers.iterations.push_back(pipeline.Iterate(iteration, DriveOrder::k1F1B));
    }
    folder = Save(pipeline, options, split, root.path(), iteration);
  }
  CHECK(VerifyCheckpoint(folder)->empty());
  for (const std::string& name : Names(folder)) {
    if (name != kManifestName) {
      numbers.files[name] = Content(folder + "/" + name);
    }
  }
  return numbers;
}

TEST_CASE("training that goes on from a checkpoint has the bits of training that never stopped, on any stages") {
  const bool tied = GENERATE(false, true);
  CAPTURE(tied);
  const TransformerStageOptions options = SmallOptions(tied);
  const Numbers expected = Train(options, {{.to = kIterations, .stages = 1}});
  REQUIRE(expected.files.size() == 2 * UnitsOf(options.model).size());
  CHECK(Train(options, {{.to = 7, .stages = 3}, {.to = kIterations, .stages = 3}}) == expected);
  CHECK(Train(options, {{.to = 3, .stages = 3}, {.to = 7, .stages = 1}, {.to = kIterations, .stages = 6}}) == expected);
  for (const int64_t at : {1, 5}) {
    CAPTURE(at);
    CHECK(Train(options, {{.to = at, .stages = 2}, {.to = kIterations, .stages = 1}}) == expected);
  }
}

TEST_CASE(
    "a checkpoint of a device with memory of its own has the bits of the processor's, in any order of its queues") {
  const TransformerStageOptions options = SmallOptions(/*tied=*/true);
  const std::vector<Leg> legs{{.to = 2, .stages = 3}, {.to = 4, .stages = 2}};
  const Numbers expected = Train(options, legs);
  const uint64_t first = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << first);
  for (int i = 0; i < TestSeeds(); ++i) {
    CHECK(Train(options, legs, first + i) == expected);
  }
}

TEST_CASE("the weights of a checkpoint alone begin a training of their own") {
  const TempDir root;
  const ModelSpec model = SmallModel(1);
  CheckpointWeights weights(*Checkpoint::Open(WrittenCheckpoint(root.path(), model, 1)));
  Allocator allocator(1 << 20);
  const auto backend = *CpuBackend::Create(1, allocator);
  auto set = ParameterSet::Create(ParameterBuckets(model, {.has_head = true}), {}, weights, allocator, *backend);
  REQUIRE(set.ok());
  StateSnapshot snapshot;
  REQUIRE(TakeSnapshot(snapshot, model, {.has_head = true}, set->all()).ok());
  CHECK(snapshot.bytes() == 12 * (8 + 20 * 8));
  const Tensor& norm = set->Find("model.norm.weight")->value;
  CHECK(SameBits({norm.fp32().begin(), norm.fp32().end()}, StateValues(1, "model.norm.weight", 8)));
  for (const Parameter& parameter : set->all()) {
    CHECK(std::ranges::count(parameter.first_moment.fp32(), 0.0F) == parameter.spec.count());
    CHECK(std::ranges::count(parameter.second_moment.fp32(), 0.0F) == parameter.spec.count());
  }
}

TEST_CASE("a state without a tensor that it needs is refused by name") {
  const TempDir root;
  const ModelSpec model = SmallModel(1);
  CheckpointState state(*Checkpoint::Open(WrittenCheckpoint(root.path(), model, 1)));
  Allocator allocator(1 << 20);
  const auto backend = *CpuBackend::Create(1, allocator);
  const std::vector<ParameterBucket> of_two = ParameterBuckets(SmallModel(2), {.first = 1, .last = 1});
  const absl::Status status = ParameterSet::Create(of_two, {}, state, allocator, *backend).status();
  CHECK(absl::IsNotFound(status));
  CHECK(status.message().find("model.layers.1.self_attn.q_proj.weight") != std::string_view::npos);
}

}  // namespace
}  // namespace geopipe
