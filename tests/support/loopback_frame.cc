#include "tests/support/loopback_frame.h"

#include <algorithm>
#include <utility>

#include "optimizer/base/check.h"

namespace geopipe {
namespace {

constexpr int64_t kMaxHeaderBytes = 4096;
constexpr int32_t kMaxFlights = 64;  // each way; like a real carrier, it takes no more than it can hold

}  // namespace

class LoopbackNetwork::End final : public FrameCarrier {
 public:
  End(LoopbackNetwork& network, PeerId rank, bool is_high, int64_t max_payload_bytes)
      : network_(network), rank_(rank), is_high_(is_high), max_payload_bytes_(max_payload_bytes) {}

  int64_t max_payload_bytes(PeerId /*peer*/) const override { return max_payload_bytes_; }
  int64_t max_header_bytes() const override { return kMaxHeaderBytes; }
  bool Writable(PeerId /*peer*/) const override { return up && flights < kMaxFlights; }
  void Send(PeerId /*peer*/, const Frame& frame, std::function<void()> done) override {
    GP_CHECK(std::cmp_less_equal(frame.payload.size(), max_payload_bytes_) && frame.header.size() <= kMaxHeaderBytes);
    network_.Carry(!is_high_, frame.header, frame.payload, std::move(done));
  }
  void Wake() override {}

  PeerId rank() const { return rank_; }

  FrameSink* sink = nullptr;
  bool up = false;
  int64_t up_at_ns = kNeverNs;
  int64_t progress_at_ns = 0;
  int32_t flights = 0;  // sent by this end

 private:
  LoopbackNetwork& network_;
  const PeerId rank_;
  const bool is_high_;
  const int64_t max_payload_bytes_;
};

LoopbackNetwork::LoopbackNetwork(PeerId low_rank, PeerId high_rank, int64_t max_payload_bytes, uint64_t seed)
    : random_(seed),
      low_(std::make_unique<End>(*this, low_rank, false, max_payload_bytes)),
      high_(std::make_unique<End>(*this, high_rank, true, max_payload_bytes)) {}

LoopbackNetwork::~LoopbackNetwork() { LoseAll(); }

FrameCarrier& LoopbackNetwork::carrier(PeerId rank) { return rank == low_->rank() ? *low_ : *high_; }

void LoopbackNetwork::Attach(PeerId rank, FrameSink* sink) { (rank == low_->rank() ? low_ : high_)->sink = sink; }

void LoopbackNetwork::Connect(int64_t now_ns) {
  low_->up_at_ns = now_ns;
  high_->up_at_ns = now_ns;
}

void LoopbackNetwork::Disconnect(int64_t now_ns) {
  ++disconnects_;
  LoseAll();
  const auto reconnect_ns = static_cast<double>(faults_.reconnect_ns);
  for (End* end : {low_.get(), high_.get()}) {
    if (std::exchange(end->up, false)) {
      end->sink->OnPeerDown(end == low_.get() ? high_->rank() : low_->rank(),
                            absl::UnavailableError("the loopback network was disconnected"));
    }
    // The two ends notice at different times that the path works again.
    end->up_at_ns = now_ns + 1 + static_cast<int64_t>(random_.Uniform() * reconnect_ns);
  }
}

void LoopbackNetwork::Launch(Flight&& flight) {
  int64_t due_ns = now_ns_ + faults_.latency_ns;
  if (random_.Uniform() < faults_.reorder) {
    due_ns += static_cast<int64_t>(random_.Uniform() * static_cast<double>(faults_.reorder_ns));
  }
  ++(flight.to_high ? low_ : high_)->flights;
  flights_.try_emplace({due_ns, next_order_++}, std::move(flight));
}

void LoopbackNetwork::Corrupt(Flight& flight) {
  flight.own_payload.assign(flight.payload.begin(), flight.payload.end());
  flight.payload = flight.own_payload;
  const uint64_t bit = random_.Next() % (8 * (flight.header.size() + flight.own_payload.size()));
  const size_t byte = bit / 8;
  std::byte& victim =
      byte < flight.header.size() ? flight.header[byte] : flight.own_payload[byte - flight.header.size()];
  victim ^= static_cast<std::byte>(1U << (bit % 8));
}

void LoopbackNetwork::Carry(bool to_high, std::span<const std::byte> header, std::span<const std::byte> payload,
                            std::function<void()> done) {
  const End& from = to_high ? *low_ : *high_;
  if (!from.up || random_.Uniform() < faults_.drop) {
    ++frames_lost_;
    done();
    return;
  }
  disconnect_due_ |= random_.Uniform() < faults_.disconnect;
  if (random_.Uniform() < faults_.duplicate) {
    Flight twin{.to_high = to_high, .header = {header.begin(), header.end()}, .done = [] {}};
    twin.own_payload.assign(payload.begin(), payload.end());
    twin.payload = twin.own_payload;
    Launch(std::move(twin));
  }
  Flight flight{
      .to_high = to_high, .header = {header.begin(), header.end()}, .payload = payload, .done = std::move(done)};
  if (random_.Uniform() < faults_.corrupt) {
    Corrupt(flight);
  }
  Launch(std::move(flight));
}

void LoopbackNetwork::LoseAll() {
  const auto lost = std::exchange(flights_, {});
  low_->flights = 0;
  high_->flights = 0;
  frames_lost_ += static_cast<int64_t>(lost.size());
  for (const auto& [due, flight] : lost) {
    flight.done();
  }
}

void LoopbackNetwork::Land(int64_t now_ns) {
  while (!flights_.empty() && flights_.begin()->first.first <= now_ns) {
    const Flight flight = std::move(flights_.begin()->second);
    flights_.erase(flights_.begin());
    End& from = flight.to_high ? *low_ : *high_;
    const End& to = flight.to_high ? *high_ : *low_;
    --from.flights;
    // An end that does not know yet that the path works hears already.
    to.sink->OnFrame(from.rank(), {flight.header, flight.payload, now_ns});
    flight.done();
  }
}

int64_t LoopbackNetwork::Pump(int64_t now_ns) {
  now_ns_ = now_ns;
  for (End* end : {low_.get(), high_.get()}) {
    if (end->up_at_ns <= now_ns) {
      end->up_at_ns = kNeverNs;
      end->up = true;
      end->sink->OnPeerUp(end == low_.get() ? high_->rank() : low_->rank());
    }
  }
  Land(now_ns);
  for (End* end : {low_.get(), high_.get()}) {
    end->progress_at_ns = end->sink->OnProgress(now_ns);
  }
  if (std::exchange(disconnect_due_, false)) {
    Disconnect(now_ns);
  }
  int64_t next_ns = std::min(low_->progress_at_ns, high_->progress_at_ns);
  next_ns = std::min({next_ns, low_->up_at_ns, high_->up_at_ns});
  return flights_.empty() ? next_ns : std::min(next_ns, flights_.begin()->first.first);
}

}  // namespace geopipe
