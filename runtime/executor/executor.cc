#include "runtime/executor/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/executor/channels.h"

namespace geopipe {
namespace {

absl::Status At(int64_t iteration, const std::string& where, const absl::Status& status) {
  if (status.ok() || absl::IsCancelled(status)) {
    return status;
  }
  return absl::Status(status.code(),
                      fmt::format("iteration {}, {}: {}", iteration, where, std::string(status.message())));
}

// The action that takes the result of `action` on the same device, when the neighbouring chunk is there, or else the
// SEND that takes it away.
Action TakerOfForward(const Action& action, bool next_is_here) {
  return next_is_here ? Action{action.stage + 1, ActionKind::kForward, action.micro_batch}
                      : Action{action.stage, ActionKind::kSendForward, action.micro_batch};
}

Action TakerOfBackward(const Action& action, bool previous_is_here) {
  return previous_is_here ? Action{action.stage - 1, ActionKind::kInputGradient, action.micro_batch}
                          : Action{action.stage, ActionKind::kSendBackward, action.micro_batch};
}

}  // namespace

absl::StatusOr<Executor> Executor::Create(ExecutorOptions options, MessageTransport& transport, Allocator& allocator,
                                          Clock& clock) {
  if (options.comm == CommMode::kRendezvous) {
    return absl::InvalidArgumentError(
        "comm rendezvous can be simulated but not run: receives are always posted ahead; use nonblocking or blocking");
  }
  const PipelineShape& shape = options.schedule.shape;
  GP_CHECK(options.stage >= 0 && options.stage < shape.devices, "stage {} of {}", options.stage, shape.devices);
  GP_CHECK(std::ssize(options.engines) == shape.chunks, "{} engines for {} chunks", options.engines.size(),
           shape.chunks);
  for (int32_t chunk = 0; chunk < shape.chunks; ++chunk) {
    GP_CHECK((options.engines[chunk] != nullptr) == (shape.placement[chunk] == options.stage), "engine of chunk {}",
             chunk);
  }
  return Executor(std::move(options), transport, allocator, clock);
}

Executor::Executor(ExecutorOptions options, MessageTransport& transport, Allocator& allocator, Clock& clock)
    : options_(std::move(options)),
      transport_(transport),
      allocator_(allocator),
      clock_(clock),
      waiting_(GreatestWaiting(options_.schedule, options_.stage)) {}

absl::Status Executor::Run() {
  for (int64_t iteration = options_.start_iteration; iteration < options_.end_iteration; ++iteration) {
    if (options_.on_begin) {
      options_.on_begin(iteration);
    }
    GP_RETURN_IF_ERROR(RunIteration(iteration));
  }
  Report(clock_.NowNs());
  return absl::OkStatus();
}

absl::Status Executor::RunIteration(int64_t iteration) {
  const std::vector<Action>& actions = options_.schedule.devices[options_.stage];
  recorder_.Begin(actions.size());
  for (StageEngine* engine : options_.engines) {
    if (engine != nullptr) {
      GP_RETURN_IF_ERROR(At(iteration, "begin", engine->BeginIteration(iteration)));
    }
  }
  for (const Action& action : actions) {
    if (options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed)) {
      return absl::CancelledError("stopped");
    }
    if (absl::Status status = RunAction(iteration, action); !status.ok()) {
      return At(iteration, fmt::format("{} on stage {}", ToString(action), options_.stage), status);
    }
  }
  GP_CHECK(waiting_.size() == 0, "{} results of iteration {} were not taken", waiting_.size(), iteration);
  return At(iteration, fmt::format("end on stage {}", options_.stage), EndIteration(iteration));
}

absl::Status Executor::RunAction(int64_t iteration, const Action& action) {
  if (IsSend(action.kind)) {
    return SendOut(iteration, action);
  }
  if (IsRecv(action.kind)) {
    return ReceiveIn(iteration, action);
  }
  return Compute(iteration, action);
}

absl::Status Executor::Compute(int64_t, const Action& action) {
  const int64_t start_ns = clock_.NowNs();
  const bool first = !recorder_.origin_ns().has_value();
  if (first) {
    Report(start_ns);
  }
  StageEngine& engine = *options_.engines[action.stage];
  if (action.kind == ActionKind::kForward) {
    GP_RETURN_IF_ERROR(Forward(action));
  } else if (action.kind == ActionKind::kWeightGradient) {
    engine.CouldBegin(held_until_ns_);
    GP_RETURN_IF_ERROR(engine.BackwardWeight(action.micro_batch));
  } else {
    GP_RETURN_IF_ERROR(InputGradient(action));
  }
  const int64_t begun_ns = engine.begun_ns();
  if (action.kind == ActionKind::kBackward) {
    GP_RETURN_IF_ERROR(engine.BackwardWeight(action.micro_batch));
  }
  if (engine.made_ns() > 0) {
    // The thread may be a little early, as it may be late; no device begins before it is free. An iteration begins
    // where the one before was said to end.
    const int64_t end_ns = std::max(begun_ns, engine.made_ns());
    recorder_.Record(action, first ? start_ns : std::max(start_ns, begun_ns), std::max(start_ns, end_ns),
                     end_ns - begun_ns);
  } else {
    const int64_t end_ns = clock_.NowNs();
    recorder_.Record(action, start_ns, end_ns, end_ns - start_ns);
  }
  return absl::OkStatus();
}

absl::Status Executor::Forward(const Action& action) {
  ActivationStore::Input input;
  if (action.stage > 0) {
    input = waiting_.Take(action);
  }
  StageEngine& engine = *options_.engines[action.stage];
  engine.CouldBegin(std::max(input.ready_ns, held_until_ns_));
  GP_ASSIGN_OR_RETURN(Tensor output, engine.Forward(action.micro_batch, std::move(input.tensor)));
  if (action.stage + 1 < options_.schedule.shape.chunks) {
    waiting_.Put(TakerOfForward(action, OnThisDevice(action.stage + 1)), std::move(output));
  }
  return absl::OkStatus();
}

absl::Status Executor::InputGradient(const Action& action) {
  ActivationStore::Input grad_output;
  if (action.stage + 1 < options_.schedule.shape.chunks) {
    grad_output = waiting_.Take(action);
  }
  StageEngine& engine = *options_.engines[action.stage];
  engine.CouldBegin(std::max(grad_output.ready_ns, held_until_ns_));
  GP_ASSIGN_OR_RETURN(Tensor grad_input, engine.BackwardInput(action.micro_batch, std::move(grad_output.tensor)));
  if (action.stage > 0) {
    waiting_.Put(TakerOfBackward(action, OnThisDevice(action.stage - 1)), std::move(grad_input));
  }
  return absl::OkStatus();
}

absl::Status Executor::SendOut(int64_t iteration, const Action& action) {
  const PipelineShape& shape = options_.schedule.shape;
  const ChannelId channel = action.kind == ActionKind::kSendForward ? ActivationChannel(shape, action.stage)
                                                                    : GradientChannel(shape, action.stage - 1);
  const MessageTag tag{iteration, action.micro_batch};
  const int64_t start_ns = clock_.NowNs();
  const int64_t made_ns = options_.engines[action.stage]->made_ns();
  const bool kept = made_ns > 0 && transport_.KeepsTime(channel);
  Tensor payload = waiting_.Take(action).tensor;
  GP_RETURN_IF_ERROR(made_ns > 0 ? transport_.SendMade(channel, tag, std::move(payload), made_ns)
                                 : transport_.Send(channel, tag, std::move(payload)));
  if (options_.comm == CommMode::kBlocking) {
    GP_RETURN_IF_ERROR(
        Stuck(channel, transport_.WaitAcknowledged(channel, tag, start_ns + options_.progress_deadline_ns)));
    const int64_t acknowledged_ns = transport_.last_acknowledgement_ns();
    held_until_ns_ = acknowledged_ns > 0 ? acknowledged_ns : clock_.NowNs();
  }
  // A device whose time is kept is held for as long as it would be: here not at all, or until the acknowledgement.
  if (kept) {
    recorder_.RecordMessage(action, made_ns, std::max(made_ns, held_until_ns_));
  } else {
    recorder_.RecordMessage(action, start_ns, clock_.NowNs());
  }
  return absl::OkStatus();
}

absl::Status Executor::ReceiveIn(int64_t iteration, const Action& action) {
  const PipelineShape& shape = options_.schedule.shape;
  const bool forward = action.kind == ActionKind::kRecvForward;
  const ChannelId channel = forward ? ActivationChannel(shape, action.stage - 1) : GradientChannel(shape, action.stage);
  absl::StatusOr<Tensor> message =
      transport_.Receive(channel, {iteration, action.micro_batch}, clock_.NowNs() + options_.progress_deadline_ns);
  if (!message.ok()) {
    return Stuck(channel, message.status());
  }
  const int64_t now_ns = clock_.NowNs();
  const int64_t arrived_ns = transport_.last_arrival_ns() > 0 ? transport_.last_arrival_ns() : now_ns;
  recorder_.RecordMessage(action, arrived_ns, std::max(arrived_ns, now_ns));
  const ActionKind taker = forward ? ActionKind::kForward : ActionKind::kInputGradient;
  waiting_.Put({action.stage, taker, action.micro_batch}, *std::move(message), arrived_ns);
  return absl::OkStatus();
}

absl::Status Executor::Stuck(const ChannelId& channel, const absl::Status& status) const {
  if (!absl::IsDeadlineExceeded(status)) {
    return status;
  }
  const bool sends = channel.from_rank == options_.stage;
  const int32_t peer = sends ? channel.to_rank : channel.from_rank;
  return absl::DeadlineExceededError(
      fmt::format("the {} of boundary {} was not {} stage {} within {:.1f} s; that stage, or the link to it, is stuck",
                  MessageKindName(channel.kind), channel.boundary, sends ? "acknowledged by" : "received from", peer,
                  static_cast<double>(options_.progress_deadline_ns) * 1e-9));
}

absl::Status Executor::EndIteration(int64_t iteration) {
  IterationStats stats;
  stats.iteration = iteration;
  if (const StageEngine* last = options_.engines.back(); last != nullptr) {
    stats.loss = last->Loss();
    if (stats.loss.has_value() && !std::isfinite(*stats.loss)) {
      return absl::OutOfRangeError(
          fmt::format("the loss is {}; lower training.learning_rate, or give training.grad_clip or warmup_iterations",
                      std::isnan(*stats.loss) ? "nan" : "infinite"));
    }
  }
  GradientExchange exchange(options_.schedule.shape, options_.stage, options_.engines, transport_, allocator_, clock_,
                            options_.progress_deadline_ns);
  GP_RETURN_IF_ERROR(exchange.ExchangeTied(iteration));
  if (options_.exchange_norms) {
    GP_ASSIGN_OR_RETURN(stats.grad_norm, exchange.ExchangeNorm(iteration));
  }
  for (StageEngine* engine : options_.engines) {
    if (engine != nullptr) {
      if (options_.exchange_norms || exchange.waited()) {
        engine->CouldBegin(clock_.NowNs());
      }
      GP_RETURN_IF_ERROR(engine->Update(iteration, stats.grad_norm));
    }
  }
  stats.begin_ns = recorder_.origin_ns().value_or(clock_.NowNs());
  stats.busy_ns = recorder_.busy_ns();
  stats.actions = recorder_.Take();
  pending_ = std::make_unique<IterationStats>(std::move(stats));
  return absl::OkStatus();
}

void Executor::Report(int64_t end_ns) {
  if (pending_ != nullptr && options_.on_report) {
    pending_->duration_ns = end_ns - pending_->begin_ns;
    options_.on_report(*std::move(pending_));
  }
  pending_.reset();
}

}  // namespace geopipe
