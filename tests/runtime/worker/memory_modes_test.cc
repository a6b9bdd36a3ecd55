// Measures the memory that each mode saves in its category, beside formulas written down here: Korthikanti et al.'s
// (arXiv 2205.05198, table 2) for the layers of a Llama, ZeRO's (arXiv 1910.02054, figure 1) for model states.
#include <fmt/format.h>

#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <string_view>
#include <vector>

#include "tests/runtime/worker/memory_run.h"

namespace geopipe {
namespace {

struct Mode {
  std::string_view name;
  MemorySetting setting;
};

std::vector<Mode> Modes() {
  const auto with = [](auto change) {
    // All micro-batches are in flight at once.
    MemorySetting setting{
        .kind = ScheduleKind::kGpipe, .sites = "a", .delta_n = {}, .batch = 2, .precision = Precision::kBf16};
    change(setting);
    return setting;
  };
  const auto replicas = [&](int32_t zero_stage) {
    return with([&](MemorySetting& s) {
      s.data = 2;
      s.zero_stage = zero_stage;
    });
  };
  const auto offloaded = [](MemorySetting setting) {
    setting.offloads_optimizer = true;
    return setting;
  };
  const auto split_rows = [](MemorySetting& s) {
    s.tensor = 2;
    s.sequence_parallel = true;
  };
  const MemorySetting bf16 = with([](MemorySetting&) {});
  return {
      {"fp32", with([](MemorySetting& s) { s.precision = Precision::kFp32; })},
      {"bf16", bf16},
      {"selective recomputation", with([](MemorySetting& s) { s.recompute = {Recompute::kSelective}; })},
      {"full recomputation", with([](MemorySetting& s) { s.recompute = {Recompute::kFull}; })},
      {"tensor 2", with([](MemorySetting& s) { s.tensor = 2; })},
      {"tensor 2, sequence parallel", with(split_rows)},
      {"the same, selective", with([&](MemorySetting& s) {
         split_rows(s);
         s.recompute = {Recompute::kSelective};
       })},
      {"the same, full", with([&](MemorySetting& s) {
         split_rows(s);
         s.recompute = {Recompute::kFull};
       })},
      {"data 2, ZeRO 0", replicas(0)},
      {"data 2, ZeRO 1", replicas(1)},
      {"data 2, ZeRO 2", replicas(2)},
      {"data 2, ZeRO 3", replicas(3)},
      {"offload", offloaded(bf16)},
      {"data 2, ZeRO 1, offload", offloaded(replicas(1))},
  };
}

// Bytes of one rank.
struct Formula {
  double weights = 0;
  double gradients = 0;
  double optimizer = 0;
  double host = 0;
  double activations = 0;
};

// One stage with all layers of an untied model, n = b * s tokens, a heads, element size e.
Formula FormulaOf(const MemorySetting& setting, const ModelSpec& model) {
  const double e = setting.precision == Precision::kBf16 ? 2 : 4;
  const double master = setting.precision == Precision::kBf16 ? 4 : 0;
  const double t = setting.tensor;
  const double r = setting.sequence_parallel ? t : 1;
  const auto shared_over = [&](int32_t zero_stage) { return setting.zero_stage >= zero_stage ? setting.data : 1.0; };
  const auto h = static_cast<double>(model.hidden_size);
  const auto k = static_cast<double>(model.key_value_width());
  const auto f = static_cast<double>(model.intermediate_size);
  const auto vocabulary = static_cast<double>(model.vocab_size);
  const auto layers = static_cast<double>(model.num_hidden_layers);
  const auto n = static_cast<double>(setting.batch * setting.sequence);
  // Norms are whole on every rank, fp32, and never leave the device.
  const double norms = (2 * layers + 1) * h;
  const double divided = (2 * vocabulary * h + layers * (2 * h * h + 2 * h * k + 3 * h * f)) / t;
  Formula formula;
  formula.weights = e * divided / shared_over(3) + 4 * norms;
  formula.gradients = 4 * divided / shared_over(2) + 4 * norms;
  const double states = (master + 8) * divided / shared_over(1);
  formula.host = setting.offloads_optimizer ? states : 0;
  formula.optimizer = states - formula.host + 8 * norms;
  // Kept for a token and layer: inputs of norms and products, and two reciprocal root mean squares, over the region;
  // queries, keys, values, context and three of the gated product, over the tensor ranks; a number per head. Selective
  // recomputation drops the normalised inputs and the gated product's result.
  const double region = 4 * e * h / r + 8 / r;
  const double inner = e * (2 * h + 2 * k + 3 * f) / t + 4 * static_cast<double>(model.num_attention_heads) / t;
  const Recompute recompute = setting.recompute.empty() ? Recompute::kNone : setting.recompute.front();
  const double layer = recompute == Recompute::kFull        ? e * h / r
                       : recompute == Recompute::kSelective ? region + inner - 2 * e * h / r - e * f / t
                                                            : region + inner;
  const double ends = 4 + 2 * e * h / r + 4 / r + e * vocabulary / t;  // ids, the head's inputs, gradients of logits
  formula.activations = setting.sites.size() * 12 * n * (layers * layer + ends);
  return formula;
}

TEST_CASE("each mode takes from its category what its formula says") {
  UseLoopbackDevice();
  const TempDir folder;
  const std::string text_path = WriteText(folder);
  constexpr double kStatesTolerance = 1e-3;  // replicas divide a bucket into runs of equal length
  // Share of what twelve micro-batches keep that the backward of one layer needs for itself.
  constexpr double kActivationsTolerance = 0.07;
  fmt::print("KiB of a rank (of its formula)     {:>16} {:>16} {:>16} {:>16} {:>17}\n", "weights", "gradients",
             "optimizer", "host", "activations");
  for (const auto& [name, setting] : Modes()) {
    INFO(name);
    const JobSpec job = JobOf(setting, text_path);
    const Plan plan = PlanOf(setting, job.model);
    const Schedule schedule = ScheduleOf(plan);
    MemoryRun run(setting, job, plan, schedule);
    const absl::Status status = run.Run(PeaksOf(MemoryOfRanks(job, plan, schedule)));
    INFO(status.ToString());
    REQUIRE(status.ok());
    const RankMemory& measured = run.peaks(0);
    const Formula formula = FormulaOf(setting, job.model);
    const std::array<std::pair<int64_t, double>, 5> columns{{{measured.weights, formula.weights},
                                                             {measured.gradients, formula.gradients},
                                                             {measured.optimizer, formula.optimizer},
                                                             {measured.host, formula.host},
                                                             {measured.activations, formula.activations}}};
    fmt::print("{:<33}", name);
    for (const auto& [bytes, expected] : columns) {
      fmt::print("  {:>7.1f} ({:>5.1f}%)", static_cast<double>(bytes) / 1024,
                 expected == 0 ? (bytes == 0 ? 100.0 : 999.0) : 100 * static_cast<double>(bytes) / expected);
    }
    fmt::print("\n");
    for (size_t i = 0; i + 1 < columns.size(); ++i) {
      CHECK(std::abs(static_cast<double>(columns[i].first) - columns[i].second) <=
            kStatesTolerance * columns[i].second);
    }
    CHECK(static_cast<double>(measured.activations) >= formula.activations);
    CHECK(static_cast<double>(measured.activations) <= (1 + kActivationsTolerance) * formula.activations);
  }
}

}  // namespace
}  // namespace geopipe
