#include "optimizer/model/cost_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "optimizer/base/least_squares.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/pipeline_costs.h"

namespace geopipe {
namespace {

// Number that no device has: asks for a site's slowest.
constexpr int32_t kSlowestDevice = -1;

bool HasFigures(const DeviceSpec& device) { return device.peak_flops > 0 && device.memory_bandwidth_bytes_per_s > 0; }

bool SameFigures(const DeviceSpec& a, const DeviceSpec& b) {
  return a.peak_flops == b.peak_flops && a.memory_bandwidth_bytes_per_s == b.memory_bandwidth_bytes_per_s &&
         a.intra_node_bandwidth_bytes_per_s == b.intra_node_bandwidth_bytes_per_s && a.efficiency == b.efficiency &&
         a.attention_efficiency == b.attention_efficiency;
}

// True unless the kind is the default, which a topology that names none gets.
bool NamesKind(const DeviceSpec& device) { return !device.kind.empty() && device.kind != DeviceSpec{}.kind; }

ModelCosts CostsOf(const ProfileEntry& entry) {
  return {.embedding = entry.embedding,
          .block = entry.block,
          .head = entry.head,
          .adamw_ns_per_parameter = static_cast<double>(entry.adamw_ns_per_million_parameters) / 1e6};
}

ModelCosts Slower(const ModelCosts& a, const ModelCosts& b) {
  ModelCosts slower;
  for (const ModelPart part : kModelParts) {
    for (const PartAction action : kPartActions) {
      slower.at(part, action) = std::max(a.at(part, action), b.at(part, action));
    }
  }
  slower.adamw_ns_per_parameter = std::max(a.adamw_ns_per_parameter, b.adamw_ns_per_parameter);
  return slower;
}

absl::StatusOr<int64_t> LimitedNs(const SiteSpec& site, double seconds) {
  if (!(seconds < kLongestPartSeconds)) {
    return absl::InvalidArgumentError(fmt::format(
        "site \"{}\": by the profile one micro-batch would take {} s in one part of the model; measure it again",
        site.name, seconds));
  }
  return SecondsToNs(seconds);
}

// Adds the part of F that I repeats.
absl::Status AddRepeatedForward(const SiteSpec& site, double share, PartCosts& block) {
  if (share == 0) {
    return absl::OkStatus();
  }
  GP_ASSIGN_OR_RETURN(const int64_t once_ns, LimitedNs(site, static_cast<double>(block.input_grad_ns) * 1e-9));
  GP_ASSIGN_OR_RETURN(const int64_t part_ns, LimitedNs(site, static_cast<double>(block.forward_ns) * 1e-9 * share));
  block.input_grad_ns = once_ns + part_ns;
  return absl::OkStatus();
}

ExecutionConfig WithoutRecomputation(ExecutionConfig config) {
  config.recompute = Recompute::kNone;
  return config;
}

}  // namespace

std::string_view CostOriginName(CostOrigin origin) {
  static constexpr std::array<std::string_view, 4> kNames{"measured", "calibrated", "corrected", "analytic"};
  return kNames[static_cast<size_t>(origin)];
}

const ModelCosts& CostSource::Point::Of(int32_t device) const {
  const auto found = devices.find(device);
  return nodes.size() == 1 && found != devices.end() ? found->second : slowest;
}

std::vector<Observation> CostSource::ObservedSite::ObservationsOf(int32_t device) const {
  std::vector<Observation> observations;
  for (const auto& [at, point] : points) {
    observations.push_back({.micro_batch_size = at.first, .sequence_length = at.second, .costs = point.Of(device)});
  }
  return observations;
}

const Calibration& CostSource::ObservedSite::CalibrationOf(int32_t device) const {
  const auto found = devices.find(device);
  return found != devices.end() ? found->second : *slowest;
}

CostSource::CostSource(const JobSpec& job, const ClusterSpec& cluster, const Profile* profile)
    : model_(job.model), basis_(MakeExecutionConfig(job, 1, 1, Recompute::kNone)), profile_(profile) {
  if (profile_ == nullptr || profile_->entries.empty()) {
    return;
  }
  if (profile_->tensor > 0) {
    basis_.tensor = profile_->tensor;
    basis_.sequence_parallel = basis_.sequence_parallel && basis_.tensor > 1;
  }
  Collect(cluster);
  for (ObservedSite& site : observed_) {
    CalibrateSite(site);
    if (const SiteSpec* spec = cluster.FindSite(site.name)) {
      CompareToFigures(*spec, site);
    }
  }
}

void CostSource::Collect(const ClusterSpec& cluster) {
  for (const SiteSpec& site : cluster.sites) {
    ObservedSite observed{.name = site.name,
                          .device = site.device,
                          .points = {},
                          .devices = {},
                          .slowest = std::nullopt,
                          .ratios = std::nullopt};
    for (const ProfileEntry& entry : profile_->entries) {
      if (entry.site == site.name) {
        const ModelCosts costs = CostsOf(entry);
        Point& point = observed.points[{entry.micro_batch_size, entry.sequence_length}];
        point.slowest = point.nodes.empty() ? costs : Slower(point.slowest, costs);
        point.nodes.insert(entry.node);
        point.devices[entry.device] = costs;
      }
    }
    if (!observed.points.empty()) {
      observed_.push_back(std::move(observed));
    }
  }
}

void CostSource::CalibrateSite(ObservedSite& site) const {
  const auto calibrate = [&](int32_t device) { return Calibrate(model_, basis_, site.ObservationsOf(device)); };
  site.slowest = calibrate(kSlowestDevice);
  for (const auto& [at, point] : site.points) {
    for (const auto& [device, costs] : point.devices) {
      if (point.nodes.size() == 1 && !site.devices.contains(device)) {
        site.devices.emplace(device, calibrate(device));
      }
    }
  }
}

void CostSource::CompareToFigures(const SiteSpec& spec, ObservedSite& site) const {
  PartTable<std::vector<double>> ratios;
  std::vector<double> adamw;
  for (const Observation& observation : site.ObservationsOf(kSlowestDevice)) {
    ExecutionConfig config = basis_;
    config.micro_batch_size = observation.micro_batch_size;
    config.sequence_length = observation.sequence_length;
    const absl::StatusOr<ModelCosts> analytic = AnalyticCosts(model_, config, spec);
    if (!analytic.ok()) {
      return;
    }
    for (const ModelPart part : kModelParts) {
      for (const PartAction action : kPartActions) {
        const int64_t measured_ns = observation.costs.at(part, action);
        const int64_t analytic_ns = analytic->at(part, action);
        if (measured_ns > 0 && analytic_ns > 0) {
          ratios.at(part, action).push_back(static_cast<double>(measured_ns) / static_cast<double>(analytic_ns));
        }
      }
    }
    adamw.push_back(observation.costs.adamw_ns_per_parameter / analytic->adamw_ns_per_parameter);
  }
  FigureRatios& means = site.ratios.emplace();
  means.adamw = Median(adamw);
  for (const ModelPart part : kModelParts) {
    for (const PartAction action : kPartActions) {
      const std::vector<double>& of_action = ratios.at(part, action);
      means.parts.at(part, action) = of_action.empty() ? 0 : GeometricMean(of_action);
    }
  }
}

const CostSource::ObservedSite* CostSource::Find(std::string_view site) const {
  const auto found =
      std::find_if(observed_.begin(), observed_.end(), [&](const ObservedSite& other) { return other.name == site; });
  return found == observed_.end() ? nullptr : &*found;
}

const CostSource::ObservedSite* CostSource::FindAlike(const SiteSpec& site) const {
  const auto found = std::find_if(observed_.begin(), observed_.end(), [&](const ObservedSite& other) {
    return NamesKind(site.device) && other.device.kind == site.device.kind;
  });
  return found == observed_.end() ? nullptr : &*found;
}

absl::StatusOr<ModelCosts> CostSource::CalibratedAt(const Calibration& calibration, const ExecutionConfig& config,
                                                    const SiteSpec& site) const {
  PartTable<double> seconds = CalibratedSeconds(calibration, model_, config);
  if (basis_.tensor == 1 && config.tensor > 1) {
    const double bandwidth = site.device.intra_node_bandwidth_bytes_per_s;
    if (!(bandwidth > 0)) {
      return absl::InvalidArgumentError(
          fmt::format("site \"{}\": device.intra_node_bandwidth is not given, and its profile is of tensor 1; "
                      "parallelism.tensor {} needs it",
                      site.name, config.tensor));
    }
    const PartTable<Demand> demands = DemandsOf(model_, WithoutRecomputation(config));
    for (const ModelPart part : kModelParts) {
      for (const PartAction action : kPartActions) {
        seconds.at(part, action) +=
            AllReduceSeconds(demands.at(part, action).collective_bytes, config.tensor, bandwidth);
      }
    }
  }
  ModelCosts costs;
  for (const ModelPart part : kModelParts) {
    for (const PartAction action : kPartActions) {
      GP_ASSIGN_OR_RETURN(costs.at(part, action), LimitedNs(site, seconds.at(part, action)));
    }
  }
  costs.adamw_ns_per_parameter = calibration.adamw_ns_per_parameter;
  return costs;
}

absl::StatusOr<ModelCosts> CostSource::ObservedAt(const ObservedSite& observed, const ExecutionConfig& config,
                                                  const SiteSpec& site, int32_t device) const {
  const auto point = observed.points.find({config.micro_batch_size, config.sequence_length});
  const Calibration& calibration = observed.CalibrationOf(device);
  ModelCosts costs;
  if (point != observed.points.end() && config.tensor == basis_.tensor) {
    costs = point->second.Of(device);
  } else if (point != observed.points.end()) {
    const Observation observation{config.micro_batch_size, config.sequence_length, point->second.Of(device)};
    GP_ASSIGN_OR_RETURN(costs, CalibratedAt(ExactAt(calibration, model_, observation), config, site));
  } else {
    GP_ASSIGN_OR_RETURN(costs, CalibratedAt(calibration, config, site));
  }
  GP_RETURN_IF_ERROR(AddRepeatedForward(site, RepeatedShare(calibration, model_, config), costs.block));
  return costs;
}

absl::StatusOr<ModelCosts> CostSource::CorrectedAt(const FigureRatios& ratios, const ExecutionConfig& config,
                                                   const SiteSpec& site) const {
  GP_ASSIGN_OR_RETURN(const ModelCosts analytic, AnalyticCosts(model_, config, site));
  GP_ASSIGN_OR_RETURN(const ModelCosts plain, AnalyticCosts(model_, WithoutRecomputation(config), site));
  ModelCosts costs;
  for (const ModelPart part : kModelParts) {
    for (const PartAction action : kPartActions) {
      double seconds = static_cast<double>(plain.at(part, action)) * 1e-9 * ratios.parts.at(part, action);
      // The time that recomputation adds to I is part of F.
      const int64_t repeated_ns = analytic.at(part, action) - plain.at(part, action);
      seconds += static_cast<double>(repeated_ns) * 1e-9 * ratios.parts.at(part, PartAction::kForward);
      GP_ASSIGN_OR_RETURN(costs.at(part, action), LimitedNs(site, seconds));
    }
  }
  costs.adamw_ns_per_parameter = analytic.adamw_ns_per_parameter * ratios.adamw;
  return costs;
}

absl::StatusOr<ModelCosts> CostSource::At(const ExecutionConfig& config, const SiteSpec& site, int32_t device) const {
  if (const ObservedSite* own = Find(site.name)) {
    return ObservedAt(*own, config, site, device);
  }
  const ObservedSite* alike = FindAlike(site);
  if (alike == nullptr) {
    return AnalyticCosts(model_, config, site);
  }
  if (!HasFigures(site.device) || !alike->ratios.has_value() || SameFigures(site.device, alike->device)) {
    return ObservedAt(*alike, config, site, kSlowestDevice);
  }
  return CorrectedAt(*alike->ratios, config, site);
}

SiteCostReport CostSource::Report(const ExecutionConfig& config, const SiteSpec& site,
                                  const std::set<int32_t>& devices) const {
  SiteCostReport report;
  report.site = site.name;
  const ObservedSite* own = Find(site.name);
  const ObservedSite* observed = own != nullptr ? own : FindAlike(site);
  if (observed == nullptr) {
    return report;
  }
  report.measured_site = observed->name;
  for (const auto& [at, point] : observed->points) {
    report.points.push_back({at.first, at.second});
  }
  const bool exact = observed->points.contains({config.micro_batch_size, config.sequence_length}) &&
                     config.tensor == basis_.tensor && config.recompute != Recompute::kSelective;
  report.origin = own == nullptr ? CostOrigin::kCorrected : exact ? CostOrigin::kMeasured : CostOrigin::kCalibrated;
  // Devices without a calibration of their own share the slowest's.
  std::set<int32_t> distinct;
  for (const int32_t device : devices) {
    distinct.insert(own != nullptr && own->devices.contains(device) ? device : kSlowestDevice);
  }
  for (const int32_t device : distinct) {
    Residuals residuals = ResidualsOf(model_, basis_, observed->ObservationsOf(device));
    report.residuals.points = residuals.points;
    report.residuals.left_out = residuals.left_out;
    report.residuals.all.insert(report.residuals.all.end(), residuals.all.begin(), residuals.all.end());
  }
  return report;
}

}  // namespace geopipe
