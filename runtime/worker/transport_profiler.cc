#include "runtime/worker/transport_profiler.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "runtime/base/ids.h"
#include "runtime/tensor/allocator.h"
#include "runtime/tensor/tensor.h"
#include "runtime/transport/ucx_transport.h"

namespace geopipe {
namespace {

constexpr int32_t kRounds = 18;
constexpr int32_t kWarmUpRounds = 2;
// Longer than any of the transport's own batching of acknowledgements: the next message finds it at rest, as it does
// between two actions. Long and uneven enough, too, that the workers of one host are as seldom in each other's way.
constexpr int64_t kLeastPauseNs = 30'000'000;
constexpr uint64_t kMorePauseNs = 30'000'000;
constexpr int64_t kTimeoutNs = 10'000'000'000;
constexpr int64_t kSmallBytes = 4;

const ChannelId kChannel = {.kind = MessageKind::kActivation, .boundary = 0, .from_stage = 0, .to_stage = 1};

// Messages alternate between large (even) and small (odd).
struct Exchange {
  UcxTransport& sender;
  UcxTransport& receiver;
  Allocator& allocator;
  Clock& clock;
  int64_t large_bytes = 0;
  std::vector<int64_t> sent_ns;
  std::vector<int64_t> received_ns;

  int64_t BytesOf(int32_t message) const { return message % 2 == 0 ? large_bytes : kSmallBytes; }

  absl::Status Send() {
    for (int32_t message = 0; message < 2 * kRounds; ++message) {
      clock.SleepUntilNs(clock.NowNs() + kLeastPauseNs + static_cast<int64_t>(RandomId() % kMorePauseNs));
      GP_ASSIGN_OR_RETURN(Tensor payload, Tensor::Create(allocator, MemoryCategory::kTransport, DType::kFp32,
                                                         {BytesOf(message) / kSmallBytes}));
      std::ranges::fill(payload.fp32(), 1.0F);
      sent_ns.push_back(clock.NowNs());
      GP_RETURN_IF_ERROR(sender.Send(kChannel, {0, message}, std::move(payload)));
      GP_RETURN_IF_ERROR(sender.WaitAcknowledged(kChannel, {0, message}, clock.NowNs() + kTimeoutNs));
    }
    return absl::OkStatus();
  }

  absl::Status Receive() {
    for (int32_t message = 0; message < 2 * kRounds; ++message) {
      GP_RETURN_IF_ERROR(receiver.Receive(kChannel, {0, message}, clock.NowNs() + kTimeoutNs).status());
      received_ns.push_back(clock.NowNs());
    }
    return absl::OkStatus();
  }

  // The mean of the middle half: over an iteration's many messages what counts is the mean, and what waited for long
  // for a processor is no cost of the transport. REQUIRES: all messages were sent and received.
  int64_t TypicalNs(size_t parity) const {
    std::vector<int64_t> took_ns;
    for (size_t i = size_t{2} * kWarmUpRounds + parity; i < sent_ns.size(); i += 2) {
      took_ns.push_back(received_ns[i] - sent_ns[i]);
    }
    std::ranges::sort(took_ns);
    const int64_t quarter = std::ssize(took_ns) / 4;
    const int64_t count = std::ssize(took_ns) - 2 * quarter;
    const int64_t sum_ns = std::accumulate(took_ns.begin() + quarter, took_ns.end() - quarter, int64_t{0});
    return std::max<int64_t>(0, sum_ns / count);
  }
};

UcxTransportOptions OptionsOf(int32_t stage, uint64_t job_hash, int64_t slot_bytes, Allocator& allocator) {
  UcxTransportOptions options;
  options.stage = stage;
  options.job_hash = job_hash;
  options.allocator = &allocator;
  options.near = {1 - stage};
  options.channels = {{.id = kChannel, .slot_bytes = slot_bytes, .slots = 2}};
  return options;
}

// Runs both at once, `second` on a thread of its own; the error of the first one that has one. What fails ends the
// other within its deadline.
template <class First, class Second>
absl::Status Both(const First& first, const Second& second) {
  absl::Status of_second;
  std::thread thread([&] { of_second = second(); });
  absl::Status status = first();
  thread.join();
  status.Update(of_second);
  return status;
}

}  // namespace

absl::StatusOr<MessageCost> ProfileTransport(int64_t message_bytes, const OpenTransport& open_transport, Clock& clock) {
  const int64_t large_bytes = std::max(kSmallBytes, message_bytes / kSmallBytes * kSmallBytes);
  const uint64_t job_hash = RandomId();
  Allocator allocator(std::numeric_limits<int64_t>::max() / 2);
  // The one that dials goes first, so that nothing dials what is going.
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<UcxTransport> receiver,
                      open_transport(OptionsOf(1, job_hash, large_bytes, allocator)));
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<UcxTransport> sender,
                      open_transport(OptionsOf(0, job_hash, large_bytes, allocator)));
  const std::vector<UcxPeer> peers = {{0, sender->address()}, {1, receiver->address()}};
  const std::string secret = std::to_string(RandomId());
  const int64_t connected_by_ns = clock.NowNs() + kTimeoutNs;
  GP_RETURN_IF_ERROR(Both([&] { return sender->Connect(peers, secret, connected_by_ns); },
                          [&] { return receiver->Connect(peers, secret, connected_by_ns); }));
  Exchange exchange{.sender = *sender,
                    .receiver = *receiver,
                    .allocator = allocator,
                    .clock = clock,
                    .large_bytes = large_bytes,
                    .sent_ns = {},
                    .received_ns = {}};
  GP_RETURN_IF_ERROR(Both([&] { return exchange.Send(); }, [&] { return exchange.Receive(); }));
  return MessageCost{.site = {},
                     .node = {},
                     .device = 0,
                     .bytes = large_bytes,
                     .whole_ns = exchange.TypicalNs(0),
                     .fixed_ns = exchange.TypicalNs(1)};
}

}  // namespace geopipe
