// Exchanges, among the ranks of a pipeline at the end of an iteration, the gradients of a tied embedding's two uses and
// the terms of the gradient norm. Each goes straight from rank to rank: one crossing latency, no gather and broadcast.
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

  // Sends the tied accumulator of the first or last stage to the other end and adds the other's. Does nothing on other
  // stages, or where no embedding is tied.
  absl::Status ExchangeTied(int64_t iteration);

  // Sends this rank's `own` norm terms to all others, waits for theirs and returns the global norm, the same bits on
  // every rank; nullopt when no rank has terms. OutOfRange when the norm is not finite: names the tensor whose gradient
  // was the first not to be finite, and its rank.
  absl::StatusOr<std::optional<double>> ExchangeNorm(int64_t iteration, std::vector<NormTerm> own);

  // True when the exchange had to wait for a message.
  bool waited() const { return waited_; }

 private:
  // Sends or receives between this rank and the one of pipeline rank `to` or `from`.
  absl::Status Send(MessageKind kind, int32_t to, const MessageTag& tag, Timed<Tensor> message);
  absl::StatusOr<Timed<Tensor>> Receive(MessageKind kind, int32_t from, const MessageTag& tag);

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
