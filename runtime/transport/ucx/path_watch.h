// Decides when a connection that is up has been silent for so long that another should be tried beside it. TCP alone
// would take as long again as an outage lasted, because its retransmission timer doubles; and to the end that only
// listens, a cut connection looks like an idle one. So the dialing end asks for a sign of life when it has heard
// nothing for a while, and dials anew when none comes. The silent connection is kept: whichever of the two speaks first
// is used. Has no thread, clock or I/O.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/transport/stream/frame.h"

namespace geopipe {

// Watches one connection.
class PathWatch {
 public:
  static constexpr int64_t kAskAfterNs = 400'000'000;

  void Start(int64_t now_ns) { heard_ns_ = ask_base_ns_ = now_ns; }
  void Heard(int64_t now_ns) { heard_ns_ = ask_base_ns_ = now_ns; }

  // True when a sign of life is to be asked for; then not again for kAskAfterNs.
  bool TakeAsk(int64_t now_ns) {
    if (now_ns - ask_base_ns_ < kAskAfterNs) {
      return false;
    }
    ask_base_ns_ = now_ns;
    return true;
  }
  bool Silent(int64_t now_ns, int64_t patience_ns) const { return now_ns - heard_ns_ >= patience_ns; }
  // Time after `now_ns` at which TakeAsk or Silent changes next, provided that TakeAsk was called.
  int64_t NextTimeNs(int64_t now_ns, int64_t patience_ns) const {
    const int64_t ask_ns = ask_base_ns_ + kAskAfterNs;
    return Silent(now_ns, patience_ns) ? ask_ns : std::min(ask_ns, heard_ns_ + patience_ns);
  }

 private:
  int64_t heard_ns_ = 0;
  int64_t ask_base_ns_ = 0;  // last heard or asked
};

// Decides how long the connections to one peer may be silent, and how soon attempts to replace them follow each other.
class RedialPolicy {
 public:
  static constexpr int64_t kMinPatienceNs = 1'000'000'000;
  static constexpr int64_t kMaxPatienceNs = 16'000'000'000;
  static constexpr int64_t kCalmNs = 30'000'000'000;
  static constexpr int64_t kMinStaggerNs = 150'000'000;
  static constexpr int32_t kMaxAttempts = 7;  // at once

  // Time a connection may be silent: at least a handshake, which is several round trips.
  int64_t PatienceNs() const { return std::max(patience_ns_, PathWatch::kAskAfterNs + handshake_ns_); }

  // Time from one attempt to the next, which begins beside it: the kernel repeats a lost first packet only after a
  // second. With kMaxAttempts at once each has time for two handshakes. `limit_ns`: used while the duration of a
  // handshake is unknown.
  int64_t StaggerNs(int64_t limit_ns) const {
    return handshake_ns_ == 0 ? limit_ns : std::max(kMinStaggerNs, 2 * handshake_ns_ / kMaxAttempts);
  }

  void OnAttempt() { ++attempts_; }

  // A connection came up after a handshake of `handshake_ns`. If it replaced a silent one at the first attempt, the
  // path was slow rather than cut, and frames on their way are sent twice: so patience grows.
  void OnUp(int64_t now_ns, int64_t handshake_ns, bool replaced_silent) {
    handshake_ns_ = std::max<int64_t>(1, handshake_ns);
    if (replaced_silent) {
      patience_ns_ = attempts_ > 1 ? kMinPatienceNs : std::min(kMaxPatienceNs, 2 * patience_ns_);
    } else if (now_ns - changed_ns_ >= kCalmNs) {
      patience_ns_ = kMinPatienceNs;
    }
    changed_ns_ = now_ns;
    attempts_ = 0;
  }

 private:
  int64_t patience_ns_ = kMinPatienceNs;
  int64_t changed_ns_ = 0;
  int64_t handshake_ns_ = 0;  // of the last one; 0: there was none
  int32_t attempts_ = 0;      // since a connection came up last
};

}  // namespace geopipe
