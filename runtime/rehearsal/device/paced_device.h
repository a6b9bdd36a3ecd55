// A device that takes its time: every action lasts as long as the device it stands for would need, and longer only if
// the arithmetic itself does. Real numbers with a big machine's timing, reproducible on a small shared one.
//
// An action begins when that device would have begun: when the action before was over and its input was there. The
// executor calls somewhat later, because a sleeping thread of this machine wakes up late; that lateness
// (kMaxCompensatedNs at most) is not added up over the actions: later ones end as if there had been none, as soon as
// the thread has caught up. Nor over the ranks: results carry the time at which they are ready here. The sleep at an
// action's end is cut by what it lately took too long in the median (kMaxLeadNs at most), so that results leave as
// often a little early as a little late.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/base/clock.h"
#include "runtime/tensor/completion.h"
#include "runtime/tensor/device.h"

namespace geopipe {

// Shared by the engines of all stages that one rank runs. One thread.
class PacedDevice {
 public:
  static constexpr int64_t kMaxLeadNs = 400'000;

  // `clock`, and `device`, which does the arithmetic, outlive this one.
  PacedDevice(Clock& clock, Device& device) : clock_(clock), device_(device) {}

  // Begins the action that is called for now, and whose input is ready since `ready_ns`.
  void Begin(int64_t ready_ns);
  // When the action under way begins.
  int64_t begun_ns() const { return begun_ns_; }
  // It cannot before others have come to it, at `met_ns`. What lies before this call was no arithmetic.
  void MeetAction(int64_t met_ns);
  // When the device is free for what follows the actions so far, and that it is not before others are, at `met_ns`.
  int64_t free_ns() const { return free_ns_; }
  void MeetUpdate(int64_t met_ns) { free_ns_ = std::max(free_ns_, met_ns); }
  // Waits until its arithmetic is over.
  absl::Status Wait(const Completion& arithmetic) { return device_.Wait(arithmetic); }
  // Ends it after `duration_ns`, or when its arithmetic, which is over now, has taken longer. Sleeps until then.
  Completion End(int64_t duration_ns);

  // Calls between BeginUpdate and EndUpdate are arithmetic of the update of one stage. It ends `epilogue_ns` after the
  // rank's last action, because what lies between the two (gradient exchange and norm) is part of that time; but its
  // arithmetic neither before the exchange was over at `ready_ns` nor before that of the stages before it.
  void BeginUpdate(int64_t iteration);
  Completion EndUpdate(int64_t epilogue_ns, int64_t ready_ns);

 private:
  // Is busy until `end_ns`, after `duration_ns`.
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
