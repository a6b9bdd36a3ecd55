#include "runtime/transport/stream/clock_meter.h"

#include <algorithm>
#include <utility>

namespace geopipe {

void ClockMeter::Turn(int64_t now_ns) {
  const int64_t windows = begun_ ? (now_ns - since_ns_) / kWindowNs : 2;
  if (windows == 0) {
    return;
  }
  // Windows without any frame have passed, too.
  earlier_ = windows == 1 ? window_ : Quickest();
  window_ = {};
  since_ns_ = begun_ ? since_ns_ + windows * kWindowNs : now_ns;
  begun_ = true;
}

void ClockMeter::OnArrival(int64_t now_ns, int64_t sent_ns) {
  Turn(now_ns);
  const int64_t crossing_ns = now_ns - sent_ns;
  window_.from_peer_ns = std::min(window_.from_peer_ns, crossing_ns);
  to_tell_ns_ = std::min(to_tell_ns_, crossing_ns);
}

void ClockMeter::OnTold(int64_t now_ns, int64_t crossing_ns) {
  if (crossing_ns != kNeverNs) {
    Turn(now_ns);
    window_.to_peer_ns = std::min(window_.to_peer_ns, crossing_ns);
  }
}

int64_t ClockMeter::TakeMin() { return std::exchange(to_tell_ns_, kNeverNs); }

PeerClock ClockMeter::At(int64_t now_ns) const {
  ClockMeter turned = *this;
  turned.Turn(now_ns);
  const int64_t from_peer_ns = std::min(turned.window_.from_peer_ns, turned.earlier_.from_peer_ns);
  const int64_t to_peer_ns = std::min(turned.window_.to_peer_ns, turned.earlier_.to_peer_ns);
  if (from_peer_ns == kNeverNs || to_peer_ns == kNeverNs || from_peer_ns + to_peer_ns <= 0) {
    return {};
  }
  return {.offset_ns = (to_peer_ns - from_peer_ns) / 2, .round_trip_ns = from_peer_ns + to_peer_ns};
}

}  // namespace geopipe
