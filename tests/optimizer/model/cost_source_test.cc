#include "optimizer/model/cost_source.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/optimizer/model/synthetic_device.h"

namespace geopipe {
namespace {

const DeviceSpec kNpu{.kind = "npu",
                      .memory_bytes = int64_t{64} << 30,
                      .peak_flops = 320e12,
                      .memory_bandwidth_bytes_per_s = 1.6e12,
                      .intra_node_bandwidth_bytes_per_s = 200e9,
                      .efficiency = 0.5};

SiteSpec SiteNamed(const char* name, DeviceSpec device = kNpu) {
  return {.name = name, .nodes = 1, .devices_per_node = 8, .device = std::move(device)};
}

JobSpec JobOf(const ModelSpec& model, int64_t tensor = 1) {
  JobSpec job;
  job.parallelism.tensor = 1;
  job.parallelism.data = 1;
  job.model = model;
  job.parallelism.tensor = tensor;
  return job;
}

ProfileEntry EntryOf(const char* site, const char* node, int32_t device, const Observation& observation) {
  return {.site = site,
          .node = node,
          .device = device,
          .micro_batch_size = observation.micro_batch_size,
          .sequence_length = observation.sequence_length,
          .embedding = observation.costs.embedding,
          .block = observation.costs.block,
          .head = observation.costs.head,
          .adamw_ns_per_million_parameters = static_cast<int64_t>(observation.costs.adamw_ns_per_parameter * 1e6)};
}

ProfileEntry ForwardEntry(const char* node, int32_t device, int64_t forward_ns) {
  return EntryOf("north", node, device, {1, 4096, {{1, 2, 3}, {forward_ns, 20, 30}, {100, 200, 300}, 5}});
}

ExecutionConfig With(ExecutionConfig config, Recompute recompute) {
  config.recompute = recompute;
  return config;
}

// north: a small model measured at four (b, s).
struct Measured {
  SyntheticDevice device;
  JobSpec job = JobOf(SmallModel());
  ClusterSpec cluster{.sites = {SiteNamed("north"), SiteNamed("south")}, .links = {}};
  Profile profile;

  Measured() {
    for (const auto& [b, s] : std::vector<std::pair<int64_t, int64_t>>{{1, 64}, {2, 64}, {2, 256}, {4, 128}}) {
      profile.entries.push_back(EntryOf("north", "n0", 0, device.At(b, s)));
    }
  }
  CostSource Source() const { return {job, cluster, &profile}; }
  const SiteSpec& north() const { return cluster.sites[0]; }
  const SiteSpec& south() const { return cluster.sites[1]; }
};

TEST_CASE("without any measurement the costs are analytic") {
  const Measured f;
  Profile messages_only;
  messages_only.messages.push_back({.site = "north", .node = "n0"});
  for (const Profile* profile : {static_cast<const Profile*>(nullptr), &std::as_const(messages_only)}) {
    const CostSource source(f.job, f.cluster, profile);
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      for (const int64_t tensor : {1, 8}) {
        const ExecutionConfig config = With(ConfigOf(2, 64, tensor), recompute);
        CHECK(*source.At(config, f.north(), 0) == *AnalyticCosts(SmallModel(), config, f.north()));
      }
    }
    CHECK(source.Report(ConfigOf(2, 64), f.north(), {0}).origin == CostOrigin::kAnalytic);
  }
}

TEST_CASE("a profile replaces the model where it was measured") {
  const ModelSpec model = *ModelPreset("llama-2-13b");
  const ClusterSpec cluster{.sites = {SiteNamed("north"), SiteNamed("south", {.kind = "gpu"})}, .links = {}};
  const Profile profile{{ForwardEntry("n0", 0, 10), ForwardEntry("n0", 1, 11)}};
  const CostSource source(JobOf(model), cluster, &profile);
  const SiteSpec& north = cluster.sites[0];
  const ModelCosts first = *source.At(ConfigOf(1, 4096), north, 0);
  CHECK(first.block == PartCosts{10, 20, 30});
  CHECK(source.At(ConfigOf(1, 4096), north, 1)->block == PartCosts{11, 20, 30});
  CHECK(first.head == PartCosts{100, 200, 300});
  CHECK(first.adamw_ns_per_parameter == Approx(5));

  // No entry for this device: the slowest of the site. Nor for entries of several nodes.
  CHECK(source.At(ConfigOf(1, 4096), north, 7)->block.forward_ns == 11);
  const Profile two_nodes{{ForwardEntry("n0", 0, 15), ForwardEntry("n1", 0, 10)}};
  CHECK(CostSource(JobOf(model), cluster, &two_nodes).At(ConfigOf(1, 4096), north, 0)->block.forward_ns == 15);

  // A site of another kind: the model, and its missing figures.
  const absl::Status status = source.At(ConfigOf(1, 4096), cluster.sites[1], 0).status();
  CHECK(std::string(status.message()) ==
        "site \"south\": device.peak_flops is 0, and no profile replaces the cost model; give the figure or a profile");
  // Measured, a site needs none.
  SiteSpec bare = SiteNamed("north", {});
  CHECK(source.At(ConfigOf(1, 4096), bare, 0)->block == PartCosts{10, 20, 30});
}

TEST_CASE("at another b and s a device costs what its measurements teach") {
  const Measured f;
  const CostSource source = f.Source();
  for (const ProfileEntry& entry : f.profile.entries) {
    const ExecutionConfig config = ConfigOf(entry.micro_batch_size, entry.sequence_length);
    CHECK(source.At(config, f.north(), 0)->block == entry.block);
    CHECK(source.At(config, f.north(), 0)->head == entry.head);
  }
  for (const ExecutionConfig& config : {ConfigOf(8, 64), ConfigOf(1, 512)}) {
    const ModelCosts costs = *source.At(config, f.north(), 0);
    const ModelCosts truth = f.device.Costs(config);
    for (const ModelPart part : kModelParts) {
      for (const PartAction action : kPartActions) {
        CHECK(static_cast<double>(costs.at(part, action)) ==
              Approx(static_cast<double>(truth.at(part, action))).epsilon(1e-5));
      }
    }
    CHECK(costs.adamw_ns_per_parameter == 7);
  }
  // Each device by its own measurements; where there are several nodes, the slowest of all.
  Measured two = f;
  SyntheticDevice slow = f.device;
  slow.bytes_per_s /= 2;
  slow.flops_per_s /= 2;
  slow.s_per_flop_per_token *= 2;
  for (size_t i = 0; i < f.profile.entries.size(); ++i) {
    const ProfileEntry& entry = f.profile.entries[i];
    two.profile.entries.push_back(EntryOf("north", "n0", 1, slow.At(entry.micro_batch_size, entry.sequence_length)));
  }
  const auto forward = [&](int32_t device) {
    return static_cast<double>(two.Source().At(ConfigOf(8, 64), two.north(), device)->block.forward_ns);
  };
  CHECK(forward(1) == Approx(2 * forward(0)).epsilon(1e-5));
  CHECK(forward(5) == forward(1));
  for (size_t i = f.profile.entries.size(); i < two.profile.entries.size(); ++i) {
    two.profile.entries[i].node = "n1";
  }
  CHECK(forward(0) == forward(1));
}

TEST_CASE("recomputation repeats a share of the measured forward") {
  const Measured f;
  const CostSource source = f.Source();
  for (const ExecutionConfig& config : {ConfigOf(2, 256), ConfigOf(8, 256)}) {  // measured and not
    const ModelCosts none = *source.At(config, f.north(), 0);
    const ModelCosts full = *source.At(With(config, Recompute::kFull), f.north(), 0);
    const ModelCosts selective = *source.At(With(config, Recompute::kSelective), f.north(), 0);
    CHECK(full.block.forward_ns == none.block.forward_ns);
    CHECK(full.block.weight_grad_ns == none.block.weight_grad_ns);
    CHECK(full.head == none.head);
    CHECK(full.embedding == none.embedding);
    const auto repeated_ns = [&](Recompute recompute) {
      return 1e9 * (f.device.Seconds(With(config, recompute), ModelPart::kBlock, PartAction::kInputGrad) -
                    f.device.Seconds(config, ModelPart::kBlock, PartAction::kInputGrad));
    };
    CHECK(static_cast<double>(selective.block.input_grad_ns - none.block.input_grad_ns) ==
          Approx(repeated_ns(Recompute::kSelective)).epsilon(1e-4));
    CHECK(static_cast<double>(full.block.input_grad_ns - none.block.input_grad_ns) ==
          Approx(repeated_ns(Recompute::kFull)).epsilon(1e-4));
  }
}

TEST_CASE("another tensor degree is the measurement divided, with the analytic collectives") {
  Measured f;
  const ModelCosts one = *f.Source().At(ConfigOf(2, 256), f.north(), 0);
  const ModelCosts two = *f.Source().At(ConfigOf(2, 256, 2), f.north(), 0);
  // 2 all-reduces of 2 * 256 * 512 * 4 bytes over 2 ranks at 200 GB/s.
  const double collectives_ns = 2 * 2 * 0.5 * 1'048'576 / 200e9 * 1e9;
  const double divided = f.device.Seconds(ConfigOf(2, 256, 2), ModelPart::kBlock, PartAction::kForward) -
                         AllReduceSeconds(2 * 1'048'576, 2, f.device.collective_bytes_per_s);
  CHECK(static_cast<double>(two.block.forward_ns) == Approx(divided * 1e9 + collectives_ns).epsilon(1e-5));
  CHECK(two.block.forward_ns < one.block.forward_ns);
  f.cluster.sites[0].device.intra_node_bandwidth_bytes_per_s = 0;
  CHECK(f.Source().At(ConfigOf(2, 256), f.north(), 0).ok());
  CHECK(std::string(f.Source().At(ConfigOf(2, 256, 2), f.north(), 0).status().message()) ==
        "site \"north\": device.intra_node_bandwidth is not given, and its profile is of tensor 1; "
        "parallelism.tensor 2 needs it");

  // A profile is of the job's own degree: then that is what was measured.
  f.job.parallelism.tensor = 2;
  CHECK(f.Source().At(ConfigOf(2, 256, 2), f.north(), 0)->block == f.profile.entries[2].block);
}

TEST_CASE("measurements correct a site of the same kind of device that has none") {
  Measured f;
  const ModelCosts north = *f.Source().At(ConfigOf(8, 64), f.north(), 0);
  // The same figures, or none: the same device.
  CHECK(*f.Source().At(ConfigOf(8, 64), f.south(), 3) == north);
  CHECK(f.Source().At(ConfigOf(2, 64), f.south(), 3)->block == f.profile.entries[1].block);
  f.cluster.sites[1].device = {.kind = "npu"};
  CHECK(*f.Source().At(ConfigOf(8, 64), f.south(), 3) == north);

  // Twice the figures: twice as fast as the other one is in truth.
  f.cluster.sites[1].device = kNpu;
  f.cluster.sites[1].device.peak_flops *= 2;
  f.cluster.sites[1].device.memory_bandwidth_bytes_per_s *= 2;
  const ExecutionConfig config = ConfigOf(2, 64);
  double product = 1;
  for (const ProfileEntry& entry : f.profile.entries) {
    const ExecutionConfig at = ConfigOf(entry.micro_batch_size, entry.sequence_length);
    product *= static_cast<double>(entry.block.forward_ns) /
               static_cast<double>(AnalyticCosts(SmallModel(), at, f.north())->block.forward_ns);
  }
  const ModelCosts analytic = *AnalyticCosts(SmallModel(), config, f.south());
  const ModelCosts corrected = *f.Source().At(config, f.south(), 0);
  CHECK(static_cast<double>(corrected.block.forward_ns) ==
        Approx(static_cast<double>(analytic.block.forward_ns) * std::pow(product, 0.25)).epsilon(1e-8));
  CHECK(corrected.adamw_ns_per_parameter == Approx(3.5).epsilon(1e-9));
  const ModelCosts full = *f.Source().At(With(config, Recompute::kFull), f.south(), 0);
  // It repeats a part of F, and is as much slower than the figures as F is.
  const int64_t repeated_ns =
      AnalyticCosts(SmallModel(), With(config, Recompute::kFull), f.south())->block.input_grad_ns -
      analytic.block.input_grad_ns;
  CHECK(static_cast<double>(full.block.input_grad_ns - corrected.block.input_grad_ns) ==
        Approx(static_cast<double>(repeated_ns) * std::pow(product, 0.25)).epsilon(1e-5));

  // Another kind, or none given: the figures alone.
  for (const char* kind : {"gpu", "cpu", ""}) {
    f.cluster.sites[0].device.kind = std::string_view(kind) == "gpu" ? "npu" : kind;
    f.cluster.sites[1].device.kind = kind;
    CHECK(*f.Source().At(config, f.south(), 0) == analytic);
  }
}

TEST_CASE("costs say what they rest on") {
  Measured f;
  const CostSource source = f.Source();
  const SiteCostReport measured = source.Report(ConfigOf(2, 64), f.north(), {0});
  CHECK(measured.origin == CostOrigin::kMeasured);
  CHECK(measured.measured_site == "north");
  CHECK(measured.points.size() == 4);
  CHECK(measured.points[1] == SiteCostReport::Point{2, 64});
  CHECK(measured.residuals.points == 4);
  CHECK(measured.residuals.left_out);
  CHECK(measured.residuals.Mean() < 1e-5);
  CHECK(source.Report(ConfigOf(8, 64), f.north(), {0}).origin == CostOrigin::kCalibrated);
  CHECK(source.Report(With(ConfigOf(2, 64), Recompute::kFull), f.north(), {0}).origin == CostOrigin::kMeasured);
  CHECK(source.Report(With(ConfigOf(2, 64), Recompute::kSelective), f.north(), {0}).origin == CostOrigin::kCalibrated);
  CHECK(source.Report(ConfigOf(2, 64, 2), f.north(), {0}).origin == CostOrigin::kCalibrated);
  const SiteCostReport south = source.Report(ConfigOf(2, 64), f.south(), {0, 1, 2});
  CHECK(south.origin == CostOrigin::kCorrected);
  CHECK(south.measured_site == "north");
  CHECK(south.residuals.all.size() == 4 * 8);  // one calibration, whatever devices
  CHECK(CostOriginName(CostOrigin::kCorrected) == "corrected");

  // Measured entries for every device that the plan uses.
  for (size_t i = 0; i < 4; ++i) {
    ProfileEntry entry = f.profile.entries[i];
    entry.device = 1;
    f.profile.entries.push_back(entry);
  }
  CHECK(f.Source().Report(ConfigOf(2, 64), f.north(), {0, 1}).residuals.all.size() == 2 * 4 * 8);
  CHECK(f.Source().Report(ConfigOf(2, 64), f.north(), {1}).residuals.all.size() == 4 * 8);
}

TEST_CASE("absurd measurements are an error, not an overflow") {
  Measured f;
  for (ProfileEntry& entry : f.profile.entries) {
    entry.block = {9'000'000'000'000'000'000, 9'000'000'000'000'000'000, 9'000'000'000'000'000'000};
  }
  CHECK(f.Source().At(ConfigOf(2, 64), f.north(), 0).ok());  // as measured
  for (const ExecutionConfig& config : {ConfigOf(8, 64), With(ConfigOf(2, 64), Recompute::kFull)}) {
    const absl::Status status = f.Source().At(config, f.north(), 0).status();
    CHECK_THAT(std::string(status.message()), Catch::Contains("site \"north\": by the profile one micro-batch"));
  }
}

}  // namespace
}  // namespace geopipe
