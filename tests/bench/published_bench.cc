// The cost model against runs that others have published: Megatron-LM on 32 to 3,072 A100 (Narayanan et al., SC'21,
// arXiv 2104.04473, table 1) and Llama 3 405B on 8,192 and 16,384 H100 (arXiv 2407.21783, table 4). One efficiency is
// calibrated on one row of each; the rest follows. Beside it what the planner takes when the degrees are left to it.
// Prints a table for docs/published.md; fails where a row is too far off.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "optimizer/model/transformer.h"
#include "optimizer/plan/planner.h"
#include "optimizer/schedule/schedule_table.h"
#include "runtime/base/thread_pool.h"

namespace geopipe {
namespace {

struct Run {
  std::string name;
  ModelSpec model;
  int64_t devices = 0;
  int64_t tensor = 0;
  int64_t pipeline = 0;
  int64_t data = 0;
  int64_t sequences = 0;  // of an iteration
  int64_t sequence_length = 0;
  double tflops_per_device = 0;  // published
};

// 96 B s l h^2 (1 + s / 6h + V / 16 l h) FLOPs of an iteration, recomputation included (equation 3 of the paper).
double MegatronFlops(const Run& run) {
  const auto h = static_cast<double>(run.model.hidden_size);
  const auto l = static_cast<double>(run.model.num_hidden_layers);
  const auto s = static_cast<double>(run.sequence_length);
  const auto v = static_cast<double>(run.model.vocab_size);
  return 96 * static_cast<double>(run.sequences) * s * l * h * h * (1 + s / (6 * h) + v / (16 * l * h));
}

// 6 of each parameter and token, which is what 3.8e25 for 15.6 trillion tokens and 405 billion parameters are.
double LlamaFlops(const Run& run) {
  return 6 * static_cast<double>(ParameterCount(run.model)) * static_cast<double>(run.sequences * run.sequence_length);
}

// A GPT block as a Llama block of the same products: its MLP of 2 x 4h^2 as gate, up and down of 8/3 h.
Run Megatron(const std::string& name, int64_t heads, int64_t hidden, int64_t layers, int64_t tensor, int64_t pipeline,
             int64_t devices, int64_t batch, double tflops) {
  Run run{.name = name,
          .model = {},
          .devices = devices,
          .tensor = tensor,
          .pipeline = pipeline,
          .data = devices / tensor / pipeline,
          .sequences = batch,
          .sequence_length = 2048,
          .tflops_per_device = tflops};
  run.model = {.hidden_size = hidden,
               .intermediate_size = hidden * 8 / 3 / 8 * 8,
               .num_hidden_layers = layers,
               .num_attention_heads = heads,
               .num_key_value_heads = heads,
               .vocab_size = 51200,
               .max_position_embeddings = 2048,
               .tie_word_embeddings = true};
  return run;
}

std::vector<Run> MegatronRuns() {
  return {Megatron("1.7 B", 24, 2304, 24, 1, 1, 32, 512, 137),
          Megatron("3.6 B", 32, 3072, 30, 2, 1, 64, 512, 138),
          Megatron("7.5 B", 32, 4096, 36, 4, 1, 128, 512, 142),
          Megatron("18.4 B", 48, 6144, 40, 8, 1, 256, 1024, 135),
          Megatron("39.1 B", 64, 8192, 48, 8, 2, 512, 1536, 138),
          Megatron("76.1 B", 80, 10240, 60, 8, 4, 1024, 1792, 140),
          Megatron("145.6 B", 96, 12288, 80, 8, 8, 1536, 2304, 148),
          Megatron("310.1 B", 128, 16384, 96, 8, 16, 1920, 2160, 155),
          Megatron("529.6 B", 128, 20480, 105, 8, 35, 2520, 2520, 163),
          Megatron("1008 B", 160, 25600, 128, 8, 64, 3072, 3072, 163)};
}

std::vector<Run> LlamaRuns() {
  Run run{.name = "405 B, 8,192",
          .model = {.hidden_size = 16384,
                    .intermediate_size = 53248,
                    .num_hidden_layers = 126,
                    .num_attention_heads = 128,
                    .num_key_value_heads = 8,
                    .vocab_size = 128256,
                    .max_position_embeddings = 8192},
          .devices = 8192,
          .tensor = 8,
          .pipeline = 16,
          .data = 64,
          .sequences = 2048,
          .sequence_length = 8192,
          .tflops_per_device = 430};
  Run larger = run;
  larger.name = "405 B, 16,384";
  larger.devices = 16384;
  larger.data = 128;
  larger.tflops_per_device = 400;
  return {run, larger};
}

// Settings that all runs of a publication share.
struct Setting {
  SiteSpec site;  // nodes: of the run
  Recompute recompute = Recompute::kNone;
  int64_t published_memory_bytes = 0;  // of a device, for the published degrees alone; 0: what it has
  int32_t zero_stage = 1;
  std::vector<int64_t> micro_batch_size;
  double (*flops)(const Run& run) = nullptr;
  ScheduleKind schedule = ScheduleKind::kAuto;
  int32_t stages_per_rank = 0;  // 0: as many as are best
};

Setting Selene() {
  return {.site = {.name = "selene",
                   .devices_per_node = 8,
                   .device = {.kind = "a100-sxm-80gb",
                              .memory_bytes = 80'000'000'000,
                              .peak_flops = 312e12,
                              .memory_bandwidth_bytes_per_s = 2.039e12,
                              .intra_node_bandwidth_bytes_per_s = 300e9,
                              .attention = Attention::kDense,
                              .roofline = Roofline::kOperation},
                   .network = {.bandwidth_bytes_per_s = 25e9, .latency_ns = 5'000}},
          .recompute = Recompute::kFull,
          .micro_batch_size = {1, 2, 4, 8},
          .flops = MegatronFlops};
}

Setting Meta() {
  return {.site = {.name = "meta",
                   .devices_per_node = 8,
                   .device = {.kind = "h100-sxm-80gb",
                              .memory_bytes = 80'000'000'000,
                              .peak_flops = 989e12,
                              .memory_bandwidth_bytes_per_s = 3.35e12,
                              .intra_node_bandwidth_bytes_per_s = 450e9,
                              .attention = Attention::kBlocked,
                              .roofline = Roofline::kOperation},
                   .network = {.bandwidth_bytes_per_s = 50e9, .latency_ns = 10'000}},
          .recompute = Recompute::kSelective,
          .published_memory_bytes = 92'000'000'000,
          .zero_stage = 1,  // gradients are added up in fp32 over the micro-batches, and then scattered
          .micro_batch_size = {1},
          .flops = LlamaFlops,
          .schedule = ScheduleKind::kInterleaved,
          .stages_per_rank = 7};
}

PlanRequest RequestOf(const Setting& setting, const Run& run, double efficiency, ThreadPool& pool) {
  PlanRequest request;
  request.cluster.sites = {setting.site};
  request.cluster.sites[0].nodes = run.devices / 8;
  request.cluster.sites[0].device.efficiency = efficiency;
  if (setting.published_memory_bytes > 0) {
    request.cluster.sites[0].device.memory_bytes = setting.published_memory_bytes;
  }
  JobSpec& job = request.job;
  job.name = "published";
  job.model = run.model;
  job.training.iterations = 1;
  job.training.tokens_per_iteration = run.sequences * run.sequence_length;
  job.precision = Precision::kBf16;
  job.parallelism = {.tensor = run.tensor,
                     .pipeline = run.pipeline,
                     .data = run.data,
                     .stages_per_rank = setting.stages_per_rank,
                     .sequence_parallel = setting.recompute != Recompute::kFull,
                     .zero_stage = setting.zero_stage,
                     .recompute = setting.recompute};
  job.search.schedule = setting.schedule;
  job.search.micro_batch_size = setting.micro_batch_size;
  job.search.sequence_length = {run.sequence_length};
  job.placement.sites = {setting.site.name};
  request.cluster_bound = false;
  request.parallel_for = [&pool](int64_t count, const std::function<void(int64_t)>& work) { pool.For(count, work); };
  return request;
}

PlanResult Plan(const PlanRequest& request) {
  absl::StatusOr<PlanResult> result = MakePlan(request);
  if (!result.ok()) {
    fmt::print(stderr, "{}\n", result.status().ToString());
    std::exit(1);
  }
  return *std::move(result);
}

// Predicted iteration time with the published degrees, and the b it was reached with.
struct Predicted {
  int64_t iteration_ns = 0;
  int64_t micro_batch_size = 0;
  int64_t micro_batches = 0;
};

Predicted Predict(const PlanRequest& request) {
  const PlanResult result = Plan(request);
  return {.iteration_ns = result.prediction.iteration_ns,
          .micro_batch_size = result.plan.micro_batch_size,
          .micro_batches = result.plan.micro_batches};
}

double Tflops(const Setting& setting, const Run& run, int64_t iteration_ns) {
  return setting.flops(run) / static_cast<double>(run.devices) / (static_cast<double>(iteration_ns) * 1e-9) / 1e12;
}

// Finds the efficiency with which the run's predicted throughput equals the published one.
double Calibrated(const Setting& setting, const Run& run, ThreadPool& pool) {
  double low = 0.1;
  double high = 1;
  for (int step = 0; step < 16; ++step) {
    const double middle = (low + high) / 2;
    const int64_t iteration_ns = Predict(RequestOf(setting, run, middle, pool)).iteration_ns;
    (Tflops(setting, run, iteration_ns) < run.tflops_per_device ? low : high) = middle;
  }
  return (low + high) / 2;
}

bool Table(const std::string& title, const Setting& setting, const std::vector<Run>& runs, size_t calibrate_on,
           double most_off, ThreadPool& pool) {
  const double efficiency = Calibrated(setting, runs[calibrate_on], pool);
  fmt::print("\n{}: efficiency {:.3f}, of {}\n", title, efficiency, runs[calibrate_on].name);
  fmt::print(
      "| model | devices | tensor, pipeline, data | b, micro-batches | published | predicted | off | left to the "
      "planner, with ZeRO | faster by |\n|---|---|---|---|---|---|---|---|---|\n");
  bool all = true;
  for (const Run& run : runs) {
    PlanRequest request = RequestOf(setting, run, efficiency, pool);
    const Predicted fixed = Predict(request);
    const double predicted = Tflops(setting, run, fixed.iteration_ns);
    const double off = predicted / run.tflops_per_device - 1;
    request.cluster.sites[0].device.memory_bytes = setting.site.device.memory_bytes;
    request.job.search.schedule = ScheduleKind::kAuto;
    request.job.parallelism = {.tensor = 0,
                               .pipeline = 0,
                               .data = 0,
                               .sequence_parallel = true,
                               .zero_stage = std::nullopt,
                               .recompute = std::nullopt};
    const PlanResult open = Plan(request);
    const double faster =
        static_cast<double>(fixed.iteration_ns) / static_cast<double>(open.prediction.iteration_ns) - 1;
    const bool is_right = std::abs(off) <= most_off && faster >= 0;
    all = all && is_right;
    fmt::print("| {} | {} | {}, {}, {} | {}, {} | {:.0f} | {:.0f} | {:+.1f} % | {}, {}, {}, {} | {:+.1f} % |{}\n",
               run.name, run.devices, run.tensor, run.pipeline, run.data, fixed.micro_batch_size, fixed.micro_batches,
               run.tflops_per_device, predicted, 100 * off, open.plan.grid.tensor, open.plan.grid.pipeline,
               open.plan.grid.data, open.plan.zero_stage, 100 * faster, is_right ? "" : "  MISSED");
    std::fflush(stdout);
  }
  return all;
}

}  // namespace
}  // namespace geopipe

int main() {
  geopipe::ThreadPool pool(geopipe::ThreadPool::Processors(2));
  const bool megatron =
      geopipe::Table("Megatron-LM, TFLOP/s of each A100", geopipe::Selene(), geopipe::MegatronRuns(), 6, 0.15, pool);
  const bool llama =
      geopipe::Table("Llama 3, TFLOP/s of each H100", geopipe::Meta(), geopipe::LlamaRuns(), 0, 0.05, pool);
  return megatron && llama ? 0 : 1;
}
