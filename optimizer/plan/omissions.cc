#include "optimizer/plan/omissions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "optimizer/base/quantities.h"
#include "optimizer/model/cluster.h"
#include "optimizer/plan/planner.h"

namespace geopipe {
namespace {

// A fabric that a topology does not describe is assumed to have a rail of 400 Gbps for each device, as DGX H100 has
// (NVIDIA DGX H100 user guide: eight ConnectX-7); devices that do not say how they reach each other, PCIe 4.0 x16, per
// direction.
constexpr double kRailBytesPerS = 50e9;
constexpr int64_t kRailLatencyNs = 5'000;
constexpr double kPcieBytesPerS = 32e9;
constexpr size_t kMaxNamedSites = 4;

// The request with what was left out, and what is said of it.
struct Supplied {
  std::string key;
  std::string missing;  // "dublin and oslo give no network, so …"
  std::string with;     // "network: {bandwidth: 400Gbps, latency: 5us}"
  PlanRequest request;
};

std::string Names(const std::vector<std::string>& sites) {
  return sites.size() > kMaxNamedSites ? fmt::format("{} sites", sites.size())
         : sites.size() == 1           ? sites.front()
                             : fmt::format("{} and {}", fmt::join(sites.begin(), sites.end() - 1, ", "), sites.back());
}

class Supplies {
 public:
  explicit Supplies(const PlanRequest& request) : base_(request) {
    base_.job.search.prefer = Prefer::kSpeed;
    base_.baselines = false;
    base_.cluster_bound = false;
    base_.weigh_memory = false;
    base_.progress = {};
  }

  std::vector<Supplied> All() {
    AddIntraNode();
    AddNetwork();
    AddSequenceParallel();
    AddDegrees();
    AddSchedule();
    return std::move(all_);
  }

 private:
  PlanRequest& Add(std::string key, std::string missing, std::string with) {
    return all_.emplace_back(Supplied{std::move(key), std::move(missing), std::move(with), base_}).request;
  }

  void AddNetwork() {
    std::vector<std::string> sites;
    for (const std::string& name : base_.cluster.SiteNames()) {
      int64_t nodes = 0;
      bool given = true;
      for (const SiteSpec* group : base_.cluster.GroupsOf(name)) {
        nodes += group->nodes;
        given = given && group->network.given();
      }
      if (nodes > 1 && !given) {
        sites.push_back(name);
      }
    }
    if (sites.empty()) {
      return;
    }
    PlanRequest& with = Add("network",
                            fmt::format("{} {} no network, so replicas of a stage have to share a node", Names(sites),
                                        sites.size() == 1 ? "gives" : "give"),
                            "network: {bandwidth: 400Gbps, latency: 5us}");
    for (SiteSpec& site : with.cluster.sites) {
      if (!site.network.given()) {
        site.network = {.bandwidth_bytes_per_s = kRailBytesPerS, .latency_ns = kRailLatencyNs};
      }
    }
    for (LinkSpec& link : with.cluster.links) {
      if (link.inside() && link.bandwidth_bytes_per_s <= 0) {
        link.bandwidth_bytes_per_s = kRailBytesPerS;
        link.latency_ns = kRailLatencyNs;
      }
    }
  }

  void AddIntraNode() {
    std::vector<std::string> sites;
    for (const SiteSpec& site : base_.cluster.sites) {
      if (site.devices_per_node > 1 && site.device.intra_node_bandwidth_bytes_per_s <= 0) {
        sites.push_back(site.name);
      }
    }
    if (sites.empty()) {
      return;
    }
    PlanRequest& with = Add("device.intra_node_bandwidth",
                            fmt::format("{} {} no device.intra_node_bandwidth, so tensor and data degrees stay 1",
                                        Names(sites), sites.size() == 1 ? "gives" : "give"),
                            "intra_node_bandwidth: 32GB/s");
    for (SiteSpec& site : with.cluster.sites) {
      if (site.device.intra_node_bandwidth_bytes_per_s <= 0) {
        site.device.intra_node_bandwidth_bytes_per_s = kPcieBytesPerS;
      }
    }
  }

  void AddSequenceParallel() {
    if (base_.job.parallelism.sequence_parallel || base_.job.parallelism.tensor == 1) {
      return;
    }
    Add("parallelism.sequence_parallel",
        "parallelism.sequence_parallel is off, so every tensor rank holds whole activations between products",
        "sequence_parallel: true")
        .job.parallelism.sequence_parallel = true;
  }

  void AddDegrees() {
    const ParallelismSpec& parallelism = base_.job.parallelism;
    std::vector<std::string> pinned;
    for (const auto& [key, degree] :
         {std::pair("tensor", parallelism.tensor), std::pair("pipeline", parallelism.pipeline),
          std::pair("data", parallelism.data)}) {
      if (degree > 0) {
        pinned.push_back(fmt::format("{} {}", key, degree));
      }
    }
    if (pinned.empty() || !base_.site_ranks.empty()) {
      return;
    }
    ParallelismSpec& open =
        Add("parallelism", fmt::format("parallelism pins {}", fmt::join(pinned, ", ")),
            pinned.size() == 1 ? "that degree left to the planner" : "these degrees left to the planner")
            .job.parallelism;
    open.tensor = open.pipeline = open.data = 0;
  }

  void AddSchedule() {
    const ScheduleKind kind = base_.job.search.schedule;
    if (kind == ScheduleKind::kAuto || base_.comm != CommMode::kNonBlocking || !base_.fixed_delta_n.empty()) {
      return;
    }
    Add("search.schedule", fmt::format("search.schedule is {}", ScheduleKindName(kind)), "schedule: auto")
        .job.search.schedule = ScheduleKind::kAuto;
  }

  PlanRequest base_;
  std::vector<Supplied> all_;
};

// Returns the iteration time with it; nullopt: it is not worth a word.
std::optional<int64_t> WorthOf(PlanRequest request, int64_t iteration_ns) {
  const auto is_worth = [&](const absl::StatusOr<PlanResult>& planned) {
    return planned.ok() && planned->prediction.iteration_ns <= iteration_ns - iteration_ns / 1'000'000 * kOmissionPpm;
  };
  const bool refines = request.refine;
  request.refine = false;
  const absl::StatusOr<PlanResult> by_rule = MakePlan(request);
  if (!is_worth(by_rule)) {
    return std::nullopt;
  }
  request.refine = refines;
  const absl::StatusOr<PlanResult> planned = MakePlan(request);
  return is_worth(planned) ? planned->prediction.iteration_ns : by_rule->prediction.iteration_ns;
}

}  // namespace

std::vector<Omission> CostlyOmissions(const PlanRequest& request, const PlanResult& result) {
  std::vector<Omission> costly;
  const int64_t iteration_ns = result.prediction.iteration_ns;
  for (Supplied& supplied : Supplies(request).All()) {
    if (request.should_stop && request.should_stop()) {
      break;
    }
    const std::optional<int64_t> with_ns = WorthOf(std::move(supplied.request), iteration_ns);
    if (with_ns.has_value()) {
      costly.push_back({std::move(supplied.key),
                        fmt::format("{}; with {} an iteration would take {} instead of {}", supplied.missing,
                                    supplied.with, HumanDuration(*with_ns), HumanDuration(iteration_ns)),
                        *with_ns});
    }
  }
  std::ranges::stable_sort(costly, {}, &Omission::iteration_ns);
  return costly;
}

}  // namespace geopipe
