// The thread that profiles, prepares and trains, as the worker's control orders (worker_events.h).
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "optimizer/model/plan/rank_memory.h"
#include "optimizer/model/profile.h"
#include "runtime/base/clock.h"
#include "runtime/base/inbox.h"
#include "runtime/base/stop_event.h"
#include "runtime/checkpoint/exchange/file_server.h"
#include "runtime/worker/checkpoint_writer.h"
#include "runtime/worker/job_extension.h"
#include "runtime/worker/rank_job.h"
#include "runtime/worker/replicator.h"
#include "runtime/worker/worker_events.h"

namespace geopipe {

struct WorkerIdentity {
  std::string site;
  std::string node;
  int32_t device = 0;
};

class Trainer {
 public:
  struct Hooks {
    // Takes an event; on the trainer's thread or that of the data's check; may wait for room.
    std::function<void(WorkerEvent)> post;
    // Takes an iteration as values, before its event; on the trainer's thread, must not wait. May be empty.
    std::function<void(int32_t rank, const IterationStats&)> on_iteration;
    OpenTransport open_transport;       // of an epoch; the one before is gone
    OpenTransport open_profile;         // of a profile's two ends, which are there at once
    ExtendJob extend_job;               // may be empty
    FileServer* file_server = nullptr;  // serves what it is told; outlives the trainer; null: none
    PaceExchange pace_exchange = {};    // may be empty
    std::string gpu_library = {};       // CanOpen in runtime/compute/open.h
  };
  using Order = std::variant<RunProfile, RunPrepare, RunCommit, RunCheckpoint>;

  // Starts the thread. `clock` outlives the trainer. `kept`: for states that outlive the process; may be null.
  Trainer(WorkerIdentity identity, Clock& clock, Hooks hooks, std::unique_ptr<KeptStates> kept = nullptr);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  // Interrupts, and waits for the thread (for the arithmetic of one action at most).
  ~Trainer();

  // Queues an order. Never waits. REQUIRES: the order before was answered.
  void Run(Order order);
  // Applies to the RunCommit under way, if there is one. Any thread.
  void End(std::optional<int64_t> abandon_from);
  // Asks the RunCommit under way, which is so until its TrainingReturned is taken. Any thread.
  void Request(const RequestCheckpoint& request);
  // Takes the requests up to an iteration that are not answered, ascending. Any thread.
  std::vector<int64_t> TakeRequests(int64_t last = std::numeric_limits<int64_t>::max());
  // Runs on the thread that writes checkpoints. Any thread may call it. REQUIRES: a rank is prepared.
  void Complete(CompleteCheckpoint order);
  // Runs on the thread that fetches replicas. Any thread may call it; never waits. REQUIRES: a rank is prepared.
  void Replicate(FetchReplica order);
  // Interrupts the order under way, for good; no further order is carried out. Any thread.
  void Interrupt();

  // Waits until the thread has ended, for at most `timeout_ns`; false: it has not.
  bool WaitEnded(int64_t timeout_ns);
  // Progress of the trainer's thread. Any thread.
  WorkerTick Progress() const;
  // Usage of the prepared rank; nullopt when there is none. Any thread.
  std::optional<RankUsage> usage() const;

 private:
  void Loop();
  absl::StatusOr<v1::ProfileReport> Profile(const v1::ProfileCommand& command);
  absl::StatusOr<ProfileEntry> ProfileCompute(const v1::ProfileCommand& command);
  absl::StatusOr<v1::PreparedReport> Prepare(uint64_t epoch, const v1::PrepareCommand& command);
  absl::Status Build(RankPreparation preparation);
  // Lets others fetch the checkpoint files of this node, and this worker theirs, from here on.
  void JoinExchange(const RankPreparation& preparation);
  RunStates States() const;
  absl::Status Commit(uint64_t epoch, const v1::CommitCommand& command);
  void KeepState();
  void Save(uint64_t epoch, int64_t iteration);
  absl::Status CopyState(uint64_t epoch, int64_t iteration);
  v1::IterationReport ReportOf(const IterationStats& stats);
  v1::EvaluationReport ReportOf(const EvaluationStats& stats) const;
  bool ReportsActions(int64_t iteration) const;
  // Sets the job that Interrupt has to interrupt; nullptr: none. Cancelled when the trainer is interrupted already.
  absl::Status SetJob(std::unique_ptr<RankJob> job);

  const WorkerIdentity identity_;
  Clock& clock_;
  const Hooks hooks_;
  Inbox<Order> orders_;
  int64_t actions_every_ = 0;               // trainer's thread
  EvaluationSpec evaluation_;               // of the job; trainer's thread
  RankMemory told_peaks_;                   // in this epoch; trainer's thread
  const std::unique_ptr<KeptStates> kept_;  // trainer's thread; may be null
  std::pair<uint64_t, int64_t> copied_;     // epoch and iteration of the latest copy; trainer's thread
  StopEvent stop_;                          // set by Interrupt

  mutable std::mutex mutex_;
  std::condition_variable ended_condition_;
  bool interrupted_ = false;
  std::set<int64_t> requested_;  // or due: checkpoints before these iterations
  std::string exchange_secret_;  // of the run that is prepared
  bool ended_ = false;
  CheckpointWriter writer_;       // told by the job's device
  std::unique_ptr<RankJob> job_;  // changed by the trainer's thread alone
  Replicator replicator_;
  std::thread thread_;
};

}  // namespace geopipe
