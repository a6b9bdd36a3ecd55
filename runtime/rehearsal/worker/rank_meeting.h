// A meeting of some ranks of a job over its transport.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/executor/action_watch.h"
#include "runtime/rehearsal/device/meeting.h"
#include "runtime/tensor/allocator.h"
#include "runtime/transport/stream/message_transport.h"

namespace geopipe {

// The first rank hears from all others and answers them: two messages for each of these, one after the other. That
// takes no rehearsed time, because a message says when it was ready. Executor's thread, but for Channels.
class RankMeeting final : public Meeting {
 public:
  // `ranks` are all that meet, in the same order on each of them, `own` among them. A wait ends after `deadline_ns`.
  // Allocator and clock outlive the meeting.
  RankMeeting(std::vector<int32_t> ranks, int32_t own, int64_t deadline_ns, Allocator& allocator, Clock& clock)
      : ranks_(std::move(ranks)), own_(own), deadline_ns_(deadline_ns), allocator_(allocator), clock_(clock) {}

  // Channels that begin or end at this rank.
  std::vector<ChannelSpec> Channels() const;
  // Meets over `transport`, which has these channels, from now on. Both outlive all later calls of Meet.
  void Use(MessageTransport& transport, ActionWatch& watch) {
    transport_ = &transport;
    watch_ = &watch;
  }

  absl::StatusOr<int64_t> Meet(int64_t iteration, int32_t micro_batch, int64_t arrived_ns) override;

 private:
  absl::Status Tell(int32_t rank, const MessageTag& tag, int64_t arrived_ns);
  absl::StatusOr<int64_t> Hear(int32_t rank, const MessageTag& tag);

  const std::vector<int32_t> ranks_;
  const int32_t own_;
  const int64_t deadline_ns_;
  Allocator& allocator_;
  Clock& clock_;
  MessageTransport* transport_ = nullptr;
  ActionWatch* watch_ = nullptr;
};

}  // namespace geopipe
