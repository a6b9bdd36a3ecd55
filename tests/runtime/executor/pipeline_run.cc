#include "tests/runtime/executor/pipeline_run.h"

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/schedule/lowering.h"
#include "optimizer/schedule/schedule_table.h"
#include "runtime/base/clock.h"
#include "runtime/executor/channels.h"

namespace geopipe {
namespace {

ChannelMessages ToyMessages(const PipelineOptions& options, const PipelineShape& shape) {
  ChannelMessages messages;
  messages.boundaries.assign(shape.stages - 1, PayloadLayout::Of(DType::kFp32, {options.model.width}));
  if (options.norms) {
    messages.norm_bytes.assign(shape.devices, 1024);
  }
  if (options.model.tied) {
    messages.tied_gradient = PayloadLayout::Of(DType::kFp32, {1});
  }
  return messages;
}

EvaluationOptions EvaluationsOf(const PipelineOptions& options, std::vector<EvaluationStats>& reports) {
  return {.passes = options.evaluate_every > 0 ? options.passes : 0,
          .is_due =
              [&options](int64_t iteration) {
                return iteration > 0 && (iteration % options.evaluate_every == 0 || iteration == options.end_iteration);
              },
          .on_report = [&reports](EvaluationStats stats) { reports.push_back(stats); }};
}

}  // namespace

std::vector<double> PipelineRun::losses() const {
  std::vector<double> losses;
  for (const IterationStats& report : reports[schedule.shape.placement.back()]) {
    losses.push_back(report.loss.value_or(-1));
  }
  return losses;
}

LayerRange ToyLayers(const ToyModel& model, int32_t stage, int32_t stages) {
  const auto begin = [&](int64_t index) { return (index * model.layers + stages - 1) / stages; };
  return {.first = begin(stage),
          .last = begin(stage + 1) - 1,
          .has_embedding = stage == 0,
          .has_head = stage == stages - 1};
}

PipelineRun RunPipeline(const PipelineOptions& options) {
  PipelineRun run;
  const PipelineShape shape =
      PipelineShape::Of(RowOf(options.kind).layout, options.ranks, options.model.micro_batches, options.per_rank);
  const auto compute_only = MakeSchedule(options.kind, shape, std::vector<int32_t>(shape.stages - 1, options.delta_n));
  GP_CHECK(compute_only.ok(), "{}", std::string(compute_only.status().message()));
  run.schedule = *Lower(*compute_only);
  run.statuses.resize(options.ranks);
  run.reports.resize(options.ranks);
  run.evaluations.resize(options.ranks);

  // Allocators go last: messages that an error left in the network are theirs.
  std::vector<std::unique_ptr<Allocator>> allocators;
  std::vector<std::unique_ptr<ToyEngine>> engines;  // by stage
  InProcessNetwork network(options.ranks);
  std::vector<PeerId> ranks(options.ranks);
  std::iota(ranks.begin(), ranks.end(), 0);
  for (int32_t rank = 0; rank < options.ranks; ++rank) {
    allocators.push_back(std::make_unique<Allocator>(1 << 20));
    for (const ChannelSpec& channel : ChannelsOf(run.schedule, rank, ranks, ToyMessages(options, shape))) {
      network.Add(channel);
    }
  }
  for (int32_t stage = 0; stage < shape.stages; ++stage) {
    engines.push_back(std::make_unique<ToyEngine>(options.model, ToyLayers(options.model, stage, shape.stages),
                                                  *allocators[shape.placement[stage]]));
  }
  if (options.prepare) {
    options.prepare(engines, network);
  }
  const auto run_rank = [&](int32_t rank) {
    const std::unique_ptr<MessageTransport> transport = network.Endpoint(rank, *allocators[rank]);
    ExecutorOptions executor_options;
    executor_options.schedule = run.schedule;
    executor_options.pipeline_rank = rank;
    executor_options.pipeline = ranks;
    executor_options.comm = options.comm;
    for (int32_t stage = 0; stage < shape.stages; ++stage) {
      executor_options.engines.push_back(shape.placement[stage] == rank ? engines[stage].get() : nullptr);
    }
    executor_options.exchange_norms = options.norms;
    executor_options.start_iteration = options.start_iteration;
    executor_options.end_iteration = options.end_iteration;
    executor_options.progress_deadline_ns = options.progress_deadline_ns;
    executor_options.stop = options.stop;
    executor_options.on_report = [&run, rank](IterationStats stats) { run.reports[rank].push_back(std::move(stats)); };
    executor_options.evaluation = EvaluationsOf(options, run.evaluations[rank]);
    auto executor = Executor::Create(std::move(executor_options), *transport, *allocators[rank], Clock::Real());
    run.statuses[rank] = executor.ok() ? executor->Run() : executor.status();
    if (!run.statuses[rank].ok() && !absl::IsCancelled(run.statuses[rank])) {
      network.FailAll(absl::UnavailableError("a peer is gone"));
    }
  };
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < options.ranks; ++rank) {
    threads.emplace_back(run_rank, rank);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const auto& engine : engines) {
    run.greatest_in_flight.push_back(engine->greatest_in_flight());
  }
  run.throttled = network.throttled();
  for (int32_t boundary = 0; boundary + 1 < shape.stages; ++boundary) {
    if (const ChannelId id = ActivationChannel(shape, ranks, boundary); id.from_rank != id.to_rank) {
      run.outstanding.emplace_back(network.greatest_outstanding(id),
                                   SlotsNeeded(run.schedule, MessageKind::kActivation, boundary));
    }
  }
  return run;
}

}  // namespace geopipe
