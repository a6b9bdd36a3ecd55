// The parameters of one stage: every tensor under its Hugging Face name, with its gradient and AdamW's moments.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/transformer.h"
#include "runtime/backend/backend.h"
#include "runtime/model/weight_source.h"
#include "runtime/tensor/tensor.h"

namespace geopipe {

struct Parameter {
  ParameterTensor spec;
  Tensor value;          // fp32
  Tensor gradient;       // accumulator of the iteration
  Tensor first_moment;   // AdamW's
  Tensor second_moment;  // AdamW's
};

// Owns the parameters of a stage. Parameters don't move while the set lives.
class ParameterSet final : public WeightSource {
 public:
  // Values and moments from `weights` (zero where it has no moments), gradients zero. Errors: the allocator's and those
  // of `weights`.
  static absl::StatusOr<ParameterSet> Create(const std::vector<ParameterTensor>& specs, WeightSource& weights,
                                             Allocator& allocator, Backend& backend);

  // nullptr when this stage does not hold it.
  Parameter* Find(std::string_view name);

  std::span<Parameter> all() { return parameters_; }

  // The current value, for export and checkpoints; waits for the device. NotFound when this stage does not hold it.
  absl::Status Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) override;

 private:
  std::vector<Parameter> parameters_;
};

}  // namespace geopipe
