// Messages between the workers of a pipeline, delivered exactly once, with receives posted ahead of need: the transport
// as the executor sees it. Reliable streams over an unreliable frame carrier implement it.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/tensor/completion.h"
#include "runtime/tensor/tensor.h"
#include "runtime/transport/stream/frame.h"

namespace geopipe {

enum class MessageKind : uint8_t {
  kActivation,       // boundary: stage s to s + 1
  kGradient,         // boundary: stage s + 1 to s
  kNormTerms,        // gradient-norm terms, rank to rank
  kTiedGradient,     // tied embedding's gradient, between the ranks of the first and the last stage
  kArrival,          // rehearsed collectives: the sender has come to its next one
  kCollective,       // collective operations of a group of ranks
  kCollectiveAbort,  // why the sender has given these up
};

std::string_view MessageKindName(MessageKind kind);

// One direction of one boundary (activation, gradient), or one pair of ranks (the others), of one group (collectives).
// Messages of a channel are delivered in the order they were sent.
struct ChannelId {
  MessageKind kind = MessageKind::kActivation;
  int32_t boundary = 0;  // activation, gradient: boundary index; collectives: the group; the others: 0
  PeerId from_rank = 0;
  PeerId to_rank = 0;

  friend auto operator<=>(const ChannelId&, const ChannelId&) = default;
};

// Type and shape of a message's payload.
struct PayloadLayout {
  static constexpr size_t kMaxDimensions = 4;

  DType dtype = DType::kFp32;
  uint8_t dimension_count = 0;
  std::array<int64_t, kMaxDimensions> dimensions{};

  // REQUIRES: at most kMaxDimensions.
  static PayloadLayout Of(DType dtype, const std::vector<int64_t>& shape);
  std::vector<int64_t> shape() const { return {dimensions.begin(), dimensions.begin() + dimension_count}; }
  // Bytes of such a tensor; -1 if it would have more than `limit_bytes`, or none.
  int64_t bytes(int64_t limit_bytes = std::numeric_limits<int64_t>::max()) const;

  friend bool operator==(const PayloadLayout&, const PayloadLayout&) = default;
};
// "fp32 [2, 3]".
std::string ToString(const PayloadLayout& layout);

// `slots` messages of at most `slot_bytes` are accepted before the receiver has taken any: that many receives are
// posted, and advertised to the sender, ahead of need.
struct ChannelSpec {
  ChannelId id;
  int64_t slot_bytes = 0;
  int32_t slots = 1;
  std::optional<PayloadLayout> layout = std::nullopt;  // of every message, which fills its slot; nullopt: they differ
};

// Messages of a channel that may be sent and not acknowledged, by its slots: those that the slots hold, and as many
// again.
inline constexpr int64_t kUnacknowledgedPerSlot = 2;

// Identifies a message within its channel; the receiver knows which one comes next and checks it.
struct MessageTag {
  int64_t iteration = 0;
  int32_t micro_batch = 0;

  friend bool operator==(const MessageTag&, const MessageTag&) = default;
};

// Messages of one kind that were handed over so far, between stages.
struct MessageTraffic {
  MessageKind kind = MessageKind::kActivation;
  int64_t messages = 0;
  int64_t bytes = 0;  // of payloads, each once
};

// Traffic with one peer so far, for reports and metrics.
struct PeerTraffic {
  PeerId rank = 0;
  int64_t bytes_sent = 0;  // headers, payloads, and repetitions
  int64_t bytes_received = 0;
  int64_t corrupt_frames = 0;                       // that came from it with other bytes than were sent
  int64_t round_trip_ns = 0;                        // smoothed; 0: not measured yet
  std::vector<MessageTraffic> between_stages = {};  // activations and gradients to the peer
};

// Thread-safe. On each channel at most one thread waits in Receive and one in WaitAcknowledged at a time; threads of
// different channels wait independently.
class MessageTransport {
 public:
  virtual ~MessageTransport() = default;

  // Hands the payload over and returns at once: never blocks, whatever the device, the peer or the link does. The
  // payload leaves when it is ready; those of one channel become ready in the order of the calls. If the work that
  // makes it fails, the transport does, with that error. The transport keeps it (memory of category transport is the
  // caller's concern) until the receiver has acknowledged it. ResourceExhausted if the channel's bound of
  // unacknowledged messages is exceeded (the plan makes that a bug); InvalidArgument if the payload is not of the
  // channel's layout. One thread per channel. REQUIRES: the transport outlives the work that makes the payload.
  virtual absl::Status Send(const ChannelId& channel, const MessageTag& tag, Timed<Tensor> payload) = 0;

  // Takes the channel's next message, waiting for it (asleep) until `deadline_ns` on the monotonic clock.
  // DeadlineExceeded names channel and tag; Unavailable when the transport failed; Internal if the next message is not
  // `tag`, or not of the channel's layout. The tensor has the sender's dtype and shape, in the slot's memory. It is
  // ready as of the moment when it was whole there.
  virtual absl::StatusOr<Timed<Tensor>> Receive(const ChannelId& channel, const MessageTag& tag,
                                                int64_t deadline_ns) = 0;

  // Waits until the receiver has acknowledged the message (blocking communication), whether or not it was ready when
  // sent. Returns the time of the acknowledgement (monotonic clock). Errors as Receive's.
  virtual absl::StatusOr<int64_t> WaitAcknowledged(const ChannelId& channel, const MessageTag& tag,
                                                   int64_t deadline_ns) = 0;

  // Makes every waiting and later call return `status`. Idempotent: the first status stays.
  virtual void Fail(absl::Status status) = 0;
};

}  // namespace geopipe
