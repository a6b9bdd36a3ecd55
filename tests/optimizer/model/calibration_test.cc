#include "optimizer/model/calibration.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "tests/optimizer/model/synthetic_device.h"
#include "tests/support/tiny_model.h"

namespace geopipe {
namespace {

const std::vector<std::pair<int64_t, int64_t>> kGrid{{1, 64}, {1, 256}, {2, 64}, {2, 256}, {4, 128}, {8, 512}};

std::vector<Observation> Observed(const SyntheticDevice& device,
                                  const std::vector<std::pair<int64_t, int64_t>>& points = kGrid) {
  std::vector<Observation> observations;
  for (const auto& [b, s] : points) {
    observations.push_back(device.At(b, s));
  }
  return observations;
}

Calibration CalibrateAll(const std::vector<Observation>& observations) {
  return Calibrate(SmallModel(), ConfigOf(1, 1), observations);
}

void CheckNonNegative(const Calibration& calibration) {
  std::vector<CostCoefficients> fits{calibration.shared};
  for (const ModelPart part : kModelParts) {
    for (const PartAction action : kPartActions) {
      CHECK(std::isfinite(calibration.correction.at(part, action)));
      CHECK(calibration.correction.at(part, action) >= 0);
      fits.push_back(calibration.fits.at(part, action));
    }
  }
  for (const CostCoefficients& fit : fits) {
    for (const double coefficient : {fit.s_per_flop, fit.s_per_flop_per_token, fit.s_per_attention_flop, fit.s_per_byte,
                                     fit.s_per_collective_byte, fit.fixed_s}) {
      CHECK(std::isfinite(coefficient));
      CHECK(coefficient >= 0);
    }
  }
}

TEST_CASE("a device that follows the formula is recovered, also where it was not measured") {
  const SyntheticDevice device;
  const Calibration calibration = CalibrateAll(Observed(device));
  CHECK(calibration.shared.s_per_flop == Approx(1 / device.flops_per_s).epsilon(1e-6));
  CHECK(calibration.shared.s_per_flop_per_token == Approx(device.s_per_flop_per_token).epsilon(1e-6));
  CHECK(calibration.shared.s_per_attention_flop ==
        Approx(1 / (device.attention_share * device.flops_per_s)).epsilon(1e-6));
  CHECK(calibration.shared.s_per_byte == Approx(1 / device.bytes_per_s).epsilon(1e-6));
  CHECK(calibration.shared.s_per_collective_byte == 0);
  CHECK(calibration.adamw_ns_per_parameter == 7);
  for (const auto& [b, s] : std::vector<std::pair<int64_t, int64_t>>{{1, 64}, {3, 100}, {16, 1024}, {1, 4096}}) {
    const PartTable<double> seconds = CalibratedSeconds(calibration, SmallModel(), ConfigOf(b, s));
    for (const ModelPart part : kModelParts) {
      for (const PartAction action : kPartActions) {
        CAPTURE(b, s, static_cast<int>(part), static_cast<int>(action));
        CHECK(seconds.at(part, action) == Approx(device.Seconds(ConfigOf(b, s), part, action)).epsilon(1e-6));
      }
    }
  }
  const Residuals residuals = ResidualsOf(SmallModel(), ConfigOf(1, 1), Observed(device));
  CHECK(residuals.left_out);
  CHECK(residuals.points == 6);
  CHECK(residuals.all.size() == 6 * 8);  // the embedding's I has no work
  CHECK(std::abs(residuals.Greatest()->relative_error) < 1e-6);
}

TEST_CASE("a part that is slower than the rest has a fit or a correction of its own") {
  SyntheticDevice device;
  device.factor.at(ModelPart::kHead, PartAction::kWeightGrad) = 2.5;
  const auto head = [&](const Calibration& calibration, PartAction action) {
    return CalibratedSeconds(calibration, SmallModel(), ConfigOf(4, 256)).at(ModelPart::kHead, action);
  };
  const auto truth = [&](PartAction action) { return device.Seconds(ConfigOf(4, 256), ModelPart::kHead, action); };
  const Calibration own = CalibrateAll(Observed(device));
  const Calibration shared = CalibrateAll({device.At(1, 64), device.At(4, 128)});
  CHECK(shared.fits.at(ModelPart::kHead, PartAction::kWeightGrad) == shared.shared);
  // The shared fit gives in to it a little, for every part; the corrections take that back.
  CHECK(shared.correction.at(ModelPart::kHead, PartAction::kWeightGrad) >
        2 * shared.correction.at(ModelPart::kBlock, PartAction::kWeightGrad));
  for (const PartAction action : kPartActions) {
    CHECK(head(own, action) == Approx(truth(action)).epsilon(1e-6));
    CHECK(head(shared, action) == Approx(truth(action)).epsilon(0.1));
  }
}

TEST_CASE("with three numbers of tokens an action shows what it takes at least") {
  const SyntheticDevice device;
  std::vector<Observation> observations = Observed(device);
  const int64_t fixed_ns = 80'000'000;
  for (Observation& observation : observations) {
    observation.costs.embedding.forward_ns += fixed_ns;
  }
  const Calibration calibration = CalibrateAll(observations);
  CHECK(calibration.fits.at(ModelPart::kEmbedding, PartAction::kForward).fixed_s == Approx(0.08).epsilon(1e-5));
  CHECK(CalibratedSeconds(calibration, SmallModel(), ConfigOf(1, 16)).at(ModelPart::kEmbedding, PartAction::kForward) ==
        Approx(0.08 + device.Seconds(ConfigOf(1, 16), ModelPart::kEmbedding, PartAction::kForward)).epsilon(1e-5));
}

TEST_CASE("noise shows in the residuals, and averages out") {
  std::mt19937_64 random(7);
  const SyntheticDevice device;
  std::vector<Observation> observations = Observed(device);
  for (Observation& observation : observations) {
    for (const ModelPart part : kModelParts) {
      for (const PartAction action : kPartActions) {
        const double noisy = static_cast<double>(observation.costs.at(part, action)) * (0.97 + 0.06 * Uniform(random));
        observation.costs.at(part, action) = static_cast<int64_t>(noisy);
      }
    }
  }
  const Residuals residuals = ResidualsOf(SmallModel(), ConfigOf(1, 1), observations);
  CHECK(residuals.Mean() > 0.005);
  CHECK(residuals.Mean() < 0.03);
  CHECK(std::abs(residuals.Greatest()->relative_error) > residuals.Mean());
  CHECK(std::abs(residuals.Greatest()->relative_error) < 0.1);
  const PartTable<double> seconds = CalibratedSeconds(CalibrateAll(observations), SmallModel(), ConfigOf(4, 256));
  CHECK(seconds.at(ModelPart::kBlock, PartAction::kForward) ==
        Approx(device.Seconds(ConfigOf(4, 256), ModelPart::kBlock, PartAction::kForward)).epsilon(0.03));
}

TEST_CASE("one observation of a device with the analytic model's efficiency recovers it") {
  SyntheticDevice device;
  device.s_per_flop_per_token = kHalfEfficiencyTokens / device.flops_per_s;
  const Calibration calibration = CalibrateAll({device.At(2, 128)});
  CHECK(calibration.shared.s_per_flop == Approx(1 / device.flops_per_s).epsilon(1e-6));
  CHECK(calibration.shared.s_per_byte == Approx(1 / device.bytes_per_s).epsilon(1e-6));
  for (const ModelPart part : kModelParts) {
    for (const PartAction action : kPartActions) {
      CHECK(CalibratedSeconds(calibration, SmallModel(), ConfigOf(8, 512)).at(part, action) ==
            Approx(device.Seconds(ConfigOf(8, 512), part, action)).epsilon(1e-5));
    }
  }
}

TEST_CASE("two lengths of sequence show how fast attention is, one does not") {
  SyntheticDevice device;
  device.attention_share = 0.2;
  const Calibration two = CalibrateAll(Observed(device, {{4, 128}, {1, 1024}}));
  CHECK(two.shared.s_per_attention_flop == Approx(1 / (0.2 * device.flops_per_s)).epsilon(1e-5));
  CHECK(CalibratedSeconds(two, SmallModel(), ConfigOf(1, 4096)).at(ModelPart::kBlock, PartAction::kForward) ==
        Approx(device.Seconds(ConfigOf(1, 4096), ModelPart::kBlock, PartAction::kForward)).epsilon(1e-4));
  const Calibration one = CalibrateAll(Observed(device, {{1, 256}, {2, 256}}));
  CHECK(one.shared.s_per_attention_flop == Approx(one.shared.s_per_flop / kAttentionShare).epsilon(1e-12));
  // Three numbers of tokens: each action has coefficients of its own, with the ratio that all of them show.
  const Calibration own = CalibrateAll(Observed(device));
  const CostCoefficients& forward = own.fits.at(ModelPart::kBlock, PartAction::kForward);
  CHECK(forward.s_per_attention_flop == Approx(forward.s_per_flop / 0.2).epsilon(1e-4));
  CHECK(CalibratedSeconds(own, SmallModel(), ConfigOf(1, 4096)).at(ModelPart::kBlock, PartAction::kInputGrad) ==
        Approx(device.Seconds(ConfigOf(1, 4096), ModelPart::kBlock, PartAction::kInputGrad)).epsilon(1e-4));
}

TEST_CASE("one observation is exact at its own point and grows like the analytic model") {
  SyntheticDevice device;
  device.factor.at(ModelPart::kBlock, PartAction::kInputGrad) = 1.7;
  Observation observation = device.At(2, 128);
  observation.costs.embedding.input_grad_ns = 144;
  const Calibration calibration = CalibrateAll({observation});
  CheckNonNegative(calibration);
  const PartTable<double> seconds = CalibratedSeconds(calibration, SmallModel(), ConfigOf(2, 128));
  for (const ModelPart part : kModelParts) {
    for (const PartAction action : kPartActions) {
      CHECK(seconds.at(part, action) ==
            Approx(static_cast<double>(observation.costs.at(part, action)) * 1e-9).epsilon(1e-12));
    }
  }
  const CostCoefficients& fit = calibration.shared;
  CHECK(fit.s_per_flop > 0);
  CHECK(fit.s_per_flop_per_token == fit.s_per_flop * kHalfEfficiencyTokens);
  const Residuals residuals = ResidualsOf(SmallModel(), ConfigOf(1, 1), std::vector{observation});
  CHECK_FALSE(residuals.left_out);
  CHECK(residuals.points == 1);
  CHECK(residuals.all.size() == 8);
  CHECK(std::abs(residuals.Greatest()->relative_error) < 1e-12);

  // A point given three times, also from slower and faster devices, counts once.
  SyntheticDevice slower = device;
  slower.flops_per_s /= 1.21;
  slower.bytes_per_s /= 1.21;
  slower.s_per_flop_per_token *= 1.21;
  const std::vector<Observation> repeated{device.At(2, 128), slower.At(2, 128), device.At(2, 128), slower.At(2, 128)};
  CHECK(CalibratedSeconds(CalibrateAll(repeated), SmallModel(), ConfigOf(2, 128))
            .at(ModelPart::kBlock, PartAction::kForward) ==
        Approx(1.1 * device.Seconds(ConfigOf(2, 128), ModelPart::kBlock, PartAction::kForward)).epsilon(1e-6));
  CHECK(ResidualsOf(SmallModel(), ConfigOf(1, 1), repeated).points == 1);
}

TEST_CASE("durations of nothing are sound") {
  const SyntheticDevice device;
  // All of them: everything costs nothing anywhere.
  const Calibration nothing = CalibrateAll({{1, 64, {}}, {2, 64, {}}, {4, 64, {}}});
  CheckNonNegative(nothing);
  CHECK(CalibratedSeconds(nothing, SmallModel(), ConfigOf(8, 64)).at(ModelPart::kBlock, PartAction::kForward) == 0);
  CHECK(RepeatedShare(nothing, SmallModel(), ConfigOf(8, 64)) == 0);
  ExecutionConfig selective = ConfigOf(8, 64);
  selective.recompute = Recompute::kSelective;
  CHECK(RepeatedShare(nothing, SmallModel(), selective) > 0);
  CHECK(RepeatedShare(nothing, SmallModel(), selective) < 1);
  const Residuals none = ResidualsOf(SmallModel(), ConfigOf(1, 1), std::vector<Observation>{{1, 64, {}}});
  CHECK(none.all.empty());
  CHECK(none.Greatest() == nullptr);
  CHECK(none.Mean() == 0);

  // One of several is as if that action had not been measured there.
  std::vector<Observation> observations = Observed(device);
  observations[2].costs.embedding.forward_ns = 0;
  const Calibration calibration = CalibrateAll(observations);
  CheckNonNegative(calibration);
  CHECK(CalibratedSeconds(calibration, SmallModel(), ConfigOf(2, 64)).at(ModelPart::kEmbedding, PartAction::kForward) ==
        Approx(device.Seconds(ConfigOf(2, 64), ModelPart::kEmbedding, PartAction::kForward)).epsilon(1e-6));
  CHECK(ResidualsOf(SmallModel(), ConfigOf(1, 1), observations).all.size() == 6 * 8 - 1);

  // An action without work costs what it was measured at, whatever b and s are.
  for (size_t i = 0; i < observations.size(); ++i) {
    observations[i].costs.embedding.input_grad_ns = 100 + static_cast<int64_t>(i);
  }
  CHECK(CalibratedSeconds(CalibrateAll(observations), SmallModel(), ConfigOf(64, 64))
            .at(ModelPart::kEmbedding, PartAction::kInputGrad) == Approx(102e-9).epsilon(1e-12));
}

TEST_CASE("whatever is measured, coefficients are not negative and more tokens take no less") {
  std::mt19937_64 random(11);
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    std::vector<Observation> observations;
    const int64_t points = 1 + static_cast<int64_t>(random() % 6);
    for (int64_t i = 0; i < points; ++i) {
      Observation observation;
      observation.micro_batch_size = int64_t{1} << (random() % 4);
      observation.sequence_length = int64_t{32} << (random() % 4);
      for (const ModelPart part : kModelParts) {
        for (const PartAction action : kPartActions) {
          const uint64_t most = uint64_t{1} << (random() % 40);
          observation.costs.at(part, action) = static_cast<int64_t>(random() % most);
        }
      }
      observations.push_back(observation);
    }
    const Calibration calibration = CalibrateAll(observations);
    CheckNonNegative(calibration);
    CHECK(CalibrateAll(observations) == calibration);
    for (const ModelPart part : kModelParts) {
      for (const PartAction action : kPartActions) {
        double before = 0;
        for (const int64_t n : {1, 2, 3, 8, 64}) {
          const double more = CalibratedSeconds(calibration, SmallModel(), ConfigOf(n, 64)).at(part, action);
          CHECK(std::isfinite(more));
          CHECK(more >= before);
          before = more;
        }
        before = 0;
        for (const int64_t s : {16, 32, 48, 512}) {
          const double more = CalibratedSeconds(calibration, SmallModel(), ConfigOf(2, s)).at(part, action);
          CHECK(more >= before);
          before = more;
        }
      }
    }
  }
}

TEST_CASE("a bad observation is the greatest residual") {
  for (const double wrong : {0.5, 3.0}) {
    CAPTURE(wrong);
    std::vector<Observation> observations = Observed(SyntheticDevice());
    int64_t& bad = observations[4].costs.head.input_grad_ns;
    bad = static_cast<int64_t>(static_cast<double>(bad) * wrong);
    const Residuals residuals = ResidualsOf(SmallModel(), ConfigOf(1, 1), observations);
    const Residual& greatest = *residuals.Greatest();
    CHECK(greatest.micro_batch_size == 4);
    CHECK(greatest.sequence_length == 128);
    CHECK(greatest.part == ModelPart::kHead);
    CHECK(greatest.action == PartAction::kInputGrad);
    CHECK(greatest.relative_error == Approx(1 / wrong - 1).epsilon(0.01));
  }
}

TEST_CASE("many points are left out in groups") {
  std::vector<std::pair<int64_t, int64_t>> points;
  for (int64_t b = 1; b <= 7; ++b) {
    for (int64_t s = 64; s <= 640; s += 64) {
      points.push_back({b, s});
    }
  }
  REQUIRE(std::ssize(points) > 2 * kMaxLeftOut);
  const Residuals residuals = ResidualsOf(SmallModel(), ConfigOf(1, 1), Observed(SyntheticDevice(), points));
  CHECK(residuals.points == 70);
  CHECK(residuals.all.size() == 70 * 8);
  CHECK(std::abs(residuals.Greatest()->relative_error) < 1e-6);
}

TEST_CASE("where tensor parallelism was measured, collectives have a coefficient") {
  const SyntheticDevice device;
  std::vector<Observation> observations;
  for (const auto& [b, s] : kGrid) {
    observations.push_back(device.At(b, s, 4));
  }
  const Calibration calibration = Calibrate(SmallModel(), ConfigOf(1, 1, 4), observations);
  CHECK(calibration.shared.s_per_collective_byte == Approx(1 / device.collective_bytes_per_s).epsilon(1e-5));
  for (const int64_t tensor : {1, 2, 8}) {
    const PartTable<double> seconds = CalibratedSeconds(calibration, SmallModel(), ConfigOf(4, 256, tensor));
    CHECK(seconds.at(ModelPart::kBlock, PartAction::kForward) ==
          Approx(device.Seconds(ConfigOf(4, 256, tensor), ModelPart::kBlock, PartAction::kForward)).epsilon(1e-5));
  }
}

TEST_CASE("exact at one point, the coefficients elsewhere") {
  const SyntheticDevice device;
  const Calibration calibration = CalibrateAll(Observed(device));
  SyntheticDevice other = device;
  other.factor.at(ModelPart::kBlock, PartAction::kForward) = 1.3;
  const Calibration exact = ExactAt(calibration, SmallModel(), other.At(2, 128));
  CHECK(exact.shared == calibration.shared);
  CHECK(CalibratedSeconds(exact, SmallModel(), ConfigOf(2, 128)).at(ModelPart::kBlock, PartAction::kForward) ==
        Approx(other.Seconds(ConfigOf(2, 128), ModelPart::kBlock, PartAction::kForward)).epsilon(1e-6));
  CHECK(CalibratedSeconds(exact, SmallModel(), ConfigOf(2, 128, 2)).at(ModelPart::kBlock, PartAction::kForward) ==
        Approx(other.Seconds(ConfigOf(2, 128), ModelPart::kBlock, PartAction::kForward) / 2).epsilon(0.2));
}

TEST_CASE("what recomputation repeats is a share of the forward") {
  const SyntheticDevice device;
  const Calibration calibration = CalibrateAll(Observed(device));
  ExecutionConfig config = ConfigOf(2, 256);
  CHECK(RepeatedShare(calibration, SmallModel(), config) == 0);
  const double once = device.Seconds(config, ModelPart::kBlock, PartAction::kInputGrad);
  const double forward = device.Seconds(config, ModelPart::kBlock, PartAction::kForward);
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    config.recompute = recompute;
    const double repeated = device.Seconds(config, ModelPart::kBlock, PartAction::kInputGrad) - once;
    CHECK(RepeatedShare(calibration, SmallModel(), config) == Approx(repeated / forward).epsilon(1e-5));
  }
}

// Measurements by `geopipectl playground` of tiny.yaml's model on one processor of two, by an engine whose attention
// was dense.
const std::vector<Observation>& TinyOnOneProcessor() {
  static const std::vector<Observation> observations{
      {1, 16, {{17'551, 3'006, 10'350}, {338'621, 321'285, 93'563}, {145'579, 68'748, 24'517}, 38.0}},
      {2, 16, {{23'642, 3'052, 14'134}, {506'663, 543'524, 116'133}, {232'277, 119'046, 32'300}, 37.9}},
      {4, 16, {{43'032, 3'489, 26'481}, {897'953, 1'055'371, 180'207}, {427'121, 223'629, 54'061}, 42.5}},
      {1, 32, {{28'543, 3'568, 16'686}, {449'613, 423'430, 118'495}, {219'752, 123'447, 36'030}, 32.2}},
      {2, 32, {{47'305, 3'857, 30'224}, {865'641, 940'220, 194'069}, {408'081, 236'921, 57'752}, 48.1}},
      {4, 32, {{80'576, 3'850, 51'490}, {1'570'071, 1'767'202, 292'146}, {774'016, 485'377, 93'079}, 42.4}},
      {1, 64, {{43'405, 3'527, 26'411}, {921'911, 923'829, 180'378}, {425'001, 223'402, 54'045}, 42.5}},
      {2, 64, {{73'881, 3'578, 45'504}, {1'728'501, 1'779'366, 316'515}, {770'288, 483'579, 95'763}, 42.9}},
      {4, 64, {{133'158, 3'676, 84'460}, {3'328'413, 3'502'292, 574'457}, {1'444'512, 851'069, 190'153}, 43.2}},
  };
  return observations;
}

ModelSpec MeasuredModel() {
  ModelSpec model = TinyModel();
  model.intermediate_size = 176;
  return model;
}

ExecutionConfig MeasuredConfig(int64_t b, int64_t s) {
  ExecutionConfig config = ConfigOf(b, s);
  config.attention = Attention::kDense;
  return config;
}

TEST_CASE("a real device's measurements predict each other") {
  const Residuals residuals = ResidualsOf(MeasuredModel(), MeasuredConfig(1, 1), TinyOnOneProcessor());
  const Residual& greatest = *residuals.Greatest();
  CAPTURE(residuals.Mean(), greatest.relative_error, static_cast<int>(greatest.part), static_cast<int>(greatest.action),
          greatest.micro_batch_size, greatest.sequence_length);
  CHECK(residuals.left_out);
  CHECK(residuals.all.size() == 9 * 8);
  CHECK(residuals.Mean() < 0.065);
  CHECK(std::abs(greatest.relative_error) < 0.3);

  // The largest point from the four smallest, four times as many tokens in all.
  std::vector<Observation> small;
  for (const Observation& observation : TinyOnOneProcessor()) {
    if (observation.micro_batch_size <= 2 && observation.sequence_length <= 32) {
      small.push_back(observation);
    }
  }
  REQUIRE(small.size() == 4);
  const Calibration calibration = Calibrate(MeasuredModel(), MeasuredConfig(1, 1), small);
  CheckNonNegative(calibration);
  const PartTable<double> seconds = CalibratedSeconds(calibration, MeasuredModel(), MeasuredConfig(4, 64));
  const ModelCosts& largest = TinyOnOneProcessor().back().costs;
  for (const ModelPart part : {ModelPart::kBlock, ModelPart::kHead}) {
    for (const PartAction action : kPartActions) {
      CAPTURE(static_cast<int>(part), static_cast<int>(action));
      CHECK(seconds.at(part, action) * 1e9 == Approx(static_cast<double>(largest.at(part, action))).epsilon(0.1));
    }
  }
}

}  // namespace
}  // namespace geopipe
