// The core's thread: takes events out of the inbox, lets the core decide, and carries out its effects in order.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "coordinator/core/coordinator.h"
#include "coordinator/job_store.h"
#include "runtime/base/clock.h"
#include "runtime/base/event_port.h"
#include "runtime/base/inbox.h"

namespace geopipe {

// Destinations of effects that leave the process. Called by the core's thread alone; no call waits.
class AgentStreams {
 public:
  virtual ~AgentStreams() = default;
  virtual void Send(SessionId session, v1::ConnectResponse message) = 0;
  virtual void Close(SessionId session, const absl::Status& status) = 0;
};

class ControlCalls {
 public:
  virtual ~ControlCalls() = default;
  virtual void Reply(CallId call, absl::StatusOr<ControlReply> reply) = 0;
  virtual void SendToWatcher(CallId call, std::vector<v1::WatchJobResponse> messages) = 0;
  virtual void EndWatch(CallId call, const absl::Status& status) = 0;
};

class PlanningQueue {
 public:
  virtual ~PlanningQueue() = default;
  virtual void Start(StartPlanning request) = 0;
  virtual void Stop(const StopPlanning& request) = 0;
};

// Sees what happens, for counting; decides nothing. Called by the core's thread alone; no call waits.
class RunnerObserver {
 public:
  virtual ~RunnerObserver() = default;
  // Called before the core gets the event.
  virtual void OnEvent(const Event& event) = 0;
  // Called after the effect was carried out. Messages, replies and plans that were handed on have been moved out of it.
  virtual void OnEffect(const Effect& effect) = 0;
};

struct RunnerParts {
  Inbox<Event>& inbox;
  EventPort<Event>& port;
  JobStore& store;
  AgentStreams& agents;
  ControlCalls& calls;
  PlanningQueue& planner;
  const Clock& clock;
  RunnerObserver* observer = nullptr;  // may be null
  int64_t tick_ns = 50'000'000;        // interval of ticks
};

class Runner {
 public:
  // The parts outlive the runner.
  Runner(std::unique_ptr<Coordinator> core, const RunnerParts& parts);

  // Lets the core act before the first event. Errors are the store's.
  absl::Status Start();
  // Runs until the inbox is closed (OK) or a transition could not be stored: then it stops, because a transition must
  // not take effect before it is durable.
  absl::Status Run();
  // Handles one event as Run does with each that it takes out of the inbox. Used instead of Run.
  absl::Status Take(Event event);

 private:
  // Stops at the first effect that fails. A new job or progress that cannot be stored is no error of the runner but
  // news for the core; `answers` takes it, and everything that the core has asked the store for.
  absl::Status CarryOut(Effects effects, std::vector<Event>* answers);

  const std::unique_ptr<Coordinator> core_;
  RunnerParts parts_;
};

}  // namespace geopipe
