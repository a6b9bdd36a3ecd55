// A device that keeps to given durations: every action lasts as long as on the device it stands for, and longer only if
// the arithmetic itself does. It combines real numbers with a big machine's timing, reproducibly on a small shared
// machine.
//
// An action begins when that device would have begun: when the action before was over and its input was there. The
// executor calls somewhat later, because a sleeping thread of this machine wakes up late. That lateness
// (kMaxCompensatedNs at most) does not add up over the actions: once the thread has caught up, later ones end on time.
// Nor does it add up over the ranks: results carry the time at which they are ready here. The sleep at an action's end
// is cut by its median lateness (kMaxLeadNs at most), so that results leave as often a little early as a little late.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/base/clock.h"
#include "runtime/tensor/completion.h"
#include "runtime/tensor/device.h"

namespace geopipe {

// A device that the engines of all stages of one rank share. One thread.
class PacedDevice {
 public:
  static constexpr int64_t kMaxLeadNs = 400'000;

  // `clock`, and `device`, which does the arithmetic, outlive this one.
  PacedDevice(Clock& clock, Device& device) : clock_(clock), device_(device) {}

  // Begins the action that is called for now and whose input is ready since `ready_ns`.
  void Begin(int64_t ready_ns);
  // Begin of the action under way.
  int64_t begun_ns() const { return begun_ns_; }
  // Delays the action until all ranks have come to it, at `met_ns`. Time before this call was no arithmetic.
  void MeetAction(int64_t met_ns);
  // Time at which the device is free after the actions so far; MeetUpdate delays it until all ranks are free, at
  // `met_ns`.
  int64_t free_ns() const { return free_ns_; }
  void MeetUpdate(int64_t met_ns) { free_ns_ = std::max(free_ns_, met_ns); }
  // Waits until the work is over: the action's arithmetic, or the copy of its input.
  absl::Status Wait(const Completion& work) { return device_.Wait(work, DeviceDeadlineNs()); }
  // Ends the action after `duration_ns`, or when its arithmetic, which is over now, has taken longer. Sleeps until
  // then.
  Completion End(int64_t duration_ns);

  // Begin and end the update of one stage; calls between them are its arithmetic. It ends `epilogue_ns` after the
  // rank's last action, since all between the two (gradient exchange and norm) is part of that time; but its arithmetic
  // begins neither before the exchange was over at `ready_ns` nor before that of earlier stages was.
  void BeginUpdate(int64_t iteration);
  Completion EndUpdate(int64_t epilogue_ns, int64_t ready_ns);

 private:
  // Keeps the device busy until `end_ns`, after `duration_ns`.
  Completion Rest(int64_t end_ns, int64_t duration_ns);

  Clock& clock_;
  Device& device_;
  int64_t called_ns_ = 0;  // for the action under way
  int64_t begun_ns_ = 0;
  int64_t free_ns_ = 0;
  int64_t lead_ns_ = 0;  // by which sleeps are cut
  int64_t updated_iteration_ = -1;
};

}  // namespace geopipe
