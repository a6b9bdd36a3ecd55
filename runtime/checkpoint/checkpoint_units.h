// The units in which a checkpoint holds a model: its embedding, each decoder layer, its head with the final norm. A
// unit has the same files and tensors whatever the plan, so that any plan reads what any other has written.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/model_spec.h"
#include "optimizer/model/transformer.h"
#include "runtime/checkpoint/manifest.h"

namespace geopipe {

struct CheckpointUnit {
  enum class Kind : uint8_t { kEmbedding, kLayer, kHead };

  Kind kind = Kind::kEmbedding;
  int64_t layer = 0;  // of kLayer, from 0

  // "embedding", "layer-00012", "head".
  std::string name() const;
  // "layer-00012.weights.<tag>.safetensors". Writers that know nothing of each other have different tags, so that none
  // touches another's files.
  std::string weights_file(std::string_view tag) const;
  std::string moments_file(std::string_view tag) const;

  friend bool operator==(const CheckpointUnit&, const CheckpointUnit&) = default;
};

// Of what the ranks of one epoch of one run write: "18eb0e6c4a2f1d24-3".
std::string CheckpointTag(uint64_t incarnation, uint64_t epoch);

// In the order of the model.
std::vector<CheckpointUnit> UnitsOf(const LayerRange& range);
std::vector<CheckpointUnit> UnitsOf(const ModelSpec& model);

// The parameters of a unit, in the order of its files. The head of a tied model holds a copy of
// "model.embed_tokens.weight", so that the node of the last stage needs no file of the first.
std::vector<ParameterTensor> UnitParameters(const ModelSpec& model, const CheckpointUnit& unit);

// AdamW's moments of a parameter: "<tensor>.exp_avg" and "<tensor>.exp_avg_sq", as PyTorch calls them.
std::string FirstMomentName(std::string_view parameter);
std::string SecondMomentName(std::string_view parameter);

// What a unit's files hold, each tensor whole, in order: of the moments file both moments of each parameter in turn.
std::vector<TensorRange> UnitWeights(const ModelSpec& model, const CheckpointUnit& unit);
std::vector<TensorRange> UnitMoments(const ModelSpec& model, const CheckpointUnit& unit);

}  // namespace geopipe
