// The one thread that searches for plans, so that the core never waits for a search.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "coordinator/core/events.h"
#include "coordinator/runner.h"
#include "runtime/base/clock.h"

namespace geopipe {

class PlannerThread final : public PlanningQueue {
 public:
  using Plan = std::function<absl::StatusOr<PlanResult>(const PlanningInput& input, std::function<bool()> should_stop)>;
  // Called when a request's turn has come, on the planner thread; may wait for room.
  using Begun = std::function<void(PlannerBegun)>;
  // Called with each answer, on the planner thread; may wait for room. The answers' secrets are left empty.
  using Answer = std::function<void(PlannerDone)>;

  // The clock measures search.time_budget. Both the clock and what the functions refer to outlive this object.
  PlannerThread(const Clock& clock, Plan plan, Begun begun, Answer answer);
  // Stops the search under way at its next question, forgets the others and waits for the thread.
  ~PlannerThread() override;
  PlannerThread(const PlannerThread&) = delete;
  PlannerThread& operator=(const PlannerThread&) = delete;

  // Any thread. Requests are searched one after another; there are never more than jobs.
  void Start(StartPlanning request) override;
  // Forgets a request that waits, and ends early a search under way, of which the plan is no longer wanted.
  void Stop(const StopPlanning& request) override;

 private:
  void Loop();

  const Clock& clock_;
  const Plan plan_;
  const Begun begun_;
  const Answer answer_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<StartPlanning> waiting_;
  uint64_t current_ = 0;   // incarnation of the search under way; 0: none
  bool unwanted_ = false;  // the search under way is to end
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace geopipe
