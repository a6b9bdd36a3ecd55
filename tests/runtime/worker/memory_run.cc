#include "tests/runtime/worker/memory_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "optimizer/model/transformer.h"
#include "optimizer/plan/space/choices.h"
#include "optimizer/schedule/lowering.h"
#include "optimizer/schedule/schedule_table.h"

namespace geopipe {
namespace {

constexpr int64_t kIterations = 3;

}  // namespace

std::string MemorySetting::name() const {
  std::string text =
      fmt::format("{} {} ΔN [{}] b {} s {}", ScheduleKindName(kind), sites, fmt::join(delta_n, ","), batch, sequence);
  text += tied ? " tied" : "";
  text += clips ? "" : " unclipped";
  text += comm == CommMode::kBlocking ? " blocking" : "";
  if (tensor * data > 1) {
    text += fmt::format(" tp {}{} dp {}{} zero {}", tensor, sequence_parallel ? " sp" : "", data,
                        nodes ? " on nodes" : "", zero_stage);
  }
  for (const Recompute mode : recompute) {
    text += fmt::format(" {}", RecomputeName(mode));
  }
  text += precision == Precision::kBf16 ? " bf16" : "";
  text += offloads_optimizer ? " offload" : "";
  text += documents == Documents::kReset ? " documents" : "";
  text += family == ModelFamily::kLlama ? "" : fmt::format(" {}", ModelFamilyName(family));
  text += biases ? " biases" : "";
  return text + (latency_ns == 0 ? " no latency" : "");
}

JobSpec JobOf(const MemorySetting& setting, const std::string& text_path) {
  JobSpec job;
  job.name = "memory";
  job.model.hidden_size = 64;
  job.model.intermediate_size = 176;
  job.model.num_hidden_layers = setting.layers;
  job.model.num_attention_heads = 4;
  job.model.num_key_value_heads = 2;
  job.model.vocab_size = 260;
  job.model.max_position_embeddings = 256;
  job.model.tie_word_embeddings = setting.tied;
  job.model.family = setting.family;
  job.model.attention_bias = setting.biases;
  job.data.format = DataFormat::kText;
  job.data.paths = {text_path};
  job.data.documents = setting.documents;
  job.training.iterations = kIterations;
  if (setting.evaluates) {
    job.evaluation = {.every = 1, .data = job.data, .iterations = 1};  // which takes no memory of its own
  }
  job.training.tokens_per_iteration = setting.micro_batches * setting.batch * setting.sequence * setting.data;
  job.training.learning_rate = 0.001;
  if (!setting.clips) {
    job.training.grad_clip.reset();
  }
  job.search.micro_batch_size = {setting.batch};
  job.search.sequence_length = {setting.sequence};
  job.parallelism.recompute = Recompute::kNone;
  job.parallelism.tensor = setting.tensor;
  job.parallelism.data = setting.data;
  job.parallelism.sequence_parallel = setting.sequence_parallel;
  job.parallelism.offload = setting.offloads_optimizer ? Offload::kOptimizer : Offload::kNone;
  job.precision = setting.precision;
  return job;
}

Plan PlanOf(const MemorySetting& setting, const ModelSpec& model) {
  Plan plan;
  plan.schedule = setting.kind;
  plan.comm = setting.comm;
  plan.micro_batch_size = setting.batch;
  plan.sequence_length = setting.sequence;
  plan.micro_batches = setting.micro_batches;
  plan.delta_n = setting.delta_n;
  plan.zero_stage = setting.zero_stage;
  plan.grid = {.pipeline = 1, .data = setting.data, .tensor = setting.tensor};
  for (const LayerRange& layers : SplitLayers(model, std::ssize(setting.sites))) {
    const size_t stage = plan.stages.size();
    std::vector<DevicePlace> places;
    for (int32_t data = 0; data < setting.data; ++data) {
      for (int32_t tensor = 0; tensor < setting.tensor; ++tensor) {
        places.push_back(
            {.node = setting.nodes ? data : 0, .device = std::ssize(places) > 0 ? places.back().device + 1 : 0});
      }
    }
    plan.Append({.site = std::string(1, setting.sites[stage]),
                 .recompute = setting.recompute.empty() ? Recompute::kNone : setting.recompute[stage]},
                layers, places);
  }
  return plan;
}

Schedule ScheduleOf(const Plan& plan) {
  return *MakeSchedule(plan.schedule,
                       PipelineShape::Linear(static_cast<int32_t>(plan.stages.size()), plan.micro_batches),
                       BoundaryDeltaN(plan));
}

std::string WriteText(const TempDir& folder) {
  std::string text;
  while (text.size() < 64 * 1024) {
    text += fmt::format("{} micro-batches are on their way, and {} have come back. ", text.size(), text.size() % 7);
  }
  return folder.Write("text.txt", text);
}

void UseLoopbackDevice() {
  setenv("UCX_TLS", "tcp", 1);
  setenv("UCX_NET_DEVICES", "lo", 1);
}

std::vector<int64_t> PeaksOf(const std::vector<RankMemory>& modelled) {
  std::vector<int64_t> peaks;
  std::ranges::transform(modelled, std::back_inserter(peaks), &RankMemory::peak);
  return peaks;
}

MemoryRun::MemoryRun(const MemorySetting& setting, const JobSpec& job, const Plan& plan, const Schedule& schedule)
    : count_(plan.grid.size()), statuses_(count_), prepared_bytes_(count_), usage_(count_), jobs_(count_) {
  common_.epoch = 1;
  common_.job = job;
  if (!setting.gpu_library.empty()) {
    common_.run.backend = BackendKind::kCuda;
    common_.gpu_library = setting.gpu_library;
  }
  common_.plan = plan;
  common_.schedule = *Lower(schedule);
  common_.costs.shape = schedule.shape;
  common_.costs.forward_ns.assign(plan.stages.size(), kMs);
  common_.costs.input_grad_ns.assign(plan.stages.size(), 2 * kMs);
  common_.costs.boundaries.resize(plan.stages.size() - 1);
  for (const char from : setting.sites) {
    for (const char to : setting.sites) {
      if (from != to && setting.latency_ns > 0) {
        v1::LinkShape& shape = common_.shapes.emplace_back();
        shape.set_from_site(std::string(1, from));
        shape.set_to_site(std::string(1, to));
        shape.set_latency_ns(setting.latency_ns);
      }
    }
  }
  Deduplicate();
}

absl::Status MemoryRun::Run(const std::vector<int64_t>& limits, const std::vector<int64_t>& host_limits,
                            const MemoryObserver& observer, KeptStates* kept) {
  std::barrier<> all(count_);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < count_; ++rank) {
    const auto pipeline_rank = static_cast<size_t>(common_.plan.grid.At(rank).pipeline);
    RankPreparation preparation = common_;
    preparation.rank = rank;
    preparation.memory_limit_bytes = limits[pipeline_rank];
    preparation.staging_limit_bytes = host_limits.empty() ? 0 : host_limits[pipeline_rank];
    threads.emplace_back([&, rank, preparation = std::move(preparation)]() mutable {
      RunRank(rank, std::move(preparation), observer, rank == 0 ? kept : nullptr, all);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const absl::Status& status : statuses_) {
    if (!status.ok() && !absl::IsCancelled(status)) {
      return status;
    }
  }
  return absl::OkStatus();
}

void MemoryRun::Deduplicate() {
  std::vector<v1::LinkShape>& shapes = common_.shapes;
  const auto key = [](const v1::LinkShape& shape) { return shape.from_site() + shape.to_site(); };
  std::ranges::sort(shapes, {}, key);
  const auto same = [&](const v1::LinkShape& a, const v1::LinkShape& b) { return key(a) == key(b); };
  shapes.erase(std::unique(shapes.begin(), shapes.end(), same), shapes.end());
}

void MemoryRun::RunRank(int32_t rank, RankPreparation preparation, const MemoryObserver& observer, KeptStates* kept,
                        std::barrier<>& all) {
  absl::StatusOr<std::unique_ptr<RankJob>> made = RankJob::Prepare(
      std::move(preparation), Clock::Real(),
      [](UcxTransportOptions options) { return UcxTransport::Create(std::move(options)); }, nullptr, kept);
  statuses_[rank] = made.status();
  if (made.ok()) {
    jobs_[rank] = *std::move(made);
    prepared_bytes_[rank] = jobs_[rank]->allocator().total().bytes;
  }
  all.arrive_and_wait();
  if (std::ranges::all_of(jobs_, [](const auto& job) { return job != nullptr; })) {
    statuses_[rank] = Train(rank, observer);
    if (!statuses_[rank].ok()) {
      for (const auto& job : jobs_) {
        job->Interrupt();
      }
    } else if (observer.at_end) {
      observer.at_end(rank, *jobs_[rank]);
    }
    usage_[rank] = jobs_[rank]->memory_peaks();
  }
  // All wait here, so that none leaves while another still waits for an acknowledgement.
  all.arrive_and_wait();
  jobs_[rank] = nullptr;
}

absl::Status MemoryRun::Train(int32_t rank, const MemoryObserver& observer) {
  std::vector<UcxPeer> peers;
  for (int32_t peer = 0; peer < count_; ++peer) {
    peers.push_back({.rank = peer, .address = jobs_[peer]->address()});
  }
  if (absl::Status status = jobs_[rank]->Connect(peers, "secret"); !status.ok()) {
    return status;
  }
  RankJob& job = *jobs_[rank];
  RankJob::Observer of_job;
  if (observer.on_state) {
    of_job.on_state = [&](int64_t next_iteration) { observer.on_state(rank, job, next_iteration); };
  }
  return job.Train(0, kIterations, of_job);
}

}  // namespace geopipe
