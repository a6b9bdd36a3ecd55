// The units in which a checkpoint holds a model: its embedding, each decoder layer, its head with the final norm. A
// unit has the same tensors in every plan, so that any plan reads what any other has written. A unit that one rank
// writes has two files; where several do, each writes two with its own ranges of the matrices, and one replica two with
// the vectors, which all replicas need: of tensor rank 0 norms and its part of biases, of the others their parts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/model_spec.h"
#include "optimizer/model/parameter_buckets.h"
#include "optimizer/model/transformer.h"
#include "runtime/checkpoint/manifest.h"

namespace geopipe {

struct CheckpointUnit {
  enum class Kind : uint8_t { kEmbedding, kLayer, kHead };

  Kind kind = Kind::kEmbedding;
  int64_t layer = 0;  // of kLayer, from 0

  // "embedding", "layer-00012", "head".
  std::string name() const;
  // "layer-00012.weights.<tag>.safetensors". Writers that do not know of each other have different tags, so that none
  // touches another's files; so do the ranks that write parts of one unit (PartTag).
  std::string weights_file(std::string_view tag) const;
  std::string moments_file(std::string_view tag) const;

  friend bool operator==(const CheckpointUnit&, const CheckpointUnit&) = default;
};

// Tag of the files that the ranks of one epoch of one run write: "18eb0e6c4a2f1d24-3".
std::string CheckpointTag(uint64_t incarnation, uint64_t epoch);
// Tag of one of several ranks that write a unit's parts: "18eb0e6c4a2f1d24-3.t1-d0".
std::string PartTag(std::string_view tag, int64_t tensor_rank, int64_t data_rank);
// Tag of the vectors of a unit that is written in parts: "18eb0e6c4a2f1d24-3.norms" of tensor rank 0, which has all
// norms, and "18eb0e6c4a2f1d24-3.norms-t1" of one that has parts of biases.
std::string VectorsTag(std::string_view tag, int64_t tensor_rank);

// Units in the order of the model.
std::vector<CheckpointUnit> UnitsOf(const LayerRange& range);
std::vector<CheckpointUnit> UnitsOf(const ModelSpec& model);

// The parameters of a unit, in the order of its files. The head of a tied model holds a copy of
// "model.embed_tokens.weight", so that the node of the last stage needs no file of the first.
std::vector<ParameterTensor> UnitParameters(const ModelSpec& model, const CheckpointUnit& unit);

// AdamW's moments of a parameter: "<tensor>.exp_avg" and "<tensor>.exp_avg_sq", as PyTorch calls them.
std::string FirstMomentName(std::string_view parameter);
std::string SecondMomentName(std::string_view parameter);

// A piece of the tensor `name`, which is the piece's parameter or one of its moments. REQUIRES: it has elements.
TensorRange RangeOf(std::string name, const TensorPiece& piece);

// Contents of a unit's files, each tensor whole, in order: the moments file has both moments of each parameter in turn.
std::vector<TensorRange> UnitWeights(const ModelSpec& model, const CheckpointUnit& unit);
std::vector<TensorRange> UnitMoments(const ModelSpec& model, const CheckpointUnit& unit);

}  // namespace geopipe
