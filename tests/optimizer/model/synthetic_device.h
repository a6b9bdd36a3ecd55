// A device whose durations follow the calibration's formula, for tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "optimizer/model/calibration.h"
#include "optimizer/model/transformer.h"

namespace geopipe {

inline ModelSpec SmallModel() {
  return {.hidden_size = 512,
          .intermediate_size = 1376,
          .num_hidden_layers = 8,
          .num_attention_heads = 8,
          .num_key_value_heads = 8,
          .vocab_size = 4096,
          .max_position_embeddings = 4096};
}

inline ExecutionConfig ConfigOf(int64_t b, int64_t s, int64_t tensor = 1) {
  return {.micro_batch_size = b, .sequence_length = s, .tensor = tensor};
}

struct SyntheticDevice {
  double flops_per_s = 2e9;
  double attention_share = kAttentionShare;  // of flops_per_s, over long sequences
  double s_per_flop_per_token = 4e-8;
  double bytes_per_s = 2e8;
  double collective_bytes_per_s = 1e8;
  PartTable<double> factor = Ones();  // by which the device is slower in one action of one part
  double adamw_ns_per_parameter = 7;

  static PartTable<double> Ones() {
    PartTable<double> ones;
    for (const ModelPart part : kModelParts) {
      for (const PartAction action : kPartActions) {
        ones.at(part, action) = 1;
      }
    }
    return ones;
  }

  double Seconds(const ExecutionConfig& config, ModelPart part, PartAction action) const {
    const Demand demand = DemandsOf(SmallModel(), config).at(part, action);
    const auto attention =
        static_cast<double>(demand.work.attention_flops) / AttentionShapeShare(ProductShape::Of(SmallModel(), config));
    const auto flops = static_cast<double>(demand.work.flops - demand.work.attention_flops);
    return factor.at(part, action) *
           (flops / flops_per_s + flops / static_cast<double>(config.tokens()) * s_per_flop_per_token +
            attention / (flops_per_s * attention_share) + static_cast<double>(demand.work.bytes) / bytes_per_s +
            AllReduceSeconds(demand.collective_bytes, config.tensor, collective_bytes_per_s));
  }

  ModelCosts Costs(const ExecutionConfig& config) const {
    ModelCosts costs;
    for (const ModelPart part : kModelParts) {
      for (const PartAction action : kPartActions) {
        costs.at(part, action) = std::llround(Seconds(config, part, action) * 1e9);
      }
    }
    costs.adamw_ns_per_parameter = adamw_ns_per_parameter;
    return costs;
  }

  Observation At(int64_t b, int64_t s, int64_t tensor = 1) const { return {b, s, Costs(ConfigOf(b, s, tensor))}; }
};

// Uniform over [0, 1), the same on every machine.
inline double Uniform(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

}  // namespace geopipe
