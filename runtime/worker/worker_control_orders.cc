// Carries out a worker's orders and reports on them.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "optimizer/base/trouble.h"
#include "proto/wire/telemetry_wire.h"
#include "runtime/base/utf8.h"
#include "runtime/worker/worker_control.h"

namespace geopipe {
namespace {

constexpr size_t kMaxDeferred = 16;
constexpr int kExitStateKept = 3;  // any but 0, with which a worker's memory is dropped

// True when the error can only follow from the loss of another rank, or of the link to it.
bool IsConsequence(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsAborted(status) ||
         absl::IsCancelled(status);
}

}  // namespace

void WorkerControl::PassOver(LogLevel level, std::string text) {
  Log(level, fmt::format("passed over: {}", std::move(text)));
}

void WorkerControl::Handle(v1::WorkerCommand command) {
  if (command.has_stop()) {
    Log(LogLevel::kInfo, fmt::format("stopping: {}", command.stop().reason()));
    Stop(command.stop().keeps_state() ? kExitStateKept : 0, command.stop().reason(), kFlushNs);
    return;
  }
  if (busy()) {
    if (deferred_.size() >= kMaxDeferred) {
      Fail(absl::InternalError("more commands than this worker can have under way"));
      return;
    }
    if (deferred_.empty()) {
      defers_since_ns_ = lived_ns_;
    }
    deferred_.push_back(std::move(command));
    return;
  }
  switch (command.command_case()) {
    case v1::WorkerCommand::kProfile:
      Profile(std::move(*command.mutable_profile()));
      break;
    case v1::WorkerCommand::kPrepare:
      Prepare(command.epoch(), std::move(*command.mutable_prepare()));
      break;
    case v1::WorkerCommand::kCommit:
      Commit(command.epoch(), std::move(*command.mutable_commit()));
      break;
    case v1::WorkerCommand::kEndEpoch:
      EndEpoch(command.epoch(), command.end_epoch());
      break;
    case v1::WorkerCommand::kCheckpoint:
      Checkpoint(command.epoch(), command.checkpoint().iteration());
      break;
    case v1::WorkerCommand::kWriteManifest:
      Complete(command.epoch(), std::move(*command.mutable_write_manifest()));
      break;
    case v1::WorkerCommand::kReplicate:
      Replicate(command.epoch(), std::move(*command.mutable_replicate()));
      break;
    default:
      Fail(absl::InvalidArgumentError("a command of a kind that this version does not know"));
      break;
  }
}

void WorkerControl::HandleDeferred() {
  while (!deferred_.empty() && !busy() && !exit_.has_value()) {
    v1::WorkerCommand command = std::move(deferred_.front());
    deferred_.pop_front();
    defers_since_ns_ = lived_ns_;  // the others wait for this one from here on
    Handle(std::move(command));
  }
}

void WorkerControl::Profile(v1::ProfileCommand command) {
  if (phase_ != v1::WORKER_PHASE_IDLE) {
    PassOver(LogLevel::kWarning, fmt::format("profile round {}, for epoch {} is prepared", command.round(), epoch_));
    return;
  }
  if (profiled_.has_value() && profiled_->round() == command.round()) {
    v1::WorkerReport report;
    *report.mutable_profile() = *profiled_;
    Report(std::move(report));
    return;
  }
  trainer_ = Trainer::kProfiles;
  phase_ = v1::WORKER_PHASE_PROFILING;
  Emit(RunProfile{std::move(command)});
}

void WorkerControl::On(Profiled event) {
  trainer_ = Trainer::kFree;
  phase_ = v1::WORKER_PHASE_IDLE;
  if (!event.report.ok()) {
    Fail(event.report.status());
    return;
  }
  profiled_ = *event.report;
  v1::WorkerReport report;
  *report.mutable_profile() = *std::move(event.report);
  Report(std::move(report));
  HandleDeferred();
}

void WorkerControl::Prepare(uint64_t epoch, v1::PrepareCommand command) {
  if (epoch < epoch_) {
    PassOver(LogLevel::kInfo, fmt::format("prepare of epoch {}; this worker is in epoch {}", epoch, epoch_));
    return;
  }
  if (epoch == epoch_ && prepared_.has_value()) {
    v1::WorkerReport report;
    *report.mutable_prepared() = *prepared_;
    Report(std::move(report));
    return;
  }
  if (phase_ == v1::WORKER_PHASE_TRAINING) {
    PassOver(LogLevel::kWarning, fmt::format("prepare of epoch {}, for epoch {} has not ended", epoch, epoch_));
    return;
  }
  trainer_ = Trainer::kPrepares;
  phase_ = v1::WORKER_PHASE_PREPARING;
  epoch_ = epoch;
  run_incarnation_ = command.run_incarnation();
  rank_ = command.rank();
  next_iteration_ = command.first_iteration();  // earlier iterations are no progress of this epoch
  prepared_.reset();
  connected_ = ending_ = false;
  abandon_from_.reset();
  save_last_ = false;
  epoch_grace_ns_ = rest_grace_ns_ = 0;
  Emit(EnterEpoch{epoch});
  Emit(RunPrepare{epoch, std::move(command)});
}

void WorkerControl::On(geopipe::Prepared event) {
  if (event.epoch != epoch_) {
    return;
  }
  trainer_ = Trainer::kFree;
  if (!event.report.ok()) {
    Fail(event.report.status(), event.unreadable);
    return;
  }
  phase_ = v1::WORKER_PHASE_PREPARED;
  states_ = std::move(event.states);
  if (states_.held.has_value()) {  // else it is given the state that the command names
    next_iteration_ = states_.held->iteration;
  }
  prepared_ = *std::move(event.report);
  v1::WorkerReport report;
  *report.mutable_prepared() = *prepared_;
  Report(std::move(report));
  HandleDeferred();
}

void WorkerControl::Commit(uint64_t epoch, v1::CommitCommand command) {
  if (epoch == epoch_ && connected_) {
    v1::WorkerReport report;
    report.mutable_committed()->set_rank(rank_);
    Report(std::move(report));
    return;
  }
  if (epoch == epoch_ && phase_ == v1::WORKER_PHASE_TRAINING) {
    return;  // it will be answered
  }
  if (epoch != epoch_ || phase_ != v1::WORKER_PHASE_PREPARED) {
    PassOver(epoch < epoch_ ? LogLevel::kInfo : LogLevel::kWarning,
             fmt::format("commit of epoch {}, which is not prepared", epoch));
    return;
  }
  trainer_ = Trainer::kTrains;
  phase_ = v1::WORKER_PHASE_TRAINING;
  end_iteration_ = command.end_iteration();
  epoch_grace_ns_ = command.orphan_grace_ns();
  rest_grace_ns_ = command.rest_grace_ns();
  Emit(RunCommit{epoch, std::move(command)});
}

void WorkerControl::On(const Connected& event) {
  if (event.epoch != epoch_ || phase_ != v1::WORKER_PHASE_TRAINING) {
    return;
  }
  connected_ = began_ = true;
  v1::WorkerReport report;
  report.mutable_committed()->set_rank(rank_);
  Report(std::move(report));
}

void WorkerControl::On(IterationFinished event) {
  if (event.epoch != epoch_) {
    return;
  }
  finished_at_ns_ = lived_ns_;
  next_iteration_ = std::max(next_iteration_, event.report.iteration() + 1);
  v1::WorkerReport report;
  *report.mutable_iteration() = std::move(event.report);
  Report(std::move(report));
}

void WorkerControl::On(EvaluationFinished event) {
  if (event.epoch != epoch_) {
    return;
  }
  finished_at_ns_ = lived_ns_;
  v1::WorkerReport report;
  *report.mutable_evaluation() = std::move(event.report);
  Report(std::move(report));
}

void WorkerControl::EndEpoch(uint64_t epoch, const v1::EndEpochCommand& command) {
  if (epoch != epoch_ || epoch_ == 0) {
    PassOver(epoch < epoch_ ? LogLevel::kInfo : LogLevel::kWarning,
             fmt::format("end of epoch {}; this worker is in epoch {}", epoch, epoch_));
    return;
  }
  if (phase_ != v1::WORKER_PHASE_TRAINING) {
    if (phase_ == v1::WORKER_PHASE_PREPARED) {
      phase_ = v1::WORKER_PHASE_ENDED;
    }
    ReportEnded();
    return;
  }
  if (!ending_) {
    Log(LogLevel::kInfo, fmt::format("ending epoch {}", epoch));
  }
  ending_ = true;
  if (command.has_next_iteration() && !abandon_from_.has_value()) {
    abandons_since_ns_ = lived_ns_;
  }
  abandon_from_ = command.has_next_iteration() ? std::optional(command.next_iteration()) : std::nullopt;
  Emit(EndTraining{abandon_from_});
}

void WorkerControl::On(TrainingReturned event) {
  if (event.epoch != epoch_ || phase_ != v1::WORKER_PHASE_TRAINING) {
    return;
  }
  trainer_ = Trainer::kFree;
  states_ = std::move(event.states);
  if (states_.held.has_value()) {
    next_iteration_ = states_.held->iteration;
  }
  if (exit_.has_value()) {
    return;
  }
  const bool own = !event.status.ok() && !IsConsequence(event.status);
  if (own) {
    Fail(event.status);
    return;
  }
  if (event.status.ok() && next_iteration_ >= end_iteration_) {
    phase_ = v1::WORKER_PHASE_FINISHED;
    tell_data_at_ns_ = lived_ns_;
    TellData();
    ReportFinished(event.peaks);
  } else {
    phase_ = v1::WORKER_PHASE_ENDED;
    if (!ending_) {
      Park(event.status);
    }
  }
  if (ending_) {
    ReportEnded();
  }
  for (const int64_t iteration : event.unmet_requests) {
    Checkpoint(epoch_, iteration);
  }
  SaveLast();
}

// --- Checkpoints ------------------------------------------------------------------------------------------------

void WorkerControl::Checkpoint(uint64_t epoch, int64_t iteration) {
  if (epoch != epoch_) {
    PassOver(LogLevel::kInfo, fmt::format("checkpoint in epoch {}; this worker is in epoch {}", epoch, epoch_));
    return;
  }
  const bool rests = phase_ == v1::WORKER_PHASE_ENDED || phase_ == v1::WORKER_PHASE_FINISHED;
  if (phase_ == v1::WORKER_PHASE_TRAINING) {
    Emit(RequestCheckpoint{iteration});
  } else if (rests && next_iteration_ == iteration) {
    if (std::exchange(trainer_, Trainer::kSaves) != Trainer::kSaves) {  // else this state is being saved
      Emit(RunCheckpoint{epoch, iteration});
    }
  } else {
    ReportNoCheckpoint(
        epoch, iteration,
        fmt::format("rank {} holds the state before iteration {}, not {}", rank_, next_iteration_, iteration));
  }
}

void WorkerControl::Complete(uint64_t epoch, v1::WriteManifestCommand command) {
  if (epoch > epoch_ || !prepared_.has_value()) {
    PassOver(LogLevel::kWarning,
             fmt::format("manifest of iteration {} of epoch {}, which is not prepared", command.iteration(), epoch));
    return;
  }
  Emit(CompleteCheckpoint{epoch, std::move(command)});
}

void WorkerControl::On(const CheckpointTaken& event) {
  if (trainer_ == Trainer::kSaves) {
    trainer_ = Trainer::kFree;
  }
  // No later iteration saves the last state: it is tried again when the writer is free, or at the next heartbeat.
  save_last_ = absl::IsUnavailable(event.status) && event.iteration == end_iteration_;
  if (!event.status.ok() && !save_last_) {
    ReportNoCheckpoint(event.epoch, event.iteration, std::string(event.status.message()));
  }
  HandleDeferred();
}

void WorkerControl::On(CheckpointWritten event) {
  if (!event.report.error().empty()) {
    Log(LogLevel::kWarning,
        fmt::format("no checkpoint of iteration {}: {}", event.report.iteration(), event.report.error()));
  }
  v1::WorkerReport report;
  *report.mutable_checkpoint() = std::move(event.report);
  Report(event.epoch, std::move(report));
  SaveLast();
}

void WorkerControl::SaveLast() {
  if (save_last_ && trainer_ == Trainer::kFree) {
    save_last_ = false;
    Checkpoint(epoch_, end_iteration_);
  }
}

void WorkerControl::On(ManifestWritten event) {
  v1::WorkerReport report;
  *report.mutable_manifest() = std::move(event.report);
  Report(event.epoch, std::move(report));
}

void WorkerControl::Replicate(uint64_t epoch, v1::ReplicateCommand command) {
  if (epoch != epoch_ || !prepared_.has_value()) {
    PassOver(LogLevel::kInfo, fmt::format("replica of iteration {} in epoch {}; this worker is in epoch {}",
                                          command.iteration(), epoch, epoch_));
    return;
  }
  Emit(FetchReplica{epoch, std::move(command)});
}

void WorkerControl::On(ReplicaFetched event) {
  if (!event.report.error().empty()) {
    Log(LogLevel::kWarning,
        fmt::format("no replica of iteration {}: {}", event.report.iteration(), event.report.error()));
  }
  v1::WorkerReport report;
  *report.mutable_replica() = std::move(event.report);
  Report(event.epoch, std::move(report));
}

void WorkerControl::ReportNoCheckpoint(uint64_t epoch, int64_t iteration, std::string error) {
  CheckpointWritten written{.epoch = epoch, .report = {}};
  written.report.set_rank(rank_);
  written.report.set_iteration(iteration);
  written.report.set_error(ToUtf8(error));
  On(std::move(written));
}

void WorkerControl::On(DataChecked event) {
  if (!event.report.ok()) {
    Fail(event.report.status());
    return;
  }
  data_check_ = *std::move(event.report);
  tell_data_at_ns_ = lived_ns_;
  TellData();
}

void WorkerControl::TellData() {
  if (!data_check_.has_value() || lived_ns_ < tell_data_at_ns_ || !open_ || unwritten_ >= kMaxUnwritten) {
    return;
  }
  tell_data_at_ns_ = lived_ns_ + kTellDataNs;
  v1::WorkerReport report;
  report.set_epoch(epoch_);
  *report.mutable_data_check() = *data_check_;
  ++unwritten_;
  Emit(TellAgent{stream_, Request(std::move(report))});
}

void WorkerControl::ReportEnded() {
  Log(LogLevel::kInfo, fmt::format("epoch {} has ended before iteration {}", epoch_, next_iteration_));
  v1::WorkerReport report;
  report.mutable_ended()->set_rank(rank_);
  report.mutable_ended()->set_next_iteration(next_iteration_);
  FillStates(report.mutable_ended()->mutable_states());
  Report(std::move(report));
}

void WorkerControl::ReportFinished(const RankMemory& peaks) {
  Log(LogLevel::kInfo, fmt::format("finished {} iterations", next_iteration_));
  v1::WorkerReport report;
  v1::FinishedReport& finished = *report.mutable_finished();
  finished.set_rank(rank_);
  finished.set_iterations(next_iteration_);
  *finished.mutable_peaks() = ToProto(peaks);
  FillStates(finished.mutable_states());
  Report(std::move(report));
}

void WorkerControl::Park(const absl::Status& status) {
  Log(LogLevel::kWarning, fmt::format("epoch {} cannot go on ({}); the state before iteration {} is kept", epoch_,
                                      std::string(status.message()), next_iteration_));
  v1::WorkerReport report;
  v1::FailureReport& failure = *report.mutable_failure();
  failure.set_code(static_cast<int>(status.code()));
  failure.set_message(ToUtf8(std::string(status.message())));
  failure.set_of_node(IsOfNode(status));
  failure.set_parked(true);
  failure.set_next_iteration(next_iteration_);
  FillStates(failure.mutable_states());
  Report(std::move(report));
}

}  // namespace geopipe
