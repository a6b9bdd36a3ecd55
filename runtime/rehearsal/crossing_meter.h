// What the carrier itself takes from one end to the other, and how late a thread wakes up: what a rehearsed link has of
// latency before anything is added. Of both the lower quarter counts: what is deducted for them is nearly always spent.
// Without thread, clock or I/O.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

namespace geopipe {

// The lower quarter of the latest values.
class RecentLow {
 public:
  void Add(int64_t value) {
    values_[next_] = value;
    next_ = (next_ + 1) % values_.size();
    count_ = std::min(count_ + 1, kKept);
  }
  // 0: none yet.
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

// Echoes of small frames between the two ends of a path, one at a time, when it has come up. A frame is magic u32, kind
// u8 (1 request, 2 echo), sent i64 (of the request), little-endian, and nothing else.
class CrossingMeter {
 public:
  static constexpr size_t kHeaderBytes = 13;
  static constexpr int kEchoes = 12;

  using Header = std::array<std::byte, kHeaderBytes>;

  // The path has come up: what was measured of the last one does not hold.
  void Start() {
    *this = {};
    asks_ = kEchoes;
  }

  // True: the frame was one of these and is dealt with.
  bool OnFrame(int64_t now_ns, std::span<const std::byte> header) {
    uint32_t magic = 0;
    uint8_t kind = 0;
    int64_t sent_ns = 0;
    if (header.size() != kHeaderBytes) {
      return false;
    }
    std::memcpy(&magic, header.data(), sizeof magic);
    std::memcpy(&kind, header.data() + 4, sizeof kind);
    std::memcpy(&sent_ns, header.data() + 5, sizeof sent_ns);
    if (magic != kMagic) {
      return false;
    }
    if (kind == kRequest) {
      to_echo_ns_ = sent_ns;
    } else if (kind == kEcho && sent_ns == asked_ns_) {
      round_trips_ns_.Add(now_ns - sent_ns);
      asked_ns_.reset();
    }
    return true;
  }

  // What is to be sent now; asked for until there is nothing.
  std::optional<Header> Next(int64_t now_ns) {
    if (to_echo_ns_.has_value()) {
      const int64_t sent_ns = *to_echo_ns_;
      to_echo_ns_.reset();
      return Make(kEcho, sent_ns);
    }
    if (asks_ > 0 && !asked_ns_.has_value()) {
      --asks_;
      asked_ns_ = now_ns;
      return Make(kRequest, now_ns);
    }
    return std::nullopt;
  }

  // One way; 0: not known.
  int64_t crossing_ns() const { return round_trips_ns_.low() / 2; }

 private:
  static constexpr uint32_t kMagic = 0x4D435047;  // "GPCM"
  static constexpr uint8_t kRequest = 1;
  static constexpr uint8_t kEcho = 2;

  static Header Make(uint8_t kind, int64_t sent_ns) {
    Header header{};
    std::memcpy(header.data(), &kMagic, sizeof kMagic);
    std::memcpy(header.data() + 4, &kind, sizeof kind);
    std::memcpy(header.data() + 5, &sent_ns, sizeof sent_ns);
    return header;
  }

  int asks_ = 0;
  std::optional<int64_t> asked_ns_;
  std::optional<int64_t> to_echo_ns_;
  RecentLow round_trips_ns_;
};

}  // namespace geopipe
