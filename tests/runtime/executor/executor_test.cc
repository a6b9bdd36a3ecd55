#include "runtime/executor/executor.h"

#include <catch2/catch.hpp>
#include <string>

#include "optimizer/model/plan/plan_memory.h"
#include "optimizer/schedule/csv.h"
#include "tests/runtime/executor/pipeline_run.h"

namespace geopipe {
namespace {

struct Variant {
  ScheduleKind kind;
  int32_t delta_n = 0;
  int32_t per_rank = 2;
};

// Every schedule that a rule makes, with ΔN where it has one. Every stage needs a layer, and where stages are looped
// micro-batches come in groups of as many as ranks.
std::vector<Variant> VariantsFor(const ToyModel& model, int32_t ranks) {
  std::vector<Variant> variants;
  for (const ScheduleRow& row : kSchedules) {
    if (row.make == nullptr || ranks * MinStagesPerDevice(row.layout) > model.layers ||
        (row.layout == StageLayout::kLooped && model.micro_batches % ranks != 0)) {
      continue;
    }
    variants.push_back({.kind = row.kind, .delta_n = row.uses_delta_n ? 1 : 0});
    if (row.layout == StageLayout::kLooped && 3 * ranks <= model.layers) {
      variants.push_back({.kind = row.kind, .per_rank = 3});
    }
    if (row.uses_delta_n) {
      variants.push_back({.kind = row.kind, .delta_n = 3});
    }
  }
  return variants;
}

TEST_CASE("losses and norms are the same bits for every schedule, every delta_n and every number of ranks and stages") {
  for (const bool tied : {false, true}) {
    for (const bool norms : {false, true}) {
      PipelineOptions options;
      options.model.tied = tied;
      options.norms = norms;
      const PipelineRun reference = RunPipeline(options);
      REQUIRE(reference.statuses[0].ok());
      REQUIRE(reference.losses().size() == 6);
      CHECK(reference.losses().front() > reference.losses().back());
      for (const int32_t ranks : {1, 2, 3, 6}) {
        for (const Variant& variant : VariantsFor(options.model, ranks)) {
          options.kind = variant.kind;
          options.delta_n = variant.delta_n;
          options.per_rank = variant.per_rank;
          options.ranks = ranks;
          const PipelineRun run = RunPipeline(options);
          CAPTURE(tied, norms, ranks, ScheduleKindName(variant.kind), variant.delta_n, variant.per_rank);
          CHECK(run.greatest_in_flight == InFlightOfSchedule(run.schedule));
          for (int32_t rank = 0; rank < ranks; ++rank) {
            REQUIRE(run.statuses[rank].ok());
            REQUIRE(run.reports[rank].size() == 6);
            for (size_t i = 0; i < 6; ++i) {
              CHECK(run.reports[rank][i].grad_norm == reference.reports[0][i].grad_norm);
              CHECK(run.reports[rank][i].grad_norm.has_value() == norms);
              CHECK(run.reports[rank][i].loss.has_value() == (rank == run.schedule.shape.placement.back()));
            }
          }
          CHECK(run.losses() == reference.losses());
          CHECK(run.throttled == 0);
        }
      }
    }
  }
}

TEST_CASE("blocking communication trains the same") {
  PipelineOptions options;
  options.model.tied = true;
  const PipelineRun reference = RunPipeline(options);
  options.comm = CommMode::kBlocking;
  options.ranks = 3;
  for (const Variant& variant : VariantsFor(options.model, options.ranks)) {
    options.kind = variant.kind;
    options.delta_n = variant.delta_n;
    options.per_rank = variant.per_rank;
    CHECK(RunPipeline(options).losses() == reference.losses());
  }
}

TEST_CASE("a report holds every compute action in list order, and its times") {
  PipelineOptions options;
  options.ranks = 2;
  options.end_iteration = 3;
  const PipelineRun run = RunPipeline(options);
  for (int32_t stage = 0; stage < 2; ++stage) {
    REQUIRE(run.reports[stage].size() == 3);
    for (int64_t iteration = 0; iteration < 3; ++iteration) {
      const IterationStats& report = run.reports[stage][iteration];
      CHECK(report.iteration == iteration);
      const std::vector<Action>& actions = run.schedule.devices[stage];
      REQUIRE(report.actions.size() == actions.size());
      int64_t end_ns = 0;
      int64_t busy_ns = 0;
      for (size_t i = 0; i < actions.size(); ++i) {
        const ActionRecord& record = report.actions[i];
        CHECK(record.action == actions[i]);
        CHECK(record.end_ns >= record.start_ns);
        if (IsRecv(record.action.kind)) {
          continue;  // a message may have come long before it is taken
        }
        CHECK(record.start_ns >= end_ns);
        end_ns = record.end_ns;
        busy_ns += IsCompute(record.action.kind) ? end_ns - record.start_ns : 0;
      }
      CHECK(report.actions[stage].start_ns == 0);  // stage 1 receives first
      CHECK(report.busy_ns == busy_ns);
      CHECK(report.duration_ns >= end_ns);
    }
  }
}

TEST_CASE("a run goes on at any iteration") {
  PipelineOptions options;
  options.ranks = 2;
  options.start_iteration = 4;
  const PipelineRun run = RunPipeline(options);
  REQUIRE(run.reports[1].size() == 2);
  CHECK(run.reports[1][0].iteration == 4);
  CHECK(run.reports[1][1].iteration == 5);
}

TEST_CASE("two stages of one device hand tensors to each other, and a tied embedding across them") {
  Allocator allocator(1 << 20);
  ToyModel model{.tied = true};
  PipelineOptions reference_options;
  reference_options.model = model;
  const PipelineRun reference = RunPipeline(reference_options);

  ToyEngine first(model, ToyLayers(model, 0, 2), allocator);
  ToyEngine second(model, ToyLayers(model, 1, 2), allocator);
  InProcessNetwork network(1);
  const auto transport = network.Endpoint(0, allocator);
  std::string csv;
  for (int micro_batch = 0; micro_batch < model.micro_batches; ++micro_batch) {
    csv += "0F" + std::to_string(micro_batch) + ",1F" + std::to_string(micro_batch) + ",1I" +
           std::to_string(micro_batch) + ",0B" + std::to_string(micro_batch) + ",1W" + std::to_string(micro_batch) +
           ",";
  }
  ExecutorOptions options;
  options.schedule = *ParseCsv(csv, {.devices = 1, .stages = 2, .micro_batches = 8, .placement = {0, 0}});
  options.pipeline = {0};
  options.engines = {&first, &second};
  options.exchange_norms = true;
  options.end_iteration = 6;
  std::vector<double> losses;
  options.on_report = [&](const IterationStats& stats) { losses.push_back(*stats.loss); };
  auto executor = Executor::Create(options, *transport, allocator, Clock::Real());
  REQUIRE(executor.ok());
  REQUIRE(executor->Run().ok());
  CHECK(losses == reference.losses());
}

}  // namespace
}  // namespace geopipe
