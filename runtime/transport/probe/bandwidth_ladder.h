// Finds the bandwidth of one direction of a link with trains of frames: sizes the trains, takes a rate from each, and
// combines the rates. Has no thread, clock or I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace geopipe {

// The `share` quantile, interpolated between neighbours. REQUIRES: not empty, share within [0, 1].
double QuantileOf(std::vector<double> values, double share);

// A figure measured repeatedly: the median, and half the width of the middle half of the samples (interquartile range /
// 2), so that it reads as "median ± spread".
struct MedianSpread {
  double median = 0;
  double spread = 0;
  int32_t samples = 0;
};
MedianSpread MedianSpreadOf(const std::vector<double>& values);

// The arrivals of one train. A late wake-up of the receiver moves single arrivals, or bunches of them; a sender that
// gets under way slowly moves the first ones. So the rate is not taken from the first and the last frame alone: it is
// the median over all pairs of frames half a train apart.
class TrainMeter {
 public:
  // Takes a frame that has arrived; `end_bytes`: of the train up to the frame's end, lost frames included.
  void Add(int64_t end_bytes, int64_t arrival_ns) { arrivals_.emplace_back(end_bytes, arrival_ns); }

  // Bytes per second. nullopt with fewer than 4 frames, or when all came at once.
  std::optional<double> Rate() const;
  int64_t frames() const { return static_cast<int64_t>(arrivals_.size()); }

 private:
  std::vector<std::pair<int64_t, int64_t>> arrivals_;
};

// The sizes of the trains. They grow until one lasts so long that a late wake-up counts little, and further until the
// trains of one size agree in rate: a window that still opens makes every train faster than the one before.
class BandwidthLadder {
 public:
  static constexpr int64_t kMinBytes = int64_t{64} * 1024;
  static constexpr int64_t kMaxBytes = int64_t{16} * 1024 * 1024;
  static constexpr int32_t kTrains = 3;       // of the size that counts
  static constexpr double kAgreement = 0.05;  // their greatest difference, as part of the median
  static constexpr int32_t kMaxRounds = 10;

  // `target_ns`: how long a train should last.
  explicit BandwidthLadder(int64_t target_ns) : target_ns_(target_ns) {}

  // Trains of one size, to be sent one behind the other.
  struct Round {
    int64_t bytes = 0;  // of each
    int32_t trains = 0;
  };
  // The next round, which should take at most `left_ns`; nullopt: the measurement is complete, or nothing more would
  // complete it.
  std::optional<Round> Next(int64_t left_ns) const;
  // Takes the rates of the round's trains that arrived, in bytes per second.
  void Add(const Round& round, std::span<const double> rates);

  // The latest rate; 0: none known.
  double rate() const { return rate_; }
  // Rates of the trains of the last size alone: those before were too short. No samples: nothing arrived.
  MedianSpread Result() const { return MedianSpreadOf(samples_); }

 private:
  bool Agreed() const;
  Round Fitted(Round round, int64_t left_ns) const;

  int64_t target_ns_;
  int32_t rounds_ = 0;
  int32_t lost_rounds_ = 0;
  int64_t bytes_ = 0;            // size of the trains of the last round
  std::vector<double> samples_;  // their rates
  double rate_ = 0;
};

}  // namespace geopipe
