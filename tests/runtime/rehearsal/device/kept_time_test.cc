// The executor over a device whose time is kept: tests which times it hands over and when it begins, however late the
// thread is.
#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "optimizer/schedule/lowering.h"
#include "optimizer/schedule/schedule_table.h"
#include "runtime/executor/executor.h"
#include "runtime/rehearsal/device/modelled_engine.h"
#include "runtime/rehearsal/device/paced_engine.h"
#include "tests/support/durations.h"
#include "tests/support/fake_clock.h"

namespace geopipe {
namespace {

constexpr int32_t kMicroBatches = 6;
constexpr ActionCosts kWhole{.forward_ns = 30 * kMs, .input_grad_ns = 60 * kMs};
constexpr ActionCosts kSplit{.forward_ns = 30 * kMs, .input_grad_ns = 35 * kMs, .weight_grad_ns = 25 * kMs};
constexpr int64_t kAcknowledgedAfterNs = 40 * kMs;

// The neighbours of a middle stage. Due events are noticed up to 12 ms late, and the messages that the stage hands over
// must have been made when a device that loses no time would have made them.
class LateNeighbours final : public MessageTransport {
 public:
  LateNeighbours(FakeClock& clock, Allocator& allocator, const ActionCosts& costs, bool fused)
      : clock_(clock), allocator_(allocator), costs_(costs), fused_(fused) {}

  absl::Status Send(const ChannelId& channel, const MessageTag&, Timed<Tensor> message) override {
    const bool forward = channel.kind == MessageKind::kActivation;
    const int64_t cost_ns = forward ? costs_.forward_ns : costs_.input_grad_ns + (fused_ ? costs_.weight_grad_ns : 0);
    free_ns_ = std::max({free_ns_, arrived_ns_, acknowledged_ns_}) + cost_ns;
    made_right = made_right && message.ready_ns() == free_ns_;
    weights_due_ns_ = forward || fused_ ? 0 : costs_.weight_grad_ns;
    made_ns_ = message.ready_ns();
    ++sent;
    return absl::OkStatus();
  }
  absl::StatusOr<Timed<Tensor>> Receive(const ChannelId& channel, const MessageTag& tag, int64_t) override {
    const bool forward = channel.kind == MessageKind::kActivation;
    free_ns_ += std::exchange(weights_due_ns_, 0);  // W has followed the gradient
    arrived_ns_ = (forward ? 100 : 190) * kMs + tag.micro_batch * 85 * kMs;
    NoticeLate(arrived_ns_);
    GP_ASSIGN_OR_RETURN(Tensor message, Tensor::Zeros(allocator_, MemoryCategory::kTransport, DType::kBf16, {1}));
    return Timed<Tensor>{.value = std::move(message), .ready = Completion::At(arrived_ns_)};
  }
  absl::StatusOr<int64_t> WaitAcknowledged(const ChannelId&, const MessageTag&, int64_t) override {
    acknowledged_ns_ = made_ns_ + kAcknowledgedAfterNs;
    NoticeLate(acknowledged_ns_);
    free_ns_ = std::max(free_ns_, acknowledged_ns_);
    return acknowledged_ns_;
  }
  void Fail(absl::Status) override {}

  bool made_right = true;
  int sent = 0;

 private:
  void NoticeLate(int64_t due_ns) {
    clock_.SleepUntilNs(std::max(clock_.NowNs(), due_ns + static_cast<int64_t>(++noticed_ * 7919 % 13) * kMs));
  }

  FakeClock& clock_;
  Allocator& allocator_;
  const ActionCosts costs_;
  const bool fused_;
  int64_t weights_due_ns_ = 0;
  int64_t arrived_ns_ = 0;
  int64_t acknowledged_ns_ = 0;
  int64_t made_ns_ = 0;
  int64_t free_ns_ = 0;
  int noticed_ = 0;
};

Schedule FusedSchedule() {
  return *Lower(
      *MakeSchedule(ScheduleKind::kOneFOneB, PipelineShape::Linear(3, kMicroBatches), std::vector<int32_t>{0, 0}));
}

// The same with every backward in two halves: the gradient leaves between them.
Schedule SplitSchedule() {
  Schedule schedule =
      *MakeSchedule(ScheduleKind::kOneFOneB, PipelineShape::Linear(3, kMicroBatches), std::vector<int32_t>{0, 0});
  for (std::vector<Action>& device : schedule.devices) {
    std::vector<Action> split;
    for (const Action& action : device) {
      if (action.kind == ActionKind::kBackward) {
        split.push_back({action.stage, ActionKind::kInputGradient, action.micro_batch});
        split.push_back({action.stage, ActionKind::kWeightGradient, action.micro_batch});
      } else {
        split.push_back(action);
      }
    }
    device = std::move(split);
  }
  return *Lower(schedule);
}

TEST_CASE("a device whose time is kept loses none to threads that are late, nor do its neighbours") {
  const CommMode comm = GENERATE(CommMode::kNonBlocking, CommMode::kBlocking);
  const ActionCosts costs = GENERATE(kWhole, kSplit);
  const bool fused = GENERATE(true, false);  // B, or I and W
  if (!fused && costs.weight_grad_ns == 0) {
    return;
  }
  FakeClock clock;
  Allocator allocator(1 << 20);
  LateNeighbours neighbours(clock, allocator, costs, fused);
  PacedDevice device(clock, HostDevice());
  PacedEngine engine(
      std::make_unique<ModelledEngine>(
          ModelledEngine::Options{.activation_bytes = 2, .gradient_bytes = 2, .micro_batches = kMicroBatches},
          allocator),
      costs, device);
  ExecutorOptions options;
  options.schedule = fused ? FusedSchedule() : SplitSchedule();
  options.pipeline_rank = 1;
  options.pipeline = {0, 1, 2};
  options.comm = comm;
  options.engines = {nullptr, &engine, nullptr};
  options.end_iteration = 1;
  IterationStats stats;
  options.on_report = [&](IterationStats reported) { stats = std::move(reported); };
  auto executor = Executor::Create(std::move(options), neighbours, allocator, clock);
  REQUIRE(executor.ok());
  REQUIRE(executor->Run().ok());
  CHECK(neighbours.sent == 2 * kMicroBatches);
  CHECK(neighbours.made_right);
  CHECK(stats.busy_ns == kMicroBatches * (costs.forward_ns + costs.input_grad_ns + costs.weight_grad_ns));
  // A message is recorded as of when it was made, and the device is held until it was acknowledged.
  for (const ActionRecord& record : stats.actions) {
    const int64_t held_ns = comm == CommMode::kBlocking ? kAcknowledgedAfterNs : 0;
    CHECK(record.end_ns >= record.start_ns);
    CHECK((!IsSend(record.action.kind) || record.end_ns - record.start_ns == held_ns));
  }
}

}  // namespace
}  // namespace geopipe
