// The executor over a device whose time is kept: what it hands over, and when it begins, however late the thread is.
#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <utility>
#include <vector>

#include "optimizer/schedule/generators.h"
#include "optimizer/schedule/lowering.h"
#include "runtime/executor/executor.h"
#include "runtime/model/modelled_engine.h"
#include "runtime/model/paced_engine.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

constexpr int32_t kMicroBatches = 6;
constexpr ActionCosts kCosts{.forward_ns = 30 * kMs, .input_grad_ns = 60 * kMs};
constexpr int64_t kAcknowledgedAfterNs = 40 * kMs;

// The neighbours of a middle stage. What was due at some time is noticed between nothing and 12 ms later, and what the
// stage hands over must have been made when a device that loses no time would have made it.
class LateNeighbours final : public MessageTransport {
 public:
  LateNeighbours(FakeClock& clock, Allocator& allocator) : clock_(clock), allocator_(allocator) {}

  absl::Status Send(const ChannelId&, const MessageTag&, Tensor) override {
    return absl::InternalError("sent as of no time");
  }
  absl::Status SendMade(const ChannelId& channel, const MessageTag&, Tensor, int64_t made_ns) override {
    const int64_t cost_ns = channel.kind == MessageKind::kActivation ? kCosts.forward_ns : kCosts.input_grad_ns;
    free_ns_ = std::max({free_ns_, last_arrival_ns_, last_acknowledgement_ns_}) + cost_ns;
    made_right = made_right && made_ns == free_ns_;
    made_ns_ = made_ns;
    ++sent;
    return absl::OkStatus();
  }
  absl::StatusOr<Tensor> Receive(const ChannelId& channel, const MessageTag& tag, int64_t) override {
    const bool forward = channel.kind == MessageKind::kActivation;
    last_arrival_ns_ = (forward ? 100 : 190) * kMs + tag.micro_batch * 85 * kMs;
    NoticeLate(last_arrival_ns_);
    return Tensor::Zeros(allocator_, MemoryCategory::kTransport, DType::kBf16, {1});
  }
  int64_t last_arrival_ns() const override { return last_arrival_ns_; }
  absl::Status WaitAcknowledged(const ChannelId&, const MessageTag&, int64_t) override {
    last_acknowledgement_ns_ = made_ns_ + kAcknowledgedAfterNs;
    NoticeLate(last_acknowledgement_ns_);
    return absl::OkStatus();
  }
  int64_t last_acknowledgement_ns() const override { return last_acknowledgement_ns_; }
  void Fail(absl::Status) override {}

  bool made_right = true;
  int sent = 0;

 private:
  void NoticeLate(int64_t due_ns) {
    clock_.SleepUntilNs(std::max(clock_.NowNs(), due_ns + static_cast<int64_t>(++noticed_ * 7919 % 13) * kMs));
  }

  FakeClock& clock_;
  Allocator& allocator_;
  int64_t last_arrival_ns_ = 0;
  int64_t last_acknowledgement_ns_ = 0;
  int64_t made_ns_ = 0;
  int64_t free_ns_ = 0;
  int noticed_ = 0;
};

TEST_CASE("a device whose time is kept loses none to threads that are late, nor do its neighbours") {
  const CommMode comm = GENERATE(CommMode::kNonBlocking, CommMode::kBlocking);
  FakeClock clock;
  Allocator allocator(1 << 20);
  LateNeighbours neighbours(clock, allocator);
  PacedEngine engine(
      std::make_unique<ModelledEngine>(
          ModelledEngine::Options{.activation_bytes = 2, .gradient_bytes = 2, .micro_batches = kMicroBatches},
          allocator),
      kCosts, clock);
  ExecutorOptions options;
  options.schedule = *Lower(
      *MakeSchedule(ScheduleKind::kOneFOneB, PipelineShape::Linear(3, kMicroBatches), std::vector<int32_t>{0, 0}));
  options.stage = 1;
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
  CHECK(stats.busy_ns == kMicroBatches * (kCosts.forward_ns + kCosts.input_grad_ns));
  // A message is recorded as of when it was made, and the device is held until it was acknowledged.
  for (const ActionRecord& record : stats.actions) {
    const int64_t held_ns = comm == CommMode::kBlocking ? kAcknowledgedAfterNs : 0;
    CHECK(record.end_ns >= record.start_ns);
    CHECK((!IsSend(record.action.kind) || record.end_ns - record.start_ns == held_ns));
  }
}

}  // namespace
}  // namespace geopipe
