// Where a stage's initial weights come from: random numbers or a Hugging Face directory.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace geopipe {

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // Fills `values` (row-major, as many as `shape` has elements) with the tensor that Hugging Face calls `name`, e.g.
  // "model.layers.0.self_attn.q_proj.weight". Other element types are converted to fp32. Errors name the tensor: it is
  // missing, or its shape is another.
  virtual absl::Status Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) = 0;
};

}  // namespace geopipe
