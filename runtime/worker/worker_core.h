// What a worker does, without the wire it is told over: commands in, reports out.
//
//   attached --ProfileCommand--> ProfileReport (once per round)
//            --PrepareCommand--> PreparedReport --CommitCommand--> CommittedReport, IterationReport …, FinishedReport
//
// StopCommand ends it at any time; an error ends it with one FailureReport.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "geopipe/v1/worker_service.pb.h"
#include "optimizer/model/profile.h"
#include "runtime/base/clock.h"
#include "runtime/base/inbox.h"
#include "runtime/worker/rank_job.h"

namespace geopipe {

struct WorkerIdentity {
  std::string site;
  std::string node;
  int32_t device = 0;
};

class WorkerCore {
 public:
  struct Hooks {
    // Takes a report; called on the core's thread, may wait for room.
    std::function<void(v1::WorkerReport)> report;
    // The same iteration as values, before its report; on the core's thread, must not wait. May be empty.
    std::function<void(int32_t rank, const IterationStats&)> on_iteration;
    // The worker prepares this epoch; on the core's thread, must not wait. May be empty.
    std::function<void(uint64_t epoch)> on_epoch;
    // The worker is over: stopped or failed. Called once, on any thread; must not call back.
    std::function<void()> on_over;
    OpenTransport open_transport;
    ExtendJob extend_job;  // may be empty
  };

  // Starts the core's one thread, which profiles, prepares and trains. `clock` outlives the core.
  WorkerCore(WorkerIdentity identity, Clock& clock, Hooks hooks);
  WorkerCore(const WorkerCore&) = delete;
  WorkerCore& operator=(const WorkerCore&) = delete;
  // Stops, and waits for the thread (for the arithmetic of one action at most).
  ~WorkerCore();

  // Never waits. A command that does not fit the state is a failure of this worker.
  void Handle(v1::WorkerCommand command);

  // Stops whatever is under way. Idempotent, any thread.
  void Stop(const std::string& reason);

  // Waits until the thread has ended, for at most `timeout_ns`; false: it has not.
  bool WaitEnded(int64_t timeout_ns);

  // The iteration under way, -1 before the first.
  int64_t iteration() const { return iteration_; }
  uint64_t epoch() const { return epoch_; }
  // Of the prepared rank; nullopt when there is none. Any thread; the core never waits for it.
  std::optional<RankUsage> usage() const;
  // OK while it runs and after a stop; else why the worker failed.
  absl::Status failure() const;

 private:
  void Run();
  absl::Status Execute(const v1::WorkerCommand& command);
  absl::Status Profile(const v1::ProfileCommand& command);
  absl::StatusOr<ProfileEntry> ProfileCompute(const v1::ProfileCommand& command);
  absl::Status Prepare(uint64_t epoch, const v1::PrepareCommand& command);
  absl::Status Commit(const v1::CommitCommand& command);
  void Report(v1::WorkerReport report);
  void ReportIteration(const IterationStats& stats);
  void ReportFinished(int64_t iterations);
  void Fail(const absl::Status& status);
  // The job that Stop has to interrupt; nullptr: none. Cancelled when the worker is stopped already.
  absl::Status SetJob(std::unique_ptr<RankJob> job);

  const WorkerIdentity identity_;
  Clock& clock_;
  const Hooks hooks_;
  Inbox<v1::WorkerCommand> commands_;
  std::atomic<int64_t> iteration_ = -1;
  std::atomic<uint64_t> epoch_ = 0;
  bool committed_ = false;     // core's thread
  int64_t actions_every_ = 0;  // core's thread

  mutable std::mutex mutex_;
  std::condition_variable ended_condition_;
  bool stopping_ = false;
  bool ended_ = false;
  absl::Status failure_;
  std::unique_ptr<RankJob> job_;
  std::thread thread_;
};

}  // namespace geopipe
