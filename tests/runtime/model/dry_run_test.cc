// Checks that after a dry run an iteration takes no memory from the device and makes no primitive, and computes the
// same.
#include "runtime/model/dry_run.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "runtime/backend/cpu_backend.h"
#include "tests/runtime/model/pipeline_driver.h"
#include "tests/support/sanitized.h"

namespace geopipe {
namespace {

// One stage and the actions of its rank.
struct Rank {
  Rank(const TransformerStageOptions& stage_options, const LayerRange& layers) : options(stage_options) {
    options.layers = layers;
    stage = *TransformerStage::Create(options, allocator, *backend, &tokens, weights, &rooms);
    for (int32_t q = 0; q < options.micro_batches; ++q) {
      actions.push_back({0, ActionKind::kForward, q});
      if (q > 0) {
        actions.push_back({0, ActionKind::kInputGradient, q - 1});
      }
    }
    actions.push_back({0, ActionKind::kBackward, options.micro_batches - 1});
    for (int32_t q = 0; q + 1 < options.micro_batches; ++q) {
      actions.insert(actions.end() - 1, {0, ActionKind::kWeightGradient, q});
    }
  }

  absl::Status Iterate(int64_t iteration) {
    if (absl::Status status = stage->BeginIteration(iteration); !status.ok()) {
      return status;
    }
    for (const Action& action : actions) {
      const bool forward = action.kind == ActionKind::kForward;
      Timed<Tensor> message;
      if (forward ? !stage->is_first() : !stage->is_last()) {
        message.value = *stage->NewMessage();
        std::memset(message.value.data(), 0, message.value.bytes());
      }
      const int32_t q = action.micro_batch;
      const absl::Status status =
          forward                                     ? stage->Forward(q, std::move(message)).status()
          : action.kind == ActionKind::kBackward      ? stage->Backward(q, std::move(message)).status()
          : action.kind == ActionKind::kInputGradient ? stage->BackwardInput(q, std::move(message)).status()
                                                      : stage->BackwardWeight(q, 0).status();
      if (!status.ok()) {
        return status;
      }
    }
    const absl::StatusOr<Timed<ScalarReader>> scalars = stage->ReadScalars(/*norm_terms=*/true);
    if (!scalars.ok()) {
      return scalars.status();
    }
    losses.push_back(scalars->value().loss.value_or(0));
    return stage->Update(iteration, 1.0, 0).status();
  }

  TransformerStageOptions options;
  std::unique_ptr<Device> device = MakeHostDevice();
  Allocator allocator{int64_t{1} << 30, *device};
  std::unique_ptr<CpuBackend> backend = *CpuBackend::Create(/*threads=*/1, allocator);
  RandomTokens tokens{options.model.vocab_size, options.sequence_length};
  RandomWeights weights{1};
  SharedRooms rooms{allocator};
  std::unique_ptr<TransformerStage> stage;
  std::vector<Action> actions;
  std::vector<double> losses;
};

TEST_CASE("after a dry run iterations take no memory and make no primitive") {
  TransformerStageOptions options = SmallOptions(/*tied=*/false);
  SetFamily(GENERATE(range(0, kFamilyVariants)), options.model);
  options.sharding.precision = GENERATE(Precision::kFp32, Precision::kBf16);
  options.recompute = GENERATE(Recompute::kNone, Recompute::kSelective, Recompute::kFull);
  const size_t part = GENERATE(0, 1, 2, 3);
  const std::vector<LayerRange> split = Split(options.model, part == 3 ? 1 : 3);
  Rank rank(options, split[part % 3]);
  REQUIRE(DryRun(rank.actions, {rank.stage.get()}, 0, 0).ok());
  const int64_t allocations = rank.device->counts().host_allocations;
  const int64_t primitives = rank.backend->primitives();
  CHECK(primitives > 0);
  for (int64_t i = 0; i < 3; ++i) {
    const absl::Status status = rank.Iterate(i);
    INFO(status);
    REQUIRE(status.ok());
  }
  CHECK((!kKeepsBlocks || rank.device->counts().host_allocations == allocations));
  CHECK(rank.backend->primitives() == primitives);

  Rank other(options, split[part % 3]);
  REQUIRE(other.Iterate(0).ok());
  CHECK(other.losses[0] == rank.losses[0]);
  CHECK(other.allocator.total().peak_bytes == rank.allocator.total().peak_bytes);
}

TEST_CASE("a dry run that finds too little memory says so, and leaves the stage as it was") {
  TransformerStageOptions options = SmallOptions(/*tied=*/true);
  Rank all(options, Split(options.model, 1)[0]);
  REQUIRE(all.Iterate(0).ok());
  Allocator allocator(all.allocator.total().peak_bytes - 1);
  const auto backend = CpuBackend::Create(1, allocator);
  SharedRooms rooms(allocator);
  const auto stage = TransformerStage::Create(all.options, allocator, **backend, &all.tokens, all.weights, &rooms);
  REQUIRE(stage.ok());
  const absl::Status status = DryRun(all.actions, {stage->get()}, 7, 3);
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK_THAT(std::string(status.message()), Catch::StartsWith("iteration 7, 0") && Catch::Contains(" on rank 3: "));
  CHECK(allocator.usage(MemoryCategory::kActivations).bytes == 0);
  CHECK(allocator.usage(MemoryCategory::kTransport).bytes == 0);
  REQUIRE((*stage)->BeginIteration(0).ok());
}

}  // namespace
}  // namespace geopipe
