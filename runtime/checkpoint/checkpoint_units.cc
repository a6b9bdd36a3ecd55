#include "runtime/checkpoint/checkpoint_units.h"

#include <fmt/format.h>

#include <utility>

namespace geopipe {

std::string CheckpointUnit::name() const {
  switch (kind) {
    case Kind::kEmbedding:
      return "embedding";
    case Kind::kLayer:
      return fmt::format("layer-{:05}", layer);
    case Kind::kHead:
      break;
  }
  return "head";
}

std::string CheckpointUnit::weights_file(std::string_view tag) const {
  return fmt::format("{}.weights.{}.safetensors", name(), tag);
}

std::string CheckpointUnit::moments_file(std::string_view tag) const {
  return fmt::format("{}.moments.{}.safetensors", name(), tag);
}

std::string CheckpointTag(uint64_t incarnation, uint64_t epoch) { return fmt::format("{:x}-{}", incarnation, epoch); }

std::string PartTag(std::string_view tag, int64_t tensor_rank, int64_t data_rank) {
  return fmt::format("{}.t{}-d{}", tag, tensor_rank, data_rank);
}

std::string VectorsTag(std::string_view tag, int64_t tensor_rank) {
  return tensor_rank == 0 ? fmt::format("{}.norms", tag) : fmt::format("{}.norms-t{}", tag, tensor_rank);
}

std::vector<CheckpointUnit> UnitsOf(const LayerRange& range) {
  std::vector<CheckpointUnit> units;
  if (range.has_embedding) {
    units.push_back({.kind = CheckpointUnit::Kind::kEmbedding});
  }
  for (int64_t layer = range.first; layer <= range.last; ++layer) {
    units.push_back({.kind = CheckpointUnit::Kind::kLayer, .layer = layer});
  }
  if (range.has_head) {
    units.push_back({.kind = CheckpointUnit::Kind::kHead});
  }
  return units;
}

std::vector<CheckpointUnit> UnitsOf(const ModelSpec& model) {
  return UnitsOf(LayerRange{.first = 0, .last = model.num_hidden_layers - 1, .has_embedding = true, .has_head = true});
}

std::vector<ParameterTensor> UnitParameters(const ModelSpec& model, const CheckpointUnit& unit) {
  LayerRange range;  // no layer
  switch (unit.kind) {
    case CheckpointUnit::Kind::kEmbedding:
      range.has_embedding = true;
      break;
    case CheckpointUnit::Kind::kLayer:
      range.first = unit.layer;
      range.last = unit.layer;
      break;
    case CheckpointUnit::Kind::kHead:
      range.has_head = true;
      break;
  }
  return ParameterTensors(model, range);
}

std::string FirstMomentName(std::string_view parameter) { return fmt::format("{}.exp_avg", parameter); }

std::string SecondMomentName(std::string_view parameter) { return fmt::format("{}.exp_avg_sq", parameter); }

TensorRange RangeOf(std::string name, const TensorPiece& piece) {
  const int64_t parts = piece.tensor.parts(piece.tensor_ranks);
  const int64_t part = piece.tensor_rank * parts / piece.tensor_ranks;
  const bool by_columns = piece.tensor.split_axis == 1;
  return {.name = std::move(name),
          .shape = piece.tensor.shape,
          .offset = (part * piece.tensor.count_per_rank(piece.tensor_ranks)) + piece.first,
          .elements = piece.count,
          .column_parts = by_columns ? parts : 1};
}

std::vector<TensorRange> UnitWeights(const ModelSpec& model, const CheckpointUnit& unit) {
  std::vector<TensorRange> tensors;
  for (ParameterTensor& parameter : UnitParameters(model, unit)) {
    const int64_t count = parameter.count();
    tensors.push_back({.name = std::move(parameter.name), .shape = std::move(parameter.shape), .elements = count});
  }
  return tensors;
}

std::vector<TensorRange> UnitMoments(const ModelSpec& model, const CheckpointUnit& unit) {
  std::vector<TensorRange> tensors;
  for (const ParameterTensor& parameter : UnitParameters(model, unit)) {
    const int64_t count = parameter.count();
    tensors.push_back({.name = FirstMomentName(parameter.name), .shape = parameter.shape, .elements = count});
    tensors.push_back({.name = SecondMomentName(parameter.name), .shape = parameter.shape, .elements = count});
  }
  return tensors;
}

}  // namespace geopipe
