// The cost model against runs that others have published: Megatron-LM on 32 to 3,072 A100 (Narayanan et al., SC'21,
// arXiv 2104.04473, table 1), MPT models of llm-foundry on 8 to 64 H100 over sequences of 1,024 to 65,536 tokens, and
// Llama 3 405B on 8,192 and 16,384 H100 (arXiv 2407.21783, table 4). Each type of device has one efficiency, calibrated
// on one row, and the attention efficiency of its preset; the rest follows. Beside it what the planner takes when the
// degrees are left to it. Prints tables for docs/published.md; fails where a row is too far off.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
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
  double published = 0;          // TFLOP/s or tokens/s of each device
  int64_t micro_batch_size = 0;  // 0: of the setting's
  std::optional<Recompute> recompute = {};
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
          .published = tflops};
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
          .published = 430};
  Run larger = run;
  larger.name = "405 B, 16,384";
  larger.devices = 16384;
  larger.data = 128;
  larger.published = 400;
  return {run, larger};
}

// An MPT model: a GPT block as above, tied embeddings of 50,368 rows.
Run Foundry(const std::string& name, int64_t sequence_length, int64_t devices, double tokens_per_s, int64_t b,
            int64_t micro_batches, bool recomputes) {
  struct Shape {
    const char* name;
    int64_t hidden;
    int64_t layers;
  };
  static constexpr std::array kShapes{Shape{"760 M", 1536, 24}, Shape{"1 B", 2048, 24},  Shape{"3 B", 2560, 32},
                                      Shape{"7 B", 4096, 32},   Shape{"13 B", 5120, 40}, Shape{"30 B", 7168, 48},
                                      Shape{"70 B", 8192, 80}};
  const Shape& shape = *std::ranges::find(kShapes, name, [](const Shape& each) { return std::string(each.name); });
  Run run{.name = name,
          .model = {.hidden_size = shape.hidden,
                    .intermediate_size = shape.hidden * 8 / 3 / 8 * 8,
                    .num_hidden_layers = shape.layers,
                    .num_attention_heads = shape.hidden / 128,
                    .num_key_value_heads = shape.hidden / 128,
                    .vocab_size = 50368,
                    .max_position_embeddings = sequence_length,
                    .tie_word_embeddings = true},
          .devices = devices,
          .tensor = 1,
          .pipeline = 1,
          .data = devices,
          .sequences = b * micro_batches * devices,
          .sequence_length = sequence_length,
          .published = tokens_per_s,
          .micro_batch_size = b,
          .recompute = recomputes ? Recompute::kFull : Recompute::kNone};
  return run;
}

// Rows "H100 80GB BF16" of scripts/train/benchmarking/README.md in github.com/mosaicml/llm-foundry, from 1,024 tokens
// on.
std::vector<Run> FoundryRuns() {
  return {Foundry("70 B", 2048, 64, 1039, 8, 4, true),     Foundry("70 B", 2048, 32, 882, 2, 16, true),
          Foundry("30 B", 8192, 8, 1384, 1, 21, true),     Foundry("30 B", 4096, 8, 1802, 1, 21, true),
          Foundry("30 B", 2048, 32, 2308, 14, 3, true),    Foundry("30 B", 2048, 16, 2263, 10, 3, true),
          Foundry("30 B", 2048, 8, 2002, 3, 21, true),     Foundry("30 B", 1024, 8, 2084, 6, 21, true),
          Foundry("13 B", 32768, 8, 1976, 1, 3, true),     Foundry("13 B", 16384, 8, 2985, 3, 3, true),
          Foundry("13 B", 4096, 8, 4717, 10, 3, true),     Foundry("13 B", 2048, 64, 4800, 2, 1, false),
          Foundry("13 B", 2048, 32, 4811, 2, 1, false),    Foundry("13 B", 2048, 16, 4767, 2, 1, false),
          Foundry("13 B", 2048, 8, 4792, 2, 1, false),     Foundry("13 B", 1024, 8, 5502, 40, 3, true),
          Foundry("7 B", 65536, 8, 1956, 1, 2, true),      Foundry("7 B", 32768, 8, 3318, 2, 2, true),
          Foundry("7 B", 8192, 8, 6935, 8, 2, true),       Foundry("7 B", 4096, 8, 8611, 16, 2, true),
          Foundry("7 B", 2048, 8, 10643, 6, 1, false),     Foundry("7 B", 1024, 8, 10203, 64, 2, true),
          Foundry("3 B", 65536, 8, 3262, 1, 2, true),      Foundry("3 B", 32768, 8, 5873, 3, 6, true),
          Foundry("3 B", 16384, 8, 11152, 1, 6, false),    Foundry("3 B", 8192, 8, 16578, 3, 6, false),
          Foundry("3 B", 4096, 8, 20964, 5, 6, false),     Foundry("3 B", 2048, 64, 22525, 6, 3, false),
          Foundry("3 B", 2048, 32, 23021, 6, 3, false),    Foundry("3 B", 2048, 16, 24142, 10, 3, false),
          Foundry("3 B", 1024, 8, 27046, 20, 6, false),    Foundry("1 B", 65536, 8, 5506, 1, 2, true),
          Foundry("1 B", 32768, 8, 12025, 1, 4, false),    Foundry("1 B", 16384, 8, 19649, 2, 4, false),
          Foundry("1 B", 8192, 8, 29157, 3, 4, false),     Foundry("1 B", 4096, 8, 38535, 7, 4, false),
          Foundry("1 B", 2048, 64, 44402, 20, 1, false),   Foundry("1 B", 2048, 32, 45130, 20, 1, false),
          Foundry("1 B", 2048, 16, 46037, 20, 1, false),   Foundry("1 B", 2048, 8, 45455, 14, 1, false),
          Foundry("1 B", 1024, 8, 48910, 18, 4, false),    Foundry("760 M", 32768, 8, 16291, 1, 2, false),
          Foundry("760 M", 16384, 8, 27815, 3, 2, false),  Foundry("760 M", 8192, 8, 41825, 6, 2, false),
          Foundry("760 M", 4096, 8, 55459, 12, 2, false),  Foundry("760 M", 2048, 32, 67971, 24, 1, false),
          Foundry("760 M", 2048, 16, 68551, 24, 1, false), Foundry("760 M", 2048, 8, 63147, 24, 2, false),
          Foundry("760 M", 1024, 8, 78581, 48, 2, false)};
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

// Figures of the presets (coordinator/spec/device_presets.cc).
constexpr double kA100Attention = 0.33;
constexpr double kH100Attention = 0.19;

// Counts tokens, for a table whose figures are tokens a second.
double Tokens(const Run& run) { return 1e12 * static_cast<double>(run.sequences * run.sequence_length); }

Setting Mosaic() {
  return {.site = {.name = "mosaic",
                   .devices_per_node = 8,
                   .device = {.kind = "h100-sxm-80gb",
                              .memory_bytes = 80'000'000'000,
                              .peak_flops = 989e12,
                              .memory_bandwidth_bytes_per_s = 3.35e12,
                              .intra_node_bandwidth_bytes_per_s = 450e9,
                              .attention_efficiency = kH100Attention,
                              .attention = Attention::kBlocked,
                              .roofline = Roofline::kOperation},
                   .network = {.bandwidth_bytes_per_s = 50e9, .latency_ns = 10'000}},
          .published_memory_bytes = 400'000'000'000,
          .zero_stage = 3,
          .micro_batch_size = {1},
          .flops = Tokens,
          .schedule = ScheduleKind::kOneFOneB};
}

Setting Selene() {
  return {.site = {.name = "selene",
                   .devices_per_node = 8,
                   .device = {.kind = "a100-sxm-80gb",
                              .memory_bytes = 80'000'000'000,
                              .peak_flops = 312e12,
                              .memory_bandwidth_bytes_per_s = 2.039e12,
                              .intra_node_bandwidth_bytes_per_s = 300e9,
                              .attention_efficiency = kA100Attention,
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
                              .attention_efficiency = kH100Attention,
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
                     .recompute = run.recompute.value_or(setting.recompute)};
  job.search.schedule = setting.schedule;
  job.search.micro_batch_size = setting.micro_batch_size;
  if (run.micro_batch_size > 0) {
    job.search.micro_batch_size = {run.micro_batch_size};
  }
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

double Throughput(const Setting& setting, const Run& run, int64_t iteration_ns) {
  return setting.flops(run) / static_cast<double>(run.devices) / (static_cast<double>(iteration_ns) * 1e-9) / 1e12;
}

// Finds the efficiency with which the run's predicted throughput equals the published one.
double Calibrated(const Setting& setting, const Run& run, ThreadPool& pool) {
  double low = 0.1;
  double high = 1;
  for (int step = 0; step < 16; ++step) {
    const double middle = (low + high) / 2;
    const int64_t iteration_ns = Predict(RequestOf(setting, run, middle, pool)).iteration_ns;
    (Throughput(setting, run, iteration_ns) < run.published ? low : high) = middle;
  }
  return (low + high) / 2;
}

bool Table(const std::string& title, const Setting& setting, const std::vector<Run>& runs, double efficiency,
           double most_off, ThreadPool& pool) {
  fmt::print("\n{}: efficiency {:.3f}\n", title, efficiency);
  fmt::print(
      "| model | devices | tensor, pipeline, data | b, micro-batches | published | predicted | off | left to the "
      "planner, with ZeRO | faster by |\n|---|---|---|---|---|---|---|---|---|\n");
  bool all = true;
  for (const Run& run : runs) {
    PlanRequest request = RequestOf(setting, run, efficiency, pool);
    const Predicted fixed = Predict(request);
    const double predicted = Throughput(setting, run, fixed.iteration_ns);
    const double off = predicted / run.published - 1;
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
               run.published, predicted, 100 * off, open.plan.grid.tensor, open.plan.grid.pipeline, open.plan.grid.data,
               open.plan.zero_stage, 100 * faster, is_right ? "" : "  MISSED");
    std::fflush(stdout);
  }
  return all;
}

// Prints the table. No run over long sequences may be further off than `long_off`, of others than `most_off`.
bool FoundryTable(const std::vector<Run>& runs, double efficiency, double long_off, double most_off, ThreadPool& pool) {
  constexpr int64_t kLong = 16'384;
  fmt::print(
      "\nllm-foundry, tokens a second of each H100: efficiency {:.3f}\n| model | s | devices | b, micro-batches | "
      "recomputes | published | predicted | off |\n|---|---|---|---|---|---|---|---|\n",
      efficiency);
  bool all = true;
  for (const Run& run : runs) {
    const Setting setting = Mosaic();
    const Predicted fixed = Predict(RequestOf(setting, run, efficiency, pool));
    const double predicted = Throughput(setting, run, fixed.iteration_ns);
    const double off = predicted / run.published - 1;
    const bool is_right = std::abs(off) <= (run.sequence_length >= kLong ? long_off : most_off);
    all = all && is_right;
    fmt::print("| {} | {} | {} | {}, {} | {} | {:.0f} | {:.0f} | {:+.1f} % |{}\n", run.name, run.sequence_length,
               run.devices, fixed.micro_batch_size, fixed.micro_batches,
               run.recompute == Recompute::kFull ? "all" : "nothing", run.published, predicted, 100 * off,
               is_right ? "" : "  MISSED");
  }
  return all;
}

const Run& RunNamed(const std::vector<Run>& runs, const std::string& name, int64_t sequence_length) {
  return *std::ranges::find_if(
      runs, [&](const Run& run) { return run.name == name && run.sequence_length == sequence_length; });
}

}  // namespace
}  // namespace geopipe

int main() {
  using namespace geopipe;
  ThreadPool pool(ThreadPool::Processors(2));
  const std::vector<Run> megatron = MegatronRuns();
  const std::vector<Run> foundry = FoundryRuns();
  const double a100 = Calibrated(Selene(), RunNamed(megatron, "145.6 B", 2048), pool);
  const double h100 = Calibrated(Mosaic(), RunNamed(foundry, "13 B", 1024), pool);
  const bool megatron_is_right = Table("Megatron-LM, TFLOP/s of each A100", Selene(), megatron, a100, 0.10, pool);
  const bool foundry_is_right = FoundryTable(foundry, h100, 0.20, 0.40, pool);
  const bool llama_is_right = Table("Llama 3, TFLOP/s of each H100", Meta(), LlamaRuns(), h100, 0.20, pool);
  return megatron_is_right && foundry_is_right && llama_is_right ? 0 : 1;
}
