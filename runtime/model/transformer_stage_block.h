// One decoder layer: RMSNorm, causal grouped-query attention with RoPE, residual, RMSNorm, SwiGLU MLP, residual; in
// three functions (forward, input gradient, weight gradient), so that a schedule may put them apart.
//
// Letters: n = b * s tokens, h = hidden_size, k = kv heads * head_dim, f = intermediate_size, a = attention heads.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>

#include "optimizer/model/model_spec.h"
#include "runtime/backend/backend.h"
#include "runtime/model/parameters.h"

namespace geopipe {

// Shared by all parts of a stage.
struct StageContext {
  ModelSpec model;
  int64_t batch = 0;     // samples of a micro-batch
  int64_t sequence = 0;  // tokens of a sample
  Allocator* allocator = nullptr;
  Backend* backend = nullptr;
  Tensor rope_cosine;  // [sequence, head_dim / 2], as rope_sine
  Tensor rope_sine;

  int64_t tokens() const { return batch * sequence; }
  int64_t kv_width() const { return model.num_key_value_heads * model.head_dim(); }
  RopeTable rope() const { return {rope_cosine, rope_sine}; }
  AttentionShape attention() const {
    return {batch, sequence, model.num_attention_heads, model.num_key_value_heads, model.head_dim()};
  }
  // An uninitialised fp32 tensor [n, columns].
  absl::StatusOr<Tensor> NewRows(int64_t columns, MemoryCategory category) const;
};

// The layer's parameters; they belong to the stage's ParameterSet.
struct BlockParameters {
  Parameter* attention_norm = nullptr;
  Parameter* q = nullptr;
  Parameter* k = nullptr;
  Parameter* v = nullptr;
  Parameter* o = nullptr;
  Parameter* mlp_norm = nullptr;
  Parameter* gate = nullptr;
  Parameter* up = nullptr;
  Parameter* down = nullptr;

  static BlockParameters Of(ParameterSet& parameters, int64_t layer);
};

// What one layer keeps of one micro-batch. Names and sizes are those of optimizer/model/memory_model.h. BackwardInput
// computes in place: the comment after the slash says what a tensor holds from there until BackwardWeight.
struct SavedBlock {
  Tensor input;                  // [n, h] / given away as the gradient with respect to it
  Tensor input_rms;              // [n] / freed
  Tensor attention_input;        // [n, h]
  AttentionState state;          // query [n, h], key and value [n, k] after RoPE / freed
  AttentionGradients gradients;  // empty / of query, key and value, before RoPE
  Tensor context;                // [n, h]
  Tensor mlp_residual;           // [n, h] / gradient of the attention's output
  Tensor mlp_rms;                // [n] / freed
  Tensor mlp_input;              // [n, h]
  Tensor gate;                   // [n, f] / its gradient
  Tensor up;                     // [n, f] / its gradient
  Tensor activation;             // [n, f]
  Tensor grad_output;            // empty / [n, h] gradient of the layer's output
};

// Returns the output [n, h], accounted as `output_category`. `input` is kept.
absl::StatusOr<Tensor> BlockForward(const StageContext& context, const BlockParameters& parameters, Tensor input,
                                    MemoryCategory output_category, SavedBlock& saved);

// Returns the gradient with respect to the input. Adds the gradients of the two norm weights, whose operands are at
// hand here and would otherwise have to be kept; their sums are in micro-batch order, because backwards are.
absl::StatusOr<Tensor> BlockBackwardInput(const StageContext& context, const BlockParameters& parameters,
                                          Tensor grad_output, SavedBlock& saved);

// Adds the gradients of the seven products' weights and frees what was kept.
absl::Status BlockBackwardWeight(const StageContext& context, const BlockParameters& parameters, SavedBlock saved);

}  // namespace geopipe
