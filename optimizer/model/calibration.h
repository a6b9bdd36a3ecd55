// Predicts a device's times at other (b, s) from its measurements at some: a roofline with measured coefficients.
//
// The roofline (Williams et al., 2009) bounds a duration by arithmetic and by traffic; here both add up, because
// operations of both kinds follow one another in a part of the model:
//
//   t = flops / F + (flops / tokens) * c + attention / A + bytes / B + sent / L
//
// F: products with weights, of many rows. c: the additional time of products of few rows; flops / tokens is the size of
// the weights (the analytic model's efficiency(tokens) has c = 256 / F). A: attention's products, counted as if over
// long sequences (AttentionShapeShare). B: memory. L: bytes that tensor-parallel collectives send per rank, where the
// measured tensor degree is more than 1. The inverses and c are not negative and minimise the sum of squared relative
// errors over every action of every part at every observation. Where all observations have the same number of tokens, c
// cannot be told from 1/F and is 256 / F; where all have the same sequence length, A cannot, and is kAttentionShare *
// F.
//
// No device follows that rule in every part. So an action of a part that was measured at three different numbers of
// tokens or more has coefficients of its own, found in the same way but for F / A, and a fixed duration. Each action
// also has a correction: the geometric mean of measured over fitted. A single observation is therefore exact at its own
// (b, s). Durations never shrink as b or s grows.
//
// Pure: the same observations give the same bits on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "optimizer/model/cost_model.h"
#include "optimizer/model/execution_config.h"
#include "optimizer/model/model_spec.h"

namespace geopipe {

// Measured durations, none negative, at one (b, s), without recomputation.
struct Observation {
  int64_t micro_batch_size = 0;
  int64_t sequence_length = 0;
  ModelCosts costs;
};

struct CostCoefficients {
  double s_per_flop = 0;             // 1/F
  double s_per_flop_per_token = 0;   // c
  double s_per_attention_flop = 0;   // 1/A
  double s_per_byte = 0;             // 1/B
  double s_per_collective_byte = 0;  // 1/L, per byte that a rank sends
  double fixed_s = 0;

  friend bool operator==(const CostCoefficients&, const CostCoefficients&) = default;
};

struct Calibration {
  ExecutionConfig basis;    // configuration of the observations; its b and s are unused
  CostCoefficients shared;  // of all parts
  // Per action: its own coefficients or the shared ones. An action without any work (the embedding's I) takes the
  // median of the measured.
  PartTable<CostCoefficients> fits;
  PartTable<double> correction;       // measured / fitted
  double adamw_ns_per_parameter = 0;  // the median of the measured

  friend bool operator==(const Calibration&, const Calibration&) = default;
};

// Fits the coefficients. Durations of 0 have no relative error and are ignored, unless an action's are all 0: then it
// costs nothing. `basis`: precision, tensor degree and sequence parallelism of the observations. REQUIRES: at least one
// observation.
Calibration Calibrate(const ModelSpec& model, const ExecutionConfig& basis, std::span<const Observation> observations);

// The same coefficients, with corrections that make it exact at the observation.
Calibration ExactAt(const Calibration& calibration, const ModelSpec& model, const Observation& observation);

// Seconds of every action of every part. At another tensor degree than the basis they are scaled by the shared fit,
// which separates arithmetic, traffic and collectives best. Recomputation is not counted (config.recompute is not read,
// see RepeatedShare) nor, where the basis has no tensor parallelism, its collectives.
PartTable<double> CalibratedSeconds(const Calibration& calibration, const ModelSpec& model,
                                    const ExecutionConfig& config);

// Share of a block's F, by duration, that I repeats under config.recompute, by the shared fit.
double RepeatedShare(const Calibration& calibration, const ModelSpec& model, const ExecutionConfig& config);

// The error of the calibrated model at one measurement.
struct Residual {
  int64_t micro_batch_size = 0;
  int64_t sequence_length = 0;
  ModelPart part = ModelPart::kBlock;
  PartAction action = PartAction::kForward;
  double relative_error = 0;  // calibrated / measured - 1
};

// Up to this many (b, s), each is left out in turn; more of them form this many groups.
inline constexpr int64_t kMaxLeftOut = 32;

struct Residuals {
  int64_t points = 0;  // distinct (b, s)
  // True when each error is that of a calibration without the observations at this (b, s): so from three points on.
  // With fewer, the errors are those at points that the calibration has seen, and those of a single point are 0.
  bool left_out = false;
  // Errors of every action of every observation that has work and a measured duration other than 0, in order.
  std::vector<Residual> all;

  double Mean() const;               // of the errors' amounts; 0 without errors
  const Residual* Greatest() const;  // by amount; nullptr without errors
};

// REQUIRES: as Calibrate.
Residuals ResidualsOf(const ModelSpec& model, const ExecutionConfig& basis, std::span<const Observation> observations);

}  // namespace geopipe
