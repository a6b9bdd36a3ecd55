// Measures a link with frames between its two ends: round trips of small frames, then trains of frames as long messages
// are cut into, one direction after the other. Both ends are state machines without thread, clock or I/O; the initiator
// asks, the responder answers, and the results are the initiator's.
//
//   round trips   pings a few milliseconds apart, none waits for another's answer. Each gives four times, as in NTP
//                 (RFC 5905), so what the responder takes to answer does not count.
//   bandwidth     rounds of trains (bandwidth_ladder.h). The receiving end times the arrivals; of the trains it sends,
//                 the initiator hears what the responder saw.
//
// A frame is a header, and in trains a payload of no meaning. The header, little-endian: magic u16, version u8, type
// u8, number u32, four i64:
//
//   ping          number of the ping; sent
//   pong          number of the ping; sent (as in the ping), received, answered (both on the responder's clock)
//   data          number of the train; frame, frames, begin (bytes before this frame), bytes of the train
//   report        number of the train; bytes per second (0: too few frames)
//   request       number of the first train; bytes of each, trains: asks the responder to send
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "runtime/transport/probe/bandwidth_ladder.h"
#include "runtime/transport/stream/frame.h"

namespace geopipe {

struct LinkProbeOptions {
  int32_t pings = 16;
  int64_t ping_interval_ns = 3'000'000;
  // Duration a train should have: an arrival noticed half a millisecond late is then two percent of it.
  int64_t train_ns = 25'000'000;
  int64_t budget_ns = 3'000'000'000;   // for the trains of both directions
  int64_t silence_ns = 5'000'000'000;  // the probe fails after this time without an answered ping
};

struct LinkProbeResult {
  // One way: half of the shortest round trip, less the time the link takes to send the ping's own bytes. Queues, late
  // wake-ups and other traffic only ever lengthen a round trip, so the shortest shows the link's own latency. Plans
  // should count on that: they add queueing themselves.
  int64_t latency_ns = 0;
  int64_t latency_median_ns = 0;
  int64_t latency_spread_ns = 0;  // as MedianSpread's
  int32_t round_trips = 0;
  MedianSpread outbound;  // bytes per second, from the initiator
  MedianSpread inbound;   // to the initiator
};

struct LinkProbeFrame {
  static constexpr size_t kHeaderBytes = 40;
  std::array<std::byte, kHeaderBytes> header{};
  int64_t payload_bytes = 0;
};

class LinkProbe {
 public:
  enum class Role : uint8_t { kInitiator, kResponder };

  // `max_payload_bytes`: of a frame of the carrier.
  LinkProbe(Role role, int64_t max_payload_bytes, const LinkProbeOptions& options);

  // Reports that the path works; the initiator begins.
  void OnUp(int64_t now_ns);
  // Reports that the path broke: an initiator's probe has failed, a responder's is over.
  void OnDown(const absl::Status& why);
  // Ignores frames of other protocols.
  void OnFrame(int64_t now_ns, std::span<const std::byte> header, int64_t payload_bytes);
  // The next frame to send. The user asks until there is none, as long as the carrier takes frames.
  std::optional<LinkProbeFrame> Next(int64_t now_ns);
  // Time at which Next may have a new frame; kNeverNs: only after a frame arrives.
  int64_t NextTimeNs() const;

  bool done() const { return done_; }
  // Initiator: the measurement, or why there is none. Responder: empty, it only serves. REQUIRES: done().
  const absl::StatusOr<LinkProbeResult>& result() const { return result_; }

 private:
  enum class Phase : uint8_t { kWaiting, kPinging, kOutbound, kInbound };
  struct Train {
    uint32_t number = 0;
    int64_t bytes = 0;
    int64_t frame_bytes = 0;
    int64_t sent_frames = 0;
    int64_t frames() const { return (bytes + frame_bytes - 1) / frame_bytes; }
  };
  struct Arriving {
    uint32_t number = 0;
    TrainMeter meter;
  };

  void OnPong(int64_t now_ns, uint32_t number, const std::array<int64_t, 4>& values);
  void OnData(int64_t now_ns, uint32_t number, const std::array<int64_t, 4>& values, int64_t payload_bytes);
  void OnRequest(int64_t now_ns, uint32_t number, const std::array<int64_t, 4>& values);
  void EndArriving(int64_t now_ns);
  // Takes the rate of one of the round's trains.
  void OnRate(int64_t now_ns, uint32_t number, double rate);
  // Ends what only time can end: the pings, a round, the wait for a silent peer.
  void Advance(int64_t now_ns);
  void BeginDirection(int64_t now_ns, Phase phase);
  void BeginRound(int64_t now_ns);
  void EndRound(int64_t now_ns);
  void Finish();
  void Fail(const absl::Status& status);
  void Enqueue(uint8_t type, uint32_t number, const std::array<int64_t, 4>& values);
  LinkProbeFrame NextOfTrain();
  int64_t MinRoundTripNs() const;
  bool EnoughAnswers() const;
  int64_t PingsLostNs() const;

  const Role role_;
  const int64_t max_payload_bytes_;
  const LinkProbeOptions options_;

  Phase phase_ = Phase::kWaiting;
  bool done_ = false;
  absl::StatusOr<LinkProbeResult> result_ = LinkProbeResult{};
  std::deque<LinkProbeFrame> queue_;  // small frames, ahead of trains
  std::deque<Train> trains_;          // to be sent
  std::optional<Arriving> arriving_;
  uint32_t min_train_ = 1;  // frames of trains before it are late

  // Initiator.
  int32_t pings_sent_ = 0;
  int64_t next_ping_ns_ = 0;
  std::map<uint32_t, int64_t> round_trips_ns_;  // by ping
  int64_t deadline_ns_ = kNeverNs;              // of the phase or round
  int64_t direction_end_ns_ = 0;                // when its share of the budget is spent
  BandwidthLadder ladder_{0};
  BandwidthLadder::Round round_;
  uint32_t next_train_ = 1;
  uint32_t first_train_ = 1;          // of the round
  std::map<uint32_t, double> rates_;  // of the round, by train; 0: too few frames
};

}  // namespace geopipe
