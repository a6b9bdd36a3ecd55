#include "runtime/worker/rank_job.h"

#include <absl/strings/match.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/base/trouble.h"
#include "optimizer/model/execution_config.h"
#include "optimizer/model/patience.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/log.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/state/checkpoint_sources.h"
#include "runtime/data/validation_corpus.h"
#include "runtime/executor/channels.h"
#include "runtime/manifest/hf_config.h"
#include "runtime/model/dry_run.h"
#include "runtime/model/init.h"
#include "runtime/model/transformer_stage.h"
#include "runtime/weights/hf_directory.h"
#include "runtime/worker/supplied_state.h"

namespace geopipe {
namespace {

constexpr int64_t kConnectTimeoutNs = 20'000'000'000;
constexpr int64_t kMinProgressDeadlineNs = 60'000'000'000;

// The weights of a Hugging Face directory, as the engine asks for them.
class HfWeights final : public WeightSource {
 public:
  HfWeights(HfDirectory directory, std::string folder) : directory_(std::move(directory)), folder_(std::move(folder)) {}

  absl::Status Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) override {
    GP_RETURN_IF_ERROR(directory_.Read(name, shape, values));
    const auto bad = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
    return bad == values.end() ? absl::OkStatus()
                               : absl::DataLossError(fmt::format(
                                     "tensor {} of {} has {} at element {}; restore the file or export the model again",
                                     name, folder_, std::isnan(*bad) ? "nan" : "an infinity", bad - values.begin()));
  }

 private:
  HfDirectory directory_;
  const std::string folder_;
};

// Zeros, until a replica gives the state.
class NoWeights final : public WeightSource {
 public:
  absl::Status Read(std::string_view /*name*/, const std::vector<int64_t>& /*shape*/,
                    std::span<float> values) override {
    std::ranges::fill(values, 0.0F);
    return absl::OkStatus();
  }
  absl::Status ReadPiece(const TensorPiece& /*piece*/, std::span<float> values) override {
    return Read("", {}, values);
  }
};

absl::StatusOr<std::unique_ptr<WeightSource>> OpenWeights(const JobSpec& job) {
  if (job.init_from.empty()) {
    return std::make_unique<RandomWeights>(job.training.seed);
  }
  if (absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(job.init_from); !absl::IsNotFound(checkpoint.status())) {
    GP_RETURN_IF_ERROR(checkpoint.status());
    GP_RETURN_IF_ERROR(checkpoint->CheckSameModel(job.model));
    return std::make_unique<CheckpointWeights>(*std::move(checkpoint));
  }
  GP_RETURN_IF_ERROR(CheckSameModel(job.model, job.init_from));
  GP_ASSIGN_OR_RETURN(HfDirectory directory, HfDirectory::Open(job.init_from));
  GP_RETURN_IF_ERROR(directory.CheckHoldsOnly(job.model));
  GP_RETURN_IF_ERROR(directory.CheckTiedHead(job.model));
  return std::make_unique<HfWeights>(std::move(directory), job.init_from);
}

// Links that the plan assumed to and from this rank. Those that are shaped above UCX do not concern its sockets.
std::vector<PeerLink> LinksOf(const RankPreparation& preparation) {
  std::vector<PeerLink> links;
  if (!preparation.shapes.empty()) {
    return links;
  }
  const std::vector<int32_t> pipeline = preparation.plan.grid.PipelineOf(preparation.rank);
  const std::vector<StagePlan>& stages = preparation.plan.stages;
  for (size_t boundary = 0; boundary + 1 < stages.size(); ++boundary) {
    const int32_t below = pipeline[stages[boundary].pipeline_rank];
    const int32_t above = pipeline[stages[boundary + 1].pipeline_rank];
    const int32_t peer = below == preparation.rank ? above : below;
    const BoundaryCost& cost = preparation.costs.boundaries[boundary];
    if ((below != preparation.rank && above != preparation.rank) || cost.latency_ns == 0 ||
        cost.serialization_ns == 0 || std::ranges::find(links, peer, &PeerLink::peer_rank) != links.end()) {
      continue;
    }
    links.push_back({.peer_rank = peer,
                     .latency_ns = cost.latency_ns,
                     .bandwidth_bytes_per_s =
                         static_cast<double>(cost.message_bytes) * 1e9 / static_cast<double>(cost.serialization_ns)});
  }
  return links;
}

TransformerStageOptions OptionsOfStage(const RankPreparation& preparation, int32_t stage) {
  const Plan& plan = preparation.plan;
  TransformerStageOptions options;
  options.model = preparation.job.model;
  options.layers = plan.stages[stage].layers;
  options.training = preparation.job.training;
  options.micro_batch_size = plan.micro_batch_size;
  options.sequence_length = plan.sequence_length;
  options.micro_batches = plan.micro_batches;
  options.document_end = preparation.job.data.document_end();
  options.sharding = preparation.sharding();
  options.recompute = plan.RecomputeOf(stage);
  return options;
}

// Limit of an allocator; `bytes` 0: none.
int64_t LimitOf(int64_t bytes) { return bytes > 0 ? bytes : kUnlimitedMemoryBytes; }

// Hash of the job and the run, so that a worker of an earlier run is recognised without its secret.
uint64_t JobHash(const RankPreparation& preparation) {
  constexpr uint64_t kSpread = 0x9e3779b97f4a7c15;
  return Crc32c(std::as_bytes(std::span(preparation.job.name))) ^ (preparation.run_incarnation * kSpread);
}

}  // namespace

int64_t ProgressDeadlineNs(const PipelineCosts& costs) {
  double each_ns = 0;  // of the micro-batches
  for (int32_t stage = 0; stage < costs.shape.stages; ++stage) {
    each_ns += static_cast<double>(costs.forward_ns[stage]) + static_cast<double>(costs.BackwardNs(stage));
  }
  for (const BoundaryCost& boundary : costs.boundaries) {
    each_ns += 2 * (static_cast<double>(boundary.latency_ns) + static_cast<double>(boundary.serialization_ns));
  }
  return std::max(kMinProgressDeadlineNs,
                  PatienceNs(static_cast<double>(costs.epilogue_ns) + each_ns * costs.shape.micro_batches));
}

RankJob::RankJob(RankPreparation preparation, std::unique_ptr<Device> device, Clock& clock, KeptStates* kept)
    : preparation_(std::move(preparation)),
      clock_(clock),
      memory_(std::make_shared<DeviceMemory>(std::move(device), LimitOf(preparation_.memory_limit_bytes),
                                             LimitOf(preparation_.staging_limit_bytes))),
      allocator_(memory_->allocator),
      gives_back_{allocator_},
      engines_(preparation_.plan.stages.size()),
      transformers_(preparation_.plan.stages.size()),
      kept_(preparation_.job.recovery == Recovery::kMemory ? kept : nullptr) {}

RankJob::~RankJob() {
  if (kept_ != nullptr) {
    kept_->Detach();
  }
}

RankMemory RankJob::memory_peaks() const {
  const auto peak = [&](MemoryCategory category) { return allocator_.usage(category).peak_bytes; };
  // The host's share as plans count it: with copies for checkpoints only where devices have memory of their own.
  const int64_t host_bytes = allocator_.space() == MemorySpace::kDevice
                                 ? allocator_.host().total().peak_bytes + allocator_.staging().held().peak_bytes
                                 : allocator_.host().usage(MemoryCategory::kOptimizer).peak_bytes;
  return {.weights = peak(MemoryCategory::kWeights),
          .gradients = peak(MemoryCategory::kGradients),
          .optimizer = peak(MemoryCategory::kOptimizer),
          .activations = peak(MemoryCategory::kActivations),
          .workspace = peak(MemoryCategory::kWorkspace),
          .transport = peak(MemoryCategory::kTransport),
          .recovery = peak(MemoryCategory::kRecovery),
          .peak = allocator_.total().peak_bytes,
          .host = host_bytes};
}

absl::StatusOr<std::unique_ptr<RankJob>> RankJob::Prepare(RankPreparation preparation, Clock& clock,
                                                          const OpenTransport& open_transport, const ExtendJob& extend,
                                                          KeptStates* kept, const StopEvent& stop) {
  GP_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenDevice(preparation.run.backend, preparation.gpu_library));
  std::unique_ptr<RankJob> job(new RankJob(std::move(preparation), std::move(device), clock, kept));
  if (extend) {
    job->extension_ = extend(job->preparation_, job->allocator_, job->clock_);
  }
  StoppableClock stoppable(clock, stop);
  GP_RETURN_IF_ERROR(job->OpenState(stoppable, stop));
  GP_RETURN_IF_ERROR(job->BuildEngines());
  job->state_.reset();
  if (!job->modelled()) {
    GP_RETURN_IF_ERROR(DryRun(job->preparation_.schedule.devices[job->preparation_.pipeline_rank()], job->transformers_,
                              job->preparation_.first_iteration, job->rank()));
  }
  GP_RETURN_IF_ERROR(job->TakeMemoryForStates());
  GP_RETURN_IF_ERROR(job->OpenSession(open_transport));
  return job;
}

// True when norms are exchanged: in a modelled run only where its costs have an epilogue that they are part of.
bool RankJob::exchanges_norms() const {
  return preparation_.job.training.grad_clip.has_value() && (!modelled() || preparation_.costs.epilogue_ns > 0);
}

// Deadline for a peer's message. A rank that first receives a state sends its first message later.
int64_t RankJob::progress_deadline_ns() const {
  constexpr int64_t kSlowNsPerByte = 50;
  return ProgressDeadlineNs(preparation_.costs) + (kSlowNsPerByte * preparation_.given_state_bytes);
}

absl::Status RankJob::OpenState(Clock& clock, const StopEvent& stop) {
  next_iteration_ = preparation_.first_iteration;
  state_epoch_ = preparation_.from_checkpoint.has_value() ? preparation_.epoch : preparation_.state_epoch;
  const bool goes_on = preparation_.state() != StateIdentity{} && !preparation_.from_checkpoint.has_value();
  const std::vector<StateIdentity> kept = kept_states();
  const bool lacks = goes_on && std::ranges::find(kept, preparation_.state()) == kept.end();
  if (lacks && preparation_.state_of_rank.value_or(preparation_.rank) == preparation_.rank) {
    return absl::FailedPreconditionError(
        fmt::format("told to go on from iteration {} of epoch {}, but this worker has no such state of rank {}",
                    preparation_.first_iteration, preparation_.state_epoch, preparation_.rank));
  }
  if (modelled()) {
    return absl::OkStatus();
  }
  if (goes_on) {
    receives_ = lacks;
    state_ = lacks ? std::make_unique<NoWeights>() : nullptr;
    return absl::OkStatus();
  }
  if (preparation_.from_checkpoint.has_value()) {
    GP_ASSIGN_OR_RETURN(state_, SuppliedState::Open(preparation_, clock, stop));
  } else {
    GP_ASSIGN_OR_RETURN(state_, OpenWeights(preparation_.job));
  }
  return absl::OkStatus();
}

absl::Status RankJob::BuildEngines() {
  for (int32_t stage = 0; stage < std::ssize(engines_); ++stage) {
    if (preparation_.plan.stages[stage].pipeline_rank == preparation_.pipeline_rank()) {
      const auto build = [this, stage] { return BuildTransformer(stage); };
      GP_ASSIGN_OR_RETURN(engines_[stage], extension_ == nullptr ? build() : extension_->Engine(stage, build));
    }
  }
  return absl::OkStatus();
}

absl::Status RankJob::OpenData() {
  const JobSpec& job = preparation_.job;
  GP_ASSIGN_OR_RETURN(data_, TrainingData::Open(job, preparation_.plan.sequence_length));
  if (job.evaluates()) {
    GP_ASSIGN_OR_RETURN(std::unique_ptr<Corpus> corpus, OpenValidationCorpus(job));
    JobSpec of_validation = job;
    of_validation.data = job.evaluation.data;
    GP_ASSIGN_OR_RETURN(validation_,
                        TrainingData::Create(std::move(corpus), of_validation, preparation_.plan.sequence_length));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<StageEngine>> RankJob::BuildTransformer(int32_t stage) {
  if (modelled()) {
    return absl::UnimplementedError("backend modelled is not built into this worker; use cpu");
  }
  const LayerRange& layers = preparation_.plan.stages[stage].layers;
  const bool reads = layers.has_embedding || layers.has_head || preparation_.job.data.document_end().has_value();
  if (data_ == nullptr && reads) {
    GP_RETURN_IF_ERROR(OpenData());
  }
  if (backend_ == nullptr) {
    GP_ASSIGN_OR_RETURN(backend_, OpenBackend(preparation_.run.backend, preparation_.threads, allocator_));
  }
  if (rooms_ == nullptr) {
    rooms_ = std::make_unique<SharedRooms>(allocator_);
  }
  std::unique_ptr<WeightSource> kept;
  if (state_ == nullptr) {
    GP_ASSIGN_OR_RETURN(kept, kept_->Read(owner(), preparation_.state(), stage));
  }
  GP_ASSIGN_OR_RETURN(std::unique_ptr<TransformerStage> engine,
                      TransformerStage::Create(OptionsOfStage(preparation_, stage), allocator_, *backend_, data_.get(),
                                               state_ == nullptr ? *kept : *state_, rooms_.get(), validation_.get()));
  transformers_[stage] = engine.get();
  return engine;
}

absl::Status RankJob::JoinGroups(const std::string& secret) {
  if (modelled()) {
    return absl::OkStatus();
  }
  const RankCollectives::Options options{
      .epoch = fmt::format("epoch {} of job {}", preparation_.epoch, preparation_.job.name),
      .secret = secret,
      .join_deadline_ns = clock_.NowNs() + kConnectTimeoutNs,
      .longest_wait_ns = progress_deadline_ns(),
      .allocator = &allocator_,
      .watch = &session_->watch(),
      .clock = &clock_,
      .stop = &session_->stopped()};
  const RankGrouping grouping(preparation_.plan, preparation_.job.model, preparation_.rank);
  GP_ASSIGN_OR_RETURN(std::unique_ptr<RankCollectives> collectives,
                      RankCollectives::Join(grouping, options, session_->transport()));
  const RankGroups groups = collectives->groups();
  session_->Use(std::move(collectives));
  for (TransformerStage* transformer : transformers_) {
    if (transformer != nullptr) {
      GP_RETURN_IF_ERROR(transformer->UseGroups(groups));
    }
  }
  return ShareState();
}

absl::Status RankJob::ShareState() {
  if (preparation_.state_of_rank.has_value()) {
    const int32_t giver = preparation_.plan.grid.At(*preparation_.state_of_rank).data;
    for (TransformerStage* transformer : transformers_) {
      if (transformer != nullptr) {
        GP_RETURN_IF_ERROR(transformer->parameters().ShareStates(giver, receives_));
      }
    }
    if (receives_) {
      LogInfo("rank {} has the state before iteration {} from rank {}", preparation_.rank, next_iteration_.load(),
              *preparation_.state_of_rank);
    }
    receives_ = false;
  }
  return absl::OkStatus();
}

// --- States that outlive the process ------------------------------------------------------------------------------

std::vector<StateIdentity> RankJob::kept_states() const {
  return kept_ == nullptr || kept_->owner() != owner() ? std::vector<StateIdentity>{}
                                                       : kept_->List(preparation_.run_incarnation);
}

std::vector<KeptStates::Stage> RankJob::KeptStages() const {
  std::vector<KeptStates::Stage> stages;
  for (int32_t stage = 0; stage < std::ssize(transformers_); ++stage) {
    if (transformers_[stage] != nullptr) {
      stages.push_back({.stage = stage, .parameters = transformers_[stage]->parameters().all()});
    }
  }
  return stages;
}

absl::Status RankJob::TakeMemoryForStates() {
  if (kept_ == nullptr) {
    return absl::OkStatus();
  }
  constexpr int64_t kBytesPerParameter = 24;  // StageMemory::recovery_bytes
  const std::vector<KeptStates::Stage> stages = KeptStages();
  int64_t bytes = 0;
  for (const KeptStates::Stage& stage : stages) {
    for (const Parameter& parameter : stage.parameters) {
      bytes += kBytesPerParameter * parameter.piece.count;
    }
  }
  Allocator& memory = allocator_.space() == MemorySpace::kDevice ? allocator_.host() : allocator_;
  GP_ASSIGN_OR_RETURN(kept_room_, memory.Reserve(bytes, MemoryCategory::kRecovery));
  GP_RETURN_IF_ERROR(kept_->Prepare(owner(), stages));
  return kept_->Attach(*memory_->device);
}

absl::Status RankJob::KeepState() {
  if (kept_ == nullptr) {
    return absl::OkStatus();
  }
  GP_ASSIGN_OR_RETURN(const Completion copied, kept_->Save(state(), KeptStages()));
  UpdateAfter(copied);
  return absl::OkStatus();
}

void RankJob::UpdateAfter(const Completion& copied) {
  for (TransformerStage* const stage : transformers_) {
    if (stage != nullptr) {
      stage->UpdateAfter(copied);
    }
  }
}

CheckpointContext RankJob::checkpoint_context() const {
  const std::lock_guard lock(mutex_);
  return {.job = preparation_.job,
          .sequence_length = preparation_.plan.sequence_length,
          .incarnation = preparation_.run_incarnation,
          .epoch = preparation_.epoch,
          .rank = preparation_.rank,
          .mark = preparation_.checkpoint_mark};
}

absl::Status RankJob::CopyState(RankSnapshot& snapshot) {
  if (!holds_state()) {
    return absl::FailedPreconditionError(
        fmt::format("rank {} has no state before a replica gives it one; ask again "
                    "when it trains",
                    preparation_.rank));
  }
  snapshot.context = checkpoint_context();
  snapshot.iteration = next_iteration_;
  snapshot.stages.clear();
  snapshot.memory = memory_;
  for (int32_t stage = 0; stage < std::ssize(engines_); ++stage) {
    if (transformers_[stage] != nullptr) {
      // The last copy of several stages is behind the others.
      GP_ASSIGN_OR_RETURN(snapshot.copied,
                          snapshot.stages.emplace_back().Take(
                              preparation_.job.model, preparation_.plan.stages[stage].layers,
                              transformers_[stage]->parameters().all(), preparation_.sharding(), allocator_.host()));
    }
  }
  UpdateAfter(snapshot.copied);
  return absl::OkStatus();
}

void RankJob::CheckData(DataChecker::Tell tell) {
  if (data_ != nullptr) {
    data_checker_ = std::make_unique<DataChecker>(data_->corpus(), clock_, std::move(tell));
  }
}

absl::Status RankJob::OpenSession(const OpenTransport& open_transport) {
  std::optional<ChannelMessages> messages;
  if (extension_ != nullptr) {
    messages = extension_->Messages(exchanges_norms());
  }
  if (!messages.has_value()) {
    messages = MessagesOfPlan(preparation_.plan, preparation_.job, exchanges_norms());
  }
  UcxTransportOptions options;
  options.rank = preparation_.rank;
  options.job_hash = JobHash(preparation_);
  options.epoch = preparation_.epoch;
  options.allocator = &allocator_.staging();
  options.channels = ChannelsOf(preparation_.schedule, preparation_.pipeline_rank(),
                                preparation_.plan.grid.PipelineOf(preparation_.rank), *messages);
  if (!modelled()) {
    const RankGrouping grouping(preparation_.plan, preparation_.job.model, preparation_.rank);
    std::ranges::move(grouping.Channels(), std::back_inserter(options.channels));
  }
  if (extension_ != nullptr) {
    std::ranges::move(extension_->Channels(), std::back_inserter(options.channels));
    options.layer = extension_->Layer();
  }
  options.links = LinksOf(preparation_);
  options.near = RanksOfSite(preparation_.plan, preparation_.rank);
  options.sites = SitesOfRanks(preparation_.plan);
  GP_ASSIGN_OR_RETURN(std::unique_ptr<UcxTransport> transport, open_transport(std::move(options)));
  SetSession(std::make_unique<EpochSession>(std::move(transport), clock_));
  return absl::OkStatus();
}

// The old session ends after the lock is released, because it says goodbye to its peers.
void RankJob::SetSession(std::unique_ptr<EpochSession> session) {
  const std::lock_guard lock(mutex_);
  if (session_ != nullptr) {
    transport_cpu_ns_ = session_->transport().progress_cpu_ns();
  }
  session_.swap(session);
}

bool RankJob::Serves(const RankPreparation& next) const {
  return !next.from_checkpoint.has_value() && next.job == preparation_.job && next.plan == preparation_.plan &&
         next.rank == preparation_.rank && next.costs.shape == preparation_.costs.shape &&
         next.run.backend == preparation_.run.backend;
}

absl::Status RankJob::NextEpoch(RankPreparation next, const OpenTransport& open_transport) {
  GP_CHECK(Serves(next));
  if (next.first_iteration != next_iteration_) {
    return absl::FailedPreconditionError(
        fmt::format("told to go on from iteration {}, but the state of rank {} is that before iteration {}",
                    next.first_iteration, next.rank, next_iteration_.load()));
  }
  SetSession(nullptr);
  {
    const std::lock_guard lock(mutex_);
    preparation_ = std::move(next);
  }
  return OpenSession(open_transport);
}

absl::Status RankJob::Connect(const std::vector<UcxPeer>& peers, const std::string& secret) {
  GP_RETURN_IF_ERROR(session_->transport().Connect(peers, secret, clock_.NowNs() + kConnectTimeoutNs));
  return JoinGroups(secret);
}

absl::Status RankJob::Train(int64_t start_iteration, int64_t end_iteration, const Observer& observer,
                            int64_t evaluate_from) {
  if (start_iteration != next_iteration_) {
    return absl::FailedPreconditionError(
        fmt::format("told to train from iteration {}, but the state of rank {} is that before iteration {}",
                    start_iteration, preparation_.rank, next_iteration_.load()));
  }
  ExecutorOptions options;
  options.schedule = preparation_.schedule;
  options.pipeline_rank = preparation_.pipeline_rank();
  options.pipeline = preparation_.plan.grid.PipelineOf(preparation_.rank);
  options.comm = preparation_.plan.comm;
  for (const std::unique_ptr<StageEngine>& engine : engines_) {
    options.engines.push_back(engine.get());
  }
  options.exchange_norms = exchanges_norms();
  options.start_iteration = start_iteration;
  options.end_iteration = end_iteration;
  options.progress_deadline_ns = progress_deadline_ns();
  options.stop = &session_->stop();
  options.watch = &session_->watch();
  options.evaluation = {.passes = preparation_.job.evaluates() ? preparation_.job.evaluation.iterations : 0,
                        .is_due =
                            [&](int64_t iteration) {
                              return iteration >= evaluate_from &&
                                     preparation_.job.evaluation.IsDue(iteration, end_iteration);
                            },
                        .on_report = observer.on_evaluation};
  bool told_last = false;  // the state after the last iteration
  options.on_begin = [&](int64_t iteration) {
    NoteState(iteration);
    const bool is_last = iteration == end_iteration;  // it begins no iteration, but the last evaluation
    const bool begins = is_last ? session_->BeginLast(iteration) : session_->Begin(iteration);
    if (begins && observer.on_state) {  // else it is the state that training ends with
      observer.on_state(iteration);
      told_last = is_last;
    }
    return begins;
  };
  RankCollectives* const collectives = session_->collectives();
  if (collectives != nullptr) {
    // Others need not wait longer for this rank; it reports itself why it failed.
    options.on_failure = [this, collectives] {
      collectives->Abort(absl::AbortedError(fmt::format("rank {} has stopped training", preparation_.rank)));
    };
  }
  options.on_report = observer.on_report;
  if (extension_ != nullptr) {
    extension_->OnTrain(session_->transport(), session_->watch());
  }
  GP_ASSIGN_OR_RETURN(Executor executor,
                      Executor::Create(std::move(options), session_->transport(), allocator_, clock_));
  absl::Status status = executor.Run();
  NoteState(executor.next_iteration());
  if (status.ok() && collectives != nullptr) {
    collectives->Finish();
  }
  session_->Returned();
  if (observer.on_state && status.ok() && !told_last) {
    observer.on_state(next_iteration_);
  }
  return status;
}

absl::Status RankJob::CauseOf(const absl::Status& status) const {
  const absl::Status device = memory_->device->health();
  if (device.ok()) {
    return status;
  }
  return absl::StrContains(status.message(), device.message()) ? Reworded(device, std::string(status.message()))
                                                               : device;
}

void RankJob::NoteState(int64_t next_iteration) {
  if (next_iteration > next_iteration_) {
    state_epoch_ = preparation_.epoch;
  }
  next_iteration_ = next_iteration;
}

std::optional<ActionWatch::UnderWay> RankJob::action() const {
  const std::lock_guard lock(mutex_);
  return session_ == nullptr ? std::nullopt : session_->watch().Now();
}

RankUsage RankJob::usage() const {
  const std::lock_guard lock(mutex_);
  RankUsage usage;
  usage.rank = preparation_.rank;
  usage.sites = SitesOfRanks(preparation_.plan);
  for (int i = 0; i < kMemoryCategories; ++i) {
    usage.memory[i] = allocator_.usage(static_cast<MemoryCategory>(i));
  }
  usage.memory_limit_bytes = preparation_.memory_limit_bytes;
  usage.transport_cpu_ns = transport_cpu_ns_;
  if (session_ != nullptr) {
    usage.transport = session_->transport().stats();
    usage.transport_cpu_ns = session_->transport().progress_cpu_ns();
  }
  return usage;
}

void RankJob::End(std::optional<int64_t> abandon_from) {
  const std::lock_guard lock(mutex_);
  if (session_ != nullptr) {
    session_->End(abandon_from);
  }
}

void RankJob::Interrupt() {
  const std::lock_guard lock(mutex_);
  if (session_ != nullptr) {
    session_->Interrupt();
  }
}

}  // namespace geopipe
