#include "optimizer/plan/report/time_breakdown.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "optimizer/base/status_macros.h"
#include "optimizer/model/cost_model.h"
#include "optimizer/model/plan/epilogue.h"
#include "optimizer/model/plan/plan_costs.h"
#include "optimizer/model/plan/plan_memory.h"
#include "optimizer/plan/report/idle_causes.h"

namespace geopipe {
namespace {

constexpr std::array<std::string_view, 12> kNames{
    "plain_work", "idle_devices", "below_efficiency", "tensor_collectives", "recomputation", "pipeline_fill",
    "drain",      "crossings",    "imbalance",        "exposed_reduction",  "update",        "synchronisation"};

// Number of times that a stage runs each part of the model for one micro-batch.
int64_t Times(ModelPart part, const LayerRange& layers) {
  return part == ModelPart::kEmbedding ? (layers.has_embedding ? 1 : 0)
         : part == ModelPart::kHead    ? (layers.has_head ? 1 : 0)
                                       : layers.count();
}

// Sum of `value(part, action)` over all actions of a stage for one micro-batch.
template <typename Value>
double SumOver(const LayerRange& layers, Value value) {
  double sum = 0;
  for (const ModelPart part : kModelParts) {
    for (const PartAction action : kPartActions) {
      sum += static_cast<double>(Times(part, layers)) * static_cast<double>(value(part, action));
    }
  }
  return sum;
}

class Breakdown {
 public:
  Breakdown(const JobSpec& job, const ClusterSpec& cluster, const CostSource& source, const PlanResult& result)
      : job_(JobOnCluster(JobOfPlan(job, result), cluster)), cluster_(cluster), source_(source), result_(result) {}

  absl::StatusOr<std::vector<TimeShare>> Run(const SimulationResult& simulated) {
    for (size_t part = 0; part < kNames.size(); ++part) {
      shares_.push_back({static_cast<TimePart>(part), 0});
    }
    GP_ASSIGN_OR_RETURN(const PlanParts parts, PartsOfPlan(job_, cluster_, source_, result_.plan));
    const std::vector<DeviceTime> times = FindIdleCauses(simulated, result_.costs);
    GP_RETURN_IF_ERROR(AddWork(parts, times));
    AddIdle(times);
    AddEpilogue(parts);
    return std::move(shares_);
  }

 private:
  double& At(TimePart part) { return shares_[static_cast<size_t>(part)].ns; }

  // Adds the stages' work, the mean over the ranks, divided into the parts of a stage without recomputation, and
  // recomputation.
  absl::Status AddWork(const PlanParts& parts, const std::vector<DeviceTime>& times) {
    Plan once = result_.plan;
    once.SetRecompute(Recompute::kNone);
    GP_ASSIGN_OR_RETURN(const PlanParts plain, PartsOfPlan(job_, cluster_, source_, once));
    const PartTable<Demand> demands = DemandsOf(job_.model, plain.config);
    const auto ranks = static_cast<double>(result_.plan.pipeline_ranks.size());
    double flops = 0;     // of one device of each rank
    double plain_ns = 0;  // sum of their times at stated efficiency
    for (size_t stage = 0; stage < parts.stages.size(); ++stage) {
      const LayerRange& layers = result_.plan.stages[stage].layers;
      const DeviceSpec& device = cluster_.FindSite(result_.plan.SiteOf(static_cast<int32_t>(stage)))->device;
      const auto micro_batches = static_cast<double>(result_.plan.micro_batches);
      const double of_stage = micro_batches * SumOver(layers, [&](ModelPart part, PartAction action) {
                                return demands.at(part, action).work.flops;
                              });
      flops += of_stage;
      plain_ns += has_figures() ? 1e9 * of_stage / (device.peak_flops * device.efficiency) : 0;
      At(TimePart::kRecomputation) +=
          micro_batches / ranks * SumOver(layers, [&](ModelPart part, PartAction action) {
            return parts.stages[stage].costs.at(part, action) - plain.stages[stage].costs.at(part, action);
          });
      At(TimePart::kTensor) +=
          micro_batches / ranks * SumOver(layers, [&](ModelPart part, PartAction action) {
            return 1e9 * AllReduceSeconds(demands.at(part, action).collective_bytes, plain.config.tensor,
                                          device.intra_node_bandwidth_bytes_per_s);
          });
    }
    double busy_ns = 0;
    for (const DeviceTime& time : times) {
      busy_ns += static_cast<double>(time.busy_ns) / ranks;
    }
    const double products_ns = busy_ns - At(TimePart::kRecomputation) - At(TimePart::kTensor);
    if (!has_figures()) {
      At(TimePart::kPlainWork) = products_ns;
      return absl::OkStatus();
    }
    const double on_used_ns = 1e9 * flops / SpeedInUse();
    At(TimePart::kPlainWork) = 1e9 * flops * DevicesPerRank() / SpeedOfAll();
    At(TimePart::kIdleDevices) = on_used_ns - At(TimePart::kPlainWork);
    At(TimePart::kBelowEfficiency) = products_ns - plain_ns / ranks;
    At(TimePart::kImbalance) += plain_ns / ranks - on_used_ns;
    return absl::OkStatus();
  }

  bool has_figures() const {
    return std::ranges::all_of(cluster_.sites, [](const SiteSpec& site) { return site.device.peak_flops > 0; });
  }
  double DevicesPerRank() const { return static_cast<double>(result_.plan.grid.tensor * result_.plan.grid.data); }

  // FLOP/s of one device of each rank at stated efficiency.
  double SpeedInUse() const {
    double speed = 0;
    for (const PipelineRankPlan& rank : result_.plan.pipeline_ranks) {
      const DeviceSpec& device = cluster_.FindSite(rank.site)->device;
      speed += device.peak_flops * device.efficiency;
    }
    return speed;
  }

  double SpeedOfAll() const {
    double speed = 0;
    for (const SiteSpec& site : cluster_.sites) {
      speed +=
          static_cast<double>(site.nodes * site.devices_per_node) * site.device.peak_flops * site.device.efficiency;
    }
    return speed;
  }

  void AddIdle(const std::vector<DeviceTime>& times) {
    for (const DeviceTime& time : times) {
      for (const IdleTime& idle : time.idle) {
        if (idle.cause != IdleCause::kEpilogue) {
          At(PartOf(idle.cause)) += static_cast<double>(idle.ns) / static_cast<double>(times.size());
        }
      }
    }
  }

  static TimePart PartOf(IdleCause cause) {
    switch (cause) {
      case IdleCause::kWarmUp:
        return TimePart::kFill;
      case IdleCause::kDrain:
        return TimePart::kDrain;
      case IdleCause::kWork:
        return TimePart::kImbalance;
      case IdleCause::kLink:
      case IdleCause::kHold:
      case IdleCause::kEpilogue:
        break;
    }
    return TimePart::kCrossings;
  }

  void AddEpilogue(const PlanParts& parts) {
    const PlanMemoryModel memory = parts.MemoryModel(job_);
    PlanParts alone = parts;  // without other replicas
    std::vector<int64_t> adamw_ns;
    for (size_t stage = 0; stage < parts.stages.size(); ++stage) {
      alone.stages[stage].replicas = {};
      adamw_ns.push_back(StageUpdateNs(alone, memory, stage, result_.plan.stages[stage].layers));
    }
    const PipelineCosts& costs = result_.costs;
    const int64_t updated_ns = EpilogueNs(costs, parts.epilogue, adamw_ns);
    const int64_t waited_ns = EpilogueNs(costs, parts.epilogue, std::vector<int64_t>(adamw_ns.size(), 0));
    At(TimePart::kExposedReduction) = static_cast<double>(costs.epilogue_ns - updated_ns);
    At(TimePart::kUpdate) = static_cast<double>(updated_ns - waited_ns);
    At(TimePart::kSynchronisation) = static_cast<double>(waited_ns);
  }

  const JobSpec job_;
  const ClusterSpec& cluster_;
  const CostSource& source_;
  const PlanResult& result_;
  std::vector<TimeShare> shares_;
};

}  // namespace

std::string_view TimePartName(TimePart part) { return kNames[static_cast<size_t>(part)]; }

absl::StatusOr<std::vector<TimeShare>> BreakDownTime(const JobSpec& job, const ClusterSpec& cluster,
                                                     const CostSource& source, const PlanResult& result,
                                                     const SimulationResult& simulated) {
  return Breakdown(job, cluster, source, result).Run(simulated);
}

}  // namespace geopipe
