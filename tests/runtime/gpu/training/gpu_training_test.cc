// Whole stages of a small model that train on the emulated GPU, opened as a worker opens one.
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/compute/open.h"
#include "runtime/gpu/gpu_backend.h"
#include "runtime/gpu/gpu_device.h"
#include "runtime/model/dry_run.h"
#include "tests/runtime/model/pipeline_driver.h"
#include "tests/support/gpu_emulator/emulated_gpu.h"
#include "tests/support/sanitized.h"

namespace geopipe {
namespace {

constexpr int64_t kIterations = 3;

TransformerStageOptions TinyOptions(bool tied, Precision precision = Precision::kFp32) {
  TransformerStageOptions options = SmallOptions(tied);
  options.model.num_hidden_layers = 2;
  options.micro_batches = 2;
  options.training.tokens_per_iteration = 40;
  options.sharding.precision = precision;
  return options;
}

std::string Seeded(int seed) { return "seed=" + std::to_string(seed); }

DriverDevice On(Device& device) {
  return {device, [](Allocator& memory) { return *OpenBackend(BackendKind::kCuda, /*threads=*/1, memory); }};
}

struct Run {
  std::vector<IterationResult> iterations;
  std::vector<float> embedding;
  std::vector<float> last_norm;

  friend bool operator==(const Run&, const Run&) = default;
};

// The weights that are updated.
std::vector<float> EmbeddingOf(PipelineDriver& pipeline) {
  ParameterSet& parameters = pipeline.stage(0).parameters();
  const Parameter* parameter = parameters.Find("model.embed_tokens.weight");
  std::vector<float> values(static_cast<size_t>(parameter->spec.count()));
  REQUIRE(parameters.Read(parameter->spec.name, parameter->spec.shape, values).ok());
  return values;
}

Run Train(const TransformerStageOptions& options, int64_t stages, DriveOrder order,
          const std::optional<DriverDevice>& device) {
  RandomTokens tokens(options.model.vocab_size, options.sequence_length);
  LargeRandomWeights weights(/*seed=*/3);
  PipelineDriver pipeline(options, Split(options.model, stages), tokens, weights, device);
  Run run;
  for (int64_t i = 0; i < kIterations; ++i) {
    run.iterations.push_back(pipeline.Iterate(i, order));
  }
  run.embedding = EmbeddingOf(pipeline);
  run.last_norm = pipeline.Value("model.norm.weight");
  return run;
}

Run TrainOnGpu(const TransformerStageOptions& options, int64_t stages, DriveOrder order, int seed) {
  const EmulatedGpu gpu(Seeded(seed));
  const std::unique_ptr<Device> device = *OpenDevice(BackendKind::kCuda, EmulatedGpuLibrary());
  return Train(options, stages, order, On(*device));
}

void CheckClose(const Run& actual, const Run& expected, double tolerance) {
  for (size_t i = 0; i < expected.iterations.size(); ++i) {
    const IterationResult& a = actual.iterations[i];
    const IterationResult& e = expected.iterations[i];
    INFO("iteration " << i);
    CHECK(std::abs(a.loss - e.loss) <= tolerance * e.loss);
    CHECK(std::abs(a.grad_norm - e.grad_norm) <= 10 * tolerance * e.grad_norm);
  }
}

TEST_CASE("a model trains on the GPU as on the processor, with the same bits whatever the device's order") {
  const int family = GENERATE(0, 4);
  TransformerStageOptions options = TinyOptions(/*tied=*/family == 0);
  SetFamily(family, options.model);
  const Run expected = Train(options, 1, DriveOrder::k1F1B, std::nullopt);
  const Run first = TrainOnGpu(options, 1, DriveOrder::k1F1B, 0);
  CheckClose(first, expected, 1e-5);
  CHECK(first.iterations.front().loss != first.iterations.back().loss);
  for (int seed = 1; seed < 4; ++seed) {
    INFO("seed " << seed);
    CHECK(TrainOnGpu(options, 1, DriveOrder::k1F1B, seed) == first);
  }
}

TEST_CASE("bf16 trains on the GPU as on the processor, biases and all") {
  TransformerStageOptions options = TinyOptions(/*tied=*/true, Precision::kBf16);
  SetFamily(GENERATE(1, 3), options.model);
  const Run expected = Train(options, 1, DriveOrder::k1F1B, std::nullopt);
  const Run first = TrainOnGpu(options, 1, DriveOrder::k1F1B, 0);
  CheckClose(first, expected, 0x1p-8);
  CHECK(TrainOnGpu(options, 1, DriveOrder::k1F1B, 1) == first);
}

TEST_CASE("stages, orders of weight gradients and what is made again leave the GPU's bits alone") {
  const Precision precision = GENERATE(Precision::kFp32, Precision::kBf16);
  const TransformerStageOptions options = TinyOptions(/*tied=*/true, precision);
  const Run expected = TrainOnGpu(options, 1, DriveOrder::kGpipe, 0);
  CHECK(TrainOnGpu(options, 2, DriveOrder::k1F1B, 1) == expected);
  CHECK(TrainOnGpu(options, 2, DriveOrder::kDelayedWeights, 2) == expected);
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    TransformerStageOptions again = options;
    again.recompute = recompute;
    CHECK(TrainOnGpu(again, 1, DriveOrder::k1F1B, 3) == expected);
  }
}

TEST_CASE("optimizer states that the host keeps leave the GPU's bits alone") {
  TransformerStageOptions options = TinyOptions(/*tied=*/false);
  const Run expected = TrainOnGpu(options, 1, DriveOrder::kGpipe, 0);
  options.sharding.offloads_optimizer = true;
  CHECK(TrainOnGpu(options, 1, DriveOrder::kGpipe, 1) == expected);
}

// Actions of one rank with all stages.
std::vector<Action> ActionsOf(const TransformerStageOptions& options) {
  std::vector<Action> actions;
  for (int32_t q = 0; q < options.micro_batches; ++q) {
    actions.push_back({0, ActionKind::kForward, q});
  }
  for (int32_t q = 0; q < options.micro_batches; ++q) {
    actions.push_back({0, ActionKind::kInputGradient, q});
    actions.push_back({0, ActionKind::kWeightGradient, q});
  }
  return actions;
}

TEST_CASE("after a dry run no iteration makes a plan, and none from the second on allocates or waits but once") {
  const EmulatedGpu gpu;
  const std::unique_ptr<Device> device = *OpenDevice(BackendKind::kCuda, EmulatedGpuLibrary());
  const TransformerStageOptions options = TinyOptions(/*tied=*/true, Precision::kBf16);
  RandomTokens tokens(options.model.vocab_size, options.sequence_length);
  LargeRandomWeights weights(/*seed=*/3);
  PipelineDriver pipeline(options, Split(options.model, 1), tokens, weights, On(*device));
  const auto& backend = dynamic_cast<const GpuBackend&>(pipeline.backend(0));
  REQUIRE(DryRun(ActionsOf(options), {&pipeline.stage(0)}, 0, 0).ok());
  const int64_t plans = backend.plans_built();
  const int64_t workspace = pipeline.allocator(0).usage(MemoryCategory::kWorkspace).bytes;
  CHECK(plans > 0);
  (void)pipeline.Iterate(0, DriveOrder::kGpipe);
  const Device::Counts before = device->counts();
  const GpEmulatorCounters counters = gpu.counters();
  for (int64_t i = 1; i < kIterations; ++i) {
    (void)pipeline.Iterate(i, DriveOrder::kGpipe);
  }
  CHECK(backend.plans_built() == plans);
  CHECK(gpu.counters().plans == plans);
  CHECK(pipeline.allocator(0).usage(MemoryCategory::kWorkspace).bytes == workspace);
  CHECK((!kKeepsBlocks || device->counts().allocations == before.allocations));
  CHECK(device->counts().waits == before.waits + kIterations - 1);
  CHECK(gpu.counters().device_frees == 0);
  CHECK(gpu.counters().waits == counters.waits);
}

// Begins to train until something fails.
absl::Status TrainUntilFailure(const std::string& fault, int64_t limit_bytes = int64_t{1} << 30) {
  const EmulatedGpu gpu(fault);
  const std::unique_ptr<Device> device = *OpenDevice(BackendKind::kCuda, EmulatedGpuLibrary());
  Allocator allocator(limit_bytes, *device);
  const std::unique_ptr<Backend> backend = *OpenBackend(BackendKind::kCuda, 1, allocator);
  TransformerStageOptions options = TinyOptions(/*tied=*/true);
  options.layers = Split(options.model, 1)[0];
  RandomTokens tokens(options.model.vocab_size, options.sequence_length);
  LargeRandomWeights weights(/*seed=*/3);
  SharedRooms rooms(allocator);
  auto stage = TransformerStage::Create(options, allocator, *backend, &tokens, weights, &rooms);
  if (!stage.ok()) {
    return stage.status();
  }
  absl::Status status = (*stage)->BeginIteration(0);
  for (const Action& action : ActionsOf(options)) {
    if (status.ok()) {
      const int32_t q = action.micro_batch;
      status = action.kind == ActionKind::kForward         ? (*stage)->Forward(q, {}).status()
               : action.kind == ActionKind::kInputGradient ? (*stage)->BackwardInput(q, {}).status()
                                                           : (*stage)->BackwardWeight(q, 0).status();
    }
  }
  constexpr int64_t kPatienceNs = 500'000'000;
  if (const absl::StatusOr<Timed<ScalarReader>> scalars = (*stage)->ReadScalars(/*norm_terms=*/true); scalars.ok()) {
    status.Update(device->Wait(scalars->ready, Clock::Real().NowNs() + kPatienceNs));
  } else {
    status.Update(scalars.status());
  }
  (*stage)->AbandonIteration();
  return status;
}

TEST_CASE("a GPU that is lost amid an iteration, hangs, or has too little memory ends it with one sentence") {
  struct Case {
    std::string fault;
    absl::StatusCode code;
    std::string sentence;
  };
  const std::vector<Case> cases = {
      {"lost_at=40", absl::StatusCode::kInternal, "illegal memory access"},
      {"off_bus_at=40", absl::StatusCode::kInternal, "fallen off the bus"},
      {"stuck_at=40", absl::StatusCode::kInternal, "its work is not over in time"},
      {"out_of_memory_at=12", absl::StatusCode::kResourceExhausted, "left, though this worker uses"},
      {"host_out_of_memory_at=5", absl::StatusCode::kResourceExhausted, "the host has no"},
      {"memory_bytes=200000", absl::StatusCode::kResourceExhausted, "left, though this worker uses"},
  };
  CHECK(TrainUntilFailure("").ok());
  for (const Case& c : cases) {
    if (!kKeepsBlocks && c.fault.starts_with("host_out_of_memory")) {
      continue;  // what was freed before serves
    }
    INFO(c.fault);
    const absl::Status status = TrainUntilFailure(c.fault);
    INFO(status);
    CHECK(status.code() == c.code);
    CHECK_THAT(std::string(status.message()), Catch::Contains(c.sentence));
  }
}

}  // namespace
}  // namespace geopipe
