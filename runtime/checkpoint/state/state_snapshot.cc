#include "runtime/checkpoint/state/state_snapshot.h"

#include <algorithm>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/checkpoint/tensor_file_writer.h"
#include "runtime/tensor/staging.h"

namespace geopipe {
namespace {

absl::Status CopyTo(const Tensor& tensor, std::vector<float>& values) {
  return ReadOnHost(tensor, [&](const Tensor& host) { values.assign(host.fp32().begin(), host.fp32().end()); });
}

}  // namespace

absl::Status StateSnapshot::Take(std::span<const Parameter> parameters) {
  std::vector<Held> held = std::exchange(held_, {});  // after an error there is no half of one
  held.resize(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    held[i].name = parameter.spec.name;
    GP_CHECK(parameter.piece.count == parameter.spec.count(), "a snapshot of part of {}", parameter.spec.name);
    GP_RETURN_IF_ERROR(CopyTo(parameter.master, held[i].value));
    GP_RETURN_IF_ERROR(CopyTo(parameter.first_moment, held[i].first_moment));
    GP_RETURN_IF_ERROR(CopyTo(parameter.second_moment, held[i].second_moment));
  }
  held_ = std::move(held);
  return absl::OkStatus();
}

absl::Status StateSnapshot::Write(const std::string& folder, const ModelSpec& model, const CheckpointUnit& unit,
                                  std::string_view tag, std::vector<FileEntry>& files) const {
  const std::vector<ParameterTensor> parameters = UnitParameters(model, unit);
  GP_ASSIGN_OR_RETURN(TensorFileWriter weights,
                      TensorFileWriter::Create(folder, unit.weights_file(tag), UnitWeights(model, unit)));
  for (const ParameterTensor& parameter : parameters) {
    GP_RETURN_IF_ERROR(weights.Append(parameter.name, parameter.shape, Find(parameter.name).value));
  }
  GP_ASSIGN_OR_RETURN(FileEntry weights_entry, weights.Finish());
  GP_ASSIGN_OR_RETURN(TensorFileWriter moments,
                      TensorFileWriter::Create(folder, unit.moments_file(tag), UnitMoments(model, unit)));
  for (const ParameterTensor& parameter : parameters) {
    const Held& held = Find(parameter.name);
    GP_RETURN_IF_ERROR(moments.Append(FirstMomentName(parameter.name), parameter.shape, held.first_moment));
    GP_RETURN_IF_ERROR(moments.Append(SecondMomentName(parameter.name), parameter.shape, held.second_moment));
  }
  GP_ASSIGN_OR_RETURN(FileEntry moments_entry, moments.Finish());
  files.push_back(std::move(weights_entry));
  files.push_back(std::move(moments_entry));
  return absl::OkStatus();
}

int64_t StateSnapshot::bytes() const {
  int64_t floats = 0;
  for (const Held& held : held_) {
    floats += std::ssize(held.value) + std::ssize(held.first_moment) + std::ssize(held.second_moment);
  }
  return floats * static_cast<int64_t>(sizeof(float));
}

const StateSnapshot::Held& StateSnapshot::Find(std::string_view name) const {
  const auto found = std::ranges::find(held_, name, &Held::name);
  GP_CHECK(found != held_.end(), "the snapshot of a stage without {}", name);
  return *found;
}

}  // namespace geopipe
