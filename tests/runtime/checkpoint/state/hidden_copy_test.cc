// Checks that copies of the state hide behind the next iteration, on the clock of a device whose copies are slow.
#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "runtime/checkpoint/state/kept_states.h"
#include "tests/runtime/checkpoint/state/taken_snapshot.h"
#include "tests/runtime/model/pipeline_driver.h"
#include "tests/support/sanitized.h"
#include "tests/support/seed.h"
#include "tests/support/seeded_device.h"

namespace geopipe {
namespace {

constexpr int64_t kSaves = 6;
// The copies of all states take about as long as half an iteration's kernels.
constexpr double kSlowBytesPerNs = 0.12;

enum class Copies : uint8_t { kNone, kKept, kKeptAtOnce, kSnapshots };

// Modelled time of some iterations.
int64_t Modelled(Copies copies) {
  const TransformerStageOptions options = SmallOptions(/*tied=*/true);
  RandomTokens tokens(options.model.vocab_size, options.sequence_length);
  LargeRandomWeights weights(3);
  SeededDevice device;
  device.RunOnlyWhenAwaited();
  device.set_copied_bytes_per_ns(kSlowBytesPerNs);
  KeptStates kept = *KeptStates::Open(UniqueFd(memfd_create("hidden-copy-test", MFD_CLOEXEC)));
  StateSnapshot snapshot;  // goes after the pipeline's last copy, before its memory
  PipelineDriver pipeline(options, Split(options.model, 1), tokens, weights, On(device));
  TransformerStage& stage = pipeline.stage(0);
  const std::vector<KeptStates::Stage> stages{{.stage = 0, .parameters = stage.parameters().all()}};
  REQUIRE(kept.Prepare({.run_incarnation = 1, .rank = 0}, stages).ok());
  REQUIRE(device.WaitIdle(DeviceDeadlineNs()).ok());
  const int64_t begun_ns = device.modelled_ns();
  for (int64_t iteration = 0; iteration < kSaves; ++iteration) {
    absl::StatusOr<Completion> copied = Completion();
    if (copies == Copies::kKept || copies == Copies::kKeptAtOnce) {
      copied = kept.Save({.iteration = iteration, .epoch = 1}, stages);
    } else if (copies == Copies::kSnapshots) {
      copied = BeginSnapshot(snapshot, options.model, Split(options.model, 1)[0], stage.parameters().all());
    }
    REQUIRE(copied.ok());
    if (copies == Copies::kKeptAtOnce) {
      REQUIRE(device.Wait(*copied, DeviceDeadlineNs()).ok());
    }
    stage.UpdateAfter(*copied);
    pipeline.Iterate(iteration, DriveOrder::k1F1B);
  }
  REQUIRE(device.WaitIdle(DeviceDeadlineNs()).ok());
  snapshot = StateSnapshot();
  return device.modelled_ns() - begun_ns;
}

// Saves the state before an iteration, trains on, and returns whether that state was kept.
bool KeepsStateBefore(uint64_t seed, bool updates_after) {
  const TransformerStageOptions options = SmallOptions(/*tied=*/true);
  RandomTokens tokens(options.model.vocab_size, options.sequence_length);
  LargeRandomWeights weights(3);
  SeededDevice device(seed);
  device.RunOnlyWhenAwaited();
  KeptStates kept = *KeptStates::Open(UniqueFd(memfd_create("hidden-copy-test", MFD_CLOEXEC)));
  PipelineDriver pipeline(options, Split(options.model, 1), tokens, weights, On(device));
  TransformerStage& stage = pipeline.stage(0);
  const std::vector<KeptStates::Stage> stages{{.stage = 0, .parameters = stage.parameters().all()}};
  const KeptStates::Owner owner{.run_incarnation = 1, .rank = 0};
  REQUIRE(kept.Prepare(owner, stages).ok());
  std::vector<std::vector<float>> before;
  for (const Parameter& parameter : stage.parameters().all()) {
    before.push_back(pipeline.Value(parameter.spec.name));
  }
  const absl::StatusOr<Completion> copied = kept.Save({.iteration = 0, .epoch = 1}, stages);
  REQUIRE(copied.ok());
  if (updates_after) {
    stage.UpdateAfter(*copied);
  }
  pipeline.Iterate(0, DriveOrder::k1F1B);
  REQUIRE(device.WaitIdle(DeviceDeadlineNs()).ok());
  REQUIRE(device.Wait(*copied, DeviceDeadlineNs()).ok());
  REQUIRE(kept.Settle().ok());
  const std::unique_ptr<WeightSource> state = *kept.Read(owner, {.iteration = 0, .epoch = 1}, 0);
  bool same = true;
  for (size_t i = 0; i < before.size(); ++i) {
    std::vector<float> values(before[i].size());
    REQUIRE(state->ReadPiece(stage.parameters().all()[i].piece, values).ok());
    same = same && values == before[i];
  }
  return same;
}

TEST_CASE("the state before an update is kept, whenever the copy runs, and is not if the update does not wait") {
  const uint64_t first = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << first);
  for (int i = 0; i < TestSeeds(); ++i) {
    CHECK(KeepsStateBefore(first + i, /*updates_after=*/true));
  }
  bool found = false;
  for (uint64_t seed = 0; seed < 60 && !found; ++seed) {
    found = !KeepsStateBefore(seed, /*updates_after=*/false);
  }
  CHECK((found || !kKeepsBlocks));
}

TEST_CASE("keeping a state, or copying it for a checkpoint, takes at most a fiftieth of the iteration behind it") {
  if (!kKeepsBlocks) {
    return;
  }
  const auto plain = static_cast<double>(Modelled(Copies::kNone));
  CHECK(static_cast<double>(Modelled(Copies::kKept)) <= 1.02 * plain);
  CHECK(static_cast<double>(Modelled(Copies::kSnapshots)) <= 1.02 * plain);
  CHECK(static_cast<double>(Modelled(Copies::kKeptAtOnce)) >= 1.2 * plain);  // so there was something to hide
}

}  // namespace
}  // namespace geopipe
