#include "optimizer/plan/given_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/plan/plan_costs.h"
#include "optimizer/plan/evaluation/prediction.h"
#include "optimizer/plan/planner.h"
#include "optimizer/plan/refine/refine_schedule.h"
#include "optimizer/plan/refine/schedule_points.h"
#include "optimizer/plan/space/choices.h"
#include "optimizer/schedule/csv.h"

namespace geopipe {
namespace {

// b, s and the data degree that make `micro_batches` of the job's tokens.
struct Batch {
  int64_t micro_batch_size = 0;
  int64_t sequence_length = 0;
  int64_t data = 1;
};

std::vector<Batch> BatchesOf(const JobSpec& job, int64_t micro_batches) {
  std::vector<Batch> batches;
  for (const int64_t b : job.search.micro_batch_size) {
    for (const int64_t s : job.search.sequence_length) {
      const int64_t tokens = b * s * micro_batches;
      const int64_t data = job.training.tokens_per_iteration / tokens;
      const bool divides = data > 0 && data * tokens == job.training.tokens_per_iteration;
      if (divides && (job.parallelism.data == 0 || job.parallelism.data == data)) {
        batches.push_back({b, s, data});
      }
    }
  }
  return batches;
}

absl::Status CheckKeys(const JobSpec& job, const PipelineShape& shape, int64_t per_rank) {
  if (job.search.schedule != ScheduleKind::kAuto) {
    return absl::InvalidArgumentError(
        fmt::format("search.schedule is {}, and a schedule is given action by action; leave it auto",
                    ScheduleKindName(job.search.schedule)));
  }
  if (job.parallelism.pipeline != 0 && job.parallelism.pipeline != shape.devices) {
    return absl::InvalidArgumentError(
        fmt::format("parallelism.pipeline is {}, and the schedule has {} pipeline ranks, a row for each; leave it auto",
                    job.parallelism.pipeline, shape.devices));
  }
  if (job.parallelism.stages_per_rank != 0 && job.parallelism.stages_per_rank != per_rank) {
    return absl::InvalidArgumentError(
        fmt::format("parallelism.stages_per_rank is {}, and the schedule has {}; leave it auto",
                    job.parallelism.stages_per_rank, per_rank));
  }
  if (per_rank > kMaxStagesPerRank) {
    return absl::InvalidArgumentError(
        fmt::format("the schedule has {} stages on a rank; at most {} are run", per_rank, kMaxStagesPerRank));
  }
  return absl::OkStatus();
}

// The request for the sites and degrees at which one stage on each rank goes best, with so many replicas.
PlanRequest GuideOf(const PlanRequest& request, const std::vector<Batch>& batches, int64_t data) {
  PlanRequest guide = request;
  guide.schedule.reset();
  guide.progress = {};  // what it finds is another plan
  guide.refine = false;
  guide.baselines = false;
  guide.cluster_bound = false;
  guide.job.search.schedule = ScheduleKind::kOneFOneB;
  guide.job.parallelism.stages_per_rank = 1;
  guide.job.parallelism.data = data;
  guide.job.search.micro_batch_size.clear();
  guide.job.search.sequence_length.clear();
  const auto add = [](int64_t choice, std::vector<int64_t>& choices) {
    if (std::ranges::find(choices, choice) == choices.end()) {
      choices.push_back(choice);
    }
  };
  for (const Batch& batch : batches) {
    if (batch.data == data) {
      add(batch.micro_batch_size, guide.job.search.micro_batch_size);
      add(batch.sequence_length, guide.job.search.sequence_length);
    }
  }
  return guide;
}

class GivenPlanner {
 public:
  GivenPlanner(const PlanRequest& request, const CostSource& source) : request_(request), source_(source) {}

  // Tries the schedule at sites and degrees of `guide`, with all b and s of its degrees.
  absl::Status TryAt(const Plan& guide) {
    PlanRequest at = request_;
    at.job.parallelism.tensor = guide.grid.tensor;
    at.job.parallelism.data = guide.grid.data;
    std::vector<WorkChoice> work = WorkChoices(at.job);
    std::erase_if(work, [&](const WorkChoice& choice) {
      return MicroBatchesOf(at.job, choice.micro_batch_size, choice.sequence_length) !=
             request_.schedule->shape.micro_batches;
    });
    GP_ASSIGN_OR_RETURN(const std::vector<SchedulePoint> points,
                        GivenSchedulePoints(at, source_, guide, request_.schedule->shape.placement, work));
    tried_ += std::ssize(points);
    for (const SchedulePoint& point : points) {
      if (request_.should_stop && request_.should_stop()) {
        found_.stopped_early = true;
        break;
      }
      if (point.lower_bound_ns >= best_ns_ && point.lower_bound_ns != SchedulePoint::kNothingFits) {
        break;
      }
      GP_RETURN_IF_ERROR(TryPoint(at, point));
    }
    return absl::OkStatus();
  }

  int64_t tried() const { return tried_; }
  // Returns the plan; an error says why there is none.
  absl::StatusOr<Refinement> Found() && {
    if (found_.better.has_value()) {
      return std::move(found_);
    }
    if (found_.stopped_early) {
      return absl::DeadlineExceededError(
          "the search was stopped before it found a plan with the given schedule that fits; raise search.time_budget");
    }
    return none_;
  }

 private:
  absl::Status TryPoint(const PlanRequest& at, const SchedulePoint& point) {
    Plan plan = point.plan;
    plan.delta_n = EquivalentDeltaN(*request_.schedule, point.costs);
    GP_ASSIGN_OR_RETURN(PipelineCosts costs, CostsOfPlan(at.job, at.cluster, source_, plan));
    GP_ASSIGN_OR_RETURN(PlanPrediction prediction, PredictSchedule(at.job, plan, std::move(costs), *request_.schedule));
    ++found_.evaluations;
    if (!prediction.fits) {
      NoteMisfit(plan, prediction);
    } else if (prediction.prediction.iteration_ns < best_ns_) {
      best_ns_ = prediction.prediction.iteration_ns;
      found_.better = RefinedPlan{std::move(plan), std::move(prediction)};
    }
    return absl::OkStatus();
  }

  void NoteMisfit(const Plan& plan, const PlanPrediction& prediction) {
    if (misfit_.Note(plan, prediction)) {
      none_ = absl::FailedPreconditionError(
          fmt::format("the job does not fit with the given schedule: {}; give one with fewer micro-batches in flight, "
                      "or use search.schedule auto",
                      misfit_.need()));
    }
  }

  const PlanRequest& request_;
  const CostSource& source_;
  int64_t best_ns_ = std::numeric_limits<int64_t>::max();
  LeastMisfit misfit_;
  int64_t tried_ = 0;
  absl::Status none_ = absl::FailedPreconditionError("the given schedule was tried nowhere");
  Refinement found_;
};

}  // namespace

absl::StatusOr<JobSpec> JobWithSchedule(JobSpec job, const PipelineShape& shape) {
  const int64_t per_rank = shape.stages / shape.devices;
  std::vector<int64_t> stages(static_cast<size_t>(shape.devices), 0);
  for (const int32_t rank : shape.placement) {
    ++stages[static_cast<size_t>(rank)];
  }
  for (size_t rank = 0; rank < stages.size(); ++rank) {
    if (stages[rank] != stages.front() || stages[rank] == 0) {
      return absl::InvalidArgumentError(
          fmt::format("the schedule has {} in its row {} and {} in its first; all pipeline ranks run as many",
                      Counted(stages[rank], "stage"), rank + 1, stages.front()));
    }
  }
  GP_RETURN_IF_ERROR(CheckKeys(job, shape, per_rank));
  if (shape.stages > job.model.num_hidden_layers) {
    return absl::InvalidArgumentError(
        fmt::format("the schedule has {} stages, but model.num_hidden_layers is {} and every stage needs a layer",
                    shape.stages, job.model.num_hidden_layers));
  }
  if (shape.micro_batches > kMaxMicroBatches) {
    return absl::InvalidArgumentError(
        fmt::format("the schedule has {} micro-batches; a run has at most {}", shape.micro_batches, kMaxMicroBatches));
  }
  if (BatchesOf(job, shape.micro_batches).empty()) {
    const int64_t tokens = job.training.tokens_per_iteration;
    return absl::InvalidArgumentError(fmt::format(
        "the schedule has {} micro-batches, which no choice of search.micro_batch_size, search.sequence_length and "
        "parallelism.data makes of training.tokens_per_iteration {}: {}",
        shape.micro_batches, tokens,
        tokens % shape.micro_batches == 0
            ? fmt::format("the three must multiply to {}", tokens / shape.micro_batches)
            : fmt::format("it is not a multiple of {}; change the tokens", shape.micro_batches)));
  }
  job.parallelism.pipeline = shape.devices;
  job.parallelism.stages_per_rank = static_cast<int32_t>(per_rank);
  return job;
}

absl::StatusOr<JobSpec> JobWithSchedule(JobSpec job, std::string_view csv) {
  GP_ASSIGN_OR_RETURN(const GivenSchedule given, ReadScheduleCsv(csv));
  return JobWithSchedule(std::move(job), given.schedule.shape);
}

absl::StatusOr<PlanResult> PlanGivenSchedule(const PlanRequest& asked, const CostSource& source) {
  PlanRequest request = asked;
  GP_ASSIGN_OR_RETURN(request.job, JobWithSchedule(std::move(request.job), request.schedule->shape));
  const std::vector<Batch> batches = BatchesOf(request.job, request.schedule->shape.micro_batches);
  std::set<int64_t> replicas;
  for (const Batch& batch : batches) {
    replicas.insert(batch.data);
  }
  GivenPlanner planner(request, source);
  PlanResult result;
  absl::Status none;  // why there is no guide
  bool guided = false;
  for (const int64_t data : replicas) {
    const absl::StatusOr<PlanResult> guide = MakePlan(GuideOf(request, batches, data));
    if (!guide.ok()) {
      none.Update(guide.status());
      continue;
    }
    guided = true;
    result.search.evaluations += guide->search.evaluations;
    result.search.stopped_early |= guide->search.stopped_early;
    GP_RETURN_IF_ERROR(planner.TryAt(guide->plan));
  }
  if (!guided) {
    return none;
  }
  result.search.method = request.method;
  result.search.seed = request.job.search.seed;
  result.search.space_size = planner.tried();
  GP_ASSIGN_OR_RETURN(Refinement found, std::move(planner).Found());
  TakePlan(std::move(found), result);
  result.search.best_so_far_ns = {result.prediction.iteration_ns};
  return result;
}

}  // namespace geopipe
