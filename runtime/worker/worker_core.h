// A worker without its gRPC stream: carries out on threads what its control (worker_control.h) decides. One thread
// takes events and looks at the clock, the trainer's thread computes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "runtime/base/clock.h"
#include "runtime/base/inbox.h"
#include "runtime/worker/trainer.h"
#include "runtime/worker/worker_control.h"
#include "runtime/worker/worker_events.h"

namespace geopipe {

class WorkerCore {
 public:
  // All hooks are called on the core's thread unless they say otherwise, and must not wait.
  struct Hooks {
    // The effects on the agent's stream, answered by Post.
    std::function<void(DialAgent)> dial;
    std::function<void(AgentStreamId)> hang_up;
    std::function<void(TellAgent)> send;
    // True when the folder exists in which an agent of the node listens. May be empty: it does.
    std::function<bool()> has_home;
    // Takes an iteration as values, before its report; on the trainer's thread. May be empty.
    std::function<void(int32_t rank, const IterationStats&)> on_iteration;
    // Called when the worker prepares this epoch. May be empty.
    std::function<void(uint64_t epoch)> on_epoch;
    // Called once, when the worker is over and its last reports are written or cannot be.
    std::function<void(const ExitWorker&)> on_exit;
    // Called on the trainer's thread; as Trainer::Hooks'.
    OpenTransport open_transport;
    OpenTransport open_profile;
    ExtendJob extend_job;               // may be empty
    FileServer* file_server = nullptr;  // outlives the core; as Trainer::Hooks'
    PaceExchange pace_exchange = {};    // may be empty
    std::string gpu_library = {};       // CanOpen in runtime/compute/open.h
  };

  // Starts the trainer's thread. `clock` outlives the core. `kept`: memory for states that outlive the process, which
  // may hold some already; may be null.
  WorkerCore(WorkerIdentity identity, WorkerControlOptions options, Clock& clock, Hooks hooks,
             std::unique_ptr<KeptStates> kept = nullptr);
  WorkerCore(const WorkerCore&) = delete;
  WorkerCore& operator=(const WorkerCore&) = delete;
  // Interrupts the order under way, and waits for the threads (for the arithmetic of one action at most).
  ~WorkerCore();

  // Starts the core's thread, which dials at once. Once.
  void Start();

  // Takes an event; waits for room. Events after the end are dropped. Any thread but the core's.
  void Post(WorkerEvent event);
  // Interrupts the order under way, flushes the last reports, and calls on_exit. Idempotent, any thread.
  void Stop(const std::string& reason) { Post(ShutdownRequested{reason}); }

  // Waits until on_exit was called, for at most `timeout_ns`; false: it was not.
  bool WaitExit(int64_t timeout_ns);
  // Waits until the trainer's thread has ended, for at most `timeout_ns`; false: it has not.
  bool WaitEnded(int64_t timeout_ns) { return trainer_.WaitEnded(timeout_ns); }

  // Usage of the prepared rank; nullopt when there is none. Any thread; the core never waits for it.
  std::optional<RankUsage> usage() const { return trainer_.usage(); }

 private:
  void Run();
  // Carries out one effect; false: it was the last.
  bool CarryOut(WorkerEffect effect);

  Clock& clock_;
  const Hooks hooks_;
  WorkerControl control_;  // core's thread
  Inbox<WorkerEvent> events_;
  std::mutex mutex_;
  std::condition_variable exited_condition_;
  bool exited_ = false;
  Trainer trainer_;
  std::thread thread_;
};

}  // namespace geopipe
