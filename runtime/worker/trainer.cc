#include "runtime/worker/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>
#include <vector>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/capabilities.h"
#include "proto/wire/schedule_wire.h"
#include "proto/wire/telemetry_wire.h"
#include "runtime/backend/backend.h"
#include "runtime/base/log.h"
#include "runtime/base/thread_name.h"
#include "runtime/base/utf8.h"
#include "runtime/checkpoint/checkpoint_root.h"
#include "runtime/compute/open.h"
#include "runtime/manifest/job_manifest.h"
#include "runtime/model/stage_profiler.h"
#include "runtime/worker/supplied_state.h"
#include "runtime/worker/transport_profiler.h"

namespace geopipe {
namespace {

constexpr std::chrono::hours kLongWait{1};

v1::DeviceVersions MessageOf(const DeviceVersions& versions) {
  v1::DeviceVersions message;
  message.set_name(versions.name);
  message.set_architecture(versions.architecture);
  message.set_multiprocessors(versions.multiprocessors);
  message.set_driver(versions.driver);
  message.set_runtime(versions.runtime);
  message.set_cublas_lt(versions.cublas_lt);
  message.set_kernels(versions.kernels);
  return message;
}

}  // namespace

Trainer::Trainer(WorkerIdentity identity, Clock& clock, Hooks hooks, std::unique_ptr<KeptStates> kept)
    : identity_(std::move(identity)),
      clock_(clock),
      hooks_(std::move(hooks)),
      orders_(1),
      kept_(std::move(kept)),
      writer_(clock, [this](WorkerEvent event) { hooks_.post(std::move(event)); }),
      replicator_(clock, [this](WorkerEvent event) { hooks_.post(std::move(event)); }),
      thread_([this] { Loop(); }) {}

Trainer::~Trainer() {
  Interrupt();
  thread_.join();
}

void Trainer::Run(Order order) {
  const bool taken = orders_.TryPush(order);
  GP_CHECK(taken || orders_.closed(), "an order before the last one was answered");
}

void Trainer::End(std::optional<int64_t> abandon_from) {
  const std::lock_guard lock(mutex_);
  if (job_ != nullptr) {
    job_->End(abandon_from);
  }
}

void Trainer::Interrupt() {
  stop_.Set();
  replicator_.Stop();
  {
    const std::lock_guard lock(mutex_);
    interrupted_ = true;
    if (job_ != nullptr) {
      job_->Interrupt();
    }
  }
  orders_.Close();
}

bool Trainer::WaitEnded(int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  return ended_condition_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [this] { return ended_; });
}

WorkerTick Trainer::Progress() const {
  const std::lock_guard lock(mutex_);
  WorkerTick tick;
  if (job_ != nullptr) {
    tick.next_iteration = job_->next_iteration();
    if (const std::optional<ActionWatch::UnderWay> action = job_->action(); action.has_value()) {
      tick.action = ToString(action->action);
      tick.action_ns = std::max<int64_t>(0, clock_.NowNs() - action->since_ns);
    }
  }
  return tick;
}

std::optional<RankUsage> Trainer::usage() const {
  const std::lock_guard lock(mutex_);
  return job_ == nullptr ? std::nullopt : std::optional(job_->usage());
}

absl::Status Trainer::SetJob(std::unique_ptr<RankJob> job) {
  std::unique_ptr<RankJob> old;  // goes after the lock
  const std::lock_guard lock(mutex_);
  old = std::exchange(job_, std::move(job));
  return interrupted_ ? absl::CancelledError("stopped") : absl::OkStatus();
}

void Trainer::Loop() {
  NameThisThread("executor");
  while (!orders_.closed()) {
    std::optional<Order> order = orders_.Pop(kLongWait);
    if (!order.has_value() || orders_.closed()) {
      continue;
    }
    if (const auto* profile = std::get_if<RunProfile>(&*order)) {
      hooks_.post(Profiled{Profile(profile->command)});
    } else if (const auto* prepare = std::get_if<RunPrepare>(&*order)) {
      Prepared prepared{.epoch = prepare->epoch, .report = Prepare(prepare->epoch, prepare->command), .states = {}};
      prepared.states = States();
      if (IsUnreadable(prepared.report.status())) {
        prepared.unreadable = prepare->command.from_checkpoint();
      }
      hooks_.post(std::move(prepared));
    } else if (const auto* checkpoint = std::get_if<RunCheckpoint>(&*order)) {
      Save(checkpoint->epoch, checkpoint->iteration);
    } else {
      const auto& commit = std::get<RunCommit>(*order);
      TrainingReturned returned;
      returned.epoch = commit.epoch;
      returned.status = job_->CauseOf(Commit(commit.epoch, commit.command));
      returned.states = States();
      returned.peaks = job_->memory_peaks();
      hooks_.post(std::move(returned));
    }
  }
  const std::lock_guard lock(mutex_);
  ended_ = true;
  ended_condition_.notify_all();
}

absl::StatusOr<v1::ProfileReport> Trainer::Profile(const v1::ProfileCommand& command) {
  v1::ProfileReport report;
  report.set_round(command.round());
  if (command.message_bytes() > 0) {
    LogInfo("profiling messages of {} bytes", command.message_bytes());
    GP_ASSIGN_OR_RETURN(MessageCost cost, ProfileTransport(command.message_bytes(), hooks_.open_profile, clock_));
    cost.site = identity_.site;
    cost.node = identity_.node;
    cost.device = identity_.device;
    *report.mutable_message() = ToProto(cost);
  }
  if (!command.skip_compute()) {
    GP_ASSIGN_OR_RETURN(const ProfileEntry entry, ProfileCompute(command));
    *report.mutable_entry() = ToProto(entry);
  }
  if (!command.checkpoint_path().empty()) {
    GP_ASSIGN_OR_RETURN(
        const std::vector<v1::CheckpointIdentity> found,
        CheckpointWriter::Find(command.checkpoint_path(), {.id = command.checkpoint_mark().id(),
                                                           .expected = command.checkpoint_mark().expected()}));
    report.mutable_checkpoints()->Assign(found.begin(), found.end());
  }
  return report;
}

absl::StatusOr<ProfileEntry> Trainer::ProfileCompute(const v1::ProfileCommand& command) {
  GP_ASSIGN_OR_RETURN(const JobSpec job, ParseManifest(command.manifest()));
  LogInfo("profiling micro-batch size {}, sequence length {}", command.micro_batch_size(), command.sequence_length());
  GP_ASSIGN_OR_RETURN(const BackendKind kind, FromProto(command.backend()));
  GP_RETURN_IF_ERROR(CheckCapabilities(job, kind));
  GP_ASSIGN_OR_RETURN(const int threads, ThreadsFromEnvironment());
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, OpenDevice(kind, hooks_.gpu_library));
  Allocator allocator(
      command.memory_limit_bytes() > 0 ? command.memory_limit_bytes() : std::numeric_limits<int64_t>::max() / 2,
      *device);
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, OpenBackend(kind, threads, allocator));
  StageProfilerOptions options;
  options.model = job.model;
  options.micro_batch_size = command.micro_batch_size();
  options.sequence_length = command.sequence_length();
  options.precision = job.precision;
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

absl::StatusOr<v1::PreparedReport> Trainer::Prepare(uint64_t epoch, const v1::PrepareCommand& command) {
  GP_ASSIGN_OR_RETURN(RankPreparation preparation, DecodePreparation(epoch, command));
  preparation.gpu_library = hooks_.gpu_library;
  const bool from_own = preparation.from_checkpoint.has_value() &&
                        static_cast<uint64_t>(preparation.from_checkpoint->incarnation) == preparation.run_incarnation;
  const uint64_t known_epoch = std::max(
      preparation.epoch - 1, from_own ? static_cast<uint64_t>(preparation.from_checkpoint->epoch) : uint64_t{0});
  GP_RETURN_IF_ERROR(
      CheckpointWriter::CheckNoneLater(preparation.job.checkpoint.path, preparation.run_incarnation, known_epoch));
  absl::Status marked;
  if (const std::string& path = preparation.job.checkpoint.path; !path.empty()) {
    marked = MarkCheckpointRoot(path, preparation.checkpoint_mark);
  }
  JoinExchange(preparation);  // first: others may wait for files of this node before they are prepared
  if (job_ != nullptr && job_->Serves(preparation) && job_->holds_state() && job_->state() == preparation.state()) {
    GP_RETURN_IF_ERROR(job_->NextEpoch(std::move(preparation), hooks_.open_transport));
  } else {
    GP_RETURN_IF_ERROR(Build(std::move(preparation)));
  }
  v1::PreparedReport report;
  report.set_rank(job_->rank());
  report.set_address(job_->address());
  report.set_threads(job_->threads());
  report.set_instructions(std::string(job_->instructions()));
  if (const std::optional<DeviceVersions> versions = job_->versions(); versions.has_value()) {
    *report.mutable_device() = MessageOf(*versions);
  }
  report.set_data_bytes(job_->fingerprint().bytes);
  report.set_data_checksum(job_->fingerprint().checksum);
  report.set_validation_bytes(job_->validation_fingerprint().bytes);
  report.set_validation_checksum(job_->validation_fingerprint().checksum);
  if (!marked.ok()) {  // training needs no checkpoint to go on
    LogWarning("no checkpoint is written here: {}", std::string(marked.message()));
    report.set_checkpoint_trouble(ToUtf8(std::string(marked.message())));
  }
  LogInfo("prepared rank {} of epoch {} from iteration {}: {} bytes of memory in use", job_->rank(), epoch,
          job_->next_iteration(), job_->allocator().total().bytes);
  return report;
}

void Trainer::JoinExchange(const RankPreparation& preparation) {
  {
    const std::lock_guard lock(mutex_);
    exchange_secret_ = preparation.exchange_secret;
  }
  const std::string& root = preparation.job.checkpoint.path;
  if (hooks_.file_server != nullptr && !preparation.exchange_secret.empty() && !root.empty()) {
    hooks_.file_server->Serve({.secret = preparation.exchange_secret,
                               .root = root,
                               .pace = hooks_.pace_exchange ? hooks_.pace_exchange(preparation) : nullptr,
                               .mark = preparation.checkpoint_mark});
  }
}

RunStates Trainer::States() const {
  return job_ == nullptr ? RunStates{}
                         : RunStates{.run_incarnation = job_->run_incarnation(),
                                     .held = job_->holds_state() ? std::optional(job_->state()) : std::nullopt,
                                     .kept = job_->kept_states()};
}

absl::Status Trainer::Build(RankPreparation preparation) {
  GP_RETURN_IF_ERROR(SetJob(nullptr));
  GP_ASSIGN_OR_RETURN(
      std::unique_ptr<RankJob> job,
      RankJob::Prepare(std::move(preparation), clock_, hooks_.open_transport, hooks_.extend_job, kept_.get(), stop_));
  job->CheckData([this](absl::StatusOr<v1::DataCheckReport> report) { hooks_.post(DataChecked{std::move(report)}); });
  return SetJob(std::move(job));
}

absl::Status Trainer::Commit(uint64_t epoch, const v1::CommitCommand& command) {
  actions_every_ = command.actions_every();
  evaluation_ = job_->checkpoint_context().job.evaluation;
  told_peaks_ = {};
  std::vector<UcxPeer> peers;
  for (const v1::Peer& peer : command.peers()) {
    peers.push_back({peer.rank(), peer.address()});
  }
  GP_RETURN_IF_ERROR(job_->Connect(peers, command.secret()));
  hooks_.post(Connected{.epoch = epoch});
  LogInfo("training iterations {} to {}", command.start_iteration(), command.end_iteration() - 1);
  const CheckpointSpec checkpoint = job_->checkpoint_context().job.checkpoint;
  const auto is_due = [&](int64_t next) {
    const bool turn = checkpoint.every > 0 && next % checkpoint.every == 0;
    return !checkpoint.path.empty() && next > command.start_iteration() && (turn || next == command.end_iteration());
  };
  return job_->Train(command.start_iteration(), command.end_iteration(),
                     {.on_report =
                          [&](const IterationStats& stats) {
                            if (hooks_.on_iteration) {
                              hooks_.on_iteration(job_->rank(), stats);
                            }
                            hooks_.post(IterationFinished{.epoch = epoch, .report = ReportOf(stats)});
                          },
                      .on_state =
                          [&](int64_t next) {
                            KeepState();
                            if (is_due(next)) {
                              Request({next});
                            }
                            for (const int64_t iteration : TakeRequests(next)) {
                              Save(epoch, iteration);
                            }
                          },
                      .on_evaluation =
                          [&](const EvaluationStats& stats) {
                            hooks_.post(EvaluationFinished{.epoch = epoch, .report = ReportOf(stats)});
                          }},
                     command.evaluate_from());
}

// --- Checkpoints --------------------------------------------------------------------------------------------------

// Failure is not fatal: a rank without a state in memory resumes from a checkpoint.
void Trainer::KeepState() {
  if (const absl::Status status = job_->KeepState(); !status.ok()) {
    LogWarning("the state before iteration {} is not kept in memory: {}", job_->next_iteration(),
               std::string(status.message()));
  }
}

void Trainer::Request(const RequestCheckpoint& request) {
  const std::lock_guard lock(mutex_);
  requested_.insert(request.iteration);
}

std::vector<int64_t> Trainer::TakeRequests(int64_t last) {
  const std::lock_guard lock(mutex_);
  const auto end = requested_.upper_bound(last);
  std::vector<int64_t> taken(requested_.begin(), end);
  requested_.erase(requested_.begin(), end);
  return taken;
}

void Trainer::Save(uint64_t epoch, int64_t iteration) {
  hooks_.post(CheckpointTaken{.epoch = epoch, .iteration = iteration, .status = CopyState(epoch, iteration)});
}

absl::Status Trainer::CopyState(uint64_t epoch, int64_t iteration) {
  if (iteration != job_->next_iteration()) {
    return absl::FailedPreconditionError(
        fmt::format("rank {} has gone on to iteration {}", job_->rank(), job_->next_iteration()));
  }
  std::unique_ptr<RankSnapshot> snapshot = writer_.Take();
  if (snapshot == nullptr) {  // the copy that is being written answers all who ask for its state
    return copied_ == std::pair(epoch, iteration)
               ? absl::OkStatus()
               : absl::UnavailableError(
                     "the one before is still being written; use a faster disk or a larger checkpoint.every");
  }
  snapshot->taken_ns = clock_.NowNs();
  if (absl::Status status = job_->CopyState(*snapshot); !status.ok()) {
    writer_.GiveBack(std::move(snapshot));
    return status;
  }
  writer_.Write(std::move(snapshot));
  copied_ = {epoch, iteration};
  return absl::OkStatus();
}

void Trainer::Complete(CompleteCheckpoint order) {
  CheckpointContext context;
  {
    const std::lock_guard lock(mutex_);
    GP_CHECK(job_ != nullptr, "a manifest before a rank is prepared");
    context = job_->checkpoint_context();
  }
  context.epoch = order.epoch;
  writer_.WriteManifest(std::move(context), std::move(order.command));
}

void Trainer::Replicate(FetchReplica order) {
  CheckpointContext context;
  std::string secret;
  {
    const std::lock_guard lock(mutex_);
    GP_CHECK(job_ != nullptr, "a replica before a rank is prepared");
    context = job_->checkpoint_context();
    secret = exchange_secret_;
  }
  context.epoch = order.epoch;
  replicator_.Fetch({.context = std::move(context),
                     .site = identity_.site,
                     .secret = std::move(secret),
                     .command = std::move(order.command)});
}

// After an evaluation, ranks begin an iteration one after the other, as each has done its forwards. Its actions tell
// little of the plan, unless all iterations are like that.
bool Trainer::ReportsActions(int64_t iteration) const {
  const bool after_evaluation = evaluation_.every > 1 && evaluation_.IsDue(iteration, iteration + 1);
  return actions_every_ > 0 && iteration % actions_every_ == 0 && !after_evaluation;
}

v1::EvaluationReport Trainer::ReportOf(const EvaluationStats& stats) const {
  v1::EvaluationReport evaluation;
  evaluation.set_iteration(stats.iteration);
  evaluation.set_rank(job_->rank());
  if (stats.loss.has_value()) {
    evaluation.set_loss(*stats.loss);
  }
  evaluation.set_duration_ns(stats.duration_ns);
  return evaluation;
}

v1::IterationReport Trainer::ReportOf(const IterationStats& stats) {
  v1::IterationReport iteration;
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
  iteration.set_begin_ns(stats.begin_ns);
  const bool with_actions = ReportsActions(stats.iteration);
  // Peaks go with the actions even if unchanged: a restarted coordinator has not heard of them.
  if (const RankMemory peaks = job_->memory_peaks(); with_actions || peaks != told_peaks_) {
    *iteration.mutable_peaks() = ToProto(peaks);
    told_peaks_ = peaks;
  }
  if (with_actions) {
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
  return iteration;
}

}  // namespace geopipe
