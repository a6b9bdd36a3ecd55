// Ways in which the pipeline ranks of one split of the layers can recompute differently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "optimizer/model/pipeline_costs.h"

namespace geopipe {

// Branch and bound from the first rank on: the cost of a rank depends on its own mode alone.
class RecomputeMixes {
 public:
  // `of_modes`: the costs of the split with each mode on all ranks, with memory and W. `binds`: whether each rank's
  // memory may matter; if it does not, the rank has the first mode, which takes the least time.
  RecomputeMixes(std::vector<PipelineCosts> of_modes, std::vector<bool> binds);

  // Lower bound of all mixes. INT64_MAX: none fits.
  int64_t BoundNs() const;
  // Calls `take` with the mode (an index) of every rank, not the same for all, for each way whose bound is below
  // `worth_ns()` when its turn comes. Looks at no more than `nodes` prefixes, and subtracts those.
  void ForEach(const std::function<int64_t()>& worth_ns, int64_t& nodes,
               const std::function<void(const std::vector<size_t>&)>& take) const;

 private:
  // Lower bound if the first ranks have the modes of `chosen`, and the others the best costs of all modes.
  int64_t BoundNs(const std::vector<size_t>& chosen) const;
  struct Visit;
  void From(std::vector<size_t>& chosen, Visit& visit) const;

  std::vector<PipelineCosts> of_modes_;
  PipelineCosts best_;  // as good as any mode in everything
  std::vector<bool> binds_;
};

}  // namespace geopipe
