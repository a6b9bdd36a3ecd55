#include "runtime/worker/worker_control.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>
#include <variant>

#include "optimizer/base/trouble.h"
#include "runtime/base/backoff.h"
#include "runtime/base/utf8.h"
#include "runtime/base/version.h"

namespace geopipe {
namespace {

constexpr int64_t kMaxGapNs = 1'000'000'000;
constexpr int64_t kFirstBackoffNs = 100'000'000;

// True for a refusal that another attempt will not change.
bool Final(const absl::Status& status) {
  return absl::IsUnauthenticated(status) || absl::IsInvalidArgument(status) || absl::IsPermissionDenied(status) ||
         absl::IsFailedPrecondition(status) || absl::IsUnimplemented(status);
}

std::string Text(const absl::Status& status) { return std::string(status.message()); }

}  // namespace

WorkerControl::WorkerControl(WorkerControlOptions options, int64_t now_ns)
    : options_(std::move(options)),
      jitter_(options_.seed),
      now_ns_(now_ns),
      reports_(options_.max_report_bytes),
      states_(options_.kept) {}

WorkerEffects WorkerControl::Step(int64_t now_ns, WorkerEvent event) {
  lived_ns_ += std::clamp<int64_t>(now_ns - now_ns_, 0, kMaxGapNs);
  now_ns_ = std::max(now_ns_, now_ns);
  if (exited_) {
    return {};
  }
  std::visit([this](auto& e) { On(std::move(e)); }, event);
  CheckOrphaned();
  KeepStream();
  SendReports();
  ExitWhenFlushed();
  return std::exchange(effects_, {});
}

int64_t WorkerControl::next_deadline_ns() const {
  int64_t next_ns = dialed_ ? std::numeric_limits<int64_t>::max() : dial_at_ns_;
  next_ns = std::min({next_ns, heartbeat_at_ns_, orphan_at_ns()});
  if (exit_.has_value()) {
    next_ns = std::min(next_ns, exit_->at_ns);
  } else if (dialed_) {
    next_ns = std::min(next_ns, hang_up_at_ns());
  }
  return now_ns_ + std::max<int64_t>(0, next_ns - lived_ns_);
}

v1::WorkerStatus WorkerControl::status() const {
  v1::WorkerStatus status;
  status.set_epoch(epoch_);
  status.set_phase(phase_);
  status.set_next_iteration(next_iteration_);
  status.set_action(tick_.action);
  status.set_action_ns(tick_.action_ns);
  FillStates(status.mutable_states());
  status.set_exchange_address(options_.exchange_address);
  status.set_run_incarnation(run_incarnation_);
  return status;
}

void WorkerControl::FillStates(google::protobuf::RepeatedPtrField<v1::HeldState>* states) const {
  if (trainer_ == Trainer::kPrepares || trainer_ == Trainer::kTrains) {
    return;  // they change
  }
  std::vector<StateIdentity> all = states_.kept;
  if (states_.held.has_value() && std::ranges::find(all, *states_.held) == all.end()) {
    all.push_back(*states_.held);
  }
  std::ranges::sort(all, std::greater());
  for (const StateIdentity& each : all) {
    v1::HeldState& state = *states->Add();
    state.set_run_incarnation(states_.run_incarnation);
    state.set_iteration(each.iteration);
    state.set_epoch(each.epoch);
  }
}

// --- The agent --------------------------------------------------------------------------------------------------

v1::AttachRequest WorkerControl::Request(v1::WorkerReport report) const {
  v1::AttachRequest request;
  *request.mutable_worker() = options_.worker;
  *request.mutable_report() = std::move(report);
  request.set_commands_taken(heard_ ? commands_taken_ : 0);  // numbers of an earlier agent mean nothing to the next
  return request;
}

void WorkerControl::KeepStream() {
  if (dialed_ && !exit_.has_value() && lived_ns_ >= hang_up_at_ns()) {
    Log(LogLevel::kWarning,
        fmt::format("the agent has been silent for {} s; dialing again", kAgentSilentNs / 1'000'000'000));
    Emit(HangUp{stream_});
    dialed_ = open_ = false;
    dial_at_ns_ = lived_ns_;
  }
  if (dialed_ || lived_ns_ < dial_at_ns_) {
    return;
  }
  dialed_ = true;
  heard_ = false;
  opened_at_ns_ = lived_ns_;
  unwritten_ = 0;
  v1::WorkerReport report;
  report.set_epoch(epoch_);
  v1::WorkerHello& hello = *report.mutable_hello();
  hello.set_version(options_.version);
  hello.set_wire_version(kWireVersion);
  hello.set_pid(options_.pid);
  *hello.mutable_status() = status();
  hello.set_agent_incarnation(agent_incarnation_);
  hello.set_commands_taken(commands_taken_);
  Emit(DialAgent{++stream_, Request(std::move(report))});
}

void WorkerControl::On(const StreamOpened& event) {
  if (event.stream != stream_ || !dialed_) {
    return;
  }
  open_ = true;
  opened_at_ns_ = lived_ns_;
  reports_.Rewind();
}

void WorkerControl::On(const ReportWritten& event) {
  if (event.stream == stream_ && open_) {
    --unwritten_;
  }
}

void WorkerControl::On(const StreamClosed& event) {
  if (event.stream != stream_ || !dialed_) {
    return;
  }
  if (Final(event.status)) {
    Log(LogLevel::kError, Text(event.status));
    Stop(1, Text(event.status), 0);
    return;
  }
  if (open_) {
    Log(LogLevel::kWarning, fmt::format("the stream to the agent broke ({}); dialing again", Text(event.status)));
  }
  breaks_ = open_ && lived_ns_ - opened_at_ns_ > kMaxBackoffNs ? 1 : breaks_ + 1;
  dialed_ = open_ = false;
  dial_at_ns_ = lived_ns_ + BackoffNs(kFirstBackoffNs, kMaxBackoffNs, breaks_, jitter_);
}

void WorkerControl::On(AgentSaid event) {
  if (event.stream != stream_ || !open_) {
    return;
  }
  heard_ = true;
  word_at_ns_ = lived_ns_;
  if (event.message.reports_taken() > 0) {
    acknowledged_ = true;
    reports_.Taken(event.message.reports_taken());
  }
  if (TakeCommand(event.message) && !exit_.has_value()) {
    Handle(std::move(*event.message.mutable_command()));
  }
}

bool WorkerControl::TakeCommand(const v1::AttachResponse& message) {
  if (message.agent_incarnation() != agent_incarnation_) {
    agent_incarnation_ = message.agent_incarnation();
    commands_taken_ = 0;
  }
  if (!message.has_command()) {
    return false;
  }
  if (message.sequence() != 0) {
    if (message.sequence() <= commands_taken_) {
      return false;
    }
    commands_taken_ = message.sequence();
  }
  return true;
}

void WorkerControl::On(WorkerTick event) {
  tick_ = std::move(event);
  if (trainer_ == Trainer::kTrains) {
    next_iteration_ = std::max(next_iteration_, tick_.next_iteration);
    NoteAbandonment();
  } else if (busy() && !deferred_.empty()) {
    NoteOrder();
  }
  if (lived_ns_ < heartbeat_at_ns_) {
    return;
  }
  heartbeat_at_ns_ = lived_ns_ + kHeartbeatNs;
  if (open_ && unwritten_ < kMaxUnwritten) {
    v1::WorkerReport report;
    report.set_epoch(epoch_);
    report.mutable_heartbeat()->set_iteration(began_ ? next_iteration_ : -1);
    *report.mutable_heartbeat()->mutable_status() = status();
    ++unwritten_;
    Emit(TellAgent{stream_, Request(std::move(report))});
  }
  TellData();
  SaveLast();
}

// Tells an iteration that is to be abandoned, and is not, from one that waits for messages.
void WorkerControl::NoteAbandonment() {
  const bool abandons = abandon_from_.has_value() && next_iteration_ >= *abandon_from_;
  if (!abandons || !tick_.action.empty()) {
    abandons_since_ns_ = lived_ns_;
    return;
  }
  tick_.action = "abandonment";
  tick_.action_ns = lived_ns_ - abandons_since_ns_;
}

// Tells the order under way that others wait for, and since when they do.
void WorkerControl::NoteOrder() {
  tick_.action = trainer_ == Trainer::kPrepares ? "preparation"
                 : trainer_ == Trainer::kSaves  ? "copy of the state"
                                                : "measurement";
  tick_.action_ns = lived_ns_ - defers_since_ns_;
}

int64_t WorkerControl::orphan_at_ns() const {
  const bool rests =
      tick_.has_home && (phase_ == v1::WORKER_PHASE_FINISHED || (phase_ == v1::WORKER_PHASE_ENDED && ending_));
  return std::max(word_at_ns_, finished_at_ns_) +
         std::max({options_.orphan_grace_ns, epoch_grace_ns_, rests ? rest_grace_ns_ : 0});
}

void WorkerControl::CheckOrphaned() {
  if (exit_.has_value() || lived_ns_ < orphan_at_ns()) {
    return;
  }
  const std::string reason =
      fmt::format("no agent was heard and no iteration finished for {:.0f} s",
                  static_cast<double>(lived_ns_ - std::max(word_at_ns_, finished_at_ns_)) * 1e-9);
  Log(LogLevel::kError, reason);
  Stop(1, reason, 0);
}

void WorkerControl::Report(uint64_t epoch, v1::WorkerReport report) {
  report.set_epoch(epoch);
  reports_.Add(std::move(report));
}

void WorkerControl::SendReports() {
  while (open_ && unwritten_ < kMaxUnwritten) {
    const v1::WorkerReport* report = reports_.Next();
    if (report == nullptr) {
      return;
    }
    ++unwritten_;
    Emit(TellAgent{stream_, Request(*report)});
  }
}

// --- The end ----------------------------------------------------------------------------------------------------

void WorkerControl::On(const ShutdownRequested& event) {
  if (!exit_.has_value()) {
    Log(LogLevel::kInfo, fmt::format("stopping: {}", event.reason));
    Stop(0, event.reason, kFlushNs);
  }
}

void WorkerControl::Fail(const absl::Status& status, const std::optional<v1::CheckpointIdentity>& unreadable) {
  if (exit_.has_value()) {
    return;  // an error while it is being stopped is no failure
  }
  Log(LogLevel::kError, Text(status));
  v1::WorkerReport report;
  report.mutable_failure()->set_code(static_cast<int>(status.code()));
  report.mutable_failure()->set_message(ToUtf8(Text(status)));
  report.mutable_failure()->set_of_node(IsOfNode(status));
  if (unreadable.has_value()) {
    *report.mutable_failure()->mutable_unreadable() = *unreadable;
  }
  Report(std::move(report));
  Stop(1, Text(status), kFlushNs);
}

void WorkerControl::Stop(int code, const std::string& reason, int64_t flush_ns) {
  if (!exit_.has_value()) {
    exit_ = Exit{.code = code, .reason = reason, .at_ns = lived_ns_ + flush_ns, .has_words = flush_ns > 0};
    deferred_.clear();
    Emit(InterruptTrainer{});
  }
}

void WorkerControl::ExitWhenFlushed() {
  if (!exit_.has_value()) {
    return;
  }
  const bool written = open_ && unwritten_ == 0 && reports_.all_handed_out();
  // Where the coordinator acknowledges reports, it must have the last ones before the process that keeps them ends.
  const bool flushed = written && (!acknowledged_ || reports_.empty());
  if (flushed || lived_ns_ >= exit_->at_ns) {
    exited_ = true;
    Emit(ExitWorker{exit_->code, exit_->reason, exit_->has_words && open_});
  }
}

}  // namespace geopipe
