#include "runtime/executor/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/base/trouble.h"
#include "optimizer/schedule/forward_only.h"
#include "runtime/executor/channels.h"
#include "runtime/tensor/staging.h"

namespace geopipe {
namespace {

absl::Status At(int64_t iteration, const std::string& where, const absl::Status& status) {
  if (status.ok() || absl::IsCancelled(status)) {
    return status;
  }
  return Reworded(status, fmt::format("iteration {}, {}: {}", iteration, where, std::string(status.message())));
}

// The action that takes the result of `action`: on this rank if it has the next stage too, else the SEND.
Action TakerOfForward(const Action& action, bool next_is_here) {
  return next_is_here ? Action{action.stage + 1, ActionKind::kForward, action.micro_batch}
                      : Action{action.stage, ActionKind::kSendForward, action.micro_batch};
}

Action TakerOfBackward(const Action& action, bool previous_is_here) {
  return previous_is_here ? Action{action.stage - 1, ActionKind::kInputGradient, action.micro_batch}
                          : Action{action.stage, ActionKind::kSendBackward, action.micro_batch};
}

// Reports a value that is not finite at the stage where it arose, not at those it spread to.
absl::Status CheckFinite(int32_t stage, const IterationScalars& scalars) {
  if (scalars.not_finite.has_value()) {
    return absl::OutOfRangeError(
        fmt::format("the activations that {} made are not finite, and neither would the loss be; lower "
                    "training.learning_rate, or give training.grad_clip or warmup_iterations",
                    ToString(Action{stage, ActionKind::kForward, *scalars.not_finite})));
  }
  if (scalars.loss.has_value() && !std::isfinite(*scalars.loss)) {
    return absl::OutOfRangeError(
        fmt::format("the loss is {} on stage {}; lower training.learning_rate, or give training.grad_clip or "
                    "warmup_iterations",
                    std::isnan(*scalars.loss) ? "nan" : "infinite", stage));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Executor> Executor::Create(ExecutorOptions options, MessageTransport& transport, Allocator& allocator,
                                          Clock& clock) {
  if (options.comm == CommMode::kRendezvous) {
    return absl::InvalidArgumentError(
        "comm rendezvous can be simulated but not run: receives are always posted ahead; use nonblocking or blocking");
  }
  const PipelineShape& shape = options.schedule.shape;
  GP_CHECK(options.pipeline_rank >= 0 && options.pipeline_rank < shape.devices, "pipeline rank {} of {}",
           options.pipeline_rank, shape.devices);
  GP_CHECK(std::ssize(options.pipeline) == shape.devices, "{} ranks for {}", options.pipeline.size(), shape.devices);
  GP_CHECK(std::ssize(options.engines) == shape.stages, "{} engines for {} stages", options.engines.size(),
           shape.stages);
  for (int32_t stage = 0; stage < shape.stages; ++stage) {
    GP_CHECK((options.engines[stage] != nullptr) == (shape.placement[stage] == options.pipeline_rank),
             "engine of stage {}", stage);
  }
  return Executor(std::move(options), transport, allocator, clock);
}

Executor::Executor(ExecutorOptions options, MessageTransport& transport, Allocator& allocator, Clock& clock)
    : options_(std::move(options)),
      transport_(transport),
      allocator_(allocator),
      clock_(clock),
      waiting_(MaxWaiting(options_.schedule, options_.pipeline_rank)),
      next_iteration_(options_.start_iteration) {
  if (options_.evaluation.passes == 0) {
    return;
  }
  const PipelineShape& shape = options_.schedule.shape;
  forwards_ = ForwardOnly(options_.schedule).devices[options_.pipeline_rank];
  crossings_.resize(static_cast<size_t>(shape.stages) - 1);
  for (int32_t boundary = 0; boundary + 1 < shape.stages; ++boundary) {
    if (HasStage(boundary) && !HasStage(boundary + 1)) {
      crossings_[boundary].room = SlotsNeeded(options_.schedule, MessageKind::kActivation, boundary);
    }
  }
}

absl::Status Executor::Run() {
  absl::Status status = RunIterations();
  if (!status.ok() && options_.on_failure) {
    options_.on_failure();
  }
  // Work still under way hands its results to the transport, so it must end first.
  const absl::Status idle =
      OfDevice(allocator_.device().WaitIdle(Clock::Real().NowNs() + options_.progress_deadline_ns));
  if (idle.ok()) {
    EndPending(updated_.ready_ns());
    Report();
    for (StageEngine* engine : options_.engines) {
      if (!status.ok() && engine != nullptr) {
        engine->AbandonIteration();
      }
    }
  }
  status.Update(idle);
  return status;
}

absl::Status Executor::RunIterations() {
  for (int64_t iteration = options_.start_iteration; iteration <= options_.end_iteration; ++iteration) {
    const bool evaluates = options_.evaluation.passes > 0 && options_.evaluation.is_due(iteration);
    const bool is_over = iteration == options_.end_iteration;
    if ((is_over && !evaluates) || (options_.on_begin && !options_.on_begin(iteration))) {
      break;
    }
    if (evaluates) {
      GP_RETURN_IF_ERROR(RunEvaluation(iteration));
    }
    if (!is_over) {
      GP_RETURN_IF_ERROR(RunIteration(iteration));
    }
  }
  return absl::OkStatus();
}

absl::Status Executor::RunEvaluation(int64_t iteration) {
  for (StageEngine* engine : options_.engines) {
    if (engine != nullptr) {
      GP_RETURN_IF_ERROR(At(iteration, "evaluation", engine->BeginEvaluation()));
    }
  }
  evaluated_.reset();
  std::deque<Completion> passes;  // that the device has before it: their tokens and messages lie in the host's memory
  for (int64_t pass = 0; pass < options_.evaluation.passes; ++pass) {
    constexpr size_t kMaxPasses = 2;
    if (passes.size() == kMaxPasses) {
      GP_RETURN_IF_ERROR(AwaitDevice(passes.front()));
      passes.pop_front();
    }
    GP_RETURN_IF_ERROR(RunActions({.iteration = iteration, .evaluation = pass}, forwards_));
    passes.push_back(evaluated_->last);
  }
  return At(iteration, fmt::format("end of the evaluation on rank {}", rank()), EndEvaluation(iteration));
}

absl::Status Executor::EndEvaluation(int64_t iteration) {
  EvaluationStats stats;
  stats.iteration = iteration;
  Completion all_done;
  std::vector<LossReader> readers;
  for (StageEngine* engine : options_.engines) {
    if (engine != nullptr) {
      GP_ASSIGN_OR_RETURN(Timed<LossReader> reader, engine->EndEvaluation(options_.evaluation.passes));
      readers.push_back(std::move(reader.value));
      all_done = reader.ready;
    }
  }
  GP_RETURN_IF_ERROR(AwaitDevice(all_done));
  stats.loss = readers.back()();  // of this rank's last stage
  stats.begin_ns = evaluated_->first.begun_ns();
  stats.duration_ns = evaluated_->last.ready_ns() - stats.begin_ns;
  EndPending(stats.begin_ns);
  Report();
  if (options_.evaluation.on_report && options_.engines.back() != nullptr) {
    options_.evaluation.on_report(stats);
  }
  return absl::OkStatus();
}

absl::Status Executor::RunIteration(int64_t iteration) {
  const std::vector<Action>& actions = options_.schedule.devices[options_.pipeline_rank];
  recorder_.Begin(actions.size());
  for (StageEngine* engine : options_.engines) {
    if (engine != nullptr) {
      GP_RETURN_IF_ERROR(At(iteration, "begin", engine->BeginIteration(iteration)));
    }
  }
  GP_RETURN_IF_ERROR(RunActions({.iteration = iteration}, actions));
  return At(iteration, fmt::format("end on rank {}", rank()), EndIteration(iteration));
}

absl::Status Executor::RunActions(const Pass& pass, const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    if (options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed)) {
      return absl::CancelledError("stopped");
    }
    if (absl::Status status = RunAction(pass, action); !status.ok()) {
      return At(
          pass.iteration,
          fmt::format("{}{} on rank {}", pass.evaluation.has_value() ? "evaluation, " : "", ToString(action), rank()),
          status);
    }
  }
  GP_CHECK(waiting_.size() == 0, "{} results of iteration {} were not taken", waiting_.size(), pass.iteration);
  return absl::OkStatus();
}

absl::Status Executor::RunAction(const Pass& pass, const Action& action) {
  if (IsSend(action.kind)) {
    return SendOut(pass, action);
  }
  if (IsRecv(action.kind)) {
    return ReceiveIn(pass, action);
  }
  if (const std::optional<int64_t> begun_ns = BegunNs(pass); begun_ns.has_value()) {
    EndPending(*begun_ns);
  }
  Report();
  if (action.kind == ActionKind::kForward) {
    GP_RETURN_IF_ERROR(AwaitRoom(action));
  }
  ActionWatch::Scope watched(options_.watch, action, clock_);
  const absl::StatusOr<Completion> work = action.kind == ActionKind::kForward          ? Forward(pass, action)
                                          : action.kind == ActionKind::kWeightGradient ? WeightGradient(action)
                                                                                       : Backward(action);
  GP_RETURN_IF_ERROR(work.status());
  watched.Enqueued(*work);
  return absl::OkStatus();
}

Timed<Tensor> Executor::TakeInput(const Action& action, bool at_end) {
  Timed<Tensor> input = at_end ? Timed<Tensor>{} : waiting_.Take(action);
  input.ready = input.ready.NotBefore(held_until_ns_);
  return input;
}

std::optional<int64_t> Executor::BegunNs(const Pass& pass) const {
  if (!pass.evaluation.has_value()) {
    return recorder_.begun_ns();
  }
  return evaluated_.has_value() && evaluated_->first.done() ? std::optional(evaluated_->first.begun_ns())
                                                            : std::nullopt;
}

absl::Status Executor::AwaitRoom(const Action& forward) {
  const int32_t boundary = forward.stage;
  if (boundary >= std::ssize(crossings_)) {
    return absl::OkStatus();
  }
  auto& [room, on_the_way] = crossings_[boundary];
  if (!on_the_way.empty() && !IsOfEvaluation(on_the_way.front())) {
    on_the_way.clear();  // the schedule itself keeps to its room
  }
  while (!on_the_way.empty() && on_the_way.size() >= room) {
    const ChannelId channel = ActivationChannel(options_.schedule.shape, options_.pipeline, boundary);
    const absl::StatusOr<int64_t> acknowledged_ns =
        transport_.WaitAcknowledged(channel, on_the_way.front(), clock_.NowNs() + options_.progress_deadline_ns);
    if (!acknowledged_ns.ok()) {
      return Stuck(channel, acknowledged_ns.status());
    }
    held_until_ns_ = std::max(held_until_ns_, *acknowledged_ns);
    on_the_way.pop_front();
  }
  return absl::OkStatus();
}

absl::StatusOr<Completion> Executor::Forward(const Pass& pass, const Action& action) {
  StageEngine& engine = *options_.engines[action.stage];
  Timed<Tensor> input = TakeInput(action, action.stage == 0);
  GP_ASSIGN_OR_RETURN(Timed<Tensor> output,
                      pass.evaluation.has_value()
                          ? engine.Evaluate(*pass.evaluation, action.micro_batch, std::move(input))
                          : engine.Forward(action.micro_batch, std::move(input)));
  if (pass.evaluation.has_value()) {
    evaluated_ = {.first = evaluated_.has_value() ? evaluated_->first : output.ready, .last = output.ready};
  } else {
    recorder_.Record(action, output.ready);
  }
  const Completion done = output.ready;
  if (action.stage + 1 < options_.schedule.shape.stages) {
    waiting_.Put(TakerOfForward(action, HasStage(action.stage + 1)), std::move(output));
  }
  return done;
}

absl::StatusOr<Completion> Executor::Backward(const Action& action) {
  StageEngine& engine = *options_.engines[action.stage];
  const bool at_end = action.stage + 1 == options_.schedule.shape.stages;
  Timed<Tensor> grad_output = TakeInput(action, at_end);
  GP_ASSIGN_OR_RETURN(Timed<Tensor> grad_input, action.kind == ActionKind::kBackward
                                                    ? engine.Backward(action.micro_batch, std::move(grad_output))
                                                    : engine.BackwardInput(action.micro_batch, std::move(grad_output)));
  const Completion done = grad_input.ready;
  recorder_.Record(action, done);
  if (action.stage > 0) {
    waiting_.Put(TakerOfBackward(action, HasStage(action.stage - 1)), std::move(grad_input));
  }
  return done;
}

absl::StatusOr<Completion> Executor::WeightGradient(const Action& action) {
  StageEngine& engine = *options_.engines[action.stage];
  GP_ASSIGN_OR_RETURN(Completion done, engine.BackwardWeight(action.micro_batch, held_until_ns_));
  recorder_.Record(action, done);
  return done;
}

MessageTag Executor::TagOf(const Pass& pass, const Action& action) const {
  const int32_t micro_batches = options_.schedule.shape.micro_batches;
  return {pass.iteration, action.micro_batch + (pass.evaluation.has_value() ? micro_batches : 0)};
}

absl::Status Executor::SendOut(const Pass& pass, const Action& action) {
  const PipelineShape& shape = options_.schedule.shape;
  const ChannelId channel = action.kind == ActionKind::kSendForward
                                ? ActivationChannel(shape, options_.pipeline, action.stage)
                                : GradientChannel(shape, options_.pipeline, action.stage - 1);
  const MessageTag tag = TagOf(pass, action);
  GP_ASSIGN_OR_RETURN(Timed<Tensor> payload, ToHost(waiting_.Take(action)));
  const Completion ready = payload.ready;
  GP_RETURN_IF_ERROR(transport_.Send(channel, tag, std::move(payload)));
  if (options_.comm == CommMode::kBlocking) {
    const absl::StatusOr<int64_t> acknowledged_ns =
        transport_.WaitAcknowledged(channel, tag, clock_.NowNs() + options_.progress_deadline_ns);
    if (!acknowledged_ns.ok()) {
      return Stuck(channel, acknowledged_ns.status());
    }
    held_until_ns_ = *acknowledged_ns;
  } else if (action.kind == ActionKind::kSendForward && !crossings_.empty()) {
    std::deque<MessageTag>& on_the_way = crossings_[action.stage].on_the_way;
    if (pass.evaluation.has_value() || !on_the_way.empty()) {
      on_the_way.push_back(tag);
    }
  }
  if (!pass.evaluation.has_value()) {
    recorder_.RecordMessage(action, ready, held_until_ns_);
  }
  return absl::OkStatus();
}

absl::Status Executor::ReceiveIn(const Pass& pass, const Action& action) {
  const PipelineShape& shape = options_.schedule.shape;
  const bool forward = action.kind == ActionKind::kRecvForward;
  const ChannelId channel = forward ? ActivationChannel(shape, options_.pipeline, action.stage - 1)
                                    : GradientChannel(shape, options_.pipeline, action.stage);
  absl::StatusOr<Timed<Tensor>> message =
      transport_.Receive(channel, TagOf(pass, action), clock_.NowNs() + options_.progress_deadline_ns);
  if (!message.ok()) {
    return Stuck(channel, message.status());
  }
  if (!pass.evaluation.has_value()) {
    recorder_.RecordMessage(action, message->ready, clock_.NowNs());
  }
  const ActionKind taker = forward ? ActionKind::kForward : ActionKind::kInputGradient;
  GP_ASSIGN_OR_RETURN(Timed<Tensor> input, ToDevice(*std::move(message), allocator_, MemoryCategory::kTransport));
  waiting_.Put({action.stage, taker, action.micro_batch}, std::move(input));
  return absl::OkStatus();
}

absl::Status Executor::Stuck(const ChannelId& channel, const absl::Status& status) const {
  if (!absl::IsDeadlineExceeded(status)) {
    return status;
  }
  const bool sends = channel.from_rank == rank();
  const PeerId peer = sends ? channel.to_rank : channel.from_rank;
  return absl::DeadlineExceededError(
      fmt::format("the {} of boundary {} was not {} rank {} within {:.1f} s; that rank, or the link to it, is stuck",
                  MessageKindName(channel.kind), channel.boundary, sends ? "acknowledged by" : "received from", peer,
                  static_cast<double>(options_.progress_deadline_ns) * 1e-9));
}

absl::Status Executor::EndIteration(int64_t iteration) {
  IterationStats stats;
  stats.iteration = iteration;
  GradientExchange exchange(options_.schedule.shape, options_.pipeline_rank, options_.pipeline, options_.engines,
                            transport_, allocator_, clock_, options_.progress_deadline_ns);
  GP_RETURN_IF_ERROR(exchange.ExchangeTied(iteration));
  std::vector<std::pair<int32_t, ScalarReader>> readers;
  Completion all_done;
  for (int32_t stage = 0; stage < options_.schedule.shape.stages; ++stage) {
    if (options_.engines[stage] != nullptr) {
      GP_ASSIGN_OR_RETURN(Timed<ScalarReader> reader, options_.engines[stage]->ReadScalars(options_.exchange_norms));
      readers.emplace_back(stage, std::move(reader.value));
      all_done = reader.ready;
    }
  }
  GP_RETURN_IF_ERROR(AwaitDevice(all_done));  // the last stage's, behind all others in kernels' queue
  std::vector<NormTerm> norm_terms;
  for (const auto& [stage, read] : readers) {
    IterationScalars scalars = read();
    GP_RETURN_IF_ERROR(CheckFinite(stage, scalars));
    if (scalars.loss.has_value()) {
      stats.loss = scalars.loss;
    }
    std::ranges::move(scalars.norm_terms, std::back_inserter(norm_terms));
  }
  if (options_.exchange_norms) {
    GP_ASSIGN_OR_RETURN(stats.grad_norm, exchange.ExchangeNorm(iteration, std::move(norm_terms)));
  }
  const int64_t from_ns = options_.exchange_norms || exchange.waited() ? clock_.NowNs() : 0;
  for (StageEngine* engine : options_.engines) {
    if (engine != nullptr) {
      GP_ASSIGN_OR_RETURN(updated_, engine->Update(iteration, stats.grad_norm, from_ns));
    }
  }
  next_iteration_ = iteration + 1;
  stats.begin_ns = recorder_.begun_ns().value_or(clock_.NowNs());
  EndPending(stats.begin_ns);
  Report();
  pending_.push_back({.stats = std::move(stats), .recorder = std::exchange(recorder_, {})});
  return absl::OkStatus();
}

absl::Status Executor::AwaitDevice(const Completion& work) const {
  return OfDevice(allocator_.device().Wait(work, Clock::Real().NowNs() + options_.progress_deadline_ns));
}

// A device that is not done in time is a failure of this rank, a message that is late one of a peer.
absl::Status Executor::OfDevice(const absl::Status& status) const {
  if (!absl::IsDeadlineExceeded(status)) {
    return status;
  }
  const std::optional<Action> action = recorder_.FirstUnderWay();
  return absl::InternalError(fmt::format(
      "the device of rank {} has not done {} within {:.1f} s; it is stuck: look at its driver's log", rank(),
      action.has_value() ? ToString(*action) : "its work", static_cast<double>(options_.progress_deadline_ns) * 1e-9));
}

void Executor::EndPending(int64_t end_ns) {
  if (!pending_.empty() && !pending_.back().has_ended) {
    pending_.back().stats.duration_ns = end_ns - pending_.back().stats.begin_ns;
    pending_.back().has_ended = true;
  }
}

void Executor::Report() {
  while (!pending_.empty() && pending_.front().has_ended && pending_.front().recorder.is_over()) {
    auto [stats, recorder, has_ended] = std::move(pending_.front());
    pending_.pop_front();
    if (std::optional<StepRecorder::Timings> timings = recorder.Take(); timings.has_value()) {
      stats.busy_ns = timings->busy_ns;
      stats.actions = std::move(timings->actions);
    }
    if (options_.on_report) {
      options_.on_report(std::move(stats));
    }
  }
}

}  // namespace geopipe
