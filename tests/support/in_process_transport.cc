#include "tests/support/in_process_transport.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"

namespace geopipe {
namespace {

std::chrono::steady_clock::time_point At(int64_t monotonic_ns) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(monotonic_ns));
}

}  // namespace

class InProcessEndpoint final : public MessageTransport {
 public:
  InProcessEndpoint(InProcessNetwork& network, int32_t rank, Allocator& allocator)
      : network_(network), rank_(rank), allocator_(allocator) {}

  absl::Status Send(const ChannelId& id, const MessageTag& tag, Timed<Tensor> message) override {
    InProcessNetwork& network = network_;  // which outlives the endpoint
    std::unique_lock lock(network.mutex_);
    GP_RETURN_IF_ERROR(network.failures_[rank_]);
    InProcessNetwork::Channel& channel = Find(id);
    GP_CHECK(id.from_rank == rank_, "rank {} sends for rank {}", rank_, id.from_rank);
    GP_CHECK(message.value.bytes() <= channel.spec.slot_bytes, "{} bytes into a slot of {}", message.value.bytes(),
             channel.spec.slot_bytes);
    GP_CHECK(!channel.spec.layout.has_value() ||
                 PayloadLayout::Of(message.value.dtype(), message.value.shape()) == *channel.spec.layout,
             "a message of {} on a channel of {}",
             ToString(PayloadLayout::Of(message.value.dtype(), message.value.shape())), ToString(*channel.spec.layout));
    ++channel.sent;
    channel.tags.push_back(tag);
    ++network.messages_sent_;
    channel.greatest_outstanding = std::max(channel.greatest_outstanding, channel.sent - channel.taken);
    network.throttled_ += channel.sent - channel.taken > channel.spec.slots ? 1 : 0;
    lock.unlock();
    message.ready.Then([&network, &channel, tag, rank = rank_, ready = message.ready,
                        payload = std::make_shared<Tensor>(std::move(message.value))] {
      const std::lock_guard ready_lock(network.mutex_);
      if (!ready.status().ok()) {
        network.failures_[rank].Update(ready.status());
        network.changed_.notify_all();
        return;
      }
      channel.queue.push_back({tag, std::move(*payload)});
      ++channel.ready;
      network.changed_.notify_all();
    });
    return absl::OkStatus();
  }

  absl::StatusOr<Timed<Tensor>> Receive(const ChannelId& id, const MessageTag& tag, int64_t deadline_ns) override {
    std::unique_lock lock(network_.mutex_);
    InProcessNetwork::Channel& channel = Find(id);
    GP_CHECK(id.to_rank == rank_, "rank {} receives for rank {}", rank_, id.to_rank);
    if (!network_.changed_.wait_until(lock, At(deadline_ns),
                                      [&] { return !channel.queue.empty() || !network_.failures_[rank_].ok(); })) {
      return absl::DeadlineExceededError("no message");
    }
    GP_RETURN_IF_ERROR(network_.failures_[rank_]);
    if (channel.queue.front().tag != tag) {
      return absl::InternalError("another message is next");
    }
    const Tensor sent = std::move(channel.queue.front().payload);
    channel.queue.pop_front();
    ++channel.taken;
    network_.changed_.notify_all();
    lock.unlock();
    GP_ASSIGN_OR_RETURN(Tensor received,
                        Tensor::Create(allocator_, MemoryCategory::kTransport, sent.dtype(), sent.shape()));
    std::memcpy(received.data(), sent.data(), sent.bytes());
    return Timed<Tensor>{.value = std::move(received), .ready = Completion::At(Clock::Real().NowNs())};
  }

  // The latest message of the tag is accepted once it is ready and has a slot.
  absl::StatusOr<int64_t> WaitAcknowledged(const ChannelId& id, const MessageTag& tag, int64_t deadline_ns) override {
    std::unique_lock lock(network_.mutex_);
    InProcessNetwork::Channel& channel = Find(id);
    const int64_t up_to = channel.tags.rend() - std::find(channel.tags.rbegin(), channel.tags.rend(), tag);
    const bool acknowledged = network_.changed_.wait_until(lock, At(deadline_ns), [&] {
      return (channel.ready >= up_to && up_to - channel.taken <= channel.spec.slots) || !network_.failures_[rank_].ok();
    });
    GP_RETURN_IF_ERROR(network_.failures_[rank_]);
    if (!acknowledged) {
      return absl::DeadlineExceededError("no acknowledgement");
    }
    return Clock::Real().NowNs();
  }

  void Fail(absl::Status status) override {
    const std::lock_guard lock(network_.mutex_);
    if (network_.failures_[rank_].ok()) {
      network_.failures_[rank_] = std::move(status);
    }
    network_.changed_.notify_all();
  }

 private:
  InProcessNetwork::Channel& Find(const ChannelId& id) {
    const auto found = network_.channels_.find(id);
    GP_CHECK(found != network_.channels_.end(), "no channel of {} at boundary {} from {} to {}",
             MessageKindName(id.kind), id.boundary, id.from_rank, id.to_rank);
    return found->second;
  }

  InProcessNetwork& network_;
  const int32_t rank_;
  Allocator& allocator_;
};

void InProcessNetwork::Add(const ChannelSpec& spec) {
  const std::lock_guard lock(mutex_);
  channels_[spec.id].spec = spec;
}

std::unique_ptr<MessageTransport> InProcessNetwork::Endpoint(int32_t rank, Allocator& allocator) {
  return std::make_unique<InProcessEndpoint>(*this, rank, allocator);
}

void InProcessNetwork::FailAll(const absl::Status& status) {
  const std::lock_guard lock(mutex_);
  for (absl::Status& failure : failures_) {
    if (failure.ok()) {
      failure = status;
    }
  }
  changed_.notify_all();
}

int64_t InProcessNetwork::throttled() const {
  const std::lock_guard lock(mutex_);
  return throttled_;
}

int64_t InProcessNetwork::greatest_outstanding(const ChannelId& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = channels_.find(id);
  return found == channels_.end() ? 0 : found->second.greatest_outstanding;
}

int64_t InProcessNetwork::messages_sent() const {
  const std::lock_guard lock(mutex_);
  return messages_sent_;
}

}  // namespace geopipe
