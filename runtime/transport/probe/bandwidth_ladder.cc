#include "runtime/transport/probe/bandwidth_ladder.h"

#include <algorithm>
#include <utility>

#include "optimizer/base/check.h"

namespace geopipe {
namespace {

constexpr int64_t kStep = 4;          // between neighbouring sizes
constexpr int64_t kLongestStep = 16;  // at once: the estimate of a short train may be far off
constexpr int32_t kMaxLostRounds = 2;
constexpr int32_t kMaxSamples = 2 * BandwidthLadder::kTrains;  // of links that do not agree with themselves

}  // namespace

double QuantileOf(std::vector<double> values, double share) {
  GP_CHECK(!values.empty() && share >= 0 && share <= 1);
  std::sort(values.begin(), values.end());
  const double position = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (position - static_cast<double>(below));
}

MedianSpread MedianSpreadOf(const std::vector<double>& values) {
  if (values.empty()) {
    return {};
  }
  return {.median = QuantileOf(values, 0.5),
          .spread = (QuantileOf(values, 0.75) - QuantileOf(values, 0.25)) / 2,
          .samples = static_cast<int32_t>(values.size())};
}

std::optional<double> TrainMeter::Rate() const {
  constexpr size_t kMinFrames = 4;
  if (arrivals_.size() < kMinFrames) {
    return std::nullopt;
  }
  const size_t apart = arrivals_.size() / 2;
  std::vector<double> ns_per_byte;
  for (size_t i = 0; i + apart < arrivals_.size(); ++i) {
    const auto bytes = static_cast<double>(arrivals_[i + apart].first - arrivals_[i].first);
    const auto duration_ns = static_cast<double>(arrivals_[i + apart].second - arrivals_[i].second);
    if (bytes > 0) {
      ns_per_byte.push_back(duration_ns / bytes);
    }
  }
  const double median = ns_per_byte.empty() ? 0 : QuantileOf(std::move(ns_per_byte), 0.5);
  return median > 0 ? std::optional(1e9 / median) : std::nullopt;
}

std::optional<BandwidthLadder::Round> BandwidthLadder::Next(int64_t left_ns) const {
  if (rate_ == 0) {
    return lost_rounds_ < kMaxLostRounds ? std::optional(Round{kMinBytes, 1}) : std::nullopt;
  }
  if (rounds_ >= kMaxRounds || lost_rounds_ >= kMaxLostRounds) {
    return std::nullopt;
  }
  const double needed_bytes = rate_ * static_cast<double>(target_ns_) * 1e-9;
  Round next{bytes_, kTrains};
  if (static_cast<double>(bytes_) < needed_bytes && bytes_ < kMaxBytes) {
    const int64_t limit = std::min(kMaxBytes, bytes_ * kLongestStep);
    while (next.bytes < limit && static_cast<double>(next.bytes) < needed_bytes) {
      next.bytes *= kStep;
    }
    // Too short still: one train shows how much farther to go.
    next.trains = static_cast<double>(next.bytes) < needed_bytes && next.bytes < kMaxBytes ? 1 : kTrains;
  } else if (std::cmp_less(samples_.size(), kTrains)) {
    next.trains = kTrains - static_cast<int32_t>(samples_.size());
  } else if (Agreed()) {
    return std::nullopt;
  } else {
    next.bytes = std::min(kMaxBytes, next.bytes * kStep);
  }
  next = Fitted(next, left_ns);
  const bool fits = static_cast<double>(next.bytes * next.trains) <= rate_ * static_cast<double>(left_ns) * 1e-9;
  return fits ? std::optional(next) : std::nullopt;
}

// REQUIRES: kTrains samples.
bool BandwidthLadder::Agreed() const {
  const auto [least, most] = std::minmax_element(samples_.end() - kTrains, samples_.end());
  return *most - *least <= kAgreement * QuantileOf(samples_, 0.5);
}

// Shortens the trains, though not below the last round's, then takes trains away, until the round fits.
BandwidthLadder::Round BandwidthLadder::Fitted(Round round, int64_t left_ns) const {
  const double room_bytes = rate_ * static_cast<double>(std::max<int64_t>(0, left_ns)) * 1e-9;
  while (static_cast<double>(round.bytes * round.trains) > room_bytes) {
    if (round.bytes > bytes_) {
      round.bytes /= kStep;
    } else if (round.trains > 1) {
      --round.trains;
    } else {
      break;
    }
  }
  return round;
}

void BandwidthLadder::Add(const Round& round, std::span<const double> rates) {
  ++rounds_;
  if (rates.empty()) {
    ++lost_rounds_;
    return;
  }
  if (round.bytes != bytes_) {
    samples_.clear();
  }
  bytes_ = round.bytes;
  samples_.insert(samples_.end(), rates.begin(), rates.end());
  if (std::cmp_greater(samples_.size(), kMaxSamples)) {
    samples_.erase(samples_.begin(), samples_.end() - kMaxSamples);
  }
  rate_ = QuantileOf(samples_, 0.5);
}

}  // namespace geopipe
