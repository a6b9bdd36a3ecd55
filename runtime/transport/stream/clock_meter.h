// The clock of a peer against one's own, from frames that cross both ways anyway. A crossing is an arrival on one clock
// less a sending on the other: the time on the way, and the clocks' difference with it. Each end tells the other the
// least it has seen of late; half of what the two ways' least differ in is the peer's clock less one's own, their sum a
// round trip. That is NTP's sum (RFC 5905) of the two quickest crossings instead of one exchange's: queues only make
// crossings longer, so the least has waited least, and an exchange whose frames both found the link idle need not
// exist, because in a steady pipeline acknowledgements may always wait behind the same payload.
//
// What the two ways differ in makes half of that the offset's error. So does half of what the clocks drift apart within
// the window, commonly ten microseconds a second at most. A path that changes under a connection, or a clock that is
// set, is wrong for a window; where the figures then contradict each other, none is given.
//
// Without thread, clock or I/O. All times are this end's monotonic clock unless said otherwise.
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

  // The path has come up: nothing that was measured of the last one holds.
  void Restart() { *this = {}; }

  // A frame of the peer's, sent at `sent_ns` of the peer's clock, has arrived.
  void OnArrival(int64_t now_ns, int64_t sent_ns);
  // Takes what the peer's ClockMeter returned from TakeMin.
  void OnTold(int64_t now_ns, int64_t crossing_ns);
  // To tell the peer: the least crossing from there to here since this was last asked; kNeverNs: there was none.
  int64_t TakeMin();

  // Of the last ten to twenty seconds.
  PeerClock At(int64_t now_ns) const;

 private:
  struct Quickest {
    int64_t from_peer_ns = kNeverNs;
    int64_t to_peer_ns = kNeverNs;
  };

  // Which windows count at `now_ns`: how many have ended since the one that was begun last.
  void Turn(int64_t now_ns);

  Quickest window_;
  Quickest earlier_;
  int64_t since_ns_ = 0;
  bool begun_ = false;
  int64_t to_tell_ns_ = kNeverNs;
};

}  // namespace geopipe
