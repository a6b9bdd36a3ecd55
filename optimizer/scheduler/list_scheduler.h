// Builds a schedule by running the pipeline from its start: whenever a device is free, it takes the most urgent action
// that it could run, or waits for a more urgent one whose input is known to arrive while that would run.
//
// Urgency is the latest start for a target (deadlines.h), so a device that must never stand still fills every gap with
// weight gradients, while one with time to spare keeps itself free for actions that others wait for. Forwards run ahead
// as far as memory lets them. Messages take their turn on the links as in the simulator; only where several devices
// feed one FIFO is an arrival an estimate until its message has entered, so the simulator's times are decisive.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "optimizer/scheduler/deadlines.h"
#include "optimizer/scheduler/instance.h"

namespace geopipe {

// The criterion for waiting for an action that is about to become ready instead of running another first.
enum class Lookahead : uint8_t {
  kWorstLateness,  // by the greater lateness of the two
  kAddedLateness,  // by the lateness that each adds to the other
};

struct ListOptions {
  int64_t target_ns = 0;  // end of the last action that is aimed at
  Lookahead lookahead = Lookahead::kWorstLateness;
  // [work], F and I; may be negative: how much sooner than necessary each action of a kind shall start (Deadlines).
  // Empty: not at all.
  std::vector<int64_t> earlier_ns = {};
  // Greatest end of interest; a build that must exceed it fails.
  int64_t limit_ns = std::numeric_limits<int64_t>::max();
};

class ListScheduler {
 public:
  // REQUIRES: `instance` outlives this.
  explicit ListScheduler(const Instance& instance);

  // Builds a schedule. False if the last action would end after the limit, or if memory left nothing to run: with
  // several stages on a device a forward is run only if room remains for the stages behind it, which fails in the
  // tightest memory. The result is then unspecified. Reuses its memory.
  bool Build(const ListOptions& options);

  // Sequences of the last Build that returned true: within memory, free of deadlock.
  const Sequences& sequences() const { return sequences_; }
  // End of their last action. A device may have waited for a message that came later than estimated, so the sequences
  // may end earlier.
  int64_t end_ns() const { return end_ns_; }

 private:
  struct Device {
    bool busy = false;
    WorkIndex running = 0;
    int64_t bytes = 0;
    int64_t left_ns = 0;  // all of its work that has not started
  };
  struct Candidate {
    WorkIndex work = 0;
    int64_t ready_ns = 0;
    int64_t latest_ns = 0;
  };

  void Reset(const ListOptions& options);
  void Decide(int32_t device, int64_t now_ns);
  void FindCandidates(int32_t device, int64_t now_ns);
  void AddCandidate(WorkIndex work, int64_t ready_ns, int64_t latest_ns, int64_t now_ns);
  bool WaitsBetter(const Candidate& ready, const Candidate& coming, int64_t now_ns, int64_t slack_ns) const;
  bool IsTooLate(int32_t device, WorkIndex work, int64_t now_ns) const;
  void Start(int32_t device, WorkIndex work, int64_t now_ns);
  void End(int32_t device, int64_t now_ns);
  int64_t WakeNs(int32_t device) const { return wake_ns_[first_leaf_ + static_cast<size_t>(device)]; }
  void SetWake(int32_t device, int64_t at_ns);
  int32_t NextAwake() const;
  void Arrive(int32_t device, int64_t at_ns);

  const Instance& instance_;
  Deadlines deadlines_;
  Deadlines last_calls_;  // for an end at 0, no sooner than necessary: how long before the end each action starts
  // [stage]: bytes that F leaves free: for F of the stages behind it on its device, and for the next I of any that
  // keeps more for W than F did. W frees all of it, so an I that has to wait for room waits for W only.
  std::vector<int64_t> reserve_bytes_;
  ListOptions options_;
  std::vector<int64_t> arrival_ns_;    // [output][micro-batch]; -1: not known yet
  std::vector<int64_t> fifo_free_ns_;  // [fifo]
  std::vector<int32_t> next_;          // [work]: micro-batch
  std::vector<Device> devices_;
  // Time at which each device next decides: it ends an action, or a message arrives. Leaves of a tree of minima, whose
  // root is at 1.
  size_t first_leaf_ = 1;
  std::vector<int64_t> wake_ns_;
  std::vector<int32_t> awake_;
  std::vector<Candidate> ready_;   // of the device that decides, most urgent first
  std::vector<Candidate> coming_;  // of the same device: known to arrive
  int64_t ended_ = 0;
  int64_t end_ns_ = 0;
  bool too_late_ = false;
  Sequences sequences_;
};

}  // namespace geopipe
