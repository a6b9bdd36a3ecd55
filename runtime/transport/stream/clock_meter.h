// Measures a peer's clock against one's own, from frames that cross both ways anyway. A crossing is an arrival on one
// clock less a sending on the other: the time on the way plus the clocks' difference. Each end tells the other the
// shortest crossing it has seen lately. Half of the difference of the two is the peer's clock less one's own; their sum
// is a round trip. That is NTP's sum (RFC 5905) of the two quickest crossings instead of one exchange's: queues only
// make crossings longer, so the shortest has waited least, and an exchange whose frames both found the link idle need
// not exist, because in a steady pipeline acknowledgements may always wait behind the same payload.
//
// The offset is wrong by half of what the latencies of the two ways differ, and by half of what the clocks drift apart
// within the window, commonly ten microseconds a second at most. A path that changes under a connection, or a clock
// that is set, makes it wrong for a window; while the figures contradict each other, none is given.
//
// Has no thread, clock or I/O. All times are this end's monotonic clock unless said otherwise.
#pragma once

#include <cstdint>

#include "runtime/transport/stream/frame.h"

namespace geopipe {

struct PeerClock {
  int64_t offset_ns = 0;      // the peer's monotonic clock less ours
  int64_t round_trip_ns = 0;  // of the two quickest crossings; 0: not known
};

class ClockMeter {
 public:
  static constexpr int64_t kWindowNs = 10'000'000'000;

  // Forgets all measurements, which were of the path before: a new one has come up.
  void Restart() { *this = {}; }

  // Takes a frame of the peer's that has arrived, sent at `sent_ns` of the peer's clock.
  void OnArrival(int64_t now_ns, int64_t sent_ns);
  // Takes what the peer's ClockMeter returned from TakeMin.
  void OnTold(int64_t now_ns, int64_t crossing_ns);
  // The shortest crossing from there to here since the last call, for the peer's OnTold; kNeverNs: no frame crossed.
  int64_t TakeMin();

  // The clock by the crossings of the last ten to twenty seconds.
  PeerClock At(int64_t now_ns) const;

 private:
  struct Quickest {
    int64_t from_peer_ns = kNeverNs;
    int64_t to_peer_ns = kNeverNs;
  };

  // Starts new windows as `now_ns` demands; a window that has ended stays in use for the length of one more.
  void Turn(int64_t now_ns);

  Quickest window_;
  Quickest earlier_;
  int64_t since_ns_ = 0;
  bool begun_ = false;
  int64_t to_tell_ns_ = kNeverNs;
};

}  // namespace geopipe
