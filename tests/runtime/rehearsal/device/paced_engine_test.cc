#include "runtime/rehearsal/device/paced_engine.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/rehearsal/device/modelled_engine.h"
#include "runtime/rehearsal/host/kept_time.h"
#include "tests/support/fake_clock.h"

namespace geopipe {
namespace {

// Arithmetic that takes `cost_ns` of a fake clock for every call.
class SlowEngine final : public StageEngine {
 public:
  SlowEngine(FakeClock& clock, int64_t cost_ns) : clock_(clock), cost_ns_(cost_ns) {}

  absl::Status BeginIteration(int64_t) override { return absl::OkStatus(); }
  absl::StatusOr<Timed<Tensor>> Forward(int32_t, Timed<Tensor>) override { return Timed<Tensor>{.ready = Work()}; }
  absl::StatusOr<Timed<Tensor>> BackwardInput(int32_t, Timed<Tensor>) override {
    return Timed<Tensor>{.ready = Work()};
  }
  absl::StatusOr<Timed<Tensor>> Backward(int32_t, Timed<Tensor>) override { return Timed<Tensor>{.ready = Work()}; }
  absl::StatusOr<Completion> BackwardWeight(int32_t, int64_t) override { return Work(); }
  absl::StatusOr<std::optional<Timed<Tensor>>> TakeTiedGradient() override { return std::nullopt; }
  absl::Status AddTiedGradient(Timed<Tensor>) override { return absl::OkStatus(); }
  absl::StatusOr<Completion> Update(int64_t, std::optional<double>, int64_t) override { return Work(); }
  absl::Status BeginEvaluation() override { return absl::OkStatus(); }
  absl::StatusOr<Timed<Tensor>> Evaluate(int64_t, int32_t, Timed<Tensor>) override {
    return Timed<Tensor>{.ready = Work()};
  }
  absl::StatusOr<Timed<LossReader>> EndEvaluation(int64_t) override {
    return Timed<LossReader>{[] { return std::nullopt; }, {}};
  }
  void AbandonIteration() override {}
  absl::StatusOr<Timed<ScalarReader>> ReadScalars(bool) override {
    return Timed<ScalarReader>{[] {
                                 return IterationScalars{.loss = 1.5, .not_finite = {}, .norm_terms = {{"a", 2.0}}};
                               },
                               {}};
  }

 private:
  Completion Work() {
    clock_.AdvanceNs(cost_ns_);
    return {clock_.NowNs() - cost_ns_, clock_.NowNs()};
  }

  FakeClock& clock_;
  int64_t cost_ns_;
};

// A device with one stage on it.
struct Paced {
  Paced(Clock& clock, FakeClock& arithmetic, int64_t cost_ns, const ActionCosts& costs,
        const RankMeetings& meetings = {})
      : device(clock, HostDevice()),
        engine(std::make_unique<SlowEngine>(arithmetic, cost_ns), costs, device, meetings) {}
  Paced(FakeClock& clock, int64_t cost_ns, const ActionCosts& costs, const RankMeetings& meetings = {})
      : Paced(clock, clock, cost_ns, costs, meetings) {}

  // Actions whose inputs are ready at `ready_ns`.
  Completion Forward(int64_t ready_ns = 0) { return engine.Forward(0, Ready(ready_ns))->ready; }
  Completion BackwardInput(int64_t ready_ns = 0) { return engine.BackwardInput(0, Ready(ready_ns))->ready; }
  Completion Backward(int64_t ready_ns = 0) { return engine.Backward(0, Ready(ready_ns))->ready; }
  Completion BackwardWeight(int64_t from_ns = 0) { return *engine.BackwardWeight(0, from_ns); }
  Completion Update(int64_t iteration, int64_t from_ns = 0) { return *engine.Update(iteration, std::nullopt, from_ns); }

  static Timed<Tensor> Ready(int64_t ns) { return {.value = {}, .ready = Completion::At(ns)}; }

  PacedDevice device;
  PacedEngine engine;
};

TEST_CASE("an action lasts as long as it is given, and longer only if its arithmetic does") {
  FakeClock clock;
  Paced paced(clock, 30, {.forward_ns = 100, .input_grad_ns = 200, .weight_grad_ns = 10, .epilogue_ns = 1000});
  paced.Forward();
  CHECK(clock.NowNs() == 100);
  paced.BackwardInput();
  CHECK(clock.NowNs() == 300);
  CHECK(paced.BackwardWeight().ready_ns() == 330);
  CHECK(clock.NowNs() == 330);
}

TEST_CASE("a whole backward lasts as long as both halves") {
  FakeClock clock;
  Paced paced(clock, 30, {.forward_ns = 100, .input_grad_ns = 150, .weight_grad_ns = 50});
  const Completion backward = paced.Backward();
  CHECK(backward.begun_ns() == 0);
  CHECK(backward.ready_ns() == 200);
  CHECK(clock.NowNs() == 200);
  CHECK(paced.Forward().begun_ns() == 200);
  CHECK(clock.NowNs() == 300);
}

TEST_CASE("a backward may be split where its second half takes nothing") {
  FakeClock clock;
  Paced paced(clock, 30, {.forward_ns = 100, .input_grad_ns = 200});
  CHECK(paced.BackwardInput().ready_ns() == 200);
  CHECK(clock.NowNs() == 200);
  paced.Forward();
  paced.BackwardWeight();
  CHECK(clock.NowNs() == 330);
}

TEST_CASE("the pace counts from where the action could begin, so that waiting in between is not made up for") {
  FakeClock clock;
  Paced paced(clock, 30, {.forward_ns = 100});
  paced.Forward();
  clock.AdvanceNs(55);
  const Completion second = paced.Forward(155);
  CHECK(second.begun_ns() == 155);
  CHECK(clock.NowNs() == 255);
}

TEST_CASE("a thread that wakes up late does not make the device slower, within a bound") {
  FakeClock clock;
  constexpr int64_t kCostNs = 10 * kMaxCompensatedNs;
  Paced paced(clock, 30, {.forward_ns = kCostNs, .input_grad_ns = kCostNs, .weight_grad_ns = 1});
  paced.Forward();
  clock.AdvanceNs(700);  // the call comes late
  paced.Forward();
  CHECK(clock.NowNs() == 2 * kCostNs);
  clock.AdvanceNs(5000);
  paced.BackwardInput(2 * kCostNs + 4000);  // the input came, and was noticed late
  CHECK(clock.NowNs() == 3 * kCostNs + 4000);
  clock.AdvanceNs(kMaxCompensatedNs + 1);  // that is no lateness of a thread
  const int64_t begin_ns = clock.NowNs();
  CHECK(paced.Forward().begun_ns() == begin_ns);
  CHECK(clock.NowNs() == begin_ns + kCostNs);
}

TEST_CASE("lateness longer than an action is made up for by those that follow") {
  FakeClock clock;
  Paced paced(clock, 30, {.forward_ns = 1000, .epilogue_ns = 5});
  paced.Forward();
  clock.AdvanceNs(3500);  // no processor for more than three actions
  for (int32_t i = 1; i <= 4; ++i) {
    const Completion done = paced.Forward();
    CHECK(done.begun_ns() == 1000 * i);
    CHECK(done.ready_ns() == 1000 * (i + 1));
  }
  CHECK(clock.NowNs() == 5000);
  // Arithmetic that takes longer than the pace is not made up for.
  Paced slow(clock, 1200, {.forward_ns = 1000});
  CHECK(slow.Forward(4000).ready_ns() == 5200);
  // Time that an update waits for its input is not made up for either; lateness of its thread is, where it waits for
  // nothing.
  clock.AdvanceNs(2000);
  CHECK(paced.Update(0).ready_ns() == 5000 + 30);
  const Completion waited = paced.Update(1, clock.NowNs());
  CHECK(waited.ready_ns() == clock.NowNs());
}

TEST_CASE("an action begins when its input has come to the device, and not if that fails") {
  FakeClock clock;
  Paced paced(clock, 30, {.forward_ns = 100});
  Completion copied = Completion::Pending();
  std::thread device([&] { copied.Complete(200, 400); });
  CHECK(paced.engine.Forward(0, {.value = {}, .ready = copied})->ready.begun_ns() == 400);
  device.join();
  Completion lost = Completion::Pending();
  lost.Fail(absl::InternalError("off the bus"));
  CHECK(absl::IsInternal(paced.engine.Forward(0, {.value = {}, .ready = lost}).status()));
}

TEST_CASE("the stages of one rank share its device") {
  FakeClock clock;
  PacedDevice device(clock, HostDevice());
  const ActionCosts costs{.forward_ns = 100, .epilogue_ns = 1000};
  PacedEngine first(std::make_unique<SlowEngine>(clock, 30), costs, device);
  PacedEngine second(std::make_unique<SlowEngine>(clock, 30), costs, device);
  CHECK(first.Forward(0, {})->ready_ns() == 100);
  CHECK(second.Forward(0, {})->ready.begun_ns() == 100);
  CHECK(first.Forward(1, {})->ready_ns() == 300);
  // The epilogue is the rank's, not each stage's; the second stage's arithmetic follows.
  CHECK(first.Update(0, std::nullopt, 0)->ready_ns() == 1300);
  CHECK(second.Update(0, std::nullopt, 0)->ready_ns() == 1330);
  CHECK(second.Forward(0, {})->ready.begun_ns() == 1330);
}

// Wakes sleepers 70 to 130 us too late.
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
  Paced paced(clock, none, 0, {.forward_ns = kForwardNs});
  std::vector<int64_t> late_ns;
  for (int32_t i = 1; i <= 300; ++i) {
    paced.Forward();
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
  Paced paced(clock, none, 0, {.forward_ns = kShortNs, .input_grad_ns = 30'000'000});
  for (int32_t i = 0; i < 300; ++i) {
    const int64_t begin_ns = clock.NowNs();
    paced.Forward(begin_ns);
    REQUIRE(clock.NowNs() - begin_ns >= kShortNs * 15 / 16);
  }
  const int64_t begin_ns = clock.NowNs();
  paced.BackwardInput(begin_ns);
  paced.BackwardWeight();
  CHECK(clock.NowNs() - begin_ns >= 30'000'000);
}

TEST_CASE("the epilogue counts from the end of the last action") {
  FakeClock clock;
  Paced paced(clock, 30, {.forward_ns = 100, .epilogue_ns = 1000});
  paced.Forward();
  clock.AdvanceNs(400);  // the gradient norm travels
  paced.Update(0);
  CHECK(clock.NowNs() == 1100);
  clock.AdvanceNs(900);
  paced.Forward(2000);
  clock.AdvanceNs(2000);
  paced.Update(1, clock.NowNs());  // the norm was waited for
  CHECK(clock.NowNs() == 1100 + 900 + 100 + 2000 + 30);
}

// Another rank, which comes to each collective at `other_ns`; this one then hears of it `heard_after_ns` later.
class OtherRank final : public Meeting {
 public:
  explicit OtherRank(FakeClock& clock) : clock_(clock) {}

  absl::StatusOr<int64_t> Meet(int64_t iteration, int32_t micro_batch, int64_t arrived_ns) override {
    met.emplace_back(iteration, micro_batch);
    came_ns = arrived_ns;
    clock_.SleepUntilNs(std::max(arrived_ns, other_ns) + heard_after_ns);
    return std::max(arrived_ns, other_ns);
  }

  int64_t other_ns = 0;
  int64_t heard_after_ns = 0;
  int64_t came_ns = 0;
  std::vector<std::pair<int64_t, int32_t>> met;

 private:
  FakeClock& clock_;
};

TEST_CASE("tensor ranks begin an action together: none before the last has input and is free") {
  FakeClock clock;
  OtherRank other(clock);
  Paced paced(clock, 30, {.forward_ns = 100, .input_grad_ns = 200, .weight_grad_ns = 50}, {.tensor_ranks = &other});
  REQUIRE(paced.engine.BeginIteration(7).ok());
  other.other_ns = 40;
  const Completion forward = paced.Forward(10);
  CHECK(other.came_ns == 10);
  CHECK(forward.begun_ns() == 40);
  CHECK(forward.ready_ns() == 140);
  CHECK(clock.NowNs() == 140);
  other.other_ns = 90;  // was there before: this rank is the last
  CHECK(paced.Forward(150).begun_ns() == 150);
  // The time until the rank hears of it is lateness of a thread, and no arithmetic.
  other.other_ns = 300;
  other.heard_after_ns = 170;
  const Completion input_grad = paced.BackwardInput(260);
  CHECK(input_grad.begun_ns() == 300);
  CHECK(input_grad.ready_ns() == 500);
  // Weight gradients are each rank's own.
  CHECK(paced.BackwardWeight().begun_ns() == 500);
  CHECK(other.met == std::vector<std::pair<int64_t, int32_t>>{{7, 0}, {7, 0}, {7, 0}});
}

TEST_CASE("the epilogue of replicas begins when the last of them has done its last action") {
  FakeClock clock;
  OtherRank other(clock);
  Paced paced(clock, 30, {.forward_ns = 100, .epilogue_ns = 1000}, {.replicas = &other});
  REQUIRE(paced.engine.BeginIteration(3).ok());
  other.other_ns = 450;
  paced.Forward();
  REQUIRE(paced.engine.ReadScalars(true).ok());
  CHECK(other.came_ns == 100);
  CHECK(other.met == std::vector<std::pair<int64_t, int32_t>>{{3, 0}});
  CHECK(paced.Update(3).ready_ns() == 1450);
  other.other_ns = 0;
  paced.Forward(1500);
  REQUIRE(paced.engine.ReadScalars(true).ok());
  CHECK(paced.Update(4).ready_ns() == 2600);
}

TEST_CASE("everything else is the engine's own") {
  FakeClock clock;
  Paced paced(clock, 30, {});
  CHECK(paced.engine.ReadScalars(true)->value().loss == 1.5);
  CHECK(paced.engine.ReadScalars(true)->value().norm_terms.front().name == "a");
  CHECK_FALSE(paced.engine.TakeTiedGradient()->has_value());
  CHECK(clock.NowNs() == 0);
}

TEST_CASE("a modelled stage ships messages of the true size, ready with their input") {
  Allocator allocator(1 << 20);
  ModelledEngine first({.first = true, .activation_bytes = 1000, .micro_batches = 1}, allocator);
  ModelledEngine last({.last = true, .gradient_bytes = 600, .micro_batches = 1}, allocator);
  for (int iteration = 0; iteration < 2; ++iteration) {
    REQUIRE(first.BeginIteration(iteration).ok());
    REQUIRE(last.BeginIteration(iteration).ok());
    auto activation = first.Forward(0, Paced::Ready(40));
    REQUIRE(activation.ok());
    CHECK(activation->value.bytes() == 1000);
    CHECK(activation->ready_ns() == 40);
    REQUIRE(last.Forward(0, *std::move(activation)).ok());
    auto gradient = last.BackwardInput(0, {});
    REQUIRE(gradient.ok());
    CHECK(gradient->value.bytes() == 600);
    REQUIRE(first.BackwardInput(0, *std::move(gradient)).ok());
    REQUIRE(first.BackwardWeight(0, 0).ok());
    REQUIRE(last.BackwardWeight(0, 0).ok());
  }
  CHECK_FALSE(last.ReadScalars(true)->value().loss.has_value());
}

TEST_CASE("paced and modelled: the given durations and nothing else") {
  FakeClock clock;
  Allocator allocator(1 << 20);
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(2, 1);
  costs.forward_ns = {5, 7};
  costs.input_grad_ns = {11, 13};
  costs.weight_grad_ns = {17, 19};
  PacedDevice device(clock, HostDevice());
  PacedEngine engine(std::make_unique<ModelledEngine>(
                         ModelledEngine::Options{.last = true, .gradient_bytes = 64, .micro_batches = 1}, allocator),
                     CostsOfStage(costs, 1), device);
  auto input = Tensor::Zeros(allocator, MemoryCategory::kTransport, DType::kBf16, {2});
  REQUIRE(input.ok());
  REQUIRE(engine.BeginIteration(0).ok());
  REQUIRE(engine.Forward(0, {.value = *std::move(input)}).ok());
  CHECK(clock.NowNs() == 7);
  REQUIRE(engine.BackwardInput(0, {}).ok());
  CHECK(clock.NowNs() == 20);
  REQUIRE(engine.BackwardWeight(0, 0).ok());
  CHECK(clock.NowNs() == 39);
}

}  // namespace
}  // namespace geopipe
