// Two ranks, each with one stage or two on a device of its own, through executor and transport: nothing but the device
// touches its memory, and nothing waits for it inside an iteration.
#include <absl/strings/match.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <functional>
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
#include "runtime/transport/stream/reliable_transport.h"
#include "tests/runtime/model/pipeline_driver.h"
#include "tests/support/in_process_transport.h"
#include "tests/support/pumped_loopback.h"
#include "tests/support/sanitized.h"
#include "tests/support/seed.h"
#include "tests/support/seeded_device.h"

namespace geopipe {
namespace {

constexpr int64_t kIterations = 3;

// Counts how often the device was waited for between the start of an iteration and each of its forwards.
class WatchingTokens final : public TokenSource {
 public:
  WatchingTokens(const TransformerStageOptions& options, const SeededDevice* device)
      : tokens_(options.model.vocab_size, options.sequence_length), device_(device) {}

  absl::Status Read(int64_t iteration, int64_t first_sample, int64_t samples, std::span<int32_t> inputs,
                    std::span<int32_t> targets) override {
    waits_inside += Waits() - waits_at_begin;
    return tokens_.Read(iteration, first_sample, samples, inputs, targets);
  }
  int64_t Waits() const { return device_ == nullptr ? 0 : device_->counts().waits; }

  int64_t waits_at_begin = 0;
  int64_t waits_inside = 0;

 private:
  RandomTokens tokens_;
  const SeededDevice* device_;
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
  std::vector<int64_t> waits;             // at the start of each iteration, and after the run
  std::vector<int64_t> host_allocations;  // as well
  int64_t waits_inside = 0;
  int64_t pending_records = 0;
  std::string under_way;  // the action, when training has ended
};

// A training of some iterations.
struct Case {
  ScheduleKind kind = ScheduleKind::kZbH1;
  CommMode comm = CommMode::kNonBlocking;
  bool tied = false;
  int32_t ranks = 2;
  int64_t evaluated = 2;  // the weights before this iteration
  int64_t passes = 2;     // of the evaluation

  static constexpr int kCases = 12;
  static Case Number(int i) {
    constexpr std::array kKinds{ScheduleKind::kZbH1, ScheduleKind::kZbV, ScheduleKind::kInterleaved};
    return {.kind = kKinds.at(i % 3),
            .comm = i / 3 % 2 == 0 ? CommMode::kNonBlocking : CommMode::kBlocking,
            .tied = i / 6 % 2 == 1};
  }
};

// The ranks compute on this: on the processor, or on devices of a seed.
struct Hardware {
  std::optional<uint64_t> seed = std::nullopt;
  DeviceFault fault = DeviceFault::kNone;
  std::function<void(SeededDevice&)> disturb = nullptr;  // as training begins, on rank 0
  int64_t progress_deadline_ns = 60'000'000'000;
  bool streams = false;  // between ranks, as between processes
};

// The way between two ranks.
class Wires {
 public:
  virtual ~Wires() = default;
  virtual MessageTransport& transport(int32_t rank) = 0;
  // Every rank's transport fails, as when the peers' process is gone.
  virtual void FailAll(const absl::Status& status) = 0;
};

// Memory of one rank; outlives what it has sent.
struct Memory {
  Memory(const Hardware& hardware, int32_t rank)
      : device(hardware.seed.has_value()
                   ? std::make_unique<SeededDevice>(*hardware.seed + 1000 * static_cast<uint64_t>(rank), hardware.fault)
                   : nullptr),
        allocator(int64_t{1} << 28, device != nullptr ? static_cast<Device&>(*device) : HostDevice()) {}

  std::unique_ptr<SeededDevice> device;
  Allocator allocator;
};

// Messages that threads hand to each other.
class Threads final : public Wires {
 public:
  Threads(const std::vector<std::vector<ChannelSpec>>& channels, const std::vector<std::unique_ptr<Memory>>& memories)
      : network_(static_cast<int32_t>(channels.size())) {
    for (int32_t rank = 0; rank < std::ssize(channels); ++rank) {
      std::ranges::for_each(channels[rank], [this](const ChannelSpec& channel) { network_.Add(channel); });
      ends_.push_back(network_.Endpoint(rank, memories[rank]->allocator.staging()));
    }
  }

  MessageTransport& transport(int32_t rank) override { return *ends_[rank]; }
  void FailAll(const absl::Status& status) override { network_.FailAll(status); }

 private:
  InProcessNetwork network_;
  std::vector<std::unique_ptr<MessageTransport>> ends_;
};

// Reliable streams over a network that delays frames at random, so that acknowledgements come early or late.
class Streams final : public Wires {
 public:
  Streams(const std::vector<std::vector<ChannelSpec>>& channels, const std::vector<std::unique_ptr<Memory>>& memories,
          uint64_t seed)
      : network_(/*max_payload_bytes=*/4096, seed, {.reorder = 0.3, .latency_ns = 20'000, .reorder_ns = 2'000'000}) {
    for (int32_t rank = 0; rank < 2; ++rank) {
      ReliableTransportOptions options;
      options.rank = rank;
      options.allocator = &memories[rank]->allocator.staging();
      options.channels = channels[rank];
      options.stream.session = 1 + static_cast<uint64_t>(rank);
      options.stream.reordering_ns = 2'000'000;
      auto end = ReliableTransport::Create(std::move(options), network_.carrier(rank));
      GP_CHECK(end.ok(), "{}", std::string(end.status().message()));
      ends_.push_back(*std::move(end));
    }
    network_.Start(*ends_[0], *ends_[1]);
  }
  ~Streams() override { network_.Stop(); }

  MessageTransport& transport(int32_t rank) override { return *ends_[rank]; }
  void FailAll(const absl::Status& status) override {
    std::ranges::for_each(ends_, [&](const auto& end) { end->Fail(status); });
  }

 private:
  PumpedLoopback network_;
  std::vector<std::unique_ptr<ReliableTransport>> ends_;
};

ExecutorOptions OptionsOf(const Schedule& lowered, int32_t rank,
                          const std::vector<std::unique_ptr<TransformerStage>>& stages) {
  ExecutorOptions options;
  options.schedule = lowered;
  options.pipeline_rank = rank;
  for (int32_t other = 0; other < lowered.shape.devices; ++other) {
    options.pipeline.push_back(other);
  }
  for (const std::unique_ptr<TransformerStage>& stage : stages) {
    options.engines.push_back(stage.get());
  }
  options.exchange_norms = true;
  options.end_iteration = kIterations;
  return options;
}

void ReadWeights(const std::vector<std::unique_ptr<TransformerStage>>& stages, Result& result) {
  for (const std::unique_ptr<TransformerStage>& stage : stages) {
    for (const Parameter& parameter : stage == nullptr ? std::span<Parameter>() : stage->parameters().all()) {
      std::vector<float> values(static_cast<size_t>(parameter.value.elements()));
      result.status.Update(stage->parameters().Read(parameter.spec.name, parameter.spec.shape, values));
      result.weights.insert(result.weights.end(), values.begin(), values.end());
    }
  }
}

Result TrainRank(const TransformerStageOptions& shared, int32_t rank, const Schedule& lowered, const Case& trained,
                 const Hardware& hardware, Memory& memory, Wires& wires) {
  Result result;
  SeededDevice* const device = memory.device.get();
  Allocator& allocator = memory.allocator;
  const std::unique_ptr<Backend> backend =
      device != nullptr ? std::make_unique<SeededBackend>(*device, allocator)
                        : std::unique_ptr<Backend>(*CpuBackend::Create(/*threads=*/1, allocator));
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
  ExecutorOptions executor_options = OptionsOf(lowered, rank, stages);
  executor_options.comm = trained.comm;
  ActionWatch watch;
  executor_options.watch = &watch;
  executor_options.progress_deadline_ns = hardware.progress_deadline_ns;
  executor_options.on_begin = [&](int64_t) {
    tokens.waits_at_begin = tokens.Waits();
    result.waits.push_back(tokens.waits_at_begin);
    result.host_allocations.push_back(device == nullptr ? 0 : device->counts().host_allocations);
    return true;
  };
  executor_options.on_report = [&](const IterationStats& stats) {
    result.losses.push_back(stats.loss.value_or(0));
    result.norms.push_back(stats.grad_norm.value_or(0));
  };
  executor_options.evaluation = {
      .passes = trained.passes,
      .is_due = [&trained](int64_t iteration) { return iteration == trained.evaluated; },
      .on_report = [&](const EvaluationStats& stats) { result.validation_losses.push_back(stats.loss.value_or(0)); }};
  if (rank == 0 && hardware.disturb) {
    hardware.disturb(*device);
  }
  auto executor = Executor::Create(std::move(executor_options), wires.transport(rank), allocator, Clock::Real());
  result.status = executor.ok() ? executor->Run() : executor.status();
  if (const std::optional<ActionWatch::UnderWay> action = watch.Now(); action.has_value()) {
    result.under_way = ToString(action->action);
  }
  if (device != nullptr) {
    device->Release(Queue::kCompute);
  }
  if (!result.status.ok()) {
    wires.FailAll(absl::UnavailableError("a peer is gone"));
    return result;
  }
  result.waits.push_back(tokens.Waits());
  result.host_allocations.push_back(device == nullptr ? 0 : device->counts().host_allocations);
  result.waits_inside = tokens.waits_inside;
  result.pending_records = device != nullptr ? device->pending_records() : 0;
  ReadWeights(stages, result);
  return result;
}

std::vector<Result> Train(const Case& trained, const Hardware& hardware) {
  const int32_t ranks = trained.ranks;
  const TransformerStageOptions options = SmallOptions(trained.tied);
  const Schedule lowered =
      *Lower(*MakeSchedule(trained.kind, PipelineShape::Of(RowOf(trained.kind).layout, ranks, options.micro_batches)));
  const int64_t tokens = options.micro_batch_size * options.sequence_length;
  ChannelMessages messages;
  messages.boundaries.assign(lowered.shape.stages - 1,
                             PayloadLayout::Of(DType::kFp32, {tokens, options.model.hidden_size}));
  messages.norm_bytes.assign(ranks, 1 << 16);
  if (trained.tied) {
    messages.tied_gradient = PayloadLayout::Of(DType::kFp32, {options.model.vocab_size * options.model.hidden_size});
  }
  std::vector<std::unique_ptr<Memory>> memories;
  std::vector<std::vector<ChannelSpec>> channels;
  const std::vector<PeerId> pipeline = ranks == 1 ? std::vector<PeerId>{0} : std::vector<PeerId>{0, 1};
  for (int32_t rank = 0; rank < ranks; ++rank) {
    memories.push_back(std::make_unique<Memory>(hardware, rank));
    channels.push_back(ChannelsOf(lowered, rank, pipeline, messages));
  }
  std::unique_ptr<Wires> wires;
  if (hardware.streams) {
    wires = std::make_unique<Streams>(channels, memories, *hardware.seed);
  } else {
    wires = std::make_unique<Threads>(channels, memories);
  }
  std::vector<Result> results(ranks);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back(
        [&, rank] { results[rank] = TrainRank(options, rank, lowered, trained, hardware, *memories[rank], *wires); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return results;
}

// The rule holds in blocking mode too: a rank then waits for its peer's acknowledgement, as it waits for inputs, and
// not for its device to make the message.
void CheckWaits(const Result& result) {
  CHECK(result.waits_inside == 0);
  CHECK(result.pending_records > 0);
  REQUIRE(result.waits.size() == kIterations + 1);
  for (size_t i = 0; i < kIterations; ++i) {
    // The run's end waits for the last update.
    CHECK(result.waits[i + 1] == result.waits[i] + (i + 1 < kIterations ? 1 : 2) + (i == Case().evaluated ? 1 : 0));
  }
}

bool SameBits(const std::vector<Result>& a, const std::vector<Result>& b) {
  return std::ranges::equal(a, b, [](const Result& x, const Result& y) {
    return x.status.ok() && y.status.ok() && x.losses == y.losses && x.norms == y.norms &&
           x.validation_losses == y.validation_losses && x.weights == y.weights;
  });
}

TEST_CASE(
    "a pipeline over two devices has the processor's bits in every order of their queues, and waits for each once an "
    "iteration or evaluation, at its end") {
  const uint64_t first = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << first);
  for (int number = 0; number < Case::kCases; ++number) {
    const Case trained = Case::Number(number);
    CAPTURE(ScheduleKindName(trained.kind), CommModeName(trained.comm), trained.tied);
    const std::vector<Result> expected = Train(trained, {});
    REQUIRE(SameBits(expected, expected));
    CHECK(expected[0].losses.front() + expected[1].losses.front() > 0);
    CHECK(expected[0].validation_losses.size() + expected[1].validation_losses.size() == 1);
    for (int i = number; i < std::max(TestSeeds(), Case::kCases); i += Case::kCases) {
      const std::vector<Result> actual = Train(trained, {.seed = first + i});
      INFO("seed " << first + i << ": " << actual[0].status << ", " << actual[1].status);
      CHECK(SameBits(actual, expected));
      CheckWaits(actual[0]);
      CheckWaits(actual[1]);
    }
  }
}

TEST_CASE("inside iterations from the second on no staging memory is allocated, however late messages arrive") {
  const uint64_t first = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << first);
  for (int i = 0; i < std::max(TestSeeds(), Case::kCases); ++i) {
    Case trained = Case::Number(i % Case::kCases);
    trained.evaluated = 0;  // an evaluation's passes are more than an iteration, and may take more
    CAPTURE(ScheduleKindName(trained.kind), CommModeName(trained.comm), trained.tied);
    const std::vector<Result> results = Train(trained, {.seed = first + i, .streams = true});
    for (const Result& result : results) {
      INFO("seed " << first + i << ": " << result.status);
      REQUIRE(result.status.ok());
      REQUIRE(result.host_allocations.size() == kIterations + 1);
      CHECK((!kKeepsBlocks || result.host_allocations.front() > 0));
      CHECK((!kKeepsBlocks || result.host_allocations.back() == result.host_allocations[1]));
    }
    CHECK(SameBits(results, Train(trained, {})));
  }
}

TEST_CASE("a device has no more than two passes of an evaluation before it") {
  const Case trained{.kind = ScheduleKind::kGpipe, .ranks = 1, .passes = 5};
  const Result result = Train(trained, {.seed = TestSeed()}).front();
  INFO(result.status);
  REQUIRE(result.waits.size() == kIterations + 1);
  CHECK(result.waits[3] - result.waits[2] == 2 + 1 + 3);  // for iteration and run, for the evaluation, for its passes
}

TEST_CASE("a device that does not wait, frees too early or takes in too early is found out at some seed") {
  const DeviceFault fault = GENERATE(DeviceFault::kDropsAfter, DeviceFault::kReleasesEarly, DeviceFault::kLandsEarly);
  CAPTURE(static_cast<int>(fault));
  if ((!kKeepsBlocks && fault != DeviceFault::kDropsAfter) || kThreadSanitized) {
    return;  // the thread sanitizer sees the same faults its own way
  }
  const std::vector<Result> expected = Train({}, {});
  bool found = false;
  for (uint64_t seed = 0; seed < 40 && !found; ++seed) {
    found = !SameBits(Train({}, {.seed = seed, .fault = fault}), expected);
  }
  CHECK(found);
}

TEST_CASE("a device that fails ends the training of its rank with its own words, and is found out if it hides it") {
  const bool hides = GENERATE(false, true);
  const std::vector<Result> results =
      Train({}, {.seed = TestSeed(),
                 .fault = hides ? DeviceFault::kHidesFailure : DeviceFault::kNone,
                 .disturb = [](SeededDevice& device) { device.Break(absl::InternalError("off the bus")); }});
  INFO(results[0].status << ", " << results[1].status);
  CHECK(absl::StrContains(results[0].status.message(), "off the bus") == !hides);
  CHECK((hides || !results[1].status.ok()));
}

TEST_CASE("a device that is stuck is given up in time, by the name of its action, and is found out if nobody looks") {
  const bool patient = GENERATE(false, true);
  const Hardware hardware{.seed = TestSeed(),
                          .fault = patient ? DeviceFault::kIgnoresDeadlines : DeviceFault::kNone,
                          .disturb = [](SeededDevice& device) { device.Hold(Queue::kCompute); },
                          .progress_deadline_ns = 100'000'000};
  const Result alone = Train({.kind = ScheduleKind::kGpipe, .ranks = 1}, hardware).front();
  INFO(alone.status);
  CHECK(absl::StrContains(alone.status.message(), "the device of rank 0 has not done 0F0 within 0.1 s") == !patient);
  CHECK(absl::IsInternal(alone.status) == !patient);  // a deadline's would be a peer's
  CHECK(alone.under_way == (patient ? "" : "0F0"));
}

TEST_CASE("while a rank waits for another, the supervisor sees the action that its device is stuck at") {
  const std::vector<Result> results = Train({}, {.seed = TestSeed(),
                                                 .disturb = [](SeededDevice& device) { device.Hold(Queue::kCompute); },
                                                 .progress_deadline_ns = 100'000'000});
  INFO(results[0].status << ", " << results[1].status);
  CHECK(absl::StrContains(results[0].status.message(), "0RECV_B0"));
  CHECK(results[0].under_way == "0F0");
  CHECK(results[1].under_way.empty());
}

}  // namespace
}  // namespace geopipe
