#include "runtime/worker/stage_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "optimizer/model/execution_config.h"
#include "proto/manifest/hf_config.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/log.h"
#include "runtime/executor/channels.h"
#include "runtime/model/init.h"
#include "runtime/model/transformer_stage.h"
#include "runtime/weights/hf_directory.h"

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

absl::StatusOr<std::unique_ptr<WeightSource>> OpenWeights(const JobSpec& job) {
  if (job.init_from.empty()) {
    return std::make_unique<RandomWeights>(job.training.seed);
  }
  GP_RETURN_IF_ERROR(CheckSameModel(job.model, job.init_from));
  GP_ASSIGN_OR_RETURN(HfDirectory directory, HfDirectory::Open(job.init_from));
  return std::make_unique<HfWeights>(std::move(directory), job.init_from);
}

// What the plan took the crossings beside this stage for. Those that are shaped above UCX it does not see.
std::vector<PeerLink> LinksOf(const StagePreparation& preparation) {
  std::vector<PeerLink> links;
  if (!preparation.shapes.empty()) {
    return links;
  }
  for (const int32_t boundary : {preparation.stage - 1, preparation.stage}) {
    if (boundary < 0 || boundary >= std::ssize(preparation.costs.boundaries)) {
      continue;
    }
    const BoundaryCost& cost = preparation.costs.boundaries[boundary];
    if (cost.latency_ns > 0 && cost.serialization_ns > 0) {
      links.push_back({.peer_rank = boundary < preparation.stage ? boundary : boundary + 1,
                       .latency_ns = cost.latency_ns,
                       .bandwidth_bytes_per_s =
                           static_cast<double>(cost.message_bytes) * 1e9 / static_cast<double>(cost.serialization_ns)});
    }
  }
  return links;
}

}  // namespace

int64_t ProgressDeadlineNs(const PipelineCosts& costs) {
  int64_t sum_ns = costs.epilogue_ns;
  for (int32_t chunk = 0; chunk < costs.shape.chunks; ++chunk) {
    sum_ns += (costs.forward_ns[chunk] + costs.BackwardNs(chunk)) * costs.shape.micro_batches;
  }
  for (const BoundaryCost& boundary : costs.boundaries) {
    sum_ns += 2 * (boundary.latency_ns + boundary.serialization_ns) * costs.shape.micro_batches;
  }
  return std::max(kMinProgressDeadlineNs, 10 * sum_ns);
}

StageJob::StageJob(StagePreparation preparation, std::unique_ptr<Device> device, Clock& clock)
    : preparation_(std::move(preparation)),
      clock_(clock),
      device_(std::move(device)),
      allocator_(preparation_.memory_limit_bytes > 0 ? preparation_.memory_limit_bytes
                                                     : std::numeric_limits<int64_t>::max() / 2,
                 *device_),
      pipeline_(preparation_.plan.grid.pipeline) {
  std::iota(pipeline_.begin(), pipeline_.end(), 0);
}

std::set<int32_t> StagesOfSite(const Plan& plan, int32_t stage) {
  std::set<int32_t> near;
  for (int32_t peer = 0; peer < plan.grid.pipeline; ++peer) {
    if (peer != stage && plan.pipeline_ranks[peer].site == plan.pipeline_ranks[stage].site) {
      near.insert(peer);
    }
  }
  return near;
}

absl::StatusOr<std::unique_ptr<StageJob>> StageJob::Prepare(StagePreparation preparation, Clock& clock,
                                                            const OpenTransport& open_transport,
                                                            const ExtendJob& extend) {
  GP_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenDevice(preparation.run.backend));
  std::unique_ptr<StageJob> job(new StageJob(std::move(preparation), std::move(device), clock));
  if (extend) {
    job->extension_ = extend(job->preparation_, job->allocator_, job->clock_);
  }
  GP_RETURN_IF_ERROR(job->BuildEngine());
  GP_RETURN_IF_ERROR(job->OpenChannels(open_transport));
  return job;
}

// A modelled run exchanges norms only where its costs have an epilogue that they are part of.
bool StageJob::exchanges_norms() const {
  return preparation_.job.training.grad_clip.has_value() && (!modelled() || preparation_.costs.epilogue_ns > 0);
}

absl::Status StageJob::BuildEngine() {
  const auto build = [this] { return BuildTransformer(); };
  GP_ASSIGN_OR_RETURN(engine_, extension_ == nullptr ? build() : extension_->Engine(preparation_.stage, build));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<StageEngine>> StageJob::BuildTransformer() {
  if (modelled()) {
    return absl::UnimplementedError("backend modelled is not built into this worker; use cpu");
  }
  const LayerRange& layers = stage_plan().layers;
  if (layers.has_embedding || layers.has_head) {
    GP_ASSIGN_OR_RETURN(data_, TrainingData::Open(preparation_.job, preparation_.plan.sequence_length));
  }
  GP_ASSIGN_OR_RETURN(backend_, OpenBackend(preparation_.run.backend, preparation_.threads, allocator_));
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> weights, OpenWeights(preparation_.job));
  TransformerStageOptions options;
  options.model = preparation_.job.model;
  options.layers = layers;
  options.training = preparation_.job.training;
  options.precision = preparation_.job.precision;
  options.micro_batch_size = preparation_.plan.micro_batch_size;
  options.sequence_length = preparation_.plan.sequence_length;
  options.micro_batches = preparation_.plan.micro_batches;
  return TransformerStage::Create(options, allocator_, *backend_, data_.get(), *weights);
}

absl::Status StageJob::OpenChannels(const OpenTransport& open_transport) {
  std::optional<ChannelSizes> sizes = extension_ == nullptr ? std::nullopt : extension_->Sizes(exchanges_norms());
  if (!sizes.has_value()) {
    sizes = SizesOfPlan(preparation_.plan, preparation_.job.model, ElementBytes(preparation_.job.precision),
                        exchanges_norms());
  }
  UcxTransportOptions options;
  options.rank = preparation_.stage;
  options.job_hash = Crc32c(std::as_bytes(std::span(preparation_.job.name)));
  options.epoch = preparation_.epoch;
  options.allocator = &allocator_.staging();
  options.channels = ChannelsOf(preparation_.schedule, preparation_.stage, pipeline_, *sizes);
  options.layer = extension_ == nullptr ? nullptr : extension_->Layer();
  options.links = LinksOf(preparation_);
  options.near = StagesOfSite(preparation_.plan, preparation_.stage);
  GP_ASSIGN_OR_RETURN(transport_, open_transport(std::move(options)));
  return absl::OkStatus();
}

absl::Status StageJob::Connect(const std::vector<UcxPeer>& peers, const std::string& secret) {
  return transport_->Connect(peers, secret, clock_.NowNs() + kConnectTimeoutNs);
}

absl::Status StageJob::Train(int64_t start_iteration, int64_t end_iteration, std::function<void(int64_t)> on_begin,
                             std::function<void(IterationStats)> on_report) {
  ExecutorOptions options;
  options.schedule = preparation_.schedule;
  options.pipeline_rank = preparation_.stage;
  options.pipeline = pipeline_;
  options.comm = preparation_.plan.comm;
  options.engines.resize(preparation_.plan.stages.size());
  options.engines[preparation_.stage] = engine_.get();
  options.exchange_norms = exchanges_norms();
  options.start_iteration = start_iteration;
  options.end_iteration = end_iteration;
  options.progress_deadline_ns = ProgressDeadlineNs(preparation_.costs);
  options.stop = &stop_;
  options.on_begin = std::move(on_begin);
  options.on_report = std::move(on_report);
  if (extension_ != nullptr) {
    extension_->OnTrain();
  }
  GP_ASSIGN_OR_RETURN(Executor executor, Executor::Create(std::move(options), *transport_, allocator_, clock_));
  return executor.Run();
}

StageUsage StageJob::usage() const {
  StageUsage usage;
  usage.stage = preparation_.stage;
  for (const PipelineRankPlan& rank : preparation_.plan.pipeline_ranks) {
    usage.sites.push_back(rank.site);
  }
  for (int i = 0; i < kMemoryCategories; ++i) {
    usage.memory[i] = allocator_.usage(static_cast<MemoryCategory>(i));
  }
  usage.memory_limit_bytes = preparation_.memory_limit_bytes;
  usage.transport = transport_->stats();
  usage.transport_cpu_ns = transport_->progress_cpu_ns();
  return usage;
}

void StageJob::Interrupt() {
  stop_ = true;
  clock_.Interrupt();
  transport_->Fail(absl::CancelledError("stopped"));
}

}  // namespace geopipe
