// One rank of one plan on this worker: the engines of its stages with weights, moments and data, which outlive epochs;
// and the session of the epoch.
#pragma once

#include <absl/status/statusor.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "geopipe/v1/worker_service.pb.h"
#include "optimizer/model/capabilities.h"
#include "optimizer/model/checkpoint_identity.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/pipeline_costs.h"
#include "optimizer/model/plan/plan_params.h"
#include "optimizer/model/plan/rank_memory.h"
#include "optimizer/model/run_options.h"
#include "optimizer/model/state_identity.h"
#include "optimizer/schedule/schedule.h"
#include "runtime/backend/backend.h"
#include "runtime/base/clock.h"
#include "runtime/base/stop_event.h"
#include "runtime/checkpoint/exchange/checkpoint_fetcher.h"
#include "runtime/checkpoint/state/kept_states.h"
#include "runtime/compute/open.h"
#include "runtime/data/samples/training_data.h"
#include "runtime/executor/executor.h"
#include "runtime/executor/interruptible_clock.h"
#include "runtime/model/parameters.h"
#include "runtime/model/shared_rooms.h"
#include "runtime/model/stage_engine.h"
#include "runtime/model/transformer_stage.h"
#include "runtime/model/weight_source.h"
#include "runtime/tensor/allocator.h"
#include "runtime/transport/ucx/ucx_transport.h"
#include "runtime/worker/checkpoint_writer.h"
#include "runtime/worker/data_checker.h"
#include "runtime/worker/epoch_session.h"
#include "runtime/worker/job_extension.h"
#include "runtime/worker/rank_preparation.h"

namespace geopipe {

// The resources a rank uses at one moment.
struct RankUsage {
  int32_t rank = 0;
  std::vector<std::string> sites;  // of all ranks
  std::array<Allocator::Usage, kMemoryCategories> memory;
  int64_t memory_limit_bytes = 0;  // 0: none
  TransportStats transport;
  int64_t transport_cpu_ns = 0;
};

using OpenTransport = std::function<absl::StatusOr<std::unique_ptr<UcxTransport>>(UcxTransportOptions)>;

// Thread: Prepare, NextEpoch, Connect and Train on one thread; End, Interrupt, progress and usage on any; the others on
// that thread, or on any while it does none of these.
class RankJob {
 public:
  // Reads data and the initial weights or state (from a checkpoint or kept memory), builds the engines and opens the
  // transport. `kept` (null: there is no such memory) takes the states of a job with recovery memory. Errors: those of
  // weights, checkpoint, data, memory (the allocator's limit, and the system's), transport and extension. `clock` and
  // `kept` outlive the job. `stop` ends fetching from other nodes (Cancelled). FailedPrecondition: the preparation
  // resumes from a state that is not kept and names neither another rank that gives it nor a checkpoint, or from a
  // state that is not the one before its first iteration in a run of this job.
  static absl::StatusOr<std::unique_ptr<RankJob>> Prepare(RankPreparation preparation, Clock& clock,
                                                          const OpenTransport& open_transport,
                                                          const ExtendJob& extend = nullptr, KeptStates* kept = nullptr,
                                                          const StopEvent& stop = StopEvent::Never());
  RankJob(const RankJob&) = delete;
  RankJob& operator=(const RankJob&) = delete;
  ~RankJob();

  // True when the state of this job is the one that `next` asks for, by job, plan and rank, and none is to be read;
  // then NextEpoch can resume from it.
  bool Serves(const RankPreparation& next) const;
  // Ends the session, and opens that of `next`; weights, moments and data stay. Errors: FailedPrecondition if `next`
  // does not resume from next_iteration(); those of the transport. REQUIRES: Serves(next).
  absl::Status NextEpoch(RankPreparation next, const OpenTransport& open_transport);

  const std::string& address() const { return session_->transport().address(); }
  // Fingerprint of the data this rank reads; empty where it reads none.
  DataFingerprint fingerprint() const { return data_ == nullptr ? DataFingerprint{} : data_->fingerprint(); }
  // The same of the validation data.
  DataFingerprint validation_fingerprint() const {
    return validation_ == nullptr ? DataFingerprint{} : validation_->fingerprint();
  }
  // Begins to check all of the data in the background, over all epochs, where this rank reads data. Once.
  void CheckData(DataChecker::Tell tell);
  int32_t rank() const { return preparation_.rank; }
  // Number of threads that the rank computes with; 0 where it computes nothing.
  int32_t threads() const { return modelled() ? 0 : preparation_.threads; }
  std::string_view instructions() const { return InstructionsOf(preparation_.run.backend); }
  std::optional<DeviceVersions> versions() const { return VersionsOf(*memory_->device); }
  const Allocator& allocator() const { return allocator_; }
  RankMemory memory_peaks() const;
  std::map<int32_t, PeerClock> peer_clocks() const { return session_->transport().peer_clocks(); }
  // The first iteration that is not finished: the weights are those before it.
  int64_t next_iteration() const { return next_iteration_; }
  // State that the rank holds, as Train left it. Where holds_state() is false, the rank holds none until Connect is
  // done, and state() is the one it will hold then. The job's thread.
  bool holds_state() const { return !receives_; }
  StateIdentity state() const { return {.iteration = next_iteration_, .epoch = state_epoch_}; }
  uint64_t run_incarnation() const { return preparation_.run_incarnation; }
  // The compute action under way.
  std::optional<ActionWatch::UnderWay> action() const;
  RankUsage usage() const;

  // Connects to the peers with the epoch's secret, joins the rank's groups, and shares the state among replicas where
  // the preparation says so. Errors: those of UcxTransport::Connect and the communicators.
  absl::Status Connect(const std::vector<UcxPeer>& peers, const std::string& secret);

  // Runs the iterations [start, end), or those that begin before End, with the evaluations that are due from
  // `evaluate_from` on. The callbacks come from this thread: `on_report` for each iteration; `on_state` when the state
  // held is that before an iteration that is about to begin, or the one after the last, and before it is evaluated;
  // `on_evaluation` for each evaluation, on ranks of the last stage. Errors: FailedPrecondition if `start_iteration` is
  // not next_iteration(); those of Executor::Run.
  struct Observer {
    std::function<void(IterationStats)> on_report;
    std::function<void(int64_t next_iteration)> on_state = nullptr;  // may be empty
    std::function<void(EvaluationStats)> on_evaluation = nullptr;    // may be empty
  };
  absl::Status Train(int64_t start_iteration, int64_t end_iteration, const Observer& observer,
                     int64_t evaluate_from = 0);

  // The error of the rank's device where that has failed, as whatever else goes wrong then follows from it; else
  // `status`, of Connect or Train.
  absl::Status CauseOf(const absl::Status& status) const;

  // Begins to copy the state into memory that outlives the process, for a job that wants it; the next update waits for
  // it on the device. Errors: those of KeptStates::Save.
  absl::Status KeepState();
  // States kept of this job's run and rank, newest first.
  std::vector<StateIdentity> kept_states() const;

  // Context of this rank's checkpoints in the latest epoch. Any thread.
  CheckpointContext checkpoint_context() const;
  // Begins to copy the state into `snapshot`, all but its time, likewise. Errors: those of StateSnapshot::Take;
  // FailedPrecondition: the rank holds none.
  absl::Status CopyState(RankSnapshot& snapshot);

  // Do as EpochSession's.
  void End(std::optional<int64_t> abandon_from);
  void Interrupt();

 private:
  RankJob(RankPreparation preparation, std::unique_ptr<Device> device, Clock& clock, KeptStates* kept);

  // `clock`: for the waits of fetching; wakes them when `stop` is set.
  absl::Status OpenState(Clock& clock, const StopEvent& stop);
  absl::Status TakeMemoryForStates();
  void UpdateAfter(const Completion& copied);
  // The stages of this rank, with the tensors that are kept of them.
  std::vector<KeptStates::Stage> KeptStages() const;
  KeptStates::Owner owner() const {
    return {.run_incarnation = preparation_.run_incarnation, .rank = preparation_.rank};
  }
  absl::Status BuildEngines();
  absl::Status OpenData();
  absl::StatusOr<std::unique_ptr<StageEngine>> BuildTransformer(int32_t stage);
  // Joins the rank's groups and divides its stages through them.
  absl::Status JoinGroups(const std::string& secret);
  absl::Status ShareState();
  absl::Status OpenSession(const OpenTransport& open_transport);
  void SetSession(std::unique_ptr<EpochSession> session);
  bool modelled() const { return !CapabilitiesOf(preparation_.run.backend).computes; }
  bool exchanges_norms() const;
  int64_t progress_deadline_ns() const;
  void NoteState(int64_t next_iteration);

  RankPreparation preparation_;  // the latest
  InterruptibleClock clock_;
  // A device and its memory, which snapshots may need longer than the job.
  struct DeviceMemory {
    DeviceMemory(std::unique_ptr<Device> opened, int64_t limit_bytes, int64_t staging_limit_bytes)
        : device(std::move(opened)), allocator(limit_bytes, *device, staging_limit_bytes) {}

    std::unique_ptr<Device> device;
    Allocator allocator;
  };
  // Gives back what the job has freed: the next one needs it.
  struct GivesBack {
    Allocator& allocator;

    ~GivesBack() { allocator.GiveBack(); }
  };
  const std::shared_ptr<DeviceMemory> memory_;
  Allocator& allocator_;
  const GivesBack gives_back_;
  std::unique_ptr<TrainingData> data_;
  std::unique_ptr<TrainingData> validation_;   // null: nothing is evaluated here
  std::unique_ptr<DataChecker> data_checker_;  // of data_; null where there is none
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<JobExtension> extension_;            // may be null
  std::vector<std::unique_ptr<StageEngine>> engines_;  // by stage; null where it is another rank's
  std::unique_ptr<SharedRooms> rooms_;                 // of all stages; null: the rank computes nothing
  std::vector<TransformerStage*> transformers_;        // by stage: the engines, or those inside them; else null
  std::unique_ptr<WeightSource> state_;                // while the engines are built; null: they read kept states
  bool receives_ = false;                              // the state comes from a replica, when it is connected
  KeptStates* kept_;                                   // null: no states are kept
  Reservation kept_room_;
  std::atomic<int64_t> next_iteration_ = 0;
  uint64_t state_epoch_ = 0;               // StateIdentity; job's thread
  mutable std::mutex mutex_;               // of the pointer: other threads than the job's hold it while they use it
  std::unique_ptr<EpochSession> session_;  // null while it changes
  int64_t transport_cpu_ns_ = 0;           // of the endpoint, when the last session ended
};

// Longest wait for one message before a peer counts as stuck: ten times the iteration's duration without any overlap,
// but at least a minute.
int64_t ProgressDeadlineNs(const PipelineCosts& costs);

}  // namespace geopipe
