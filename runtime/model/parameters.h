// The parameters of one stage: every tensor under its Hugging Face name, with its gradient and AdamW's moments.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/model_spec.h"
#include "runtime/backend/backend.h"
#include "runtime/model/weight_source.h"
#include "runtime/tensor/tensor.h"

namespace geopipe {

// What a parameter is, and which part of it a stage holds.
struct ParameterSpec {
  std::string name;            // "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  // of the whole tensor, row-major
  int64_t shard_offset = 0;    // of the held part, in elements of the whole tensor
  int64_t shard_elements = 0;  // all of them, while stages are not split over devices
  DType dtype = DType::kFp32;  // of the master weights

  // Weight decay applies to tensors of two or more dimensions only.
  bool decays() const { return shape.size() >= 2; }

  friend bool operator==(const ParameterSpec&, const ParameterSpec&) = default;
};

// The parameters that a stage with `range` holds, in model order. With tied embeddings "model.embed_tokens.weight" is
// held by both ends, once each, and once where both ends are one stage.
std::vector<ParameterSpec> StageParameters(const ModelSpec& model, const LayerRange& range);

struct Parameter {
  ParameterSpec spec;
  Tensor value;
  Tensor gradient;       // accumulator of the iteration
  Tensor first_moment;   // AdamW's
  Tensor second_moment;  // AdamW's
};

// Owns the parameters of a stage. Parameters don't move while the set lives.
class ParameterSet final : public WeightSource {
 public:
  // Values from `weights`, gradients and moments zero. Errors: the allocator's and those of `weights`.
  static absl::StatusOr<ParameterSet> Create(const std::vector<ParameterSpec>& specs, WeightSource& weights,
                                             Allocator& allocator, Backend& backend);

  // nullptr when this stage does not hold it.
  Parameter* Find(std::string_view name);
  const Parameter* Find(std::string_view name) const;

  std::span<Parameter> all() { return parameters_; }
  std::span<const Parameter> all() const { return parameters_; }

  // The current value, for export and checkpoints; waits for the device. NotFound when this stage does not hold it.
  absl::Status Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) override;

 private:
  std::vector<Parameter> parameters_;
};

}  // namespace geopipe
