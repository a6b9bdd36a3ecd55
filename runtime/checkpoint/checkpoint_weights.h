// The weights of a checkpoint, as the engine asks for them.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/model/weight_source.h"

namespace geopipe {

class CheckpointWeights final : public WeightSource {
 public:
  explicit CheckpointWeights(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}

  // Errors of Checkpoint::Read.
  absl::Status Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) override {
    return checkpoint_.Read(name, shape, values);
  }

  const Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  Checkpoint checkpoint_;
};

}  // namespace geopipe
