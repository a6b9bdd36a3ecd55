// Two stages on devices of their own, through executor and transport: nothing but the device touches its memory, and
// nothing waits for it inside an iteration.
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

constexpr int32_t kStages = 2;
constexpr int64_t kIterations = 3;
const std::vector<PeerId> kPipeline{0, 1};

// Counts how often the device was waited for between the begin of an iteration and each of its forwards.
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

struct Result {
  absl::Status status;
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<float> weights;
  std::vector<int64_t> waits;  // at the begin of each iteration
  int64_t waits_inside = 0;
  int64_t pending_records = 0;
};

// Of one rank; outlives what it has sent.
struct Memory {
  explicit Memory(bool toy)
      : device(toy ? std::make_unique<ToyDevice>() : nullptr),
        allocator(int64_t{1} << 28, toy ? static_cast<Device&>(*device) : HostDevice()) {}

  std::unique_ptr<ToyDevice> device;
  Allocator allocator;
};

Result TrainRank(const TransformerStageOptions& shared, int32_t rank, const Schedule& lowered, Memory& memory,
                 InProcessNetwork& network) {
  Result result;
  ToyDevice* const device = memory.device.get();
  Allocator& allocator = memory.allocator;
  const std::unique_ptr<Backend> backend = device != nullptr
                                               ? std::make_unique<ToyBackend>(*device, allocator)
                                               : *OpenBackend(BackendKind::kCpu, /*threads=*/1, allocator);
  TransformerStageOptions options = shared;
  options.layers = Split(options.model, kStages)[rank];
  WatchingTokens tokens(options, device);
  LargeRandomWeights weights(5);
  const auto stage = TransformerStage::Create(options, allocator, *backend, &tokens, weights);
  if (!stage.ok()) {
    result.status = stage.status();
    return result;
  }
  const std::unique_ptr<MessageTransport> transport = network.Endpoint(rank, allocator.staging());
  ExecutorOptions executor_options;
  executor_options.schedule = lowered;
  executor_options.pipeline_rank = rank;
  executor_options.pipeline = kPipeline;
  executor_options.engines.resize(kStages);
  executor_options.engines[rank] = stage->get();
  executor_options.exchange_norms = true;
  executor_options.end_iteration = kIterations;
  executor_options.on_begin = [&](int64_t) {
    tokens.waits_at_begin = tokens.Waits();
    result.waits.push_back(tokens.waits_at_begin);
  };
  executor_options.on_report = [&](const IterationStats& stats) {
    result.losses.push_back(stats.loss.value_or(0));
    result.norms.push_back(stats.grad_norm.value_or(0));
  };
  auto executor = Executor::Create(std::move(executor_options), *transport, allocator, Clock::Real());
  result.status = executor.ok() ? executor->Run() : executor.status();
  if (!result.status.ok()) {
    network.FailAll(absl::UnavailableError("a peer is gone"));
    return result;
  }
  result.waits.push_back(tokens.Waits());
  result.waits_inside = tokens.waits_inside;
  result.pending_records = device != nullptr ? device->pending_records() : 0;
  for (const Parameter& parameter : (*stage)->parameters().all()) {
    std::vector<float> values(static_cast<size_t>(parameter.value.elements()));
    result.status.Update((*stage)->parameters().Read(parameter.spec.name, parameter.spec.shape, values));
    result.weights.insert(result.weights.end(), values.begin(), values.end());
  }
  return result;
}

std::vector<Result> Train(bool tied, bool toy) {
  const TransformerStageOptions options = SmallOptions(tied);
  const Schedule lowered = *Lower(*MakeSchedule(
      ScheduleKind::kZbH1, PipelineShape::Linear(kStages, options.micro_batches), std::vector<int32_t>{0}));
  const int64_t message_bytes = 4 * options.micro_batch_size * options.sequence_length * options.model.hidden_size;
  ChannelSizes sizes;
  sizes.boundary_bytes = {message_bytes};
  sizes.norm_bytes.assign(kStages, 1 << 16);
  sizes.tied_gradient_bytes = tied ? 4 * options.model.vocab_size * options.model.hidden_size : 0;
  std::vector<std::unique_ptr<Memory>> memories;
  InProcessNetwork network(kStages);
  for (int32_t rank = 0; rank < kStages; ++rank) {
    memories.push_back(std::make_unique<Memory>(toy));
    for (const ChannelSpec& channel : ChannelsOf(lowered, rank, kPipeline, sizes)) {
      network.Add(channel);
    }
  }
  std::vector<Result> results(kStages);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < kStages; ++rank) {
    threads.emplace_back([&, rank] { results[rank] = TrainRank(options, rank, lowered, *memories[rank], network); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return results;
}

TEST_CASE("a pipeline over two devices has the processor's bits, and waits for each once an iteration, at its end") {
  const bool tied = GENERATE(false, true);
  const std::vector<Result> expected = Train(tied, /*toy=*/false);
  const std::vector<Result> actual = Train(tied, /*toy=*/true);
  for (size_t rank = 0; rank < kStages; ++rank) {
    INFO("rank " << rank << ": " << actual[rank].status);
    REQUIRE(expected[rank].status.ok());
    REQUIRE(actual[rank].status.ok());
    CHECK(actual[rank].losses == expected[rank].losses);
    CHECK(actual[rank].norms == expected[rank].norms);
    CHECK(actual[rank].weights == expected[rank].weights);
    CHECK(actual[rank].waits_inside == 0);
    CHECK(actual[rank].pending_records > 0);
    const std::vector<int64_t>& waits = actual[rank].waits;
    REQUIRE(waits.size() == kIterations + 1);
    for (size_t i = 0; i < kIterations; ++i) {
      CHECK(waits[i + 1] == waits[i] + 1);
    }
  }
  CHECK(actual.back().losses.front() > 0);
}

}  // namespace
}  // namespace geopipe
