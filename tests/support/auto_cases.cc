#include "tests/support/auto_cases.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/random_pipeline.h"

namespace geopipe {
namespace {

constexpr std::array<CrossPipeColumn, 10> kColumns = {{
    {0, 0, 16, 8, .1331, .13271, .137},
    {.25, .25, 16, 8, .1379, .13746, .142},
    {.25, 2, 16, 8, .1545, .15408, .177},
    {2, .25, 16, 8, .1545, .15408, .153},
    {2, 2, 16, 8, .1712, .17071, .196},
    {0, 0, 32, 16, .1136, 0, .118},
    {.25, .25, 32, 16, .1142, 0, .123},
    {.25, 2, 32, 16, .1171, 0, .150},
    {2, .25, 32, 16, .1164, 0, .124},
    {2, 2, 32, 16, .1191, 0, .147},
}};

constexpr int64_t kActivationBytes = 1'000;

// A uniform number of thousandths.
int64_t PerMille(std::mt19937_64& random, int64_t low, int64_t high) { return Draw(random, low, high); }

// 8 to 256, log-uniform in steps of a sixteenth.
int32_t RandomMicroBatches(std::mt19937_64& random) {
  return static_cast<int32_t>(std::lround(8 * std::exp2(static_cast<double>(Draw(random, 0, 80)) / 16)));
}

void AddStages(std::mt19937_64& random, bool split, PipelineCosts& costs) {
  const int64_t uneven = Draw(random, 0, 2) == 0 ? 0 : PerMille(random, 50, 400);
  const int64_t input = split ? PerMille(random, 950, 1'300) : PerMille(random, 1'800, 2'200);
  const int64_t weight = PerMille(random, 500, 1'000);
  for (int32_t stage = 0; stage < costs.shape.stages; ++stage) {
    const int64_t forward_ns = 30'000 * (1'000 + PerMille(random, -uneven, uneven));
    costs.forward_ns.push_back(forward_ns);
    costs.input_grad_ns.push_back(forward_ns * input / 1'000);
    if (split) {
      costs.weight_grad_ns.push_back(forward_ns * weight / 1'000);
    }
  }
}

int64_t MeanWorkNs(const PipelineCosts& costs) {
  int64_t work_ns = 0;
  for (int32_t stage = 0; stage < costs.shape.stages; ++stage) {
    work_ns += costs.forward_ns[stage] + costs.BackwardNs(stage);
  }
  return work_ns / costs.shape.stages;
}

// Private links, one link for all crossings, or one for each two.
void AddLinks(std::mt19937_64& random, bool may_share, SitedCase& sited) {
  PipelineCosts& costs = sited.costs;
  const auto count = static_cast<size_t>(costs.shape.stages) - 1;
  std::vector<size_t> order(count);
  for (size_t i = 0; i < count; ++i) {
    order[i] = i;
  }
  const int64_t crossings = sited.sites - 1;
  const int64_t sharing = may_share ? Draw(random, 0, 2) : 0;
  sited.shared = sharing != 0 && crossings > 1;
  const int64_t members = !sited.shared ? 1 : (sharing == 1 ? crossings : 2);
  costs.boundaries.resize(count);
  const int64_t work_ns = MeanWorkNs(costs);
  BoundaryCost link;
  for (int64_t i = 0; i < crossings; ++i) {
    std::swap(order[i], order[Draw(random, i, static_cast<int64_t>(count) - 1)]);
    if (i % members == 0) {
      link.crosses = true;
      // 0.05 to 3 times the work of a micro-batch, log-uniform in steps of a hundredth.
      const double latency = 0.05 * std::pow(60.0, static_cast<double>(Draw(random, 0, 100)) / 100);
      link.latency_ns = std::llround(static_cast<double>(work_ns) * latency);
      link.serialization_ns = work_ns * PerMille(random, 20, 600) / 1'000 / members;
      link.link = sited.shared ? std::string(1, static_cast<char>('a' + i)) : std::string();
    }
    costs.boundaries[order[i]] = link;
  }
}

void AddMemory(std::mt19937_64& random, SitedCase& sited) {
  PipelineCosts& costs = sited.costs;
  const int32_t stages = costs.shape.stages;
  const bool split = !costs.weight_grad_ns.empty();
  const int64_t room = PerMille(random, 1'000, 3'000);
  const bool uniform = Draw(random, 0, 1) == 0;
  const int64_t kept = split ? PerMille(random, 300, 700) : 0;
  const int64_t work_ns = MeanWorkNs(costs);
  costs.memory.emplace();
  costs.memory->capacity_bytes.resize(static_cast<size_t>(stages));
  costs.memory->static_bytes.assign(static_cast<size_t>(stages), 0);
  costs.memory->activation_bytes.assign(static_cast<size_t>(stages), kActivationBytes);
  costs.memory->wgrad_bytes.assign(static_cast<size_t>(stages), kActivationBytes * kept / 1'000);
  sited.ample = true;
  int64_t advance = 0;
  for (int32_t stage = stages - 1; stage >= 0; --stage) {
    if (stage + 1 < stages && costs.boundaries[stage].crosses) {
      const BoundaryCost& cost = costs.boundaries[stage];
      advance += (2 * (cost.latency_ns + cost.serialization_ns) + work_ns - 1) / work_ns;
    }
    const int64_t need = stages - stage;
    const int64_t capacity_bytes = (uniform ? stages : need) * kActivationBytes * room / 1'000;
    costs.memory->capacity_bytes[stage] = capacity_bytes;
    const int64_t wanted = std::min<int64_t>((split ? 2 : 1) * need + advance, costs.shape.micro_batches);
    sited.ample = sited.ample && wanted * kActivationBytes <= capacity_bytes;
  }
}

}  // namespace

std::span<const CrossPipeColumn> CrossPipeColumns() { return kColumns; }

PipelineCosts CrossPipeCosts(const CrossPipeColumn& column) {
  constexpr int32_t kDevices = 8;
  constexpr double kForwardS = 0.038;
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(kDevices, column.micro_batches);
  costs.forward_ns.assign(kDevices, SecondsToNs(kForwardS));
  costs.input_grad_ns.assign(kDevices, SecondsToNs(0.0461));
  costs.weight_grad_ns.assign(kDevices, SecondsToNs(0.0210));
  costs.boundaries.resize(kDevices - 1);
  BoundaryCost& crossing = costs.boundaries[kDevices / 2 - 1];
  crossing.crosses = true;
  crossing.latency_ns = SecondsToNs(column.latency * kForwardS);
  crossing.serialization_ns = SecondsToNs(column.serialization * kForwardS);
  costs.memory.emplace();
  costs.memory->capacity_bytes.assign(kDevices, 2 * column.cap);
  costs.memory->static_bytes.assign(kDevices, 0);
  costs.memory->activation_bytes.assign(kDevices, 2);
  costs.memory->wgrad_bytes.assign(kDevices, 1);
  return costs;
}

SitedCase MakeSitedCase(uint64_t seed) {
  std::mt19937_64 random(seed);
  SitedCase sited;
  sited.sites = static_cast<int32_t>(Draw(random, 2, 6));
  const auto devices = static_cast<int32_t>(std::max<int64_t>(sited.sites, Draw(random, 4, 32)));
  sited.costs.shape = PipelineShape::Linear(devices, RandomMicroBatches(random));
  AddStages(random, Draw(random, 0, 1) == 0, sited.costs);
  AddLinks(random, true, sited);
  AddMemory(random, sited);
  return sited;
}

SitedCase MakeSmallSitedCase(uint64_t seed) {
  std::mt19937_64 random(seed);
  SitedCase sited;
  sited.sites = static_cast<int32_t>(Draw(random, 2, 4));
  const auto devices = static_cast<int32_t>(std::max<int64_t>(sited.sites, Draw(random, 2, 4)));
  sited.costs.shape = PipelineShape::Linear(devices, static_cast<int32_t>(Draw(random, 4, 8)));
  AddStages(random, Draw(random, 0, 1) == 0, sited.costs);
  AddLinks(random, false, sited);
  AddMemory(random, sited);
  return sited;
}

}  // namespace geopipe
