#include "runtime/worker/transport_profiler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "optimizer/base/least_squares.h"
#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/ids.h"
#include "runtime/base/log.h"
#include "runtime/tensor/allocator.h"
#include "runtime/tensor/tensor.h"
#include "runtime/transport/ucx/ucx_transport.h"

namespace geopipe {
namespace {

constexpr int32_t kRounds = 32;
constexpr int32_t kWarmUpRounds = 2;
// Pauses are longer than any of the transport's own batching of acknowledgements: the next message finds it at rest, as
// between two actions. They are also long and uneven enough that the workers of one host seldom disturb each other.
constexpr int64_t kMinPauseNs = 20'000'000;
constexpr uint64_t kMorePauseNs = 30'000'000;
// Most time between the sends of the two ranks: about a message's duration, so that some messages cross and some do
// not.
constexpr int64_t kMaxApartNs = 1'000'000;
// Time ahead of its sending at which a message is made, as in training, where the computing device is busy until then.
constexpr int64_t kMadeBeforeNs = 2'000'000;
constexpr int64_t kMakingNsPerByte = 1;  // at most, in fresh memory
constexpr int64_t kTimeoutNs = 10'000'000'000;
constexpr int64_t kSmallBytes = 4;

const ChannelId kForward = {.kind = MessageKind::kActivation, .boundary = 0, .from_rank = 0, .to_rank = 1};
const ChannelId kBackward = {.kind = MessageKind::kGradient, .boundary = 0, .from_rank = 1, .to_rank = 0};

// One rank's part, on a thread of its own. Both ranks send at about the same moments, as neighbours of a pipeline in
// its steady phase do: one activations, the other gradients. Messages alternate between large (even) and small (odd).
struct Partner {
  UcxTransport& transport;
  Allocator& allocator;
  Clock& clock;
  ChannelId out;
  ChannelId in;
  int64_t large_bytes = 0;
  std::vector<int64_t> due_ns = {};
  std::vector<int64_t> sent_ns = {};
  std::vector<int64_t> received_ns = {};

  int64_t BytesOf(size_t round) const { return round % 2 == 0 ? large_bytes : kSmallBytes; }
  int64_t MadeBeforeNs(size_t round) const { return kMadeBeforeNs + BytesOf(round) * kMakingNsPerByte; }

  absl::Status Run() {
    for (size_t round = 0; round < due_ns.size(); ++round) {
      const MessageTag tag{0, static_cast<int32_t>(round)};
      clock.SleepUntilNs(due_ns[round] - MadeBeforeNs(round));
      // The tensor's type is that of a slot whose next message has an unknown shape, so that, as in training, nothing
      // is copied twice.
      GP_ASSIGN_OR_RETURN(Tensor payload, Tensor::Create(allocator, MemoryCategory::kTransport, DType::kInt32,
                                                         {BytesOf(round) / kSmallBytes}));
      std::ranges::fill(payload.int32(), 1);
      clock.SleepUntilNs(due_ns[round]);
      sent_ns.push_back(clock.NowNs());
      const Completion made = Completion::At(sent_ns.back());
      GP_RETURN_IF_ERROR(transport.Send(out, tag, {.value = std::move(payload), .ready = made}));
      const int64_t waits_ns = clock.NowNs();
      GP_ASSIGN_OR_RETURN(const Timed<Tensor> message, transport.Receive(in, tag, waits_ns + kTimeoutNs));
      // A message that was already there was not waited for.
      received_ns.push_back(message.ready_ns() < waits_ns ? message.ready_ns() : clock.NowNs());
      GP_RETURN_IF_ERROR(transport.WaitAcknowledged(out, tag, clock.NowNs() + kTimeoutNs).status());
    }
    return absl::OkStatus();
  }
};

// Selects the message of an exchange that counts: either, or the later of the two.
enum class Counts : uint8_t {
  kEither,
  kLater,
};

// The interquartile mean over the exchanges of one size: the sum over an iteration's many messages depends on the mean,
// and a long wait for a processor is no cost of the transport. REQUIRES: both have run.
int64_t TypicalNs(const Partner& low, const Partner& high, size_t parity, Counts counts) {
  std::vector<int64_t> took_ns;
  for (size_t round = size_t{2} * kWarmUpRounds + parity; round < low.sent_ns.size(); round += 2) {
    const int64_t up_ns = high.received_ns[round] - low.sent_ns[round];
    const int64_t down_ns = low.received_ns[round] - high.sent_ns[round];
    if (counts == Counts::kLater) {
      took_ns.push_back(std::max(up_ns, down_ns));
    } else {
      took_ns.insert(took_ns.end(), {up_ns, down_ns});
    }
  }
  std::ranges::sort(took_ns);
  const int64_t typical_ns = std::llround(InterquartileMean({took_ns.begin(), took_ns.end()}));
  const auto rank = [&](size_t quarters) { return FormatDuration(took_ns[(took_ns.size() - 1) * quarters / 4]); };
  LogInfo("a message of {} bytes takes {} (quartiles {}, {}, {}, {}, {})", low.BytesOf(parity),
          FormatDuration(typical_ns), rank(0), rank(1), rank(2), rank(3), rank(4));
  return std::max<int64_t>(0, typical_ns);
}

UcxTransportOptions OptionsOf(int32_t rank, uint64_t job_hash, int64_t slot_bytes, Allocator& allocator) {
  UcxTransportOptions options;
  options.rank = rank;
  options.job_hash = job_hash;
  options.allocator = &allocator;
  options.near = {1 - rank};
  options.channels = {{.id = kForward, .slot_bytes = slot_bytes, .slots = 2},
                      {.id = kBackward, .slot_bytes = slot_bytes, .slots = 2}};
  return options;
}

// Runs both at once, `second` on a thread of its own; returns the first error. If one fails, the other ends within its
// deadline.
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
  // The transport that dials is destroyed first, so that it never dials a listener that is going.
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<UcxTransport> high,
                      open_transport(OptionsOf(1, job_hash, large_bytes, allocator)));
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<UcxTransport> low,
                      open_transport(OptionsOf(0, job_hash, large_bytes, allocator)));
  const std::vector<UcxPeer> peers = {{0, low->address()}, {1, high->address()}};
  const std::string secret = std::to_string(RandomId());
  const int64_t connected_by_ns = clock.NowNs() + kTimeoutNs;
  GP_RETURN_IF_ERROR(Both([&] { return low->Connect(peers, secret, connected_by_ns); },
                          [&] { return high->Connect(peers, secret, connected_by_ns); }));
  Partner first{*low, allocator, clock, kForward, kBackward, large_bytes};
  Partner second{*high, allocator, clock, kBackward, kForward, large_bytes};
  int64_t due_ns = clock.NowNs();
  for (int32_t round = 0; round < 2 * kRounds; ++round) {
    due_ns +=
        kMinPauseNs + first.MadeBeforeNs(static_cast<size_t>(round)) + static_cast<int64_t>(RandomId() % kMorePauseNs);
    first.due_ns.push_back(due_ns);
    second.due_ns.push_back(due_ns - kMaxApartNs + static_cast<int64_t>(RandomId() % (2 * kMaxApartNs)));
  }
  GP_RETURN_IF_ERROR(Both([&] { return first.Run(); }, [&] { return second.Run(); }));
  return MessageCost{.site = {},
                     .node = {},
                     .device = 0,
                     .bytes = large_bytes,
                     .whole_ns = TypicalNs(first, second, 0, Counts::kLater),
                     .fixed_ns = TypicalNs(first, second, 1, Counts::kEither)};
}

}  // namespace geopipe
