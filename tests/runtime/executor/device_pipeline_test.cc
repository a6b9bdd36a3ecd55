// Two ranks, each with one stage or two on a device of its own, through executor and transport: nothing but the device
// touches its memory, and nothing waits for it inside an iteration.
#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "optimizer/model/transformer.h"
#include "optimizer/schedule/lowering.h"
#include "optimizer/schedule/schedule_table.h"
#include "runtime/base/clock.h"
#include "runtime/executor/channels.h"
#include "runtime/executor/executor.h"
#include "tests/runtime/model/pipeline_driver.h"
#include "tests/support/in_process_transport.h"
#include "tests/support/toy_device.h"

namespace geopipe {
namespace {

constexpr int32_t kRanks = 2;
constexpr int64_t kIterations = 3;
constexpr int64_t kEvaluated = 2;  // the weights before this iteration
const std::vector<PeerId> kPipeline{0, 1};

// Counts how often the device was waited for between the start of an iteration and each of its forwards.
class WatchingTokens final : public TokenSource {
 public:
  WatchingTokens(const TransformerStageOptions& options, const ToyDevice* device)
      : tokens_(options.model.vocab_size, options.sequence_length), device_(device) {}

  absl::Status Read(int64_t iteration, int64_t first_sample, int64_t samples, std::span<int32_t> inputs,
                    std::span<int32_t> targets) override {
    waits_inside += Waits() - waits_at_begin;
    return tokens_.Read(iteration, first_sample, samples, inputs, targets);
  }
  int64_t Waits() const { return device_ == nullptr ? 0 : device_->waits(); }

  int64_t waits_at_begin = 0;
  int64_t waits_inside = 0;

 private:
  RandomTokens tokens_;
  const ToyDevice* device_;
};

// Tokens of evaluations, for which the device is waited for once, at the end.
class ValidationTokens final : public TokenSource {
 public:
  explicit ValidationTokens(WatchingTokens& training) : training_(training) {}

  absl::Status Read(int64_t iteration, int64_t first_sample, int64_t samples, std::span<int32_t> inputs,
                    std::span<int32_t> targets) override {
    waited_from_ = waited_from_ < 0 ? training_.waits_at_begin : waited_from_;
    training_.waits_at_begin = waited_from_;
    const absl::Status read = training_.Read(iteration + kIterations, first_sample, samples, inputs, targets);
    training_.waits_at_begin = waited_from_ + 1;  // for the iteration that follows
    return read;
  }

 private:
  WatchingTokens& training_;
  int64_t waited_from_ = -1;
};

struct Result {
  absl::Status status;
  std::vector<double> validation_losses;
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<float> weights;
  std::vector<int64_t> waits;  // at the start of each iteration, and after the run
  int64_t waits_inside = 0;
  int64_t pending_records = 0;
};

// Memory of one rank; outlives what it has sent.
struct Memory {
  explicit Memory(bool toy)
      : device(toy ? std::make_unique<ToyDevice>() : nullptr),
        allocator(int64_t{1} << 28, toy ? static_cast<Device&>(*device) : HostDevice()) {}

  std::unique_ptr<ToyDevice> device;
  Allocator allocator;
};

Result TrainRank(const TransformerStageOptions& shared, int32_t rank, const Schedule& lowered, CommMode comm,
                 Memory& memory, InProcessNetwork& network) {
  Result result;
  ToyDevice* const device = memory.device.get();
  Allocator& allocator = memory.allocator;
  const std::unique_ptr<Backend> backend = device != nullptr
                                               ? std::make_unique<ToyBackend>(*device, allocator)
                                               : *OpenBackend(BackendKind::kCpu, /*threads=*/1, allocator);
  const PipelineShape& shape = lowered.shape;
  WatchingTokens tokens(shared, device);
  ValidationTokens validation(tokens);
  LargeRandomWeights weights(5);
  std::vector<std::unique_ptr<TransformerStage>> stages(static_cast<size_t>(shape.stages));
  for (int32_t i = 0; i < shape.stages; ++i) {
    if (shape.placement[i] == rank) {
      TransformerStageOptions options = shared;
      options.layers = Split(options.model, shape.stages)[i];
      auto stage = TransformerStage::Create(options, allocator, *backend, &tokens, weights, nullptr, &validation);
      result.status.Update(stage.status());
      stages[i] = stage.ok() ? *std::move(stage) : nullptr;
    }
  }
  if (!result.status.ok()) {
    return result;
  }
  const std::unique_ptr<MessageTransport> transport = network.Endpoint(rank, allocator.staging());
  ExecutorOptions executor_options;
  executor_options.schedule = lowered;
  executor_options.pipeline_rank = rank;
  executor_options.pipeline = kPipeline;
  executor_options.comm = comm;
  for (const std::unique_ptr<TransformerStage>& stage : stages) {
    executor_options.engines.push_back(stage.get());
  }
  executor_options.exchange_norms = true;
  executor_options.end_iteration = kIterations;
  executor_options.on_begin = [&](int64_t) {
    tokens.waits_at_begin = tokens.Waits();
    result.waits.push_back(tokens.waits_at_begin);
    return true;
  };
  executor_options.on_report = [&](const IterationStats& stats) {
    result.losses.push_back(stats.loss.value_or(0));
    result.norms.push_back(stats.grad_norm.value_or(0));
  };
  executor_options.evaluation = {
      .passes = 2,
      .is_due = [](int64_t iteration) { return iteration == kEvaluated; },
      .on_report = [&](const EvaluationStats& stats) { result.validation_losses.push_back(stats.loss.value_or(0)); }};
  auto executor = Executor::Create(std::move(executor_options), *transport, allocator, Clock::Real());
  result.status = executor.ok() ? executor->Run() : executor.status();
  if (!result.status.ok()) {
    network.FailAll(absl::UnavailableError("a peer is gone"));
    return result;
  }
  result.waits.push_back(tokens.Waits());
  result.waits_inside = tokens.waits_inside;
  result.pending_records = device != nullptr ? device->pending_records() : 0;
  for (const std::unique_ptr<TransformerStage>& stage : stages) {
    for (const Parameter& parameter : stage == nullptr ? std::span<Parameter>() : stage->parameters().all()) {
      std::vector<float> values(static_cast<size_t>(parameter.value.elements()));
      result.status.Update(stage->parameters().Read(parameter.spec.name, parameter.spec.shape, values));
      result.weights.insert(result.weights.end(), values.begin(), values.end());
    }
  }
  return result;
}

std::vector<Result> Train(ScheduleKind kind, CommMode comm, bool tied, bool toy) {
  const TransformerStageOptions options = SmallOptions(tied);
  const Schedule lowered =
      *Lower(*MakeSchedule(kind, PipelineShape::Of(RowOf(kind).layout, kRanks, options.micro_batches)));
  const int64_t message_bytes = 4 * options.micro_batch_size * options.sequence_length * options.model.hidden_size;
  ChannelSizes sizes;
  sizes.boundary_bytes.assign(lowered.shape.stages - 1, message_bytes);
  sizes.norm_bytes.assign(kRanks, 1 << 16);
  sizes.tied_gradient_bytes = tied ? 4 * options.model.vocab_size * options.model.hidden_size : 0;
  std::vector<std::unique_ptr<Memory>> memories;
  InProcessNetwork network(kRanks);
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    memories.push_back(std::make_unique<Memory>(toy));
    for (const ChannelSpec& channel : ChannelsOf(lowered, rank, kPipeline, sizes)) {
      network.Add(channel);
    }
  }
  std::vector<Result> results(kRanks);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back(
        [&, rank] { results[rank] = TrainRank(options, rank, lowered, comm, *memories[rank], network); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return results;
}

// The rule holds in blocking mode too: a rank then waits for its peer's acknowledgement, as it waits for inputs, and
// not for its device to make the message.
TEST_CASE(
    "a pipeline over two devices has the processor's bits, and waits for each once an iteration or evaluation, at its "
    "end") {
  const ScheduleKind kind = GENERATE(ScheduleKind::kZbH1, ScheduleKind::kZbV, ScheduleKind::kInterleaved);
  const CommMode comm = GENERATE(CommMode::kNonBlocking, CommMode::kBlocking);
  const bool tied = GENERATE(false, true);
  CAPTURE(ScheduleKindName(kind), CommModeName(comm), tied);
  const std::vector<Result> expected = Train(kind, comm, tied, /*toy=*/false);
  const std::vector<Result> actual = Train(kind, comm, tied, /*toy=*/true);
  for (size_t rank = 0; rank < kRanks; ++rank) {
    INFO("rank " << rank << ": " << actual[rank].status);
    REQUIRE(expected[rank].status.ok());
    REQUIRE(actual[rank].status.ok());
    CHECK(actual[rank].losses == expected[rank].losses);
    CHECK(actual[rank].norms == expected[rank].norms);
    CHECK(actual[rank].validation_losses == expected[rank].validation_losses);
    CHECK(actual[rank].weights == expected[rank].weights);
    CHECK(actual[rank].waits_inside == 0);
    CHECK(actual[rank].pending_records > 0);
    const std::vector<int64_t>& waits = actual[rank].waits;
    REQUIRE(waits.size() == kIterations + 1);
    for (size_t i = 0; i < kIterations; ++i) {
      // The run's end waits for the last update.
      CHECK(waits[i + 1] == waits[i] + (i + 1 < kIterations ? 1 : 2) + (i == kEvaluated ? 1 : 0));
    }
  }
  CHECK(actual[0].losses.front() + actual[1].losses.front() > 0);
  CHECK(actual[0].validation_losses.size() + actual[1].validation_losses.size() == 1);
}

}  // namespace
}  // namespace geopipe
