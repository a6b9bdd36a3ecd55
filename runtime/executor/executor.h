// Runs one rank's list of a lowered schedule, iteration after iteration. Compute actions are called in list order, each
// as soon as its input has arrived; the transport sends their results when they are ready, on whichever thread
// completes them. Receives are posted ahead and sends do not wait, so the thread waits only for inputs and, in blocking
// mode, for acknowledgements, both of which are the transport's; for the device it waits once, when an iteration ends.
#pragma once

#include <absl/status/status.h>

#include <atomic>
#include <cstdint>
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
  std::function<bool(int64_t)> on_begin;  // an iteration begins; false: neither it nor a later one. May be empty
  ActionWatch* watch = nullptr;           // hears the compute action under way; may be null
  std::function<void()> on_failure;  // training ends with an error; before engines abandon the iteration. May be empty
  std::function<void(IterationStats)> on_report;  // an iteration is over, and the next one's first action has begun
};

class Executor {
 public:
  // InvalidArgument for rendezvous, which exists in the simulator alone. The references outlive the executor.
  static absl::StatusOr<Executor> Create(ExecutorOptions options, MessageTransport& transport, Allocator& allocator,
                                         Clock& clock);

  // Runs all iterations, or those that `on_begin` lets begin. To interrupt it from another thread, set `stop` and call
  // the transport's Fail. Errors name iteration, action and rank: Cancelled (stop), DeadlineExceeded (a peer or link is
  // stuck: channel and micro-batch), OutOfRange (loss or gradient norm is not finite), and those of engine and
  // transport. Iterations finished before an error are reported; the iteration under way is abandoned, and the engines
  // are as they were before next_iteration(), unless the error is an engine's own. Call once.
  absl::Status Run();

  // The first iteration whose weights are not updated.
  int64_t next_iteration() const { return next_iteration_; }

 private:
  Executor(ExecutorOptions options, MessageTransport& transport, Allocator& allocator, Clock& clock);

  absl::Status RunIterations();
  absl::Status RunIteration(int64_t iteration);
  absl::Status RunAction(int64_t iteration, const Action& action);
  absl::Status Forward(const Action& action);
  absl::Status Backward(const Action& action);
  absl::Status WeightGradient(const Action& action);
  absl::Status SendOut(int64_t iteration, const Action& action);
  absl::Status ReceiveIn(int64_t iteration, const Action& action);
  absl::Status EndIteration(int64_t iteration);
  void Report(int64_t end_ns);

  // The input of the action; empty at the pipeline's ends. It is not ready before the device may go on.
  Timed<Tensor> TakeInput(const Action& action, bool at_end);
  bool HasStage(int32_t stage) const { return options_.schedule.shape.placement[stage] == options_.pipeline_rank; }
  PeerId rank() const { return options_.pipeline[options_.pipeline_rank]; }
  absl::Status Stuck(const ChannelId& channel, const absl::Status& status) const;

  ExecutorOptions options_;
  MessageTransport& transport_;
  Allocator& allocator_;
  Clock& clock_;
  ActivationStore waiting_;
  StepRecorder recorder_;
  std::unique_ptr<IterationStats> pending_;  // the last iteration, until the next one's first action
  Completion updated_;                       // the last iteration's weights
  int64_t next_iteration_;
  int64_t held_until_ns_ = 0;  // blocking: the last acknowledgement was there
};

}  // namespace geopipe
