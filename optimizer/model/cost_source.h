// The source of the durations of a job's parts on each site: measurements, calibrations, or device figures.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "optimizer/model/calibration.h"
#include "optimizer/model/cluster.h"
#include "optimizer/model/cost_model.h"
#include "optimizer/model/execution_config.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/profile.h"

namespace geopipe {

enum class CostOrigin : uint8_t {
  kMeasured,    // at this very b and s
  kCalibrated,  // from the site's measurements at other b and s, or of another tensor degree or recompute mode
  kCorrected,   // from the measurements of another site with the same kind of device
  kAnalytic,    // from the device's figures alone
};
std::string_view CostOriginName(CostOrigin origin);  // "measured"

// The sources of a plan's costs on one site.
struct SiteCostReport {
  struct Point {
    int64_t micro_batch_size = 0;
    int64_t sequence_length = 0;

    friend bool operator==(const Point&, const Point&) = default;
  };

  std::string site;
  CostOrigin origin = CostOrigin::kAnalytic;
  std::string measured_site;       // site of the measurements: this site, or the other one (kCorrected); empty: none
  std::vector<Point> points = {};  // measured b and s, ascending
  Residuals residuals = {};        // of the calibrations of all devices that the plan uses
};

// Measured over analytic durations.
struct FigureRatios {
  PartTable<double> parts;
  double adamw = 1;
};

// The durations of one job on one cluster. Calibrates once, when it is made; then any thread may ask.
class CostSource {
 public:
  // `profile` may be null; it must outlive this.
  CostSource(const JobSpec& job, const ClusterSpec& cluster, const Profile* profile);

  const Profile* profile() const { return profile_; }

  // The costs on device `device` of `site`, by the first of these that exists:
  // - the profile's measurement at (b, s): of that device when the site's entries there are all of one node, else the
  //   slowest of the site for each part;
  // - the calibration (calibration.h) of such measurements at other (b, s); for another tensor degree made exact at
  //   (b, s) if that was measured;
  // - of a site whose device has the same kind (not "cpu", which says nothing) and is measured, the slowest's costs
  //   when the two have the same figures or one has none; else the analytic costs, each action of each part times the
  //   mean ratio of measured to analytic on that site;
  // - the analytic costs.
  // Measurements are without recomputation: I then takes longer by the part of F that it repeats. Collectives that no
  // measurement contains are those of the analytic model. InvalidArgument names the site and the device figure that is
  // missing, or says that a part takes too long.
  absl::StatusOr<ModelCosts> At(const ExecutionConfig& config, const SiteSpec& site, int32_t device) const;

  // The sources of At(config, site, device) for these devices.
  SiteCostReport Report(const ExecutionConfig& config, const SiteSpec& site, const std::set<int32_t>& devices) const;

 private:
  // A site's measurements at one (b, s).
  struct Point {
    std::set<std::string_view> nodes;
    std::map<int32_t, ModelCosts> devices;
    ModelCosts slowest;

    const ModelCosts& Of(int32_t device) const;
  };
  struct ObservedSite {
    std::string name;
    DeviceSpec device;  // figures; a default one when the cluster does not have the site
    std::map<std::pair<int64_t, int64_t>, Point> points;  // by b and s
    std::map<int32_t, Calibration> devices;               // those that differ from the slowest
    std::optional<Calibration> slowest;
    std::optional<FigureRatios> ratios;  // nullopt where the site has no figures

    std::vector<Observation> ObservationsOf(int32_t device) const;
    const Calibration& CalibrationOf(int32_t device) const;
  };

  void Collect(const ClusterSpec& cluster);
  void CalibrateSite(ObservedSite& site) const;
  void CompareToFigures(const SiteSpec& spec, ObservedSite& site) const;
  const ObservedSite* Find(std::string_view site) const;
  const ObservedSite* FindAlike(const SiteSpec& site) const;
  absl::StatusOr<ModelCosts> ObservedAt(const ObservedSite& observed, const ExecutionConfig& config,
                                        const SiteSpec& site, int32_t device) const;
  absl::StatusOr<ModelCosts> CalibratedAt(const Calibration& calibration, const ExecutionConfig& config,
                                          const SiteSpec& site) const;
  absl::StatusOr<ModelCosts> CorrectedAt(const FigureRatios& ratios, const ExecutionConfig& config,
                                         const SiteSpec& site) const;

  ModelSpec model_;
  ExecutionConfig basis_;
  const Profile* profile_;
  std::vector<ObservedSite> observed_;  // in the order of the cluster
};

}  // namespace geopipe
