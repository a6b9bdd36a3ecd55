#include "runtime/rehearsal/worker/rank_meeting.h"

#include <fmt/format.h>

#include <algorithm>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"

namespace geopipe {
namespace {

constexpr int64_t kArrivalBytes = sizeof(int32_t);
// A rank comes to its next collective only when all have come to the last: one message may wait while the next arrives.
constexpr int32_t kArrivalSlots = 2;

ChannelId ArrivalsFrom(int32_t from, int32_t to) {
  return {.kind = MessageKind::kArrival, .boundary = 0, .from_rank = from, .to_rank = to};
}

}  // namespace

std::vector<ChannelSpec> RankMeeting::Channels() const {
  std::vector<ChannelSpec> channels;
  for (const int32_t rank : ranks_) {
    if (rank != own_ && (own_ == ranks_.front() || rank == ranks_.front())) {
      channels.push_back({ArrivalsFrom(rank, own_), kArrivalBytes, kArrivalSlots});
      channels.push_back({ArrivalsFrom(own_, rank), kArrivalBytes, kArrivalSlots});
    }
  }
  return channels;
}

absl::StatusOr<int64_t> RankMeeting::Meet(int64_t iteration, int32_t micro_batch, int64_t arrived_ns) {
  GP_CHECK(transport_ != nullptr, "ranks meet before they train");
  const ActionWatch::Break waiting(*watch_, clock_);
  const MessageTag tag{iteration, micro_batch};
  if (own_ != ranks_.front()) {
    GP_RETURN_IF_ERROR(Tell(ranks_.front(), tag, arrived_ns));
    GP_ASSIGN_OR_RETURN(const int64_t met_ns, Hear(ranks_.front(), tag));
    return std::max(arrived_ns, met_ns);
  }
  int64_t met_ns = arrived_ns;
  for (const int32_t rank : ranks_) {
    if (rank != own_) {
      GP_ASSIGN_OR_RETURN(const int64_t other_ns, Hear(rank, tag));
      met_ns = std::max(met_ns, other_ns);
    }
  }
  for (const int32_t rank : ranks_) {
    if (rank != own_) {
      GP_RETURN_IF_ERROR(Tell(rank, tag, met_ns));
    }
  }
  return met_ns;
}

absl::Status RankMeeting::Tell(int32_t rank, const MessageTag& tag, int64_t arrived_ns) {
  GP_ASSIGN_OR_RETURN(Tensor message, Tensor::Zeros(allocator_.staging(), MemoryCategory::kTransport, DType::kInt32,
                                                    {kArrivalBytes / 4}));
  return transport_->Send(ArrivalsFrom(own_, rank), tag, {std::move(message), Completion::At(arrived_ns)});
}

absl::StatusOr<int64_t> RankMeeting::Hear(int32_t rank, const MessageTag& tag) {
  const absl::StatusOr<Timed<Tensor>> message =
      transport_->Receive(ArrivalsFrom(rank, own_), tag, clock_.NowNs() + deadline_ns_);
  if (absl::IsDeadlineExceeded(message.status())) {
    return absl::DeadlineExceededError(
        fmt::format("rank {} has not come to the collective that it shares with rank {} within {:.1f} s; it is stuck",
                    rank, own_, static_cast<double>(deadline_ns_) * 1e-9));
  }
  GP_RETURN_IF_ERROR(message.status());
  return message->ready_ns();
}

}  // namespace geopipe
