// What the stages tell each other at the end of an iteration: the two uses of a tied embedding, and the terms of the
// gradient norm. Each goes straight from stage to stage: one crossing latency, no gather and broadcast.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
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
  // All references outlive the exchange. `engines` has one entry per chunk, nullptr where the chunk is another
  // device's.
  GradientExchange(const PipelineShape& shape, int32_t stage, std::vector<StageEngine*> engines,
                   MessageTransport& transport, Allocator& allocator, Clock& clock, int64_t progress_deadline_ns);

  // Where the first or the last chunk has a tied accumulator to share: sends it to the other end and adds the other's.
  absl::Status ExchangeTied(int64_t iteration);

  // Sends this stage's norm terms to all others, waits for theirs and returns the global norm, the same bits on every
  // stage; nullopt when no stage has terms (a modelled run). OutOfRange when it is not finite: names the tensor whose
  // gradient was the first not to be, and its stage.
  absl::StatusOr<std::optional<double>> ExchangeNorm(int64_t iteration);

  // Something was waited for.
  bool waited() const { return waited_; }

 private:
  absl::StatusOr<Tensor> Receive(const ChannelId& channel, const MessageTag& tag);

  const PipelineShape& shape_;
  int32_t stage_;
  std::vector<StageEngine*> engines_;
  MessageTransport& transport_;
  Allocator& allocator_;
  Clock& clock_;
  int64_t progress_deadline_ns_;
  bool waited_ = false;
};

}  // namespace geopipe
