// What the ranks of a pipeline tell each other at the end of an iteration: the two uses of a tied embedding, and the
// terms of the gradient norm. Each goes straight from rank to rank: one crossing latency, no gather and broadcast.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "optimizer/schedule/schedule.h"
#include "runtime/base/clock.h"
#include "runtime/model/stage_engine.h"
#include "runtime/tensor/allocator.h"
#include "runtime/transport/stream/message_transport.h"

namespace geopipe {

// Executor thread only.
class GradientExchange {
 public:
  // All references outlive the exchange. `pipeline` and `engines` as ExecutorOptions'.
  GradientExchange(const PipelineShape& shape, int32_t pipeline_rank, std::span<const PeerId> pipeline,
                   const std::vector<StageEngine*>& engines, MessageTransport& transport, Allocator& allocator,
                   Clock& clock, int64_t progress_deadline_ns);

  // Where the first or the last stage has a tied accumulator to share: sends it to the other end and adds the other's.
  absl::Status ExchangeTied(int64_t iteration);

  // Sends this rank's `own` norm terms to all others, waits for theirs and returns the global norm, the same bits on
  // every rank; nullopt when no rank has terms. OutOfRange when it is not finite: names the tensor
  // whose gradient was the first not to be, and its rank.
  absl::StatusOr<std::optional<double>> ExchangeNorm(int64_t iteration, std::vector<NormTerm> own);

  // Something was waited for.
  bool waited() const { return waited_; }

 private:
  // Between the ranks of two pipeline ranks.
  absl::Status Send(MessageKind kind, int32_t to, const MessageTag& tag, Timed<Tensor> message);
  absl::StatusOr<Tensor> Receive(MessageKind kind, int32_t from, const MessageTag& tag);

  const PipelineShape& shape_;
  int32_t pipeline_rank_;
  std::span<const PeerId> pipeline_;
  const std::vector<StageEngine*>& engines_;
  MessageTransport& transport_;
  Allocator& allocator_;
  Clock& clock_;
  int64_t progress_deadline_ns_;
  bool waited_ = false;
};

}  // namespace geopipe
