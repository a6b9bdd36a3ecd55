#include "optimizer/model/parameter_buckets.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace geopipe {

int64_t ParameterBucket::elements_per_rank(int64_t tensor) const {
  int64_t elements = 0;
  for (const ParameterTensor& each : tensors) {
    elements += each.count_per_rank(tensor);
  }
  return elements;
}

std::vector<ParameterBucket> ParameterBuckets(const ModelSpec& model, const LayerRange& range) {
  std::vector<ParameterBucket> buckets;
  ParameterBucket norms{.kind = BucketKind::kNorms, .tensors = {}};
  if (range.has_embedding) {
    buckets.push_back({.kind = BucketKind::kEmbedding,
                       .is_head_too = model.tie_word_embeddings && range.has_head,
                       .tensors = ParameterTensors(model, {.has_embedding = true})});
  }
  for (int64_t layer = range.first; layer <= range.last; ++layer) {
    ParameterBucket bucket{.kind = BucketKind::kLayer, .layer = layer, .tensors = {}};
    for (ParameterTensor& tensor : ParameterTensors(model, {.first = layer, .last = layer})) {
      const bool is_norm = tensor.shape.size() == 1;
      (is_norm ? norms : bucket).tensors.push_back(std::move(tensor));
    }
    buckets.push_back(std::move(bucket));
  }
  if (range.has_head) {
    // A tied head uses the embedding if that is on the stage.
    const bool has_own = !model.tie_word_embeddings || !range.has_embedding;
    for (ParameterTensor& tensor : ParameterTensors(model, {.has_head = true})) {
      const bool is_norm = tensor.shape.size() == 1;
      if (is_norm) {
        norms.tensors.push_back(std::move(tensor));
      } else if (has_own) {
        buckets.push_back({.kind = BucketKind::kHead, .tensors = {std::move(tensor)}});
      }
    }
  }
  if (!norms.tensors.empty()) {
    buckets.push_back(std::move(norms));
  }
  return buckets;
}

BucketShare ShareOfBucket(BucketKind kind, int64_t elements, int64_t data, int32_t zero_stage) {
  const bool divided = data > 1 && zero_stage >= 1 && kind != BucketKind::kNorms;
  const int64_t shard = divided ? (elements + data - 1) / data : elements;
  const int64_t padded = divided ? shard * data : elements;
  return {.shard = shard,
          .padded = padded,
          .weights = zero_stage >= 3 ? shard : padded,
          .gradients = zero_stage >= 2 ? shard : padded,
          .states = shard};
}

}  // namespace geopipe
