#include "runtime/worker/worker_core.h"

#include <fmt/format.h>

#include <chrono>
#include <limits>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "optimizer/model/capabilities.h"
#include "proto/manifest/job_manifest.h"
#include "proto/wire/telemetry_wire.h"
#include "runtime/backend/backend.h"
#include "runtime/base/log.h"
#include "runtime/base/thread_name.h"
#include "runtime/base/utf8.h"
#include "runtime/model/stage_profiler.h"
#include "runtime/worker/transport_profiler.h"

namespace geopipe {
namespace {

// A coordinator sends the next command when the last one was answered.
constexpr size_t kCommandCapacity = 4;
constexpr std::chrono::hours kLongWait{1};

}  // namespace

WorkerCore::WorkerCore(WorkerIdentity identity, Clock& clock, Hooks hooks)
    : identity_(std::move(identity)),
      clock_(clock),
      hooks_(std::move(hooks)),
      commands_(kCommandCapacity),
      thread_([this] { Run(); }) {}

WorkerCore::~WorkerCore() {
  Stop("the worker ends");
  thread_.join();
}

void WorkerCore::Handle(v1::WorkerCommand command) {
  if (command.has_stop()) {
    Stop(command.stop().reason());
  } else if (!commands_.TryPush(command) && !commands_.closed()) {
    Fail(absl::FailedPreconditionError("more commands than this worker can have under way"));
  }
}

void WorkerCore::Stop(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) {
      return;
    }
    stopping_ = true;
    if (job_ != nullptr) {
      job_->Interrupt();
    }
  }
  LogInfo("stopping: {}", reason);
  commands_.Close();
  hooks_.on_over();
}

bool WorkerCore::WaitEnded(int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  return ended_condition_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [this] { return ended_; });
}

absl::Status WorkerCore::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::optional<RankUsage> WorkerCore::usage() const {
  const std::lock_guard lock(mutex_);
  return job_ == nullptr ? std::nullopt : std::optional(job_->usage());
}

void WorkerCore::Run() {
  NameThisThread("executor");
  while (!commands_.closed()) {
    const std::optional<v1::WorkerCommand> command = commands_.Pop(kLongWait);
    if (command.has_value() && !commands_.closed()) {
      const absl::Status status = Execute(*command);
      if (!status.ok()) {
        Fail(status);
      }
    }
  }
  const std::lock_guard lock(mutex_);
  ended_ = true;
  ended_condition_.notify_all();
}

absl::Status WorkerCore::Execute(const v1::WorkerCommand& command) {
  switch (command.command_case()) {
    case v1::WorkerCommand::kProfile:
      return Profile(command.profile());
    case v1::WorkerCommand::kPrepare:
      return Prepare(command.epoch(), command.prepare());
    case v1::WorkerCommand::kCommit:
      return Commit(command.commit());
    default:
      return absl::InvalidArgumentError("a command of a kind that this version does not know");
  }
}

absl::Status WorkerCore::Profile(const v1::ProfileCommand& command) {
  v1::WorkerReport report;
  report.mutable_profile()->set_round(command.round());
  if (command.message_bytes() > 0) {
    LogInfo("profiling messages of {} bytes", command.message_bytes());
    GP_ASSIGN_OR_RETURN(MessageCost cost, ProfileTransport(command.message_bytes(), hooks_.open_transport, clock_));
    cost.site = identity_.site;
    cost.node = identity_.node;
    cost.device = identity_.device;
    *report.mutable_profile()->mutable_message() = ToProto(cost);
  }
  if (!command.skip_compute()) {
    GP_ASSIGN_OR_RETURN(const ProfileEntry entry, ProfileCompute(command));
    *report.mutable_profile()->mutable_entry() = ToProto(entry);
  }
  Report(std::move(report));
  return absl::OkStatus();
}

absl::StatusOr<ProfileEntry> WorkerCore::ProfileCompute(const v1::ProfileCommand& command) {
  GP_ASSIGN_OR_RETURN(const JobSpec job, ParseManifest(command.manifest()));
  LogInfo("profiling micro-batch size {}, sequence length {}", command.micro_batch_size(), command.sequence_length());
  constexpr BackendKind kBackend = BackendKind::kCpu;  // the only one that computes so far
  GP_RETURN_IF_ERROR(CheckCapabilities(job, kBackend));
  GP_ASSIGN_OR_RETURN(const int threads, ThreadsFromEnvironment());
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, OpenDevice(kBackend));
  Allocator allocator(
      command.memory_limit_bytes() > 0 ? command.memory_limit_bytes() : std::numeric_limits<int64_t>::max() / 2,
      *device);
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, OpenBackend(kBackend, threads, allocator));
  StageProfilerOptions options;
  options.model = job.model;
  options.micro_batch_size = command.micro_batch_size();
  options.sequence_length = command.sequence_length();
  GP_ASSIGN_OR_RETURN(const StageProfile profile, ProfileStage(options, allocator, *backend, clock_));
  return ProfileEntry{.site = identity_.site,
                      .node = identity_.node,
                      .device = identity_.device,
                      .micro_batch_size = command.micro_batch_size(),
                      .sequence_length = command.sequence_length(),
                      .embedding = profile.embedding,
                      .block = profile.block,
                      .head = profile.head,
                      .adamw_ns_per_million_parameters = profile.adamw_ns_per_million_parameters};
}

absl::Status WorkerCore::Prepare(uint64_t epoch, const v1::PrepareCommand& command) {
  if (committed_) {
    return absl::FailedPreconditionError(
        fmt::format("told to prepare epoch {} while epoch {} runs", epoch, epoch_.load()));
  }
  GP_ASSIGN_OR_RETURN(RankPreparation preparation, DecodePreparation(epoch, command));
  epoch_ = epoch;
  if (hooks_.on_epoch) {
    hooks_.on_epoch(epoch);
  }
  GP_RETURN_IF_ERROR(SetJob(nullptr));
  GP_ASSIGN_OR_RETURN(std::unique_ptr<RankJob> job,
                      RankJob::Prepare(std::move(preparation), clock_, hooks_.open_transport, hooks_.extend_job));
  v1::WorkerReport report;
  report.mutable_prepared()->set_rank(job->rank());
  report.mutable_prepared()->set_address(job->address());
  report.mutable_prepared()->set_threads(job->threads());
  report.mutable_prepared()->set_data_bytes(job->fingerprint().bytes);
  report.mutable_prepared()->set_data_checksum(job->fingerprint().checksum);
  LogInfo("prepared rank {} of epoch {}: {} bytes of memory in use", job->rank(), epoch,
          job->allocator().total().bytes);
  GP_RETURN_IF_ERROR(SetJob(std::move(job)));
  Report(std::move(report));
  return absl::OkStatus();
}

absl::Status WorkerCore::Commit(const v1::CommitCommand& command) {
  if (job_ == nullptr || committed_) {
    return absl::FailedPreconditionError("told to commit, but there is nothing prepared; prepare comes first");
  }
  committed_ = true;
  actions_every_ = command.actions_every();
  std::vector<UcxPeer> peers;
  for (const v1::Peer& peer : command.peers()) {
    peers.push_back({peer.rank(), peer.address()});
  }
  GP_RETURN_IF_ERROR(job_->Connect(peers, command.secret()));
  v1::WorkerReport report;
  report.mutable_committed()->set_rank(job_->rank());
  Report(std::move(report));
  LogInfo("training iterations {} to {}", command.start_iteration(), command.end_iteration() - 1);
  GP_RETURN_IF_ERROR(job_->Train(
      command.start_iteration(), command.end_iteration(), [this](int64_t iteration) { iteration_ = iteration; },
      [this](const IterationStats& stats) { ReportIteration(stats); }));
  ReportFinished(command.end_iteration() - command.start_iteration());
  return absl::OkStatus();
}

void WorkerCore::Report(v1::WorkerReport report) {
  report.set_epoch(epoch_);
  hooks_.report(std::move(report));
}

void WorkerCore::ReportIteration(const IterationStats& stats) {
  if (hooks_.on_iteration) {
    hooks_.on_iteration(job_->rank(), stats);
  }
  v1::WorkerReport report;
  v1::IterationReport& iteration = *report.mutable_iteration();
  iteration.set_iteration(stats.iteration);
  iteration.set_rank(job_->rank());
  if (stats.loss.has_value()) {
    iteration.set_loss(*stats.loss);
  }
  if (stats.grad_norm.has_value()) {
    iteration.set_grad_norm(*stats.grad_norm);
  }
  iteration.set_duration_ns(stats.duration_ns);
  iteration.set_busy_ns(stats.busy_ns);
  iteration.set_peak_bytes(job_->allocator().total().peak_bytes);
  iteration.set_begin_ns(stats.begin_ns);
  if (actions_every_ > 0 && stats.iteration % actions_every_ == 0) {
    for (const ActionRecord& record : stats.actions) {
      v1::ActionTiming& action = *iteration.add_actions();
      action.set_action(ToString(record.action));
      action.set_start_ns(record.start_ns);
      action.set_end_ns(record.end_ns);
    }
    for (const auto& [rank, clock] : job_->peer_clocks()) {
      v1::PeerClock& peer = *iteration.add_clocks();
      peer.set_rank(rank);
      peer.set_offset_ns(clock.offset_ns);
      peer.set_round_trip_ns(clock.round_trip_ns);
    }
  }
  Report(std::move(report));
}

void WorkerCore::ReportFinished(int64_t iterations) {
  v1::WorkerReport report;
  v1::FinishedReport& finished = *report.mutable_finished();
  finished.set_rank(job_->rank());
  finished.set_iterations(iterations);
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    const Allocator::Usage usage = job_->allocator().usage(category);
    v1::MemoryUsage& memory = *finished.add_memory();
    memory.set_category(std::string(MemoryCategoryName(category)));
    memory.set_bytes(usage.bytes);
    memory.set_peak_bytes(usage.peak_bytes);
  }
  Report(std::move(report));
  LogInfo("finished {} iterations", iterations);
}

void WorkerCore::Fail(const absl::Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) {
      return;  // what breaks while it is being stopped is no failure
    }
    stopping_ = true;
    failure_ = status;
    if (job_ != nullptr) {
      job_->Interrupt();
    }
  }
  LogError("{}", std::string(status.message()));
  v1::WorkerReport report;
  report.mutable_failure()->set_code(static_cast<int>(status.code()));
  report.mutable_failure()->set_message(ToUtf8(std::string(status.message())));
  Report(std::move(report));
  commands_.Close();
  hooks_.on_over();
}

absl::Status WorkerCore::SetJob(std::unique_ptr<RankJob> job) {
  std::unique_ptr<RankJob> old;  // goes after the lock
  const std::lock_guard lock(mutex_);
  old = std::exchange(job_, std::move(job));
  return stopping_ ? absl::CancelledError("stopped") : absl::OkStatus();
}

}  // namespace geopipe
