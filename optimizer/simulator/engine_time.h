// The engine's clock: nanoseconds, and where order within an instant matters, its rounds.
#pragma once

#include <cstdint>

namespace geopipe {

// Time where rounds make no difference.
struct PlainTime {
  int64_t ns = 0;

  PlainTime After(int64_t duration_ns) const { return {ns + duration_ns}; }
  PlainTime Until(int64_t later_ns) const { return {later_ns}; }
  friend bool operator<(const PlainTime& a, const PlainTime& b) { return a.ns < b.ns; }
};

// Time with the round of the instant.
struct RoundTime {
  int64_t ns = 0;
  int64_t round = 0;

  // The end of an action that starts here.
  RoundTime After(int64_t duration_ns) const {
    return duration_ns == 0 ? RoundTime{ns, round + 1} : RoundTime{ns + duration_ns, 0};
  }
  // The arrival of a message that enters its link here. REQUIRES: later_ns >= ns.
  RoundTime Until(int64_t later_ns) const { return later_ns == ns ? *this : RoundTime{later_ns, 0}; }
  friend bool operator<(const RoundTime& a, const RoundTime& b) {
    return a.ns < b.ns || (a.ns == b.ns && a.round < b.round);
  }
};

}  // namespace geopipe
