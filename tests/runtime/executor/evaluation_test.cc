// Checks that evaluations have the losses of the weights that they are of, cost forwards alone, and leave no trace.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "optimizer/schedule/forward_only.h"
#include "optimizer/schedule/validate.h"
#include "tests/runtime/executor/grid_run.h"
#include "tests/runtime/executor/pipeline_run.h"
#include "tests/runtime/executor/random_grid.h"
#include "tests/runtime/model/pipeline_driver.h"
#include "tests/support/sanitized.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

constexpr int32_t kComparedGrids = kSanitized ? 4 : 24;

std::vector<double> ValidationLosses(const PipelineRun& run) {
  std::vector<double> losses;
  for (const EvaluationStats& stats : run.evaluations[run.schedule.shape.placement.back()]) {
    losses.push_back(stats.loss.value_or(-1));
  }
  return losses;
}

TEST_CASE("evaluations have the same bits for every schedule and every number of ranks, and change nothing") {
  for (const bool tied : {false, true}) {
    PipelineOptions options;
    options.model.tied = tied;
    const PipelineRun without = RunPipeline(options);
    options.evaluate_every = 2;
    options.passes = 3;
    const PipelineRun reference = RunPipeline(options);
    REQUIRE(reference.statuses[0].ok());
    const std::vector<double> expected = ValidationLosses(reference);
    REQUIRE(expected.size() == 3);  // after 2, 4 and all 6 iterations
    CHECK(expected.front() > expected.back());
    CHECK(reference.evaluations[0].front().iteration == 2);
    for (const ScheduleRow& row : kSchedules) {
      for (const int32_t ranks : {1, 2, 3}) {
        for (const CommMode comm : {CommMode::kNonBlocking, CommMode::kBlocking}) {
          if (row.make == nullptr || ranks * MinStagesPerDevice(row.layout) > options.model.layers ||
              (row.layout == StageLayout::kLooped && options.model.micro_batches % ranks != 0)) {
            continue;
          }
          options.kind = row.kind;
          options.ranks = ranks;
          options.comm = comm;
          options.delta_n = row.uses_delta_n ? 2 : 0;
          const PipelineRun run = RunPipeline(options);
          CAPTURE(tied, row.name, ranks, CommModeName(comm));
          for (const absl::Status& status : run.statuses) {
            REQUIRE(status.ok());
          }
          CHECK(ValidationLosses(run) == expected);
          CHECK(run.losses() == without.losses());
          for (const auto& [greatest, slots] : run.outstanding) {
            CHECK(greatest <= 2 * slots);  // as many in slots, and as many on their way
          }
          for (int32_t rank = 0; rank < ranks; ++rank) {
            CHECK(run.reports[rank].size() == 6);
            CHECK(run.evaluations[rank].size() == (rank == run.schedule.shape.placement.back() ? 3U : 0U));
          }
        }
      }
    }
  }
}

TEST_CASE("the time of an evaluation is no iteration's") {
  PipelineOptions options;
  options.ranks = 2;
  options.evaluate_every = 3;
  options.passes = 20;
  const PipelineRun run = RunPipeline(options);
  for (const std::vector<IterationStats>& reports : run.reports) {
    REQUIRE(reports.size() == 6);
    CHECK(reports[2].begin_ns + reports[2].duration_ns < reports[3].begin_ns);
    CHECK(reports[1].begin_ns + reports[1].duration_ns == reports[2].begin_ns);
  }
  const EvaluationStats& first = run.evaluations[1].front();
  const IterationStats& before = run.reports[1][2];
  CHECK(before.begin_ns + before.duration_ns == first.begin_ns);
  CHECK(first.begin_ns + first.duration_ns <= run.reports[1][3].begin_ns);
}

TEST_CASE("an error in an evaluation says so, and the iteration before it is reported") {
  PipelineOptions options;
  options.ranks = 2;
  options.evaluate_every = 2;
  options.prepare = [](std::span<const std::unique_ptr<ToyEngine>> engines, InProcessNetwork&) {
    engines[1]->set_on_forward([](int64_t iteration, int32_t micro_batch) {
      return iteration == ToyEngine::kEvaluation && micro_batch == 5 ? absl::InternalError("broken") : absl::OkStatus();
    });
  };
  const PipelineRun run = RunPipeline(options);
  CHECK(run.statuses[1] == absl::InternalError("iteration 2, evaluation, 1F5 on rank 1: broken"));
  CHECK(run.reports[1].size() == 2);
  CHECK(run.evaluations[1].empty());
}

TEST_CASE("a forward-only schedule is valid as such, and as a training it is not") {
  for (const ScheduleRow& row : kSchedules) {
    if (row.make == nullptr) {
      continue;
    }
    CAPTURE(row.name);
    const PipelineShape shape = PipelineShape::Of(row.layout, 4, 8);
    const auto made = MakeSchedule(row.kind, shape, std::vector<int32_t>(shape.stages - 1, 0));
    REQUIRE(made.ok());
    Schedule forwards = ForwardOnly(*made);
    CHECK(Validate(forwards, {}, nullptr, ScheduleWork::kForwards).ok());
    CHECK_FALSE(Validate(forwards).ok());
    CHECK_FALSE(Validate(*made, {}, nullptr, ScheduleWork::kForwards).ok());
    forwards.devices[1].pop_back();
    CHECK_FALSE(Validate(forwards, {}, nullptr, ScheduleWork::kForwards).ok());
  }
}

TEST_CASE("training has the same bits with evaluations and without, on every grid") {
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  GridOptions options = SmallGrid(true, 2, 4);
  options.iterations = 4;
  for (int32_t i = 0; i < kComparedGrids; ++i) {
    Randomise(random, options);
    options.precision = i % 4 == 0 ? Precision::kBf16 : Precision::kFp32;
    options.evaluate_every = 0;
    INFO("GEOPIPE_TEST_SEED=" << seed << ", number " << i << ": " << options.name());
    const GridResult without = TrainGrid(options);
    options.evaluate_every = 1;
    options.passes = 2;
    const GridResult with = TrainGrid(options);
    INFO(with.status);
    REQUIRE(with.status.ok());
    CHECK(with.losses == without.losses);
    CHECK(with.norms == without.norms);
    CHECK(with.validation_losses.size() == 4);
  }
}

// The weights that a run has ended with, by name.
class EndWeights final : public WeightSource {
 public:
  absl::Status Take(TransformerStage& stage) {
    for (const Parameter& parameter : stage.parameters().all()) {
      std::vector<float>& values = values_[parameter.spec.name];
      values.resize(static_cast<size_t>(parameter.piece.count));
      if (absl::Status status = stage.parameters().Read(parameter.spec.name, parameter.spec.shape, values);
          !status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  }

  absl::Status Read(std::string_view name, const std::vector<int64_t>& /*shape*/, std::span<float> values) override {
    const std::vector<float>& found = values_.at(std::string(name));
    std::copy(found.begin(), found.end(), values.begin());
    return absl::OkStatus();
  }

 private:
  std::map<std::string, std::vector<float>> values_;
};

// Losses with which a training on the validation tokens would begin from these weights: those of plain forwards.
std::vector<double> FirstLosses(GridOptions options, WeightSource& weights, int64_t passes) {
  std::vector<double> losses;
  options.evaluate_every = 0;
  options.state = &weights;
  for (int64_t pass = 0; pass < passes; ++pass) {
    options.first_iteration = kFirstOfValidation + pass;
    options.iterations = options.first_iteration + 1;
    losses.push_back(TrainGrid(options).losses.at(0));
  }
  return losses;
}

TEST_CASE("an evaluation has the losses with which a training on its samples begins from its weights") {
  for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
    for (const bool tied : {false, true}) {
      GridOptions options = SmallGrid(tied, 2);
      options.precision = precision;
      options.iterations = 3;
      options.evaluate_every = 3;
      EndWeights weights;
      options.at_end = [&](const Rank&, TransformerStage& stage, const TransformerStageOptions&) {
        return weights.Take(stage);
      };
      const GridResult one_pass = TrainGrid(options);
      options.passes = 3;
      const GridResult three_passes = TrainGrid(options);
      REQUIRE(three_passes.status.ok());
      options.at_end = nullptr;
      const std::vector<double> expected = FirstLosses(options, weights, 3);
      CAPTURE(tied, static_cast<int>(precision));
      CHECK(one_pass.validation_losses == std::vector<double>{expected[0]});
      const double mean = (expected[0] + expected[1] + expected[2]) / 3;
      REQUIRE(three_passes.validation_losses.size() == 1);
      CHECK(std::abs(three_passes.validation_losses[0] - mean) < 1e-14 * mean);
      CHECK(expected[0] != expected[1]);
    }
  }
}

}  // namespace
}  // namespace geopipe
