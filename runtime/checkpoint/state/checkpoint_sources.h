// Sources of a checkpoint's tensors for a stage that is built.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_units.h"
#include "runtime/model/weight_source.h"

namespace geopipe {

// Source of the weights alone: training begins with them. Errors of Checkpoint::Read. Reading a piece takes memory for
// the piece alone.
class CheckpointWeights : public WeightSource {
 public:
  explicit CheckpointWeights(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}

  absl::Status Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) override {
    return checkpoint_.Read(name, shape, values);
  }
  absl::Status ReadPiece(const TensorPiece& piece, std::span<float> values) override {
    return checkpoint_.ReadPiece(piece.tensor.name, piece, values);
  }

  const Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  Checkpoint checkpoint_;
};

// Source of weights and moments: training resumes from the iteration of the manifest. Errors of Checkpoint::Read.
class CheckpointState final : public CheckpointWeights {
 public:
  using CheckpointWeights::CheckpointWeights;

  absl::StatusOr<bool> ReadMoments(std::string_view name, const std::vector<int64_t>& shape, std::span<float> first,
                                   std::span<float> second) override {
    GP_RETURN_IF_ERROR(checkpoint().Read(FirstMomentName(name), shape, first));
    GP_RETURN_IF_ERROR(checkpoint().Read(SecondMomentName(name), shape, second));
    return true;
  }
  absl::StatusOr<bool> ReadMomentsPiece(const TensorPiece& piece, std::span<float> first,
                                        std::span<float> second) override {
    GP_RETURN_IF_ERROR(checkpoint().ReadPiece(FirstMomentName(piece.tensor.name), piece, first));
    GP_RETURN_IF_ERROR(checkpoint().ReadPiece(SecondMomentName(piece.tensor.name), piece, second));
    return true;
  }
};

}  // namespace geopipe
