#include "optimizer/model/parameter_buckets.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "optimizer/base/check.h"

namespace geopipe {

int64_t ParameterBucket::elements_per_rank(int64_t tensor) const {
  int64_t elements = 0;
  for (const ParameterTensor& each : tensors) {
    elements += each.count_per_rank(tensor);
  }
  return elements;
}

VectorGradient VectorGradientOf(const ParameterTensor& tensor) {
  GP_CHECK(tensor.is_vector(), "{} is a matrix", tensor.name);
  const bool is_of_heads = tensor.name.ends_with(".q_norm.weight") || tensor.name.ends_with(".k_norm.weight");
  return tensor.name.ends_with(".bias") ? VectorGradient::kWhole
         : is_of_heads                  ? VectorGradient::kOfHeads
                                        : VectorGradient::kOfRows;
}

std::vector<ParameterBucket> ParameterBuckets(const ModelSpec& model, const LayerRange& range) {
  std::vector<ParameterBucket> buckets;
  ParameterBucket vectors{.kind = BucketKind::kVectors, .tensors = {}};
  if (range.has_embedding) {
    buckets.push_back({.kind = BucketKind::kEmbedding,
                       .is_head_too = model.tie_word_embeddings && range.has_head,
                       .tensors = ParameterTensors(model, {.has_embedding = true})});
  }
  for (int64_t layer = range.first; layer <= range.last; ++layer) {
    ParameterBucket bucket{.kind = BucketKind::kLayer, .layer = layer, .tensors = {}};
    for (ParameterTensor& tensor : ParameterTensors(model, {.first = layer, .last = layer})) {
      (tensor.is_vector() ? vectors : bucket).tensors.push_back(std::move(tensor));
    }
    buckets.push_back(std::move(bucket));
  }
  if (range.has_head) {
    // A tied head uses the embedding if that is on the stage.
    const bool has_own = !model.tie_word_embeddings || !range.has_embedding;
    for (ParameterTensor& tensor : ParameterTensors(model, {.has_head = true})) {
      if (tensor.is_vector()) {
        vectors.tensors.push_back(std::move(tensor));
      } else if (has_own) {
        buckets.push_back({.kind = BucketKind::kHead, .tensors = {std::move(tensor)}});
      }
    }
  }
  if (!vectors.tensors.empty()) {
    std::ranges::stable_sort(vectors.tensors, {}, VectorGradientOf);
    buckets.push_back(std::move(vectors));
  }
  return buckets;
}

BucketShare ShareOfBucket(BucketKind kind, int64_t elements, int64_t data, int32_t zero_stage) {
  const bool divided = data > 1 && zero_stage >= 1 && kind != BucketKind::kVectors;
  const int64_t shard = divided ? ShardElements(elements, data) : elements;
  const int64_t padded = divided ? shard * data : elements;
  return {.shard = shard,
          .padded = padded,
          .weights = zero_stage >= 3 ? shard : padded,
          .gradients = zero_stage >= 2 ? shard : padded,
          .states = shard};
}

}  // namespace geopipe
