// What whole ranks (engine, data, UCX transport, collectives, executor) really take of memory, against the planner's
// model of it. No rank has a byte more than the model says: a plan that fits in the model must neither fail when it is
// prepared nor while it runs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <barrier>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <thread>

#include "optimizer/base/check.h"
#include "optimizer/model/plan/rank_memory.h"
#include "optimizer/model/transformer.h"
#include "optimizer/plan/space/choices.h"
#include "optimizer/schedule/lowering.h"
#include "optimizer/schedule/schedule_table.h"
#include "runtime/worker/rank_job.h"
#include "tests/support/durations.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

constexpr int32_t kMicroBatches = 12;
constexpr int64_t kIterations = 3;
constexpr double kTolerance = 0.05;
constexpr double kCategoryTolerance = 0.02;

struct Setting {
  ScheduleKind kind = ScheduleKind::kOneFOneB;
  std::string sites;  // one letter per stage
  std::vector<int32_t> delta_n;
  int64_t batch = 1;
  int64_t sequence = 64;
  bool tied = false;
  bool clips = true;
  CommMode comm = CommMode::kNonBlocking;
  int64_t latency_ns =
      10 * kMs;  // between sites: longer than the warm-up, so that nothing is acknowledged before its end
  int32_t tensor = 1;
  int32_t data = 1;
  bool nodes = false;  // each replica on a node of its own
  int32_t zero_stage = 0;
  bool sequence_parallel = false;
  std::vector<Recompute> recompute = {};  // by pipeline rank; empty: none
  Precision precision = Precision::kFp32;

  std::string name() const {
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
    return text + (latency_ns == 0 ? " no latency" : "");
  }
};

JobSpec JobOf(const Setting& setting, const std::string& text_path) {
  JobSpec job;
  job.name = "memory";
  job.model.hidden_size = 64;
  job.model.intermediate_size = 176;
  job.model.num_hidden_layers = 8;
  job.model.num_attention_heads = 4;
  job.model.num_key_value_heads = 2;
  job.model.vocab_size = 260;
  job.model.max_position_embeddings = 256;
  job.model.tie_word_embeddings = setting.tied;
  job.data.format = DataFormat::kText;
  job.data.paths = {text_path};
  job.training.iterations = kIterations;
  job.training.tokens_per_iteration = kMicroBatches * setting.batch * setting.sequence * setting.data;
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
  job.precision = setting.precision;
  return job;
}

Plan PlanOf(const Setting& setting, const ModelSpec& model) {
  Plan plan;
  plan.schedule = setting.kind;
  plan.comm = setting.comm;
  plan.micro_batch_size = setting.batch;
  plan.sequence_length = setting.sequence;
  plan.micro_batches = kMicroBatches;
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

// All ranks of one plan in one process, over UCX on the loopback device.
class Ranks {
 public:
  Ranks(const Setting& setting, const JobSpec& job, const Plan& plan, const Schedule& schedule)
      : count_(plan.grid.size()), statuses_(count_), prepared_bytes_(count_), usage_(count_), jobs_(count_) {
    common_.epoch = 1;
    common_.job = job;
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

  // Prepares all ranks with the limits of their pipeline ranks, connects them and trains. The first error, if there is
  // one.
  absl::Status Run(const std::vector<int64_t>& limits) {
    std::barrier<> all(count_);
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < count_; ++rank) {
      threads.emplace_back([&, rank] { RunRank(rank, limits[common_.plan.grid.At(rank).pipeline], all); });
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

  // In use when the rank was prepared; peaks of the whole run.
  int64_t prepared_bytes(size_t rank) const { return prepared_bytes_[rank]; }
  const RankMemory& peaks(size_t rank) const { return usage_[rank]; }

 private:
  void Deduplicate() {
    std::vector<v1::LinkShape>& shapes = common_.shapes;
    const auto key = [](const v1::LinkShape& shape) { return shape.from_site() + shape.to_site(); };
    std::ranges::sort(shapes, {}, key);
    const auto same = [&](const v1::LinkShape& a, const v1::LinkShape& b) { return key(a) == key(b); };
    shapes.erase(std::unique(shapes.begin(), shapes.end(), same), shapes.end());
  }

  void RunRank(int32_t rank, int64_t limit_bytes, std::barrier<>& all) {
    RankPreparation preparation = common_;
    preparation.rank = rank;
    preparation.memory_limit_bytes = limit_bytes;
    absl::StatusOr<std::unique_ptr<RankJob>> made =
        RankJob::Prepare(std::move(preparation), Clock::Real(),
                         [](UcxTransportOptions options) { return UcxTransport::Create(std::move(options)); });
    statuses_[rank] = made.status();
    if (made.ok()) {
      jobs_[rank] = *std::move(made);
      prepared_bytes_[rank] = jobs_[rank]->allocator().total().bytes;
    }
    all.arrive_and_wait();
    if (std::ranges::all_of(jobs_, [](const auto& job) { return job != nullptr; })) {
      statuses_[rank] = Train(rank);
      if (!statuses_[rank].ok()) {
        for (const auto& job : jobs_) {
          job->Interrupt();
        }
      }
      const Allocator& memory = jobs_[rank]->allocator();
      const auto peak = [&](MemoryCategory category) { return memory.usage(category).peak_bytes; };
      usage_[rank] = {.weights = peak(MemoryCategory::kWeights),
                      .gradients = peak(MemoryCategory::kGradients),
                      .optimizer = peak(MemoryCategory::kOptimizer),
                      .activations = peak(MemoryCategory::kActivations),
                      .workspace = peak(MemoryCategory::kWorkspace),
                      .transport = peak(MemoryCategory::kTransport),
                      .recovery = peak(MemoryCategory::kRecovery),
                      .peak = memory.total().peak_bytes};
    }
    // Nobody leaves while another still waits for an acknowledgement.
    all.arrive_and_wait();
    jobs_[rank] = nullptr;
  }

  absl::Status Train(int32_t rank) {
    std::vector<UcxPeer> peers;
    for (int32_t peer = 0; peer < count_; ++peer) {
      peers.push_back({.rank = peer, .address = jobs_[peer]->address()});
    }
    if (absl::Status status = jobs_[rank]->Connect(peers, "secret"); !status.ok()) {
      return status;
    }
    return jobs_[rank]->Train(0, kIterations, [](const IterationStats&) {});
  }

  const int64_t count_;
  RankPreparation common_;
  std::vector<absl::Status> statuses_;
  std::vector<int64_t> prepared_bytes_;
  std::vector<RankMemory> usage_;
  std::vector<std::unique_ptr<RankJob>> jobs_;
};

std::string WriteText(const TempDir& folder) {
  std::string text;
  while (text.size() < 64 * 1024) {
    text += fmt::format("{} micro-batches are on their way, and {} have come back. ", text.size(), text.size() % 7);
  }
  return folder.Write("text.txt", text);
}

std::vector<Setting> Settings() {
  using enum ScheduleKind;
  return {
      {.kind = kOneFOneB, .sites = "a", .delta_n = {}, .batch = 2, .sequence = 64},
      {.kind = kOneFOneB, .sites = "a", .delta_n = {}, .batch = 4, .sequence = 32, .tied = true},
      {.kind = kOneFOneB, .sites = "ab", .delta_n = {0}, .batch = 1, .sequence = 64},
      {.kind = kOneFOneB, .sites = "abcd", .delta_n = {0, 0, 0}, .batch = 2, .sequence = 32, .tied = true},
      {.kind = kOneFOneB, .sites = "abc", .delta_n = {0, 0}, .batch = 2, .sequence = 64, .comm = CommMode::kBlocking},
      {.kind = kGpipe, .sites = "ab", .delta_n = {0}, .batch = 1, .sequence = 32},
      {.kind = kGpipe, .sites = "abcd", .delta_n = {0, 0, 0}, .batch = 2, .sequence = 64, .tied = true},
      {.kind = kGeoPipe, .sites = "ab", .delta_n = {2}, .batch = 2, .sequence = 64},
      {.kind = kGeoPipe, .sites = "ab", .delta_n = {6}, .batch = 8, .sequence = 16},
      {.kind = kGeoPipe, .sites = "abc", .delta_n = {1, 3}, .batch = 1, .sequence = 128},
      {.kind = kGeoPipe, .sites = "aabb", .delta_n = {4}, .batch = 4, .sequence = 32, .tied = true},
      {.kind = kGeoPipe, .sites = "abcd", .delta_n = {2, 0, 2}, .batch = 2, .sequence = 64},
      {.kind = kGeoPipe, .sites = "abcd", .delta_n = {1, 1, 1}, .batch = 2, .sequence = 64, .latency_ns = 0},
      {.kind = kGeoPipe, .sites = "ab", .delta_n = {3}, .batch = 2, .sequence = 128, .tied = true, .clips = false},
      {.kind = kZbH1, .sites = "abcd", .delta_n = {0, 0, 0}, .batch = 2, .sequence = 64},
      {.kind = kZbH2, .sites = "abc", .delta_n = {0, 0}, .batch = 2, .sequence = 32, .tied = true},
      {.kind = kGeoPipeZb, .sites = "abc", .delta_n = {2, 2}, .batch = 1, .sequence = 64},
  };
}

// Everything that divides a stage, or makes it keep less.
std::vector<Setting> DividedSettings() {
  using enum ScheduleKind;
  using enum Recompute;
  constexpr auto kBf16 = Precision::kBf16;
  return {
      {.kind = kOneFOneB, .sites = "a", .delta_n = {}, .batch = 2, .recompute = {kSelective}},
      {.kind = kOneFOneB, .sites = "ab", .delta_n = {0}, .batch = 2, .recompute = {kFull, kFull}},
      {.kind = kGeoPipe, .sites = "ab", .delta_n = {3}, .batch = 2, .recompute = {kSelective, kNone}},
      {.kind = kGeoPipeZb, .sites = "ab", .delta_n = {2}, .batch = 2, .recompute = {kSelective, kSelective}},
      {.kind = kOneFOneB, .sites = "ab", .delta_n = {0}, .batch = 2, .precision = kBf16},
      {.kind = kGeoPipe, .sites = "ab", .delta_n = {2}, .batch = 4, .tied = true, .precision = kBf16},
      {.kind = kGeoPipe,
       .sites = "ab",
       .delta_n = {2},
       .batch = 2,
       .recompute = {kFull, kSelective},
       .precision = kBf16},
      {.kind = kOneFOneB, .sites = "a", .delta_n = {}, .batch = 2, .tensor = 2},
      {.kind = kOneFOneB, .sites = "ab", .delta_n = {0}, .batch = 2, .tensor = 2},
      {.kind = kGeoPipe, .sites = "ab", .delta_n = {2}, .batch = 2, .tied = true, .tensor = 2},
      {.kind = kOneFOneB, .sites = "a", .delta_n = {}, .batch = 2, .tensor = 4},
      {.kind = kOneFOneB, .sites = "ab", .delta_n = {0}, .batch = 2, .tensor = 2, .sequence_parallel = true},
      {.kind = kGeoPipeZb, .sites = "ab", .delta_n = {2}, .batch = 2, .tensor = 2, .sequence_parallel = true},
      {.kind = kOneFOneB, .sites = "ab", .delta_n = {0}, .batch = 2, .tensor = 4, .sequence_parallel = true},
      {.kind = kGeoPipe, .sites = "ab", .delta_n = {2}, .batch = 2, .tensor = 2, .recompute = {kFull, kFull}},
      {.kind = kGeoPipe,
       .sites = "ab",
       .delta_n = {2},
       .batch = 2,
       .tensor = 2,
       .sequence_parallel = true,
       .recompute = {kFull, kSelective}},
      {.kind = kOneFOneB, .sites = "a", .delta_n = {}, .batch = 2, .data = 2, .zero_stage = 0},
      {.kind = kOneFOneB, .sites = "a", .delta_n = {}, .batch = 2, .data = 2, .zero_stage = 1},
      {.kind = kOneFOneB, .sites = "a", .delta_n = {}, .batch = 2, .data = 2, .zero_stage = 2},
      {.kind = kOneFOneB, .sites = "a", .delta_n = {}, .batch = 2, .data = 2, .zero_stage = 3},
      {.kind = kGeoPipe, .sites = "ab", .delta_n = {2}, .batch = 2, .tied = true, .data = 2, .zero_stage = 1},
      {.kind = kGeoPipe, .sites = "ab", .delta_n = {2}, .batch = 2, .tied = true, .data = 2, .zero_stage = 3},
      {.kind = kGeoPipe, .sites = "ab", .delta_n = {2}, .batch = 2, .data = 2, .nodes = true, .zero_stage = 2},
      {.kind = kGeoPipe, .sites = "ab", .delta_n = {2}, .batch = 2, .data = 3, .zero_stage = 3, .precision = kBf16},
      {.kind = kGeoPipe, .sites = "ab", .delta_n = {2}, .batch = 2, .data = 4, .zero_stage = 2, .precision = kBf16},
      {.kind = kOneFOneB, .sites = "ab", .delta_n = {0}, .batch = 2, .tensor = 2, .data = 2, .zero_stage = 1},
      {.kind = kGeoPipe,
       .sites = "ab",
       .delta_n = {2},
       .batch = 2,
       .tensor = 2,
       .data = 2,
       .zero_stage = 3,
       .sequence_parallel = true,
       .recompute = {kSelective, kFull},
       .precision = kBf16},
      {.kind = kGeoPipeZb,
       .sites = "ab",
       .delta_n = {2},
       .batch = 2,
       .tensor = 2,
       .data = 2,
       .nodes = true,
       .zero_stage = 2,
       .recompute = {kSelective, kNone}},
  };
}

Schedule ScheduleOf(const Plan& plan) {
  return *MakeSchedule(plan.schedule, PipelineShape::Linear(static_cast<int32_t>(plan.stages.size()), kMicroBatches),
                       BoundaryDeltaN(plan));
}

// UCX reads these when it is opened.
void UseLoopbackDevice() {
  setenv("UCX_TLS", "tcp", 1);
  setenv("UCX_NET_DEVICES", "lo", 1);
}

// Limits: of each pipeline rank its modelled peak.
std::vector<int64_t> PeaksOf(const std::vector<RankMemory>& modelled) {
  std::vector<int64_t> peaks;
  std::ranges::transform(modelled, std::back_inserter(peaks), &RankMemory::peak);
  return peaks;
}

double Difference(int64_t measured, int64_t modelled) {
  return modelled == 0 ? (measured == 0 ? 0.0 : 1.0)
                       : static_cast<double>(measured - modelled) / static_cast<double>(modelled);
}

TEST_CASE("every rank's measured peak is within 5 % of the model, and never above it") {
  UseLoopbackDevice();
  const TempDir folder;
  const std::string text_path = WriteText(folder);
  fmt::print("{:<72} {:>4} {:>11} {:>11} {:>8}   activations, workspace, transport\n", "configuration", "rank",
             "measured", "modelled", "differ");
  std::vector<Setting> settings = Settings();
  std::ranges::move(DividedSettings(), std::back_inserter(settings));
  for (const Setting& setting : settings) {
    INFO(setting.name());
    const JobSpec job = JobOf(setting, text_path);
    const Plan plan = PlanOf(setting, job.model);
    const Schedule schedule = ScheduleOf(plan);
    const std::vector<RankMemory> modelled = MemoryOfRanks(job, plan, schedule);
    Ranks ranks(setting, job, plan, schedule);
    const absl::Status status = ranks.Run(PeaksOf(modelled));
    INFO(status.ToString());
    CHECK(status.ok());
    for (int32_t rank = 0; status.ok() && rank < plan.grid.size(); ++rank) {
      const RankMemory& model = modelled[plan.grid.At(rank).pipeline];
      const RankMemory& measured = ranks.peaks(rank);
      const double difference = Difference(measured.peak, model.peak);
      fmt::print(
          "{:<72} {:>4} {:>11} {:>11} {:>+7.2f}%   {:+.2f}% {:+.2f}% {:+.2f}%\n", rank == 0 ? setting.name() : "", rank,
          measured.peak, model.peak, 100 * difference, 100 * Difference(measured.activations, model.activations),
          100 * Difference(measured.workspace, model.workspace), 100 * Difference(measured.transport, model.transport));
      INFO("rank " << rank);
      CHECK(ranks.prepared_bytes(rank) <= model.peak);
      CHECK(difference <= 0);
      CHECK((setting.nodes || difference >= -kTolerance));  // slots of messages fill up with large buckets alone
      CHECK(measured.weights == model.weights);
      CHECK(measured.gradients == model.gradients);
      CHECK(measured.optimizer == model.optimizer);
      CHECK(std::abs(Difference(measured.activations, model.activations)) <= kCategoryTolerance);
      CHECK(std::abs(Difference(measured.workspace, model.workspace)) <= kCategoryTolerance);
    }
  }
}

TEST_CASE("a stage that gets a twentieth less than the model says does not fit") {
  UseLoopbackDevice();
  const TempDir folder;
  const Setting setting{.kind = ScheduleKind::kGeoPipe, .sites = "ab", .delta_n = {3}, .batch = 2};
  const JobSpec job = JobOf(setting, WriteText(folder));
  const Plan plan = PlanOf(setting, job.model);
  const Schedule schedule = ScheduleOf(plan);
  for (size_t short_stage = 0; short_stage < 2; ++short_stage) {
    std::vector<int64_t> limits = PeaksOf(MemoryOfRanks(job, plan, schedule));
    limits[short_stage] -= limits[short_stage] / 20;
    const absl::Status status = Ranks(setting, job, plan, schedule).Run(limits);
    CHECK(absl::IsResourceExhausted(status));
  }
}

}  // namespace
}  // namespace geopipe
