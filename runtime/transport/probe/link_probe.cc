#include "runtime/transport/probe/link_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

namespace geopipe {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint16_t kProbeMagic = 0x504C;  // "LP"
constexpr uint8_t kProbeVersion = 1;
enum Type : uint8_t { kPing = 1, kPong = 2, kData = 3, kReport = 4, kRequest = 5 };

// Answered, but not counted: code and caches are cold.
constexpr int32_t kWarmUpPings = 2;
// Answers and frames later than this beyond the round trip count as lost.
constexpr int64_t kPatienceNs = 250'000'000;
// Time allowed for the first train, when the rate is unknown: it suffices for a quarter of a megabit per second.
constexpr int64_t kFirstTrainNs = 2'000'000'000;
// The minimum number of frames of a train.
constexpr int64_t kMinFrames = 8;
// Limit on a request, which asks for more only if it is nonsense.
constexpr int64_t kMaxTrainsAsked = 16;

LinkProbeFrame MakeFrame(uint8_t type, uint32_t number, const std::array<int64_t, 4>& values) {
  LinkProbeFrame frame;
  std::byte* to = frame.header.data();
  std::memcpy(to, &kProbeMagic, sizeof kProbeMagic);
  std::memcpy(to + 2, &kProbeVersion, sizeof kProbeVersion);
  std::memcpy(to + 3, &type, sizeof type);
  std::memcpy(to + 4, &number, sizeof number);
  std::memcpy(to + 8, values.data(), sizeof values);
  return frame;
}

}  // namespace

LinkProbe::LinkProbe(Role role, int64_t max_payload_bytes, const LinkProbeOptions& options)
    : role_(role), max_payload_bytes_(max_payload_bytes), options_(options) {}

// --- Events -----------------------------------------------------------------------------------------------------

void LinkProbe::OnUp(int64_t now_ns) {
  if (role_ == Role::kInitiator && phase_ == Phase::kWaiting) {
    phase_ = Phase::kPinging;
    next_ping_ns_ = now_ns;
    deadline_ns_ = now_ns + options_.silence_ns;
  }
}

void LinkProbe::OnDown(const absl::Status& why) {
  if (role_ == Role::kResponder) {
    done_ = true;
  } else if (phase_ != Phase::kWaiting) {
    Fail(absl::UnavailableError(fmt::format("the path broke during the probe: {}", std::string(why.message()))));
  }
}

void LinkProbe::OnFrame(int64_t now_ns, std::span<const std::byte> header, int64_t payload_bytes) {
  uint16_t magic = 0;
  uint8_t version = 0;
  uint8_t type = 0;
  uint32_t number = 0;
  std::array<int64_t, 4> values{};
  if (header.size() != LinkProbeFrame::kHeaderBytes || done_) {
    return;
  }
  std::memcpy(&magic, header.data(), sizeof magic);
  std::memcpy(&version, header.data() + 2, sizeof version);
  std::memcpy(&type, header.data() + 3, sizeof type);
  std::memcpy(&number, header.data() + 4, sizeof number);
  std::memcpy(values.data(), header.data() + 8, sizeof values);
  if (magic != kProbeMagic || version != kProbeVersion) {
    return;
  }
  const bool initiator = role_ == Role::kInitiator;
  if (type == kPing && !initiator) {
    // The time of the answer is put in when it leaves.
    Enqueue(kPong, number, {values[0], now_ns, 0, 0});
  } else if (type == kPong && initiator) {
    OnPong(now_ns, number, values);
  } else if (type == kData) {
    OnData(now_ns, number, values, payload_bytes);
  } else if (type == kReport && initiator && phase_ == Phase::kOutbound) {
    OnRate(now_ns, number, static_cast<double>(values[0]));
  } else if (type == kRequest && !initiator) {
    OnRequest(now_ns, number, values);
  }
}

void LinkProbe::OnPong(int64_t now_ns, uint32_t number, const std::array<int64_t, 4>& values) {
  const int64_t round_trip_ns = (now_ns - values[0]) - (values[2] - values[1]);
  if (phase_ != Phase::kPinging || round_trip_ns <= 0 || std::cmp_greater_equal(number, pings_sent_)) {
    return;
  }
  round_trips_ns_.emplace(number, round_trip_ns);
  Advance(now_ns);
}

void LinkProbe::OnData(int64_t now_ns, uint32_t number, const std::array<int64_t, 4>& values, int64_t payload_bytes) {
  const auto [frame, frames, begin, bytes] = values;
  if (frame < 0 || frame >= frames || bytes > BandwidthLadder::kMaxBytes || begin < 0 ||
      begin > bytes - payload_bytes) {
    return;
  }
  if (arriving_.has_value() && arriving_->number != number) {
    if (number < arriving_->number) {
      return;  // of a train that has been given up
    }
    EndArriving(now_ns);
  }
  if (!arriving_.has_value()) {
    if (number < min_train_) {
      return;
    }
    arriving_ = Arriving{.number = number, .meter = {}};
  }
  arriving_->meter.Add(begin + payload_bytes, now_ns);
  if (frame == frames - 1) {
    EndArriving(now_ns);
  }
}

// The train is over: its last frame came, or one of the next.
void LinkProbe::EndArriving(int64_t now_ns) {
  const Arriving train = std::move(*arriving_);
  arriving_.reset();
  min_train_ = train.number + 1;
  const double rate = train.meter.Rate().value_or(0);
  if (role_ == Role::kResponder) {
    Enqueue(kReport, train.number, {std::llround(rate), 0, 0, 0});
  } else if (phase_ == Phase::kInbound) {
    OnRate(now_ns, train.number, rate);
  }
}

void LinkProbe::OnRequest(int64_t /*now_ns*/, uint32_t number, const std::array<int64_t, 4>& values) {
  const int64_t bytes = values[0];
  const int64_t trains = values[1];
  if (bytes < 1 || bytes > BandwidthLadder::kMaxBytes || trains < 1 || trains > kMaxTrainsAsked || !trains_.empty()) {
    return;
  }
  for (int64_t i = 0; i < trains; ++i) {
    trains_.push_back({.number = number + static_cast<uint32_t>(i),
                       .bytes = bytes,
                       .frame_bytes = std::clamp<int64_t>(bytes / kMinFrames, 1, max_payload_bytes_)});
  }
}

void LinkProbe::OnRate(int64_t now_ns, uint32_t number, double rate) {
  if (number < first_train_ || number >= next_train_) {
    return;
  }
  rates_.emplace(number, rate);
  if (std::cmp_equal(rates_.size(), round_.trains)) {
    EndRound(now_ns);
  }
}

// --- The initiator's course ---------------------------------------------------------------------------------------

int64_t LinkProbe::MinRoundTripNs() const {
  int64_t least_ns = kNeverNs;
  for (const auto& [number, round_trip_ns] : round_trips_ns_) {
    least_ns = std::min(least_ns, round_trip_ns);
  }
  return round_trips_ns_.empty() ? 0 : least_ns;
}

// True when at least half of the pings were answered: that is enough once the rest are overdue.
bool LinkProbe::EnoughAnswers() const {
  const auto answered = static_cast<int32_t>(round_trips_ns_.size());
  return 2 * answered >= options_.pings + kWarmUpPings && answered > kWarmUpPings;
}

int64_t LinkProbe::PingsLostNs() const { return next_ping_ns_ + 2 * MinRoundTripNs() + kPatienceNs; }

void LinkProbe::Advance(int64_t now_ns) {
  if (phase_ == Phase::kPinging) {
    const int32_t wanted = options_.pings + kWarmUpPings;
    const auto answered = static_cast<int32_t>(round_trips_ns_.size());
    if (pings_sent_ < wanted) {
      return;
    }
    if (answered == wanted || (EnoughAnswers() && now_ns >= PingsLostNs())) {
      BeginDirection(now_ns, Phase::kOutbound);
    } else if (now_ns >= deadline_ns_) {
      Fail(absl::DeadlineExceededError(fmt::format("{} of {} pings were answered within {:.1f} s", answered, wanted,
                                                   static_cast<double>(options_.silence_ns) * 1e-9)));
    }
  } else if (phase_ != Phase::kWaiting && now_ns >= deadline_ns_) {
    const uint32_t round = first_train_;
    if (phase_ == Phase::kInbound && arriving_.has_value()) {
      EndArriving(now_ns);  // its last frame is lost, which may end the round
    }
    if (!done_ && first_train_ == round) {
      EndRound(now_ns);
    }
  }
}

void LinkProbe::BeginDirection(int64_t now_ns, Phase phase) {
  phase_ = phase;
  ladder_ = BandwidthLadder(options_.train_ns);
  direction_end_ns_ = now_ns + options_.budget_ns / 2;
  BeginRound(now_ns);
}

void LinkProbe::BeginRound(int64_t now_ns) {
  // The time left excludes one round trip, in which the round waits for its last report.
  const std::optional<BandwidthLadder::Round> next = ladder_.Next(direction_end_ns_ - now_ns - MinRoundTripNs());
  if (!next.has_value()) {
    const MedianSpread result = ladder_.Result();
    if (result.samples == 0) {
      Fail(absl::DeadlineExceededError(fmt::format("no train of frames {} arrived whole within the limits",
                                                   phase_ == Phase::kOutbound ? "to the peer" : "from the peer")));
    } else if (phase_ == Phase::kOutbound) {
      result_->outbound = result;
      BeginDirection(now_ns, Phase::kInbound);
    } else {
      result_->inbound = result;
      Finish();
    }
    return;
  }
  round_ = *next;
  rates_.clear();
  arriving_.reset();
  trains_.clear();
  first_train_ = next_train_;
  min_train_ = first_train_;
  next_train_ += static_cast<uint32_t>(round_.trains);
  const double bytes = static_cast<double>(round_.bytes * round_.trains);
  const int64_t expected_ns = ladder_.rate() > 0 ? std::llround(2 * bytes / ladder_.rate() * 1e9) : kFirstTrainNs;
  deadline_ns_ = now_ns + expected_ns + 2 * MinRoundTripNs() + kPatienceNs;
  if (phase_ == Phase::kInbound) {
    Enqueue(kRequest, first_train_, {round_.bytes, round_.trains, 0, 0});
    return;
  }
  for (uint32_t number = first_train_; number < next_train_; ++number) {
    trains_.push_back({.number = number,
                       .bytes = round_.bytes,
                       .frame_bytes = std::clamp<int64_t>(round_.bytes / kMinFrames, 1, max_payload_bytes_)});
  }
}

void LinkProbe::EndRound(int64_t now_ns) {
  std::vector<double> rates;
  for (const auto& [number, rate] : rates_) {
    if (rate > 0) {
      rates.push_back(rate);
    }
  }
  ladder_.Add(round_, rates);
  BeginRound(now_ns);
}

void LinkProbe::Finish() {
  // The latency excludes the time of the pings' and pongs' own bytes, which a slow link shows.
  constexpr auto kBytes = static_cast<double>(LinkProbeFrame::kHeaderBytes);
  const double own_ns = (kBytes / result_->outbound.median + kBytes / result_->inbound.median) / 2 * 1e9;
  std::vector<double> latencies_ns;
  for (const auto& [number, round_trip_ns] : round_trips_ns_) {
    if (std::cmp_greater_equal(number, kWarmUpPings)) {
      latencies_ns.push_back(std::max(0.0, static_cast<double>(round_trip_ns) / 2 - own_ns));
    }
  }
  const MedianSpread latency = MedianSpreadOf(latencies_ns);
  result_->latency_ns = std::llround(*std::min_element(latencies_ns.begin(), latencies_ns.end()));
  result_->latency_median_ns = std::llround(latency.median);
  result_->latency_spread_ns = std::llround(latency.spread);
  result_->round_trips = latency.samples;
  done_ = true;
}

void LinkProbe::Fail(const absl::Status& status) {
  result_ = status;
  done_ = true;
}

// --- Sending ------------------------------------------------------------------------------------------------------

void LinkProbe::Enqueue(uint8_t type, uint32_t number, const std::array<int64_t, 4>& values) {
  constexpr size_t kMaxQueued = 1024;  // bounds the answers that a peer may demand
  if (queue_.size() < kMaxQueued) {
    queue_.push_back(MakeFrame(type, number, values));
  }
}

LinkProbeFrame LinkProbe::NextOfTrain() {
  Train& train = trains_.front();
  const int64_t begin = train.sent_frames * train.frame_bytes;
  LinkProbeFrame frame = MakeFrame(kData, train.number, {train.sent_frames, train.frames(), begin, train.bytes});
  frame.payload_bytes = std::min(train.frame_bytes, train.bytes - begin);
  if (++train.sent_frames == train.frames()) {
    trains_.pop_front();
  }
  return frame;
}

std::optional<LinkProbeFrame> LinkProbe::Next(int64_t now_ns) {
  if (done_) {
    return std::nullopt;
  }
  if (role_ == Role::kInitiator) {
    Advance(now_ns);
  }
  if (phase_ == Phase::kPinging && pings_sent_ < options_.pings + kWarmUpPings && now_ns >= next_ping_ns_) {
    next_ping_ns_ = now_ns + options_.ping_interval_ns;
    return MakeFrame(kPing, static_cast<uint32_t>(pings_sent_++), {now_ns, 0, 0, 0});
  }
  if (!queue_.empty()) {
    LinkProbeFrame frame = queue_.front();
    queue_.pop_front();
    uint8_t type = 0;
    std::memcpy(&type, frame.header.data() + 3, sizeof type);
    if (type == kPong) {
      std::memcpy(frame.header.data() + 8 + 2 * sizeof now_ns, &now_ns, sizeof now_ns);
    }
    return frame;
  }
  return trains_.empty() || done_ ? std::nullopt : std::optional(NextOfTrain());
}

int64_t LinkProbe::NextTimeNs() const {
  if (done_ || role_ == Role::kResponder) {
    return kNeverNs;
  }
  if (phase_ == Phase::kPinging) {
    if (pings_sent_ < options_.pings + kWarmUpPings) {
      return next_ping_ns_;
    }
    return EnoughAnswers() ? std::min(deadline_ns_, PingsLostNs()) : deadline_ns_;
  }
  return deadline_ns_;
}

}  // namespace geopipe
