// Runs one rank's list of a lowered schedule, iteration after iteration. Compute actions are called in list order, each
// as soon as its input has arrived; the transport sends their results when they are ready, on whichever thread
// completes them. Receives are posted ahead and sends do not wait, so the thread waits only for inputs and, in blocking
// mode and in evaluations, for acknowledgements, both of which are the transport's; for the device it waits once, when
// an iteration or an evaluation ends, and where an evaluation has many passes, for the last but one of them.
#pragma once

#include <absl/status/status.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "optimizer/schedule/schedule.h"
#include "runtime/base/clock.h"
#include "runtime/executor/action_watch.h"
#include "runtime/executor/activation_store.h"
#include "runtime/executor/gradient_exchange.h"
#include "runtime/executor/step_recorder.h"
#include "runtime/model/stage_engine.h"
#include "runtime/tensor/allocator.h"
#include "runtime/transport/stream/message_transport.h"

namespace geopipe {

// One finished iteration of one rank.
struct IterationStats {
  int64_t iteration = 0;
  std::optional<double> loss;       // rank of the last stage, real engines
  std::optional<double> grad_norm;  // before clipping; absent where norms are not exchanged
  int64_t begin_ns = 0;             // of the first compute action, monotonic
  int64_t duration_ns = 0;          // first action to the next iteration's first action; the last: to its end
  int64_t busy_ns = 0;              // sum over compute actions
  std::vector<ActionRecord> actions;
};

// One finished evaluation, on a rank of the last stage.
struct EvaluationStats {
  int64_t iteration = 0;       // the weights are those before it
  std::optional<double> loss;  // real engines; may be NaN or infinite
  int64_t begin_ns = 0;        // of the rank's first forward, monotonic
  int64_t duration_ns = 0;     // from there to the end of its last
};

// Forward-only passes between iterations, by the forwards of the schedule (optimizer/schedule/forward_only.h) over the
// channels of the training and within their memory. Pipelined: a rank begins the next iteration when it has done its
// own forwards.
struct EvaluationOptions {
  int64_t passes = 0;  // of each evaluation, over all micro-batches; 0: there is none
  // True when the weights before this iteration, or after the last, are evaluated; the same on all ranks.
  std::function<bool(int64_t iteration)> is_due;
  std::function<void(EvaluationStats)> on_report;  // on ranks of the last stage
};

struct ExecutorOptions {
  Schedule schedule;             // lowered and valid
  int32_t pipeline_rank = 0;     // whose list of the schedule this rank runs
  std::vector<PeerId> pipeline;  // the ranks of this one's pipeline, by pipeline rank
  CommMode comm = CommMode::kNonBlocking;
  std::vector<StageEngine*> engines;  // per stage; nullptr where it is another rank's. They outlive the executor
  bool exchange_norms = false;        // gradients are clipped
  int64_t start_iteration = 0;
  int64_t end_iteration = 0;                      // exclusive
  int64_t progress_deadline_ns = 60'000'000'000;  // longest wait for one input or acknowledgement
  const std::atomic<bool>* stop = nullptr;        // checked between actions; may be null
  EvaluationOptions evaluation = {};
  // An iteration begins, and an evaluation of the weights before it where one is due; false: neither these nor later
  // ones. Also called with end_iteration, before the last evaluation. May be empty.
  std::function<bool(int64_t)> on_begin;
  ActionWatch* watch = nullptr;      // hears the compute action under way; may be null
  std::function<void()> on_failure;  // training ends with an error; before engines abandon the iteration. May be empty
  // An iteration is over with all it sent, and the next one's first action has begun.
  std::function<void(IterationStats)> on_report;
};

class Executor {
 public:
  // InvalidArgument for rendezvous, which exists in the simulator alone. The references outlive the executor.
  static absl::StatusOr<Executor> Create(ExecutorOptions options, MessageTransport& transport, Allocator& allocator,
                                         Clock& clock);

  // Runs all iterations with their evaluations, or those that `on_begin` lets begin. To interrupt it from another
  // thread, set `stop` and call the transport's Fail. Errors name iteration, action and rank: Cancelled (stop),
  // DeadlineExceeded (a peer or link is stuck: channel and micro-batch; or the device: its action), OutOfRange (loss or
  // gradient norm is not finite), and those of engine and transport. Iterations finished before an error are reported;
  // the iteration under way is abandoned, and the engines are as they were before next_iteration(), unless the error is
  // an engine's own. Call once.
  absl::Status Run();

  // The first iteration whose weights are not updated.
  int64_t next_iteration() const { return next_iteration_; }

 private:
  Executor(ExecutorOptions options, MessageTransport& transport, Allocator& allocator, Clock& clock);

  // One pass over the micro-batches: an iteration, or one of an evaluation before it.
  struct Pass {
    int64_t iteration = 0;
    std::optional<int64_t> evaluation = std::nullopt;  // its number in the evaluation
  };

  absl::Status RunIterations();
  absl::Status RunIteration(int64_t iteration);
  absl::Status RunEvaluation(int64_t iteration);
  absl::Status EndEvaluation(int64_t iteration);
  absl::Status RunActions(const Pass& pass, const std::vector<Action>& actions);
  absl::Status RunAction(const Pass& pass, const Action& action);
  // The three return what the device was given.
  absl::StatusOr<Completion> Forward(const Pass& pass, const Action& action);
  absl::StatusOr<Completion> Backward(const Action& action);
  absl::StatusOr<Completion> WeightGradient(const Action& action);
  // Waits until one more activation of the stage may be on its way to the next rank: in evaluations no backward holds
  // forwards back.
  absl::Status AwaitRoom(const Action& forward);
  absl::Status SendOut(const Pass& pass, const Action& action);
  absl::Status ReceiveIn(const Pass& pass, const Action& action);
  absl::Status EndIteration(int64_t iteration);
  // Waits for the device. Internal: it is not done in time; names the action that it is at.
  absl::Status AwaitDevice(const Completion& work) const;
  absl::Status OfDevice(const absl::Status& status) const;
  // Says when the last iteration has ended: the next one's first action has begun.
  void EndPending(int64_t end_ns);
  // Reports the iterations that have ended and whose messages have left the device.
  void Report();

  // The input of the action; empty at the pipeline's ends. It is not ready before the device may go on.
  Timed<Tensor> TakeInput(const Action& action, bool at_end);
  MessageTag TagOf(const Pass& pass, const Action& action) const;
  bool IsOfEvaluation(const MessageTag& tag) const { return tag.micro_batch >= options_.schedule.shape.micro_batches; }
  // Time at which the first compute action of the iteration or evaluation began; nullopt: none is known to have begun.
  std::optional<int64_t> BegunNs(const Pass& pass) const;
  bool HasStage(int32_t stage) const { return options_.schedule.shape.placement[stage] == options_.pipeline_rank; }
  PeerId rank() const { return options_.pipeline[options_.pipeline_rank]; }
  absl::Status Stuck(const ChannelId& channel, const absl::Status& status) const;

  ExecutorOptions options_;
  MessageTransport& transport_;
  Allocator& allocator_;
  Clock& clock_;
  ActivationStore waiting_;
  StepRecorder recorder_;
  std::vector<Action> forwards_;  // this rank's list of the forward-only schedule
  // First and last forward of the evaluation under way.
  struct Evaluated {
    Completion first;
    Completion last;
  };
  std::optional<Evaluated> evaluated_;
  // Activations to the next rank, from the first of an evaluation on until all of evaluations are known to have
  // arrived.
  struct Crossing {
    size_t room = 0;  // most of them at once, as in training
    std::deque<MessageTag> on_the_way = {};
  };
  std::vector<Crossing> crossings_;  // by boundary; empty: nothing is evaluated
  // An iteration that is not reported yet.
  struct Pending {
    IterationStats stats;
    StepRecorder recorder;
    bool has_ended = false;
  };
  std::deque<Pending> pending_;
  Completion updated_;  // the last iteration's weights
  int64_t next_iteration_;
  int64_t held_until_ns_ = 0;  // the last acknowledgement that was waited for was there
};

}  // namespace geopipe
