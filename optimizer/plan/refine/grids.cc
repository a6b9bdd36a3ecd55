#include "optimizer/plan/refine/grids.h"

#include <absl/status/statusor.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "optimizer/model/cost_model.h"
#include "optimizer/model/execution_config.h"
#include "optimizer/model/transformer.h"
#include "optimizer/plan/space/fastest_costs.h"
#include "optimizer/plan/space/layer_split.h"
#include "optimizer/plan/space/placement.h"
#include "optimizer/plan/space/splits.h"

namespace geopipe {
namespace {

constexpr int64_t kMaxGrids = 200'000;
constexpr double kLongestMessageS = 1e4;

int64_t Whole(const PartCosts& part) { return part.forward_ns + part.input_grad_ns + part.weight_grad_ns; }

class Grids {
 public:
  Grids(const PlanRequest& request, const CostSource& source, int64_t worth_ns, const std::function<bool()>& stopped)
      : request_(request), source_(source), worth_ns_(worth_ns), stopped_(stopped) {}

  std::optional<std::vector<Grid>> Run() {
    AddOrders();
    return too_many_ ? std::nullopt : std::optional(std::move(grids_));
  }

 private:
  void AddOrders() {
    OrderClasses classes(request_.cluster);
    const bool is_open = source_.profile() == nullptr && request_.job.placement.sites.empty();
    for (const SiteOrder& order : CandidateSiteOrders(request_.job, request_.cluster)) {
      if (is_open && !classes.IsNew(order)) {
        continue;
      }
      for (const Degrees& degrees : DegreesOf(request_.job, request_.cluster, order)) {
        const JobSpec job =
            JobOf(request_.job, {order, degrees.tensor, request_.job.parallelism.pipeline, degrees.data});
        std::vector<int64_t> slots;
        for (const std::string& name : order) {
          const SiteSpec* site = request_.cluster.FindSite(name);
          const absl::StatusOr<int64_t> count = site == nullptr ? absl::StatusOr<int64_t>(0) : StageSlots(job, *site);
          slots.push_back(count.ok() ? *count : 0);
        }
        if (*std::ranges::min_element(slots) > 0 && Linked(request_.cluster, order)) {
          AddModes(job, degrees, slots);
        }
        if (too_many_ || stopped_()) {
          return;
        }
      }
    }
  }

  void AddModes(const JobSpec& job, const Degrees& degrees, const std::vector<int64_t>& slots) {
    const std::vector<StageChoice> choices = StageChoices(job, std::ssize(slots));
    for (const MemoryMode& mode : MemoryModes(job)) {
      for (const int64_t b : job.search.micro_batch_size) {
        for (const int64_t s : job.search.sequence_length) {
          const std::vector<ModelCosts> costs =
              MicroBatchesOf(job, b, s) == 0 ? std::vector<ModelCosts>{} : CostsOnSites(job, mode, b, s);
          for (size_t i = 0; i < choices.size() && !costs.empty(); ++i) {
            AddRanks(job, slots, costs, {0, job.placement.sites, {}, degrees, mode, b, s, choices[i]});
          }
        }
      }
    }
  }

  // Costs on each of the job's sites. Empty if a device figure is missing.
  std::vector<ModelCosts> CostsOnSites(const JobSpec& job, const MemoryMode& mode, int64_t b, int64_t s) const {
    const ExecutionConfig config = MakeExecutionConfig(job, b, s, mode.recompute, mode.zero_stage);
    std::vector<ModelCosts> of_sites;
    for (const std::string& name : job.placement.sites) {
      const std::optional<ModelCosts> costs =
          FastestCosts(job.model, source_, config, *request_.cluster.FindSite(name));
      if (!costs.has_value()) {
        return {};
      }
      of_sites.push_back(*costs);
    }
    return of_sites;
  }

  void AddRanks(const JobSpec& job, const std::vector<int64_t>& slots, const std::vector<ModelCosts>& costs,
                Grid grid) {
    const int64_t asked = job.parallelism.pipeline;
    const int64_t most = std::min(job.model.num_hidden_layers / grid.stages.per_rank,
                                  std::accumulate(slots.begin(), slots.end(), int64_t{0}));
    const int64_t micro_batches = MicroBatchesOf(job, grid.micro_batch_size, grid.sequence_length);
    const int64_t links_ns = LinksNs(job, grid, micro_batches);
    if (links_ns >= worth_ns_) {
      return;
    }
    for (int64_t ranks = std::max(asked, std::ssize(slots)); ranks <= (asked > 0 ? std::min(asked, most) : most);
         ++ranks) {
      if (FastestBoundNs(slots, costs, ranks, micro_batches) >= worth_ns_) {
        continue;
      }
      if (SplitCount(ranks, std::ssize(slots), kMaxGrids) > kMaxGrids) {
        too_many_ = true;
        return;
      }
      ForEachSplit(ranks, slots, [&](const std::vector<int64_t>& of_sites) {
        grid.ranks = of_sites;
        grid.bound_ns = std::max(links_ns, BoundNs(grid, costs, micro_batches));
        if (grid.bound_ns < worth_ns_ && !too_many_) {
          grids_.push_back(grid);
          too_many_ = std::ssize(grids_) > kMaxGrids;
        }
      });
    }
  }

  // Least time for which the busiest link between the grid's sites is busy, one way: with a message of every
  // micro-batch for each stage of a rank.
  int64_t LinksNs(const JobSpec& job, const Grid& grid, int64_t micro_batches) const {
    const ExecutionConfig config = MakeExecutionConfig(job, grid.micro_batch_size, grid.sequence_length,
                                                       grid.mode.recompute, grid.mode.zero_stage);
    const double bytes =
        static_cast<double>(BoundaryMessageBytes(job.model, config)) * static_cast<double>(grid.degrees.data);
    double message_s = 0;
    for (size_t i = 1; i < grid.sites.size(); ++i) {
      const LinkSpec& link = *request_.cluster.FindLink(grid.sites[i - 1], grid.sites[i]);
      message_s = link.inside() ? message_s : std::max(message_s, bytes / link.bandwidth_bytes_per_s);
    }
    return micro_batches * grid.stages.per_rank * SecondsToNs(std::min(message_s, kLongestMessageS));
  }

  // Least time of the layers on `ranks` ranks, those where a layer takes the least time.
  int64_t FastestBoundNs(const std::vector<int64_t>& slots, const std::vector<ModelCosts>& costs, int64_t ranks,
                         int64_t micro_batches) const {
    std::vector<StageLoad> loads;
    for (size_t i = 0; i < slots.size(); ++i) {
      const StageLoad load{.fixed_ns = 0, .layer_ns = micro_batches * Whole(costs[i].block), .most = 0};
      loads.insert(loads.end(), static_cast<size_t>(std::min(slots[i], ranks)), load);
    }
    std::ranges::stable_sort(loads, {}, &StageLoad::layer_ns);
    loads.resize(static_cast<size_t>(ranks));
    return LeastStageTimeNs(loads, request_.job.model.num_hidden_layers);
  }

  // A bound: all the work of a rank at the best split of the layers, after the first micro-batch has come through one
  // layer of each rank before it.
  int64_t BoundNs(const Grid& grid, const std::vector<ModelCosts>& of_sites, int64_t micro_batches) const {
    const int64_t ranks = std::accumulate(grid.ranks.begin(), grid.ranks.end(), int64_t{0});
    std::vector<StageLoad> loads;
    int64_t way_ns = 0;
    for (size_t i = 0; i < grid.sites.size(); ++i) {
      way_ns += i == 0 ? 0 : request_.cluster.FindLink(grid.sites[i - 1], grid.sites[i])->latency_ns;
      for (int64_t k = 0; k < grid.ranks[i]; ++k) {
        const auto rank = std::ssize(loads);
        const ModelCosts& costs = of_sites[i];
        const bool has_head = rank == (grid.stages.layout == StageLayout::kFolded ? 0 : ranks - 1);
        const int64_t fixed_ns = (rank == 0 ? Whole(costs.embedding) : 0) + (has_head ? Whole(costs.head) : 0);
        loads.push_back(
            {.fixed_ns = way_ns + micro_batches * fixed_ns, .layer_ns = micro_batches * Whole(costs.block), .most = 0});
        way_ns += (rank == 0 ? costs.embedding.forward_ns : 0) + costs.block.forward_ns;
      }
    }
    return LeastStageTimeNs(loads, request_.job.model.num_hidden_layers);
  }

  const PlanRequest& request_;
  const CostSource& source_;
  const int64_t worth_ns_;
  const std::function<bool()>& stopped_;
  bool too_many_ = false;
  std::vector<Grid> grids_;
};

}  // namespace

std::optional<std::vector<Grid>> GridsWithin(const PlanRequest& request, const CostSource& source, int64_t worth_ns,
                                             const std::function<bool()>& stopped) {
  return Grids(request, source, worth_ns, stopped).Run();
}

}  // namespace geopipe
