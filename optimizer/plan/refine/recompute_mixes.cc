#include "optimizer/plan/refine/recompute_mixes.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/simulator/lower_bound.h"

namespace geopipe {
namespace {

constexpr int64_t kNoneFits = std::numeric_limits<int64_t>::max();

void TakeLesser(const std::vector<int64_t>& other, std::vector<int64_t>& values) {
  std::ranges::transform(values, other, values.begin(), [](int64_t a, int64_t b) { return std::min(a, b); });
}

}  // namespace

struct RecomputeMixes::Visit {
  const std::function<int64_t()>& worth_ns;
  int64_t& nodes;
  const std::function<void(const std::vector<size_t>&)>& take;
};

RecomputeMixes::RecomputeMixes(std::vector<PipelineCosts> of_modes, std::vector<bool> binds)
    : of_modes_(std::move(of_modes)), best_(of_modes_.front()), binds_(std::move(binds)) {
  GP_CHECK(std::ssize(binds_) == best_.shape.devices);
  for (const PipelineCosts& costs : of_modes_) {
    TakeLesser(costs.forward_ns, best_.forward_ns);
    TakeLesser(costs.input_grad_ns, best_.input_grad_ns);
    TakeLesser(costs.weight_grad_ns, best_.weight_grad_ns);
    TakeLesser(costs.memory->static_bytes, best_.memory->static_bytes);
    TakeLesser(costs.memory->activation_bytes, best_.memory->activation_bytes);
    TakeLesser(costs.memory->wgrad_bytes, best_.memory->wgrad_bytes);
    best_.epilogue_ns = std::min(best_.epilogue_ns, costs.epilogue_ns);
  }
}

int64_t RecomputeMixes::BoundNs() const { return BoundNs({}); }

int64_t RecomputeMixes::BoundNs(const std::vector<size_t>& chosen) const {
  PipelineCosts costs = best_;
  for (size_t stage = 0; stage < costs.forward_ns.size(); ++stage) {
    const auto rank = static_cast<size_t>(costs.shape.placement[stage]);
    if (rank < chosen.size()) {
      const PipelineCosts& own = of_modes_[chosen[rank]];
      costs.forward_ns[stage] = own.forward_ns[stage];
      costs.input_grad_ns[stage] = own.input_grad_ns[stage];
      costs.weight_grad_ns[stage] = own.weight_grad_ns[stage];
      costs.memory->activation_bytes[stage] = own.memory->activation_bytes[stage];
      costs.memory->wgrad_bytes[stage] = own.memory->wgrad_bytes[stage];
    }
  }
  for (size_t rank = 0; rank < chosen.size(); ++rank) {
    costs.memory->static_bytes[rank] = of_modes_[chosen[rank]].memory->static_bytes[rank];
  }
  return MemoryLowerBoundNs(costs).value_or(kNoneFits);
}

void RecomputeMixes::ForEach(const std::function<int64_t()>& worth_ns, int64_t& nodes,
                             const std::function<void(const std::vector<size_t>&)>& take) const {
  Visit visit{worth_ns, nodes, take};
  std::vector<size_t> chosen;
  From(chosen, visit);
}

void RecomputeMixes::From(std::vector<size_t>& chosen, Visit& visit) const {
  if (--visit.nodes < 0 || BoundNs(chosen) >= visit.worth_ns()) {
    return;
  }
  const size_t rank = chosen.size();
  if (rank == binds_.size()) {
    if (std::ranges::count(chosen, chosen.front()) < std::ssize(chosen)) {
      visit.take(chosen);
    }
    return;
  }
  for (size_t mode = 0; mode < (binds_[rank] ? of_modes_.size() : 1); ++mode) {
    chosen.push_back(mode);
    From(chosen, visit);
    chosen.pop_back();
  }
}

}  // namespace geopipe
