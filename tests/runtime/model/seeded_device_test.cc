// The engine on a device whose memory the host cannot touch, and which does its work some time later.
#include "tests/support/seeded_device.h"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>

#include "runtime/base/clock.h"
#include "runtime/tensor/staging.h"
#include "tests/runtime/model/pipeline_driver.h"

namespace geopipe {
namespace {

// The weights that are updated.
std::vector<float> ValueOf(PipelineDriver& pipeline, const ParameterTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.count()));
  REQUIRE(pipeline.stage(0).parameters().Read(tensor.name, tensor.shape, values).ok());
  return values;
}

TEST_CASE("what the host reads at a device's address ends the process") {
  SeededDevice device;
  Allocator allocator(1 << 20, device);
  const Tensor tensor = *Tensor::Create(allocator, MemoryCategory::kWorkspace, DType::kFp32, {4});
  CHECK(tensor.space() == MemorySpace::kDevice);
  const pid_t child = fork();
  if (child == 0) {
    (void)std::signal(SIGSEGV, SIG_DFL);
    (void)*static_cast<volatile std::byte*>(tensor.address());
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK((!WIFEXITED(status) || WEXITSTATUS(status) != 0));
}

TEST_CASE("what the host writes and reads passes through staging buffers, and comes back") {
  SeededDevice device;
  Allocator allocator(1 << 20, device);
  const Tensor tensor = *Tensor::Create(allocator, MemoryCategory::kWeights, DType::kInt32, {3});
  REQUIRE(FillFromHost(tensor, [](const Tensor& host) {
            CHECK(host.space() == MemorySpace::kHost);
            host.int32()[0] = 7;
            return absl::OkStatus();
          }).ok());
  CHECK(device.counts().waits == 0);
  int32_t first = 0;
  REQUIRE(ReadOnHost(tensor, [&](const Tensor& host) { first = host.int32()[0]; }).ok());
  CHECK(first == 7);
  CHECK(device.counts().waits == 1);
  Timed<Tensor> message =
      *ToHost(*ToDevice({*Tensor::Zeros(allocator.staging(), MemoryCategory::kTransport, DType::kFp32, {8}), {}},
                        allocator, MemoryCategory::kActivations));
  REQUIRE(device.Wait(message.ready, DeviceDeadlineNs()).ok());
  CHECK(message.value.fp32()[5] == 0);
  CHECK(allocator.usage(MemoryCategory::kActivations).peak_bytes == 32);
  REQUIRE(device.WaitIdle(DeviceDeadlineNs()).ok());
  CHECK(allocator.staging().usage(MemoryCategory::kTransport).bytes == 32);
}

TEST_CASE("a whole stage on another device has the processor's bits, and waits for it once an iteration") {
  const bool tied = GENERATE(false, true);
  const TransformerStageOptions options = SmallOptions(tied);
  RandomTokens tokens(options.model.vocab_size, options.sequence_length);
  LargeRandomWeights weights(3);
  const std::vector<LayerRange> split = Split(options.model, 1);
  SeededDevice device;
  PipelineDriver expected(options, split, tokens, weights);
  PipelineDriver actual(options, split, tokens, weights, On(device));
  for (int64_t iteration = 0; iteration < 3; ++iteration) {
    const int64_t waits = device.counts().waits;
    CHECK(actual.Iterate(iteration, DriveOrder::kDelayedWeights) == expected.Iterate(iteration, DriveOrder::k1F1B));
    CHECK(device.counts().waits == waits + 1);
  }
  CHECK(device.pending_records() > 0);
  for (const Parameter& parameter : expected.stage(0).parameters().all()) {
    CHECK(actual.Value(parameter.spec.name) == expected.Value(parameter.spec.name));
  }
}

TEST_CASE("states that the host keeps pass through the device in runs, and leave the bits alone") {
  const Precision precision = GENERATE(Precision::kFp32, Precision::kBf16);
  TransformerStageOptions options = SmallOptions(/*tied=*/true);
  options.sharding.precision = precision;
  const int64_t vectors = precision == Precision::kBf16 ? 3 : 2;
  RandomTokens tokens(options.model.vocab_size, options.sequence_length);
  LargeRandomWeights weights(3);
  const std::vector<LayerRange> split = Split(options.model, 1);
  PipelineDriver expected(options, split, tokens, weights);
  options.sharding.offloads_optimizer = true;
  SeededDevice device;
  PipelineDriver actual(options, split, tokens, weights, On(device));
  for (int64_t iteration = 0; iteration < 3; ++iteration) {
    const int64_t waits = device.counts().waits;
    CHECK(actual.Iterate(iteration, DriveOrder::kDelayedWeights) == expected.Iterate(iteration, DriveOrder::k1F1B));
    CHECK(device.counts().waits == waits + 1);
  }
  int64_t norms = 0;
  int64_t others = 0;
  for (const Parameter& parameter : actual.stage(0).parameters().all()) {
    const bool is_norm = parameter.spec.shape.size() == 1;
    (is_norm ? norms : others) += parameter.spec.count();
    CHECK(parameter.first_moment.space() == (is_norm ? MemorySpace::kDevice : MemorySpace::kHost));
    CHECK(ValueOf(actual, parameter.spec) == ValueOf(expected, parameter.spec));
  }
  Allocator& memory = actual.allocator(0);
  CHECK(memory.usage(MemoryCategory::kOptimizer).bytes == 2 * 4 * norms);
  CHECK(memory.host().usage(MemoryCategory::kOptimizer).bytes == vectors * 4 * others);
  CHECK(memory.staging().usage(MemoryCategory::kOptimizer).bytes == 0);
}

TEST_CASE("a device that has failed is not used again: all its later work fails, and says so once it is waited for") {
  SeededDevice device;
  const Completion before = device.Record(Queue::kCompute);
  device.Enqueue([] { return absl::InternalError("an illegal address"); });
  const Completion after = device.Record(Queue::kCompute);
  std::string told;
  after.Then([&] { told = std::string(after.status().message()); });
  CHECK(device.Wait(before, DeviceDeadlineNs()).ok());
  CHECK(device.Wait(after, DeviceDeadlineNs()).message() == "an illegal address");
  CHECK(told == "an illegal address");
  CHECK(device.WaitIdle(DeviceDeadlineNs()).message() == "an illegal address");
}

TEST_CASE("a wait for work that never ends is over at its deadline") {
  SeededDevice device;
  device.Hold(Queue::kCompute);
  const Completion stuck = device.Record(Queue::kCompute);
  CHECK(absl::IsDeadlineExceeded(device.Wait(stuck, Clock::Real().NowNs())));
}

}  // namespace
}  // namespace geopipe
