// A model that is quick to compute. Tests change the keys that they care about.
#pragma once

#include "optimizer/model/model_spec.h"

namespace geopipe {

inline ModelSpec TinyModel(int64_t layers = 6) {
  return {.hidden_size = 64,
          .intermediate_size = 128,
          .num_hidden_layers = layers,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .vocab_size = 258,
          .max_position_embeddings = 128};
}

}  // namespace geopipe
