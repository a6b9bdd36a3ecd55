#include "optimizer/model/calibration.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/least_squares.h"

namespace geopipe {
namespace {

// Rate for work for which the fit finds no time at all; the correction mends it.
constexpr double kNominalSecondsPerByte = 1e-12;
constexpr size_t kPointsToLeaveOneOut = 3;
constexpr size_t kSizesForOwnFit = 3;

double Seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

ExecutionConfig ConfigAt(const ExecutionConfig& basis, int64_t micro_batch_size, int64_t sequence_length) {
  ExecutionConfig config = basis;
  config.micro_batch_size = micro_batch_size;
  config.sequence_length = sequence_length;
  config.recompute = Recompute::kNone;
  return config;
}

// A demand in the units of the coefficients.
struct Features {
  double flops = 0;  // of products with weights
  double flops_per_token = 0;
  double attention_flops = 0;  // as if over long sequences
  double bytes = 0;
  double sent_bytes = 0;

  bool any() const { return flops > 0 || bytes > 0; }
};

Features FeaturesOf(const Demand& demand, const ModelSpec& model, const ExecutionConfig& config) {
  const auto flops = static_cast<double>(demand.work.flops - demand.work.attention_flops);
  const auto attention_flops = static_cast<double>(demand.work.attention_flops);
  return {.flops = flops,
          .flops_per_token = flops / static_cast<double>(config.tokens()),
          .attention_flops = attention_flops / AttentionShapeShare(ProductShape::Of(model, config)),
          .bytes = static_cast<double>(demand.work.bytes),
          .sent_bytes = AllReduceSeconds(demand.collective_bytes, config.tensor, /*bandwidth_bytes_per_s=*/1)};
}

double FittedSeconds(const CostCoefficients& fit, const Features& features) {
  const double work = features.flops * fit.s_per_flop + features.flops_per_token * fit.s_per_flop_per_token +
                      features.attention_flops * fit.s_per_attention_flop + features.bytes * fit.s_per_byte +
                      fit.fixed_s;
  return (work > 0 ? work : features.bytes * kNominalSecondsPerByte) + features.sent_bytes * fit.s_per_collective_byte;
}

// An observation with the demands of its actions.
struct Sample {
  const Observation* observation = nullptr;
  int64_t tokens = 0;
  PartTable<Features> features;
};

std::vector<Sample> SamplesOf(const ModelSpec& model, const ExecutionConfig& basis,
                              std::span<const Observation> observations) {
  std::vector<Sample> samples;
  for (const Observation& observation : observations) {
    const ExecutionConfig config = ConfigAt(basis, observation.micro_batch_size, observation.sequence_length);
    const PartTable<Demand> demands = DemandsOf(model, config);
    Sample sample{.observation = &observation, .tokens = config.tokens(), .features = {}};
    for (const ModelPart part : kModelParts) {
      for (const PartAction action : kPartActions) {
        sample.features.at(part, action) = FeaturesOf(demands.at(part, action), model, config);
      }
    }
    samples.push_back(sample);
  }
  return samples;
}

// One action of one part at one observation that has information on it.
struct Row {
  Features features;
  int64_t tokens = 0;
  int64_t sequence_length = 0;
  double measured_s = 0;
};

std::vector<Row> RowsOf(std::span<const Sample> samples, ModelPart part, PartAction action) {
  std::vector<Row> rows;
  for (const Sample& sample : samples) {
    const Row row{sample.features.at(part, action), sample.tokens, sample.observation->sequence_length,
                  Seconds(sample.observation->costs.at(part, action))};
    if (row.features.any() && row.measured_s > 0) {
      rows.push_back(row);
    }
  }
  return rows;
}

size_t SizesOf(std::span<const Row> rows) {
  std::set<int64_t> sizes;
  for (const Row& row : rows) {
    sizes.insert(row.tokens);
  }
  return sizes.size();
}

bool HasSequencesOfTwoLengths(std::span<const Row> rows) {
  std::set<int64_t> lengths;
  for (const Row& row : rows) {
    lengths.insert(row.sequence_length);
  }
  return lengths.size() > 1;
}

// Inputs that a fit takes from elsewhere.
struct FitOptions {
  std::optional<double> attention_ratio = {};  // A^-1 * F; nullopt: to be found
  bool with_fixed = false;
};

CostCoefficients FitOf(std::span<const Row> rows, const FitOptions& options) {
  const bool one_size = SizesOf(rows) == 1;
  // Each row is divided by its measurement, so that it should be 1.
  std::vector<std::vector<double>> columns(6);
  for (const Row& row : rows) {
    const Features& features = row.features;
    const double overhead = one_size ? features.flops_per_token * kHalfEfficiencyTokens : 0;
    const double attention = features.attention_flops * options.attention_ratio.value_or(0);
    columns[0].push_back((features.flops + overhead + attention) / row.measured_s);
    columns[1].push_back(one_size ? 0 : features.flops_per_token / row.measured_s);
    columns[2].push_back(features.bytes / row.measured_s);
    columns[3].push_back(features.sent_bytes / row.measured_s);
    columns[4].push_back(options.with_fixed ? 1 / row.measured_s : 0);
    columns[5].push_back(options.attention_ratio.has_value() ? 0 : features.attention_flops / row.measured_s);
  }
  const std::vector<double> fit = NonNegativeLeastSquares(columns, std::vector<double>(rows.size(), 1));
  return {.s_per_flop = fit[0],
          .s_per_flop_per_token = one_size ? fit[0] * kHalfEfficiencyTokens : fit[1],
          .s_per_attention_flop = options.attention_ratio.has_value() ? fit[0] * *options.attention_ratio : fit[5],
          .s_per_byte = fit[2],
          .s_per_collective_byte = fit[3],
          .fixed_s = fit[4]};
}

CostCoefficients SharedFitOf(std::span<const Sample> samples) {
  std::vector<Row> all;
  for (const ModelPart part : kModelParts) {
    for (const PartAction action : kPartActions) {
      const std::vector<Row> rows = RowsOf(samples, part, action);
      all.insert(all.end(), rows.begin(), rows.end());
    }
  }
  return FitOf(all,
               {.attention_ratio = HasSequencesOfTwoLengths(all) ? std::nullopt : std::optional(1 / kAttentionShare)});
}

bool HasWork(std::span<const Sample> samples, ModelPart part, PartAction action) {
  return std::any_of(samples.begin(), samples.end(),
                     [&](const Sample& sample) { return sample.features.at(part, action).any(); });
}

// Sets the correction that makes an action as long as in the samples, given its fit.
void Correct(std::span<const Sample> samples, ModelPart part, PartAction action, Calibration& calibration) {
  CostCoefficients& fit = calibration.fits.at(part, action);
  double& correction = calibration.correction.at(part, action);
  if (!HasWork(samples, part, action)) {
    std::vector<double> measured_s;
    for (const Sample& sample : samples) {
      measured_s.push_back(Seconds(sample.observation->costs.at(part, action)));
    }
    fit = {.fixed_s = Median(std::move(measured_s))};
    correction = 1;
    return;
  }
  std::vector<double> ratios;
  for (const Row& row : RowsOf(samples, part, action)) {
    ratios.push_back(row.measured_s / FittedSeconds(fit, row.features));
  }
  correction = ratios.empty() ? 0 : GeometricMean(ratios);
}

void CorrectAll(std::span<const Sample> samples, Calibration& calibration) {
  std::vector<double> adamw;
  for (const Sample& sample : samples) {
    adamw.push_back(sample.observation->costs.adamw_ns_per_parameter);
  }
  calibration.adamw_ns_per_parameter = Median(std::move(adamw));
  for (const ModelPart part : kModelParts) {
    for (const PartAction action : kPartActions) {
      Correct(samples, part, action, calibration);
    }
  }
}

Calibration CalibrationOf(const ExecutionConfig& basis, std::span<const Sample> samples) {
  Calibration calibration;
  calibration.basis = ConfigAt(basis, 1, 1);
  calibration.shared = SharedFitOf(samples);
  const CostCoefficients& shared = calibration.shared;
  const double attention_ratio =
      shared.s_per_flop > 0 ? shared.s_per_attention_flop / shared.s_per_flop : 1 / kAttentionShare;
  for (const ModelPart part : kModelParts) {
    for (const PartAction action : kPartActions) {
      const std::vector<Row> rows = RowsOf(samples, part, action);
      calibration.fits.at(part, action) = SizesOf(rows) >= kSizesForOwnFit
                                              ? FitOf(rows, {.attention_ratio = attention_ratio, .with_fixed = true})
                                              : calibration.shared;
    }
  }
  CorrectAll(samples, calibration);
  return calibration;
}

// The distinct (b, s), in order.
std::vector<std::pair<int64_t, int64_t>> PointsOf(std::span<const Observation> observations) {
  std::set<std::pair<int64_t, int64_t>> points;
  for (const Observation& observation : observations) {
    points.insert({observation.micro_batch_size, observation.sequence_length});
  }
  return {points.begin(), points.end()};
}

void AddResiduals(const Calibration& calibration, const Sample& sample, std::vector<Residual>& all) {
  for (const ModelPart part : kModelParts) {
    for (const PartAction action : kPartActions) {
      const Features& features = sample.features.at(part, action);
      const double measured = Seconds(sample.observation->costs.at(part, action));
      if (features.any() && measured > 0) {
        const double calibrated =
            calibration.correction.at(part, action) * FittedSeconds(calibration.fits.at(part, action), features);
        all.push_back({.micro_batch_size = sample.observation->micro_batch_size,
                       .sequence_length = sample.observation->sequence_length,
                       .part = part,
                       .action = action,
                       .relative_error = calibrated / measured - 1});
      }
    }
  }
}

}  // namespace

Calibration Calibrate(const ModelSpec& model, const ExecutionConfig& basis, std::span<const Observation> observations) {
  GP_CHECK(!observations.empty());
  return CalibrationOf(basis, SamplesOf(model, basis, observations));
}

Calibration ExactAt(const Calibration& calibration, const ModelSpec& model, const Observation& observation) {
  Calibration exact = calibration;
  CorrectAll(SamplesOf(model, calibration.basis, {&observation, 1}), exact);
  return exact;
}

PartTable<double> CalibratedSeconds(const Calibration& calibration, const ModelSpec& model,
                                    const ExecutionConfig& config) {
  const ExecutionConfig basis = ConfigAt(calibration.basis, config.micro_batch_size, config.sequence_length);
  ExecutionConfig other = basis;
  other.tensor = config.tensor;
  const PartTable<Demand> demands = DemandsOf(model, basis);
  const PartTable<Demand> other_demands = DemandsOf(model, other);
  PartTable<double> seconds;
  for (const ModelPart part : kModelParts) {
    for (const PartAction action : kPartActions) {
      const Features features = FeaturesOf(demands.at(part, action), model, basis);
      double& here = seconds.at(part, action);
      here = calibration.correction.at(part, action) * FittedSeconds(calibration.fits.at(part, action), features);
      if (other.tensor != basis.tensor && features.any()) {
        here *= FittedSeconds(calibration.shared, FeaturesOf(other_demands.at(part, action), model, other)) /
                FittedSeconds(calibration.shared, features);
      }
    }
  }
  return seconds;
}

double RepeatedShare(const Calibration& calibration, const ModelSpec& model, const ExecutionConfig& config) {
  if (config.recompute == Recompute::kNone) {
    return 0;
  }
  ExecutionConfig plain = config;
  plain.recompute = Recompute::kNone;
  const PartTable<Demand> without = DemandsOf(model, plain);
  const Demand with = DemandsOf(model, config).at(ModelPart::kBlock, PartAction::kInputGrad);
  const Demand base = without.at(ModelPart::kBlock, PartAction::kInputGrad);
  const Demand repeated{.work = {.flops = with.work.flops - base.work.flops,
                                 .bytes = with.work.bytes - base.work.bytes,
                                 .attention_flops = with.work.attention_flops - base.work.attention_flops},
                        .collective_bytes = with.collective_bytes - base.collective_bytes};
  const Demand forward = without.at(ModelPart::kBlock, PartAction::kForward);
  return FittedSeconds(calibration.shared, FeaturesOf(repeated, model, plain)) /
         FittedSeconds(calibration.shared, FeaturesOf(forward, model, plain));
}

double Residuals::Mean() const {
  double sum = 0;
  for (const Residual& residual : all) {
    sum += std::abs(residual.relative_error);
  }
  return all.empty() ? 0 : sum / static_cast<double>(all.size());
}

const Residual* Residuals::Greatest() const {
  const auto found = std::max_element(all.begin(), all.end(), [](const Residual& a, const Residual& b) {
    return std::abs(a.relative_error) < std::abs(b.relative_error);
  });
  return found == all.end() ? nullptr : &*found;
}

Residuals ResidualsOf(const ModelSpec& model, const ExecutionConfig& basis, std::span<const Observation> observations) {
  GP_CHECK(!observations.empty());
  const std::vector<Sample> samples = SamplesOf(model, basis, observations);
  const std::vector<std::pair<int64_t, int64_t>> points = PointsOf(observations);
  Residuals residuals{.points = std::ssize(points), .left_out = points.size() >= kPointsToLeaveOneOut, .all = {}};
  const auto group_of = [&](const Sample& sample) {
    const std::pair point{sample.observation->micro_batch_size, sample.observation->sequence_length};
    return (std::lower_bound(points.begin(), points.end(), point) - points.begin()) % kMaxLeftOut;
  };
  std::vector<Calibration> calibrations;  // one for each group
  const int64_t groups = residuals.left_out ? std::min(residuals.points, kMaxLeftOut) : 1;
  for (int64_t group = 0; group < groups; ++group) {
    std::vector<Sample> rest;
    std::copy_if(samples.begin(), samples.end(), std::back_inserter(rest),
                 [&](const Sample& sample) { return !residuals.left_out || group_of(sample) != group; });
    calibrations.push_back(CalibrationOf(basis, rest));
  }
  for (const Sample& sample : samples) {
    AddResiduals(calibrations[residuals.left_out ? group_of(sample) : 0], sample, residuals.all);
  }
  return residuals;
}

}  // namespace geopipe
