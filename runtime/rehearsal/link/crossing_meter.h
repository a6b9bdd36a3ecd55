// Measures the latency of a rehearsed link before anything is added to it: the carrier's own time from one end to the
// other, and the lateness of threads that wake up. The lower quarter of each counts, because nearly every frame takes
// at least that, so it may be deducted. Has no thread, clock or I/O.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "runtime/rehearsal/link/timed_header.h"

namespace geopipe {

// The lower quarter of the latest values.
class RecentLow {
 public:
  void Add(int64_t value) {
    values_[next_] = value;
    next_ = (next_ + 1) % values_.size();
    count_ = std::min(count_ + 1, kKept);
  }
  // The lower quarter; 0: no value yet.
  int64_t low() const {
    std::array<int64_t, kKept> sorted = values_;
    std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(count_));
    return count_ == 0 ? 0 : sorted[count_ / 4];
  }

 private:
  static constexpr size_t kKept = 32;

  std::array<int64_t, kKept> values_{};
  size_t next_ = 0;
  size_t count_ = 0;
};

// Echoes of small frames between the two ends of a path, one at a time, when it has come up.
class CrossingMeter {
 public:
  static constexpr int kEchoes = 12;

  // Begins anew on a path that has come up: measurements of the last one do not hold.
  void Start() {
    *this = {};
    asks_ = kEchoes;
  }

  // Takes a request or an echo.
  void OnHeader(int64_t now_ns, const TimedHeader& header) {
    if (header.kind == TimedHeader::Kind::kRequest) {
      to_echo_ns_ = header.ns;
    } else if (header.ns == asked_ns_) {
      round_trips_ns_.Add(now_ns - header.ns);
      asked_ns_.reset();
    }
  }

  // The next header to send; the user asks until there is none.
  std::optional<TimedHeader> Next(int64_t now_ns) {
    if (to_echo_ns_.has_value()) {
      const int64_t sent_ns = *to_echo_ns_;
      to_echo_ns_.reset();
      return TimedHeader{TimedHeader::Kind::kEcho, sent_ns};
    }
    if (asks_ > 0 && !asked_ns_.has_value()) {
      --asks_;
      asked_ns_ = now_ns;
      return TimedHeader{TimedHeader::Kind::kRequest, now_ns};
    }
    return std::nullopt;
  }

  // Time of one way; 0: not known.
  int64_t crossing_ns() const { return round_trips_ns_.low() / 2; }

 private:
  int asks_ = 0;
  std::optional<int64_t> asked_ns_;
  std::optional<int64_t> to_echo_ns_;
  RecentLow round_trips_ns_;
};

}  // namespace geopipe
