#include "tests/simulation/faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "optimizer/base/splitmix64.h"
#include "tests/simulation/world.h"

namespace geopipe::simulation {
namespace {

struct Row {
  const char* name;
  double weight;
  double shortest_s;
  double longest_s;
};

// Most disturb the control plane alone; few are a reason for a job to fail.
constexpr std::array<Row, static_cast<size_t>(FaultKind::kCount)> kRows = {{
    {"the coordinator crashes", 12, 0.1, 90},
    {"the coordinator crashes at a commit", 4, 10, 300},
    {"the coordinator is stopped", 4, 1, 90},
    {"the coordinator is cut off", 4, 2, 120},
    {"an agent crashes", 12, 0.1, 90},
    {"an agent is stopped", 5, 1, 90},
    {"a keeper crashes", 6, 0.1, 1},
    {"a keeper is stopped", 2, 1, 90},
    {"a worker crashes", 1.5, 0.1, 1},
    {"a worker is stopped", 1.5, 0.5, 12},
    {"a worker is stuck", 0.5, 1, 1},
    {"a worker crashes, and another site's path holds everything", 1, 20, 60},
    {"a node reboots", 0.5, 5, 60},
    {"an agent dies and its state folder is lost", 0.7, 0.1, 60},
    {"coordinator and agents crash", 4, 0.1, 20},
    {"streams of a site break", 5, 0.1, 60},
    {"the path of a site holds everything", 4, 1, 60},
    {"the path of a site swallows everything", 4, 1, 90},
    {"the path of a site swallows reports", 4, 1, 90},
    {"the path of a site swallows orders", 4, 1, 90},
    {"the path of a site is slow", 3, 5, 60},
    {"messages come twice", 6, 5, 60},
    {"the store is full", 3, 0.5, 30},
    {"the store takes no progress", 3, 0.5, 30},
    {"a node's disk is full", 2, 1, 60},
    {"the coordinator's clock jumps", 3, 0.1, 0.1},
    {"a site's data path is cut", 2, 0.5, 25},
    {"the planner is slow", 2, 10, 60},
    {"the user pauses a job", 7, 0.5, 60},
    {"the user cancels a job", 1.5, 0.1, 0.1},
    {"a node is lost for long", 2.5, 30, 240},
    {"a node's disk for checkpoints is full", 2.5, 5, 90},
    {"every worker of a node dies soon after its start", 1, 5, 60},
    {"the user drains a site", 3, 20, 200},
    {"the user asks for a checkpoint", 4, 0.1, 0.1},
    {"nothing can be started on a node", 2, 1, 90},
    {"no file can be opened on a node", 2, 1, 90},
    {"a node's checkpoints are not mounted", 3, 1, 90},
    {"a node's keeper and workers die together", 1, 0.1, 1},
    {"the coordinator comes back with an older store", 4, 1, 240},
    {"a node goes down", 3, 2, 150},
}};

}  // namespace

std::string Describe(const Fault& fault) {
  return fmt::format("at {:.3f} s: {} (target {}) for {:.1f} s{}", static_cast<double>(fault.at_ns) * 1e-9,
                     kRows.at(static_cast<size_t>(fault.kind)).name, fault.target,
                     static_cast<double>(fault.duration_ns) * 1e-9,
                     fault.effects > 0 ? fmt::format(", {} effects later", fault.effects) : "");
}

std::vector<Fault> DrawFaults(uint64_t seed, int count, int64_t span_ns, int kinds) {
  SplitMix64 random(SplitMix64::Mix(seed + 1));
  double weights = 0;
  for (const Row& row : std::span(kRows).first(kinds)) {
    weights += row.weight;
  }
  std::vector<Fault> faults;
  for (int i = 0; i < count; ++i) {
    Fault fault;
    double at = random.Uniform() * weights;
    size_t kind = 0;
    while (kind + 1 < static_cast<size_t>(kinds) && at >= kRows[kind].weight) {
      at -= kRows[kind++].weight;
    }
    const Row& row = kRows[kind];
    fault.kind = static_cast<FaultKind>(kind);
    fault.at_ns = kSecondNs + static_cast<int64_t>(random.Uniform() * static_cast<double>(span_ns));
    fault.target = static_cast<uint32_t>(random.Next() % 1000);
    // Short ones are as likely as long ones are: uniform in the logarithm.
    fault.duration_ns = static_cast<int64_t>(
        row.shortest_s * std::pow(row.longest_s / row.shortest_s, random.Uniform()) * static_cast<double>(kSecondNs));
    fault.effects = random.Uniform() < 0.7 ? static_cast<int64_t>(random.Next() % 40) : 0;
    faults.push_back(fault);
  }
  std::ranges::stable_sort(faults, {}, &Fault::at_ns);
  return faults;
}

}  // namespace geopipe::simulation
