#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"
#include "runtime/model/transformer_stage.h"
#include "tests/device/speed.h"
#include "tests/runtime/model/small_models.h"

namespace geopipe {
namespace {

using Against = SpeedRow::Against;

TransformerStageOptions StageOptionsOf(const SpeedShape& shape, const LayerRange& layers, int32_t micro_batches) {
  TransformerStageOptions options;
  options.model = shape.model;
  options.layers = layers;
  options.micro_batch_size = 1;
  options.sequence_length = shape.tokens;
  options.micro_batches = micro_batches;
  options.training.iterations = 1000;
  options.training.tokens_per_iteration = micro_batches * shape.tokens;
  options.training.learning_rate = 1e-4;
  options.training.grad_clip = 1.0;
  options.sharding.precision = Precision::kBf16;
  return options;
}

double UsOf(int64_t bytes, double bytes_per_s) { return static_cast<double>(bytes) / bytes_per_s * 1e6; }

// Time of the pass if its parts took what each takes alone; nullopt: one of them was not measured.
std::optional<double> FloorUs(const SpeedRun& run, const SpeedShape& shape, Pass pass) {
  const auto found = run.parts.find({shape.name, pass});
  const bool has_attention = pass != Pass::kWeightGrad;
  if (found == run.parts.end() || found->second.products_us == 0 || run.ceilings.copy_bytes_per_s == 0 ||
      (has_attention && found->second.attention_us == 0)) {
    return std::nullopt;
  }
  return found->second.products_us + found->second.attention_us +
         UsOf(LayerWork(shape, pass).streamed_bytes, run.ceilings.copy_bytes_per_s);
}

// Runs the micro-batches of an iteration one after the other and appends the times of F, I and W, but of the first:
// whose W has nothing to add to, and whose F may find the queue empty.
absl::Status RunMicroBatches(SpeedRun& run, TransformerStage& stage, int32_t micro_batches,
                             std::map<Pass, std::vector<double>>* us) {
  SpeedBench& bench = run.bench();
  const auto message = [&]() -> absl::StatusOr<Timed<Tensor>> {
    GP_ASSIGN_OR_RETURN(Tensor tensor, stage.NewMessage());
    GP_RETURN_IF_ERROR(bench.FillRandom(tensor));
    return Timed<Tensor>{.value = std::move(tensor)};
  };
  GP_RETURN_IF_ERROR(stage.BeginIteration(0));
  std::vector<std::pair<Pass, Completion>> work;
  for (int32_t q = 0; q < micro_batches; ++q) {
    GP_ASSIGN_OR_RETURN(Timed<Tensor> input, message());
    GP_ASSIGN_OR_RETURN(Timed<Tensor> gradient, message());
    GP_ASSIGN_OR_RETURN(const Timed<Tensor> output, stage.Forward(q, std::move(input)));
    GP_ASSIGN_OR_RETURN(const Timed<Tensor> input_gradient, stage.BackwardInput(q, std::move(gradient)));
    GP_ASSIGN_OR_RETURN(const Completion weight_gradient, stage.BackwardWeight(q, 0));
    if (q > 0) {
      work.emplace_back(Pass::kForward, output.ready);
      work.emplace_back(Pass::kInputGrad, input_gradient.ready);
      work.emplace_back(Pass::kWeightGrad, weight_gradient);
    }
  }
  GP_RETURN_IF_ERROR(bench.Wait(work.back().second));
  for (const auto& [pass, completion] : work) {
    (*us)[pass].push_back(TookUs(completion));
  }
  stage.AbandonIteration();
  return absl::OkStatus();
}

// An iteration of a stage that is the whole model.
struct IterationTimes {
  double all_us = 0;
  double idle_us = 0;  // between actions
  double loss = 0;
};

class WholeModel {
 public:
  WholeModel(SpeedRun& run, const SpeedShape& shape, int32_t micro_batches)
      : bench_(run.bench()), tokens_(shape.model.vocab_size, shape.tokens), micro_batches_(micro_batches) {}

  absl::Status Open(SpeedEngine& engine, const SpeedShape& shape) {
    QuickWeights weights(bench_.seed());
    const LayerRange all = {
        .first = 0, .last = shape.model.num_hidden_layers - 1, .has_embedding = true, .has_head = true};
    GP_ASSIGN_OR_RETURN(stage_, TransformerStage::Create(StageOptionsOf(shape, all, micro_batches_), engine.allocator,
                                                         *engine.backend, &tokens_, weights));
    return absl::OkStatus();
  }

  // F and B of each micro-batch, the norm, the update: as a rank does alone.
  absl::StatusOr<IterationTimes> Iterate() {
    GP_RETURN_IF_ERROR(stage_->BeginIteration(iteration_));
    std::vector<Completion> work;
    for (int32_t q = 0; q < micro_batches_; ++q) {
      GP_ASSIGN_OR_RETURN(const Timed<Tensor> forward, stage_->Forward(q, {}));
      GP_ASSIGN_OR_RETURN(const Timed<Tensor> backward, stage_->Backward(q, {}));
      work.push_back(forward.ready);
      work.push_back(backward.ready);
    }
    const Mark begun = bench_.device().Begin(Queue::kCompute);
    GP_ASSIGN_OR_RETURN(const Timed<ScalarReader> scalars, stage_->ReadScalars(/*norm_terms=*/true));
    work.push_back(bench_.device().Record(Queue::kCompute, begun));
    GP_RETURN_IF_ERROR(bench_.Wait(work.back()));
    const IterationScalars values = scalars.value();
    double squares = 0;
    for (const NormTerm& term : values.norm_terms) {
      squares += term.sum_of_squares;
    }
    GP_ASSIGN_OR_RETURN(const Completion update, stage_->Update(iteration_++, std::sqrt(squares), 0));
    GP_RETURN_IF_ERROR(bench_.Wait(update));
    work.push_back(update);
    IterationTimes times;
    times.loss = values.loss.value_or(std::nan(""));
    times.all_us = static_cast<double>(update.ready_ns() - work.front().begun_ns()) / 1e3;
    times.idle_us = times.all_us;
    for (const Completion& action : work) {
      times.idle_us -= TookUs(action);
    }
    return times;
  }

 private:
  SpeedBench& bench_;
  RandomTokens tokens_;
  const int32_t micro_batches_;
  std::unique_ptr<TransformerStage> stage_;
  int64_t iteration_ = 0;
};

}  // namespace

absl::Status MeasureLayer(SpeedRun& run, const SpeedShape& shape) {
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<SpeedEngine> engine, SpeedEngine::Open(run));
  QuickWeights weights(run.bench().seed());
  const int32_t micro_batches = run.settings().micro_batches;
  const int64_t begin_ns = Clock::Real().NowNs();
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<TransformerStage> stage,
                      TransformerStage::Create(StageOptionsOf(shape, {.first = 0, .last = 0}, micro_batches),
                                               engine->allocator, *engine->backend, /*tokens=*/nullptr, weights));
  run.rates.fill_bytes_per_s = static_cast<double>(kFilledBytesOfParameter * LayerParameters(shape)) /
                               static_cast<double>(Clock::Real().NowNs() - begin_ns) * 1e9;
  std::map<Pass, std::vector<double>> us;
  GP_RETURN_IF_ERROR(RunMicroBatches(run, *stage, micro_batches, &us));  // takes memory and makes plans
  us.clear();
  const int64_t wanted = run.settings().rounds * run.settings().samples;
  while (std::ssize(us[Pass::kForward]) < wanted) {
    GP_RETURN_IF_ERROR(RunMicroBatches(run, *stage, micro_batches, &us));
  }
  const std::string text = fmt::format("{} {}x{}", shape.name, shape.tokens, shape.model.hidden_size);
  SpeedRow whole = {.name = "layer F+I+W", .shape = text, .type = "bf16", .against = Against::kProducts};
  std::optional<double> whole_floor_us = 0;
  const auto note = [](std::optional<double> floor_us, double is_us) {
    return floor_us.has_value() ? fmt::format("{:.3f} of its own parts", *floor_us / is_us) : std::string();
  };
  for (const Pass pass : kPasses) {
    const Figure figure = FigureOf(us[pass]);
    const std::optional<double> floor_us = FloorUs(run, shape, pass);
    const int64_t flops = LayerModelFlops(shape, pass);
    run.Add({.name = fmt::format("layer {}", PassName(pass)),
             .shape = text,
             .type = "bf16",
             .figure = figure,
             .flops = flops,
             .against = Against::kProducts,
             .note = note(floor_us, figure.median_us)});
    whole.figure.median_us += figure.median_us;
    whole.figure.spread_us += figure.spread_us;
    whole.flops += flops;
    whole_floor_us =
        whole_floor_us.has_value() && floor_us.has_value() ? std::optional(*whole_floor_us + *floor_us) : std::nullopt;
  }
  run.rates.flops_per_s = whole.flops_per_s();
  whole.note = note(whole_floor_us, whole.figure.median_us);
  run.Add(whole);
  run.headlines.push_back(fmt::format("layer {} {:.2f} ms, {:.0f} TFLOP/s{}{}", shape.name,
                                      whole.figure.median_us / 1e3, whole.flops_per_s() / 1e12,
                                      whole.note.empty() ? "" : ", ", whole.note));
  return absl::OkStatus();
}

absl::Status MeasureIteration(SpeedRun& run, const SpeedShape& shape, int32_t micro_batches) {
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<SpeedEngine> engine, SpeedEngine::Open(run));
  WholeModel model(run, shape, micro_batches);
  GP_RETURN_IF_ERROR(model.Open(*engine, shape));
  GP_RETURN_IF_ERROR(model.Iterate().status());  // takes memory and makes plans
  std::vector<double> all_us;
  std::vector<double> idle_us;
  for (int64_t i = 0; i < run.settings().rounds * run.settings().iterations; ++i) {
    GP_ASSIGN_OR_RETURN(const IterationTimes times, model.Iterate());
    if (!std::isfinite(times.loss)) {
      return absl::InternalError(fmt::format(
          "the loss of an iteration of {} layers of {} is {}; its speed would mean nothing: see the phase 'training'",
          shape.model.num_hidden_layers, shape.name, times.loss));
    }
    all_us.push_back(times.all_us);
    idle_us.push_back(times.idle_us);
  }
  SpeedRow row = {.name = "iteration",
                  .shape = fmt::format("{} layers={} m={}", shape.name, shape.model.num_hidden_layers, micro_batches),
                  .type = "bf16",
                  .figure = FigureOf(all_us),
                  .flops = micro_batches * MicroBatchModelFlops(shape, shape.model.num_hidden_layers),
                  .against = Against::kProducts};
  const double tokens_per_s = static_cast<double>(micro_batches * shape.tokens) / row.figure.median_us * 1e6;
  const double idle = std::max(0.0, 100 * FigureOf(idle_us).median_us / row.figure.median_us);
  row.note = fmt::format("{:.0f} tokens/s, the queue idle {:.2f} %", tokens_per_s, idle);
  run.Add(row);
  run.headlines.push_back(fmt::format("{} {:.1f} ms, {}, {:.0f} TFLOP/s", row.shape, row.figure.median_us / 1e3,
                                      row.note, row.flops_per_s() / 1e12));
  return absl::OkStatus();
}

}  // namespace geopipe
