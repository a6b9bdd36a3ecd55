#include "runtime/rehearsal/paced_engine.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "optimizer/base/kept_time.h"
#include "runtime/rehearsal/modelled_engine.h"
#include "tests/support/fake_clock.h"

namespace geopipe {
namespace {

// Arithmetic that takes `cost_ns` of a fake clock for every call.
class SlowEngine final : public StageEngine {
 public:
  SlowEngine(FakeClock& clock, int64_t cost_ns) : clock_(clock), cost_ns_(cost_ns) {}

  absl::Status BeginIteration(int64_t) override { return absl::OkStatus(); }
  absl::StatusOr<Tensor> Forward(int32_t, Tensor) override {
    clock_.AdvanceNs(cost_ns_);
    return Tensor();
  }
  absl::StatusOr<Tensor> BackwardInput(int32_t, Tensor) override {
    clock_.AdvanceNs(cost_ns_);
    return Tensor();
  }
  absl::Status BackwardWeight(int32_t) override {
    clock_.AdvanceNs(cost_ns_);
    return absl::OkStatus();
  }
  std::optional<double> Loss() const override { return 1.5; }
  absl::StatusOr<std::vector<NormTerm>> GradientNormTerms() override { return std::vector<NormTerm>{{"a", 2.0}}; }
  std::optional<Tensor> TakeTiedGradient() override { return std::nullopt; }
  absl::Status AddTiedGradient(Tensor) override { return absl::OkStatus(); }
  absl::Status Update(int64_t, std::optional<double>) override {
    clock_.AdvanceNs(cost_ns_);
    return absl::OkStatus();
  }
  double LearningRate(int64_t) const override { return 0.25; }

 private:
  FakeClock& clock_;
  int64_t cost_ns_;
};

TEST_CASE("an action lasts as long as it is given, and longer only if its arithmetic does") {
  FakeClock clock;
  PacedEngine engine(std::make_unique<SlowEngine>(clock, 30),
                     {.forward_ns = 100, .input_grad_ns = 200, .weight_grad_ns = 10, .epilogue_ns = 1000}, clock);
  REQUIRE(engine.Forward(0, Tensor()).ok());
  CHECK(clock.NowNs() == 100);
  REQUIRE(engine.BackwardInput(0, Tensor()).ok());
  CHECK(clock.NowNs() == 300);
  REQUIRE(engine.BackwardWeight(0).ok());
  CHECK(clock.NowNs() == 330);
}

TEST_CASE("a backward that the costs do not split lasts from its begin to the end of both halves") {
  FakeClock clock;
  PacedEngine engine(std::make_unique<SlowEngine>(clock, 30), {.forward_ns = 100, .input_grad_ns = 200}, clock);
  REQUIRE(engine.BackwardInput(0, Tensor()).ok());
  CHECK(clock.NowNs() == 30);
  REQUIRE(engine.BackwardWeight(0).ok());
  CHECK(clock.NowNs() == 200);
  REQUIRE(engine.Forward(1, Tensor()).ok());
  CHECK(clock.NowNs() == 300);
}

TEST_CASE("a backward is split where the costs split it, also where its second half takes nothing") {
  FakeClock clock;
  PacedEngine engine(std::make_unique<SlowEngine>(clock, 30), {.forward_ns = 100, .input_grad_ns = 200, .split = true},
                     clock);
  REQUIRE(engine.BackwardInput(0, Tensor()).ok());
  CHECK(clock.NowNs() == 200);
  CHECK(engine.made_ns() == 200);
  REQUIRE(engine.Forward(1, Tensor()).ok());
  REQUIRE(engine.BackwardWeight(0).ok());
  CHECK(clock.NowNs() == 330);
}

TEST_CASE("the pace counts from where the action could begin, so that waiting in between is not made good") {
  FakeClock clock;
  PacedEngine engine(std::make_unique<SlowEngine>(clock, 30), {.forward_ns = 100}, clock);
  REQUIRE(engine.Forward(0, Tensor()).ok());
  clock.AdvanceNs(55);
  engine.CouldBegin(155);
  REQUIRE(engine.Forward(1, Tensor()).ok());
  CHECK(clock.NowNs() == 255);
}

TEST_CASE("a thread that wakes up late does not make the device slower, within a bound") {
  FakeClock clock;
  constexpr int64_t kCostNs = 10 * kMostMadeGoodNs;
  PacedEngine engine(std::make_unique<SlowEngine>(clock, 30),
                     {.forward_ns = kCostNs, .input_grad_ns = kCostNs, .weight_grad_ns = 1}, clock);
  REQUIRE(engine.Forward(0, Tensor()).ok());
  clock.AdvanceNs(700);  // the call comes late
  REQUIRE(engine.Forward(1, Tensor()).ok());
  CHECK(clock.NowNs() == 2 * kCostNs);
  clock.AdvanceNs(5000);
  engine.CouldBegin(2 * kCostNs + 4000);  // the input came, and was noticed late
  REQUIRE(engine.BackwardInput(0, Tensor()).ok());
  CHECK(clock.NowNs() == 3 * kCostNs + 4000);
  clock.AdvanceNs(kMostMadeGoodNs + 1);  // that is no lateness of a thread
  const int64_t begin_ns = clock.NowNs();
  REQUIRE(engine.Forward(2, Tensor()).ok());
  CHECK(clock.NowNs() == begin_ns + kCostNs);
}

TEST_CASE("lateness longer than an action is made good by those that follow") {
  FakeClock clock;
  PacedEngine engine(std::make_unique<SlowEngine>(clock, 30), {.forward_ns = 1000, .epilogue_ns = 5}, clock);
  REQUIRE(engine.Forward(0, Tensor()).ok());
  clock.AdvanceNs(3500);  // no processor for more than three actions
  for (int32_t i = 1; i <= 4; ++i) {
    REQUIRE(engine.Forward(i, Tensor()).ok());
    CHECK(engine.begun_ns() == 1000 * i);
    CHECK(engine.made_ns() == 1000 * (i + 1));
  }
  CHECK(clock.NowNs() == 5000);
  // But not the arithmetic itself.
  PacedEngine slow(std::make_unique<SlowEngine>(clock, 1200), {.forward_ns = 1000}, clock);
  slow.CouldBegin(4000);
  REQUIRE(slow.Forward(0, Tensor()).ok());
  CHECK(slow.made_ns() == 5200);
  // Nor what an update waited for; where it waited for nothing, that its thread came late is.
  clock.AdvanceNs(2000);
  REQUIRE(engine.Update(0, std::nullopt).ok());
  CHECK(engine.made_ns() == 5000 + 30);
  engine.CouldBegin(clock.NowNs());
  REQUIRE(engine.Update(1, std::nullopt).ok());
  CHECK(engine.made_ns() == clock.NowNs());
}

// Wakes whoever sleeps up by 70 to 130 us too late.
class LateClock final : public Clock {
 public:
  int64_t NowNs() const override { return clock_.NowNs(); }
  int64_t UnixNowNs() const override { return clock_.UnixNowNs(); }
  void SleepUntilNs(int64_t monotonic_ns) override {
    clock_.SleepUntilNs(monotonic_ns + 70'000 + static_cast<int64_t>(++sleeps_ * 7919 % 60'001));
  }

 private:
  FakeClock clock_;
  uint64_t sleeps_ = 0;
};

TEST_CASE("results leave on time in the median, though the thread wakes up late") {
  LateClock clock;
  FakeClock none;
  constexpr int64_t kForwardNs = 30'000'000;
  PacedEngine engine(std::make_unique<SlowEngine>(none, 0), {.forward_ns = kForwardNs}, clock);
  std::vector<int64_t> late_ns;
  for (int32_t i = 1; i <= 300; ++i) {
    REQUIRE(engine.Forward(i, Tensor()).ok());
    late_ns.push_back(clock.NowNs() - i * kForwardNs);
  }
  CHECK(late_ns.front() > 70'000);
  std::sort(late_ns.begin() + 100, late_ns.end());
  CHECK(std::abs(late_ns[200]) < 6'000);
  // Never far from it, and never off in the sum.
  CHECK(late_ns[100] > -60'000);
  CHECK(late_ns.back() < 60'000);
}

TEST_CASE("short actions are not cut by more than a sixteenth, nor teach long ones") {
  LateClock clock;
  FakeClock none;
  constexpr int64_t kShortNs = 3'200;
  PacedEngine engine(std::make_unique<SlowEngine>(none, 0), {.forward_ns = kShortNs, .input_grad_ns = 30'000'000},
                     clock);
  for (int32_t i = 0; i < 300; ++i) {
    const int64_t begin_ns = clock.NowNs();
    engine.CouldBegin(begin_ns);
    REQUIRE(engine.Forward(i, Tensor()).ok());
    REQUIRE(clock.NowNs() - begin_ns >= kShortNs * 15 / 16);
  }
  const int64_t begin_ns = clock.NowNs();
  engine.CouldBegin(begin_ns);
  REQUIRE(engine.BackwardInput(0, Tensor()).ok());
  REQUIRE(engine.BackwardWeight(0).ok());
  CHECK(clock.NowNs() - begin_ns >= 30'000'000);
}

TEST_CASE("the epilogue counts from the end of the last action") {
  FakeClock clock;
  PacedEngine engine(std::make_unique<SlowEngine>(clock, 30), {.forward_ns = 100, .epilogue_ns = 1000}, clock);
  REQUIRE(engine.Forward(0, Tensor()).ok());
  clock.AdvanceNs(400);  // the gradient norm travels
  REQUIRE(engine.Update(0, std::nullopt).ok());
  CHECK(clock.NowNs() == 1100);
  clock.AdvanceNs(900);
  engine.CouldBegin(2000);
  REQUIRE(engine.Forward(0, Tensor()).ok());
  clock.AdvanceNs(2000);
  engine.CouldBegin(clock.NowNs());  // the norm was waited for
  REQUIRE(engine.Update(1, std::nullopt).ok());
  CHECK(clock.NowNs() == 1100 + 900 + 100 + 2000 + 30);
}

TEST_CASE("everything else is the engine's own") {
  FakeClock clock;
  PacedEngine engine(std::make_unique<SlowEngine>(clock, 30), {}, clock);
  CHECK(engine.Loss() == 1.5);
  CHECK(engine.LearningRate(3) == 0.25);
  CHECK(engine.GradientNormTerms()->front().name == "a");
  CHECK_FALSE(engine.TakeTiedGradient().has_value());
  CHECK(clock.NowNs() == 0);
}

TEST_CASE("a modelled stage ships messages of the true size") {
  Allocator allocator(1 << 20);
  ModelledEngine first({.first = true, .activation_bytes = 1000, .micro_batches = 1}, allocator);
  ModelledEngine last({.last = true, .gradient_bytes = 600, .micro_batches = 1}, allocator);
  for (int iteration = 0; iteration < 2; ++iteration) {
    REQUIRE(first.BeginIteration(iteration).ok());
    REQUIRE(last.BeginIteration(iteration).ok());
    auto activation = first.Forward(0, Tensor());
    REQUIRE(activation.ok());
    CHECK(activation->bytes() == 1000);
    REQUIRE(last.Forward(0, *std::move(activation)).ok());
    auto gradient = last.BackwardInput(0, Tensor());
    REQUIRE(gradient.ok());
    CHECK(gradient->bytes() == 600);
    REQUIRE(first.BackwardInput(0, *std::move(gradient)).ok());
    REQUIRE(first.BackwardWeight(0).ok());
    REQUIRE(last.BackwardWeight(0).ok());
  }
  CHECK_FALSE(last.Loss().has_value());
}

TEST_CASE("paced and modelled: the given durations and nothing else") {
  FakeClock clock;
  Allocator allocator(1 << 20);
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(2, 1);
  costs.forward_ns = {5, 7};
  costs.input_grad_ns = {11, 13};
  costs.weight_grad_ns = {17, 19};
  PacedEngine engine(std::make_unique<ModelledEngine>(
                         ModelledEngine::Options{.last = true, .gradient_bytes = 64, .micro_batches = 1}, allocator),
                     CostsOfChunk(costs, 1), clock);
  auto input = Tensor::Zeros(allocator, MemoryCategory::kTransport, DType::kBf16, {2});
  REQUIRE(input.ok());
  REQUIRE(engine.BeginIteration(0).ok());
  REQUIRE(engine.Forward(0, *std::move(input)).ok());
  CHECK(clock.NowNs() == 7);
  REQUIRE(engine.BackwardInput(0, Tensor()).ok());
  CHECK(clock.NowNs() == 20);
  REQUIRE(engine.BackwardWeight(0).ok());
  CHECK(clock.NowNs() == 39);
}

}  // namespace
}  // namespace geopipe
