// Decides for a worker, without threads, sockets, clocks or random numbers of its own: Step(now, event) -> effects.
//
//   IDLE --profile--> PROFILING --> IDLE
//   IDLE, PREPARED, ENDED, FINISHED --prepare of a later epoch--> PREPARING --> PREPARED
//   PREPARED --commit--> TRAINING --> FINISHED, or ENDED by EndEpochCommand or by the loss of a peer
//
// Rules (tests/runtime/worker/worker_control_test.cc):
//   - Commands may come twice: the second is answered like the first and changes nothing. A command of an older epoch,
//     or a commit of an epoch that is not prepared, is ignored with a line in the log.
//   - Lasting reports are numbered, kept until the coordinator has taken them (report_buffer.h), and sent again from
//     there on each new stream to an agent.
//   - Findings of the data's check are reported when they are new, once a minute from then on, and before the end of
//     the last iteration is. They are not numbered: no coordinator has to keep them, for each hears of them again.
//   - An error of training that can only follow from the loss of another rank parks the worker: its epoch ends, its
//     state stays. An error of its own ends the process, after the report.
//   - Otherwise the process ends only when it is told to, when an agent refuses it for good, or as an orphan: no
//     message of an agent and no finished iteration for orphan_grace, counted from the start of the process on. An
//     epoch may give it longer (CommitCommand): for iterations that take longer, and for the state that it keeps when
//     it is paused or has finished, as long as there is a folder in which an agent could listen. An open socket is no
//     message, for every agent beats: a stream on which nothing comes is hung up and dialed again.
//   - A gap of more than a second between two looks at the clock counts as a second: the process was stopped.
#pragma once

#include <absl/status/status.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "geopipe/v1/worker_service.pb.h"
#include "optimizer/base/splitmix64.h"
#include "runtime/worker/report_buffer.h"
#include "runtime/worker/worker_events.h"

namespace geopipe {

struct WorkerControlOptions {
  v1::WorkerId worker;
  std::string version;
  int64_t pid = 0;
  int64_t orphan_grace_ns = 30'000'000'000;
  uint64_t seed = 1;             // of the backoff's jitter
  RunStates kept;                // by an earlier process
  std::string exchange_address;  // where others fetch checkpoint files from; empty: nowhere
  size_t max_report_bytes = size_t{16} << 20;
};

class WorkerControl {
 public:
  static constexpr int64_t kHeartbeatNs = 1'000'000'000;
  // Interval at which the findings of the data's check are reported again.
  static constexpr int64_t kTellDataNs = 60'000'000'000;
  // Silence, since it was dialed or opened or since the last message, after which a stream is given up for another.
  static constexpr int64_t kAgentSilentNs = 5'000'000'000;
  static constexpr int64_t kMaxBackoffNs = 1'000'000'000;
  // Longest wait for the last reports to leave.
  static constexpr int64_t kFlushNs = 1'000'000'000;
  // Limit of reports handed to a stream and not written.
  static constexpr int32_t kMaxUnwritten = 64;

  WorkerControl(WorkerControlOptions options, int64_t now_ns);
  WorkerControl(const WorkerControl&) = delete;
  WorkerControl& operator=(const WorkerControl&) = delete;

  // Takes an event. Time never goes back. Call with WorkerTick at the latest at next_deadline_ns(), and once at the
  // start. After ExitWorker there are no effects.
  WorkerEffects Step(int64_t now_ns, WorkerEvent event);

  int64_t next_deadline_ns() const;
  v1::WorkerStatus status() const;
  const ReportBuffer& reports() const { return reports_; }

 private:
  enum class Trainer : uint8_t { kFree, kProfiles, kPrepares, kTrains, kSaves };

  void On(WorkerTick event);
  void On(const StreamOpened& event);
  void On(AgentSaid event);
  void On(const ReportWritten& event);
  void On(const StreamClosed& event);
  void On(Profiled event);
  void On(Prepared event);
  void On(const Connected& event);
  void On(IterationFinished event);
  void On(EvaluationFinished event);
  void On(TrainingReturned event);
  void On(const CheckpointTaken& event);
  void On(CheckpointWritten event);
  void On(ManifestWritten event);
  void On(ReplicaFetched event);
  void On(DataChecked event);
  void On(const ShutdownRequested& event);

  // True when the command was not taken before.
  bool TakeCommand(const v1::AttachResponse& message);
  void Handle(v1::WorkerCommand command);
  void Profile(v1::ProfileCommand command);
  void Prepare(uint64_t epoch, v1::PrepareCommand command);
  void Commit(uint64_t epoch, v1::CommitCommand command);
  void EndEpoch(uint64_t epoch, const v1::EndEpochCommand& command);
  void Checkpoint(uint64_t epoch, int64_t iteration);
  void Complete(uint64_t epoch, v1::WriteManifestCommand command);
  void Replicate(uint64_t epoch, v1::ReplicateCommand command);
  void PassOver(LogLevel level, std::string text);
  // Carries out the commands that waited for the trainer's answer.
  void HandleDeferred();
  // True while the trainer carries out an order whose answer changes what other commands find.
  bool busy() const { return trainer_ != Trainer::kFree && trainer_ != Trainer::kTrains; }

  void Report(v1::WorkerReport report) { Report(epoch_, std::move(report)); }
  void Report(uint64_t epoch, v1::WorkerReport report);
  void SaveLast();
  void ReportNoCheckpoint(uint64_t epoch, int64_t iteration, std::string error);
  void TellData();
  void ReportEnded();
  // Lists the states that the next epoch can resume from, newest first.
  void FillStates(google::protobuf::RepeatedPtrField<v1::HeldState>* states) const;
  void ReportFinished(const RankMemory& peaks);
  void Park(const absl::Status& status);
  void Fail(const absl::Status& status, const std::optional<v1::CheckpointIdentity>& unreadable = std::nullopt);
  void Stop(int code, const std::string& reason, int64_t flush_ns);

  // Time at which the stream is hung up if no message comes.
  int64_t hang_up_at_ns() const { return std::max(word_at_ns_, opened_at_ns_) + kAgentSilentNs; }
  void KeepStream();
  int64_t orphan_at_ns() const;
  void CheckOrphaned();
  void NoteAbandonment();
  void NoteOrder();
  void SendReports();
  void ExitWhenFlushed();
  v1::AttachRequest Request(v1::WorkerReport report) const;
  void Emit(WorkerEffect effect) { effects_.push_back(std::move(effect)); }
  void Log(LogLevel level, std::string text) { Emit(WorkerLog{level, std::move(text)}); }

  const WorkerControlOptions options_;
  SplitMix64 jitter_;
  WorkerEffects effects_;  // of the step under way

  // Time. All times but now_ns_ are on the lived clock, which a pause of the process hardly advances.
  int64_t now_ns_;
  int64_t lived_ns_ = 0;
  int64_t heartbeat_at_ns_ = 0;

  // The agent.
  AgentStreamId stream_ = 0;  // the latest
  bool dialed_ = false;       // it is being dialed, or open
  bool open_ = false;
  bool heard_ = false;        // a word has come on it: which process it leads to is known
  int64_t opened_at_ns_ = 0;  // until then, when it was dialed
  int64_t dial_at_ns_ = 0;
  int32_t breaks_ = 0;     // in a row
  int32_t unwritten_ = 0;  // of the stream
  int64_t word_at_ns_ = 0;
  uint64_t agent_incarnation_ = 0;
  uint64_t commands_taken_ = 0;
  ReportBuffer reports_;
  bool acknowledged_ = false;  // a report was, ever

  // The job.
  Trainer trainer_ = Trainer::kFree;
  std::deque<v1::WorkerCommand> deferred_;
  int64_t defers_since_ns_ = 0;  // the first of them
  v1::WorkerPhase phase_ = v1::WORKER_PHASE_IDLE;
  uint64_t epoch_ = 0;
  uint64_t run_incarnation_ = 0;  // that it is of
  int32_t rank_ = 0;
  int64_t next_iteration_ = 0;
  RunStates states_;    // between two epochs
  bool began_ = false;  // any iteration
  std::optional<v1::ProfileReport> profiled_;
  std::optional<v1::PreparedReport> prepared_;     // of the epoch
  bool connected_ = false;                         // in the epoch
  int64_t end_iteration_ = 0;                      // of the epoch
  int64_t epoch_grace_ns_ = 0;                     // CommitCommand
  int64_t rest_grace_ns_ = 0;                      // CommitCommand
  bool ending_ = false;                            // the epoch was ordered to end
  std::optional<int64_t> abandon_from_;            // the epoch's iterations from there on are to be abandoned
  int64_t abandons_since_ns_ = 0;                  // nothing is computed, and the iteration under way is one of these
  bool save_last_ = false;                         // the last state waits for the writer
  int64_t finished_at_ns_ = 0;                     // the last iteration
  WorkerTick tick_;                                // the latest
  std::optional<v1::DataCheckReport> data_check_;  // the latest
  int64_t tell_data_at_ns_ = 0;

  struct Exit {
    int code = 0;
    std::string reason;
    int64_t at_ns = 0;
    bool has_words = false;
  };
  std::optional<Exit> exit_;
  bool exited_ = false;
};

}  // namespace geopipe
