#include "runtime/model/parameters.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "runtime/tensor/staging.h"

namespace geopipe {
namespace {

absl::Status FillMoments(const Parameter& parameter, WeightSource& weights) {
  return FillFromHost(parameter.first_moment, [&](const Tensor& first) {
    return FillFromHost(parameter.second_moment, [&](const Tensor& second) -> absl::Status {
      GP_ASSIGN_OR_RETURN(const bool found,
                          weights.ReadMoments(parameter.spec.name, parameter.spec.shape, first.fp32(), second.fp32()));
      if (!found) {
        std::ranges::fill(first.fp32(), 0.0F);
        std::ranges::fill(second.fp32(), 0.0F);
      }
      return absl::OkStatus();
    });
  });
}

}  // namespace

absl::StatusOr<ParameterSet> ParameterSet::Create(const std::vector<ParameterTensor>& specs, WeightSource& weights,
                                                  Allocator& allocator, Backend& backend) {
  ParameterSet set;
  set.parameters_.reserve(specs.size());
  for (const ParameterTensor& spec : specs) {
    Parameter parameter;
    parameter.spec = spec;
    GP_ASSIGN_OR_RETURN(parameter.value, Tensor::Create(allocator, MemoryCategory::kWeights, DType::kFp32, spec.shape));
    GP_ASSIGN_OR_RETURN(parameter.gradient,
                        Tensor::Create(allocator, MemoryCategory::kGradients, DType::kFp32, spec.shape));
    GP_ASSIGN_OR_RETURN(parameter.first_moment,
                        Tensor::Create(allocator, MemoryCategory::kOptimizer, DType::kFp32, spec.shape));
    GP_ASSIGN_OR_RETURN(parameter.second_moment,
                        Tensor::Create(allocator, MemoryCategory::kOptimizer, DType::kFp32, spec.shape));
    GP_RETURN_IF_ERROR(backend.Zero(parameter.gradient));
    GP_RETURN_IF_ERROR(FillFromHost(
        parameter.value, [&](const Tensor& host) { return weights.Read(spec.name, spec.shape, host.fp32()); }));
    GP_RETURN_IF_ERROR(FillMoments(parameter, weights));
    set.parameters_.push_back(std::move(parameter));
  }
  return set;
}

Parameter* ParameterSet::Find(std::string_view name) {
  const auto found =
      std::ranges::find_if(parameters_, [name](const Parameter& parameter) { return parameter.spec.name == name; });
  return found == parameters_.end() ? nullptr : &*found;
}

absl::Status ParameterSet::Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) {
  const Parameter* parameter = Find(name);
  if (parameter == nullptr) {
    return absl::NotFoundError(fmt::format("this stage does not hold the parameter {}", name));
  }
  if (parameter->spec.shape != shape || values.size() != static_cast<size_t>(parameter->value.elements())) {
    return absl::InvalidArgumentError(fmt::format("the parameter {} has shape [{}], not [{}]", name,
                                                  fmt::join(parameter->spec.shape, ", "), fmt::join(shape, ", ")));
  }
  return ReadOnHost(parameter->value, [&](const Tensor& host) { std::ranges::copy(host.fp32(), values.begin()); });
}

}  // namespace geopipe
