#include "optimizer/plan/refine/recompute_mixes.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "optimizer/simulator/lower_bound.h"
#include "tests/support/random_pipeline.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

// One pipeline whose later modes take longer and hold less.
std::vector<PipelineCosts> RandomModes(std::mt19937_64& random) {
  PipelineShape shape = RandomShape(random);
  PipelineCosts costs = RandomCosts(random, shape);
  const auto stages = static_cast<size_t>(shape.stages);
  const auto devices = static_cast<size_t>(shape.devices);
  costs.weight_grad_ns.resize(stages, 3);  // a plan's costs tell I and W apart
  MemoryCosts& memory = costs.memory.emplace();
  memory.static_bytes.assign(devices, 100);
  memory.activation_bytes.assign(stages, 20);
  memory.wgrad_bytes.assign(stages, 10);
  for (size_t device = 0; device < devices; ++device) {
    memory.capacity_bytes.push_back(Draw(random, 120, 220));
  }
  std::vector<PipelineCosts> modes{costs};
  for (const int64_t percent : {50, 20}) {
    PipelineCosts mode = costs;
    for (size_t stage = 0; stage < stages; ++stage) {
      mode.input_grad_ns[stage] += costs.forward_ns[stage] * (100 - percent) / 100;
      mode.memory->activation_bytes[stage] = 20 * percent / 100;
    }
    for (size_t device = 0; device < devices; ++device) {
      mode.memory->static_bytes[device] += Draw(random, 0, 10);
    }
    modes.push_back(mode);
  }
  return modes;
}

PipelineCosts CostsOf(const std::vector<PipelineCosts>& modes, const std::vector<size_t>& mix) {
  PipelineCosts costs = modes.front();
  for (size_t stage = 0; stage < costs.forward_ns.size(); ++stage) {
    const PipelineCosts& own = modes[mix[costs.shape.placement[stage]]];
    costs.forward_ns[stage] = own.forward_ns[stage];
    costs.input_grad_ns[stage] = own.input_grad_ns[stage];
    costs.weight_grad_ns[stage] = own.weight_grad_ns[stage];
    costs.memory->activation_bytes[stage] = own.memory->activation_bytes[stage];
    costs.memory->wgrad_bytes[stage] = own.memory->wgrad_bytes[stage];
  }
  for (size_t device = 0; device < mix.size(); ++device) {
    costs.memory->static_bytes[device] = modes[mix[device]].memory->static_bytes[device];
  }
  return costs;
}

TEST_CASE("every mix whose bound is short enough comes once, and no other") {
  const uint64_t seed = TestSeed(1);
  size_t taken = 0;
  for (uint64_t i = 0; i < 200; ++i) {
    INFO("GEOPIPE_TEST_SEED=" << seed << ", case " << i);
    std::mt19937_64 random(seed * 1'000'003 + i);
    const std::vector<PipelineCosts> modes = RandomModes(random);
    const auto devices = static_cast<size_t>(modes.front().shape.devices);
    std::vector<bool> binds;
    for (size_t device = 0; device < devices; ++device) {
      binds.push_back(Draw(random, 0, 3) > 0);
    }
    // All mixes, with their bounds.
    std::vector<std::pair<int64_t, std::vector<size_t>>> all;
    std::vector<size_t> mix(devices, 0);
    for (size_t next = 0; next < devices;) {
      const bool is_one = std::ranges::count(mix, mix.front()) == std::ssize(mix);
      const std::optional<int64_t> bound_ns = MemoryLowerBoundNs(CostsOf(modes, mix));
      if (!is_one && bound_ns.has_value()) {
        all.emplace_back(*bound_ns, mix);
      }
      for (next = 0; next < devices && (!binds[next] || ++mix[next] == modes.size()); ++next) {
        mix[next] = 0;
      }
    }
    std::ranges::sort(all);
    const int64_t worth_ns = all.empty() ? 1'000'000 : all[all.size() / 2].first + 1;
    const RecomputeMixes mixes(modes, binds);
    CHECK(mixes.BoundNs() <= (all.empty() ? std::numeric_limits<int64_t>::max() : all.front().first));
    std::set<std::vector<size_t>> expected;
    for (const auto& [bound_ns, each] : all) {
      if (bound_ns < worth_ns) {
        expected.insert(each);
      }
    }
    std::set<std::vector<size_t>> found;
    int64_t nodes = 1'000'000;
    mixes.ForEach([&] { return worth_ns; }, nodes,
                  [&](const std::vector<size_t>& each) { CHECK(found.insert(each).second); });
    CHECK(found == expected);
    CHECK(nodes < 1'000'000);
    taken += found.size();
    int64_t few = 2;
    size_t of_few = 0;
    mixes.ForEach([&] { return worth_ns; }, few, [&](const std::vector<size_t>&) { ++of_few; });
    CHECK(of_few <= 1);
  }
  CHECK(taken > 200);
}

}  // namespace
}  // namespace geopipe
