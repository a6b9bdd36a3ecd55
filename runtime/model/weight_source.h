// Source of a stage's weights when it is built: random numbers, a Hugging Face directory, a checkpoint.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "optimizer/model/parameter_buckets.h"

namespace geopipe {

// The piece that is all of a tensor.
TensorPiece WholeTensor(std::string_view name, const std::vector<int64_t>& shape);

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // Fills `values` (row-major, as many as `shape` has elements) with the tensor that Hugging Face calls `name`, e.g.
  // "model.layers.0.self_attn.q_proj.weight". Other element types are converted to fp32. Errors name the tensor: it is
  // missing, or its shape is another.
  virtual absl::Status Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) = 0;

  // Reads AdamW's moments of that tensor, if training resumes from a state that has them. False: there are none;
  // nothing was written, and moments begin at zero. Errors as above.
  virtual absl::StatusOr<bool> ReadMoments(std::string_view /*name*/, const std::vector<int64_t>& /*shape*/,
                                           std::span<float> /*first*/, std::span<float> /*second*/) {
    return false;
  }

  // Reads the same of a piece of a tensor, `piece.count` values each. By default the whole tensor is read.
  virtual absl::Status ReadPiece(const TensorPiece& piece, std::span<float> values);
  virtual absl::StatusOr<bool> ReadMomentsPiece(const TensorPiece& piece, std::span<float> first,
                                                std::span<float> second);
};

}  // namespace geopipe
