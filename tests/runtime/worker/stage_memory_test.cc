// What whole stages (engine, data, UCX transport, executor) really take of memory, against the planner's model of it.
// Every stage has no byte more than the model says: a plan that fits in the model must neither fail when it is prepared
// nor while it runs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <barrier>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <thread>

#include "optimizer/base/check.h"
#include "optimizer/model/plan/plan_memory.h"
#include "optimizer/model/transformer.h"
#include "optimizer/schedule/lowering.h"
#include "optimizer/schedule/schedule_table.h"
#include "optimizer/simulator/memory_peaks.h"
#include "runtime/worker/rank_job.h"
#include "tests/support/durations.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

constexpr int32_t kMicroBatches = 12;
constexpr int64_t kIterations = 3;
constexpr double kTolerance = 0.05;

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

  std::string name() const {
    std::string text =
        fmt::format("{} {} ΔN [{}] b {} s {}", ScheduleKindName(kind), sites, fmt::join(delta_n, ","), batch, sequence);
    text += tied ? " tied" : "";
    text += clips ? "" : " unclipped";
    text += comm == CommMode::kBlocking ? " blocking" : "";
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
  job.model.vocab_size = 258;
  job.model.max_position_embeddings = 256;
  job.model.tie_word_embeddings = setting.tied;
  job.data.format = DataFormat::kText;
  job.data.paths = {text_path};
  job.training.iterations = kIterations;
  job.training.tokens_per_iteration = kMicroBatches * setting.batch * setting.sequence;
  job.training.learning_rate = 0.001;
  if (!setting.clips) {
    job.training.grad_clip.reset();
  }
  job.search.micro_batch_size = {setting.batch};
  job.search.sequence_length = {setting.sequence};
  job.parallelism.recompute = Recompute::kNone;
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
  for (const LayerRange& layers : SplitLayers(model, std::ssize(setting.sites))) {
    plan.Append({.site = std::string(1, setting.sites[plan.stages.size()])}, layers);
  }
  return plan;
}

// What the model says of every stage: static bytes and the peak.
struct Modelled {
  std::vector<int64_t> static_bytes;
  std::vector<int64_t> peak_bytes;
};

Modelled Model(const JobSpec& job, const Plan& plan, const Schedule& schedule) {
  MemoryCosts costs;
  for (const StageMemory& stage : MemoryOfStages(NeedsOfPlan(job, plan), InFlightOfSchedule(schedule), plan.comm)) {
    costs.static_bytes.push_back(stage.static_bytes());
    costs.activation_bytes.push_back(stage.activation_bytes);
    costs.wgrad_bytes.push_back(stage.weight_grad_bytes);
  }
  return {.static_bytes = costs.static_bytes, .peak_bytes = PeakBytes(schedule, costs)};
}

// All stages of one plan in one process, over UCX on the loopback device.
class Stages {
 public:
  Stages(const Setting& setting, const JobSpec& job, const Plan& plan, const Schedule& schedule)
      : count_(std::ssize(plan.stages)), statuses_(count_), prepared_bytes_(count_), usage_(count_), jobs_(count_) {
    common_.epoch = 1;
    common_.job = job;
    common_.plan = plan;
    common_.schedule = *Lower(schedule);
    common_.costs.shape = schedule.shape;
    common_.costs.forward_ns.assign(count_, kMs);
    common_.costs.input_grad_ns.assign(count_, 2 * kMs);
    common_.costs.boundaries.resize(count_ - 1);
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

  // Prepares all stages with these limits (0: none), connects them and trains. The first error, if there is one.
  absl::Status Run(const std::vector<int64_t>& limits) {
    std::barrier<> all(count_);
    std::vector<std::thread> threads;
    for (int32_t stage = 0; stage < count_; ++stage) {
      threads.emplace_back([&, stage] { RunStage(stage, limits[stage], all); });
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

  // In use when the stage was prepared; peak of the whole run, and in use by category at its end.
  int64_t prepared_bytes(size_t stage) const { return prepared_bytes_[stage]; }
  int64_t peak_bytes(size_t stage) const { return usage_[stage].total_peak_bytes; }
  std::string Categories(size_t stage) const { return usage_[stage].text; }

 private:
  struct Usage {
    int64_t total_peak_bytes = 0;
    std::string text;
  };

  void Deduplicate() {
    std::vector<v1::LinkShape>& shapes = common_.shapes;
    const auto key = [](const v1::LinkShape& shape) { return shape.from_site() + shape.to_site(); };
    std::ranges::sort(shapes, {}, key);
    const auto same = [&](const v1::LinkShape& a, const v1::LinkShape& b) { return key(a) == key(b); };
    shapes.erase(std::unique(shapes.begin(), shapes.end(), same), shapes.end());
  }

  void RunStage(int32_t stage, int64_t limit_bytes, std::barrier<>& all) {
    RankPreparation preparation = common_;
    preparation.rank = stage;
    preparation.memory_limit_bytes = limit_bytes;
    absl::StatusOr<std::unique_ptr<RankJob>> made =
        RankJob::Prepare(std::move(preparation), Clock::Real(),
                         [](UcxTransportOptions options) { return UcxTransport::Create(std::move(options)); });
    statuses_[stage] = made.status();
    if (made.ok()) {
      jobs_[stage] = *std::move(made);
      prepared_bytes_[stage] = jobs_[stage]->allocator().total().bytes;
    }
    all.arrive_and_wait();
    if (std::ranges::all_of(jobs_, [](const auto& job) { return job != nullptr; })) {
      statuses_[stage] = Train(stage);
      if (!statuses_[stage].ok()) {
        for (const auto& job : jobs_) {
          job->Interrupt();
        }
      }
      usage_[stage].total_peak_bytes = jobs_[stage]->allocator().total().peak_bytes;
      for (int i = 0; i < kMemoryCategories; ++i) {
        const auto category = static_cast<MemoryCategory>(i);
        usage_[stage].text += fmt::format("{}{} {}", i == 0 ? "" : ", ", MemoryCategoryName(category),
                                          jobs_[stage]->allocator().usage(category).peak_bytes);
      }
    }
    // Nobody leaves while another still waits for an acknowledgement.
    all.arrive_and_wait();
    jobs_[stage] = nullptr;
  }

  absl::Status Train(int32_t stage) {
    std::vector<UcxPeer> peers;
    for (int32_t peer = 0; peer < count_; ++peer) {
      peers.push_back({.rank = peer, .address = jobs_[peer]->address()});
    }
    if (absl::Status status = jobs_[stage]->Connect(peers, "secret"); !status.ok()) {
      return status;
    }
    return jobs_[stage]->Train(0, kIterations, [](const IterationStats&) {});
  }

  const int64_t count_;
  RankPreparation common_;
  std::vector<absl::Status> statuses_;
  std::vector<int64_t> prepared_bytes_;
  std::vector<Usage> usage_;
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

Schedule ScheduleOf(const Plan& plan) {
  return *MakeSchedule(plan.schedule, PipelineShape::Linear(static_cast<int32_t>(plan.stages.size()), kMicroBatches),
                       BoundaryDeltaN(plan));
}

// UCX reads these when it is opened.
void UseLoopbackDevice() {
  setenv("UCX_TLS", "tcp", 1);
  setenv("UCX_NET_DEVICES", "lo", 1);
}

TEST_CASE("every stage's measured peak is within 5 % of the model, and never above it") {
  UseLoopbackDevice();
  const TempDir folder;
  const std::string text_path = WriteText(folder);
  fmt::print("{:<58} {:>5} {:>12} {:>12} {:>8}\n", "configuration (fp32, no recomputation)", "stage", "measured",
             "modelled", "differ");
  for (const Setting& setting : Settings()) {
    INFO(setting.name());
    const JobSpec job = JobOf(setting, text_path);
    const Plan plan = PlanOf(setting, job.model);
    const Schedule schedule = ScheduleOf(plan);
    const Modelled modelled = Model(job, plan, schedule);
    Stages stages(setting, job, plan, schedule);
    const absl::Status status = stages.Run(modelled.peak_bytes);
    INFO(status.ToString());
    CHECK(status.ok());
    for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
      const auto model = static_cast<double>(modelled.peak_bytes[stage]);
      const double difference = (static_cast<double>(stages.peak_bytes(stage)) - model) / model;
      fmt::print("{:<58} {:>5} {:>12} {:>12} {:>+7.2f}%\n", stage == 0 ? setting.name() : "", stage,
                 stages.peak_bytes(stage), modelled.peak_bytes[stage], 100 * difference);
      INFO("stage " << stage << ": " << stages.Categories(stage));
      CHECK(stages.prepared_bytes(stage) <= modelled.static_bytes[stage]);
      CHECK(difference <= 0);
      CHECK(difference >= -kTolerance);
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
    std::vector<int64_t> limits = Model(job, plan, schedule).peak_bytes;
    limits[short_stage] -= limits[short_stage] / 20;
    const absl::Status status = Stages(setting, job, plan, schedule).Run(limits);
    CHECK(absl::IsResourceExhausted(status));
  }
}

}  // namespace
}  // namespace geopipe
