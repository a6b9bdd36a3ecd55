// One decoder layer: RMSNorm, causal grouped-query attention with RoPE, residual, RMSNorm, SwiGLU MLP, residual; in
// three functions (forward, input gradient, weight gradient), so that a schedule may put them apart.
//
// Letters: n = b * s tokens, h = hidden_size, q = heads * head_dim, k = kv heads * head_dim, f = intermediate_size, t =
// tensor ranks, r = the rank's region of rows (stage_context.h): n or n / t.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>

#include "runtime/backend/backend.h"
#include "runtime/model/parameters.h"
#include "runtime/model/stage_context.h"

namespace geopipe {

// The layer's parameters; they belong to the stage's ParameterSet.
struct BlockParameters {
  size_t bucket = 0;  // of the products
  Parameter* attention_norm = nullptr;
  Parameter* q = nullptr;
  Parameter* k = nullptr;
  Parameter* v = nullptr;
  Parameter* o = nullptr;
  Parameter* mlp_norm = nullptr;
  Parameter* gate = nullptr;
  Parameter* up = nullptr;
  Parameter* down = nullptr;
  // Vectors that only some families have; else null.
  Parameter* q_bias = nullptr;
  Parameter* k_bias = nullptr;
  Parameter* v_bias = nullptr;
  Parameter* o_bias = nullptr;
  Parameter* q_norm = nullptr;
  Parameter* k_norm = nullptr;

  static BlockParameters Of(ParameterSet& parameters, int64_t layer);
};

// Tensors that one layer keeps of one micro-batch. Names and sizes are those of optimizer/model/memory_model.h, which
// says which of them recomputation drops after F; I makes those again. The comment after the slash says what a tensor
// holds from BackwardInput until BackwardWeight.
struct SavedBlock {
  Tensor input;            // [r, h] / given away as the gradient with respect to it
  Tensor input_rms;        // [r] / freed
  Tensor attention_input;  // [r, h]
  Tensor qkv;              // [n, (q + 2k)/t]: queries and keys after RoPE, values / freed
  Tensor heads;      // of a family with norms of heads: queries and keys [n, (q + k)/t] after norms and RoPE, which
                     // are then not in qkv / freed
  Tensor query_rms;  // [n, heads/t], as key_rms of the key-value heads / freed
  Tensor key_rms;
  VectorView<const int32_t> starts;  // AttentionShape's, of the micro-batch, whose memory it is
  Tensor statistics;                 // [n * heads/t]: attention's / freed
  Tensor context;                    // [n, q/t]
  Tensor mlp_residual;               // [r, h] / [n, h] gradient of the attention's output
  Tensor mlp_rms;                    // [r] / freed
  Tensor mlp_input;                  // [r, h]
  Tensor gate_up;                    // [n, 2f/t]: both side by side / their gradients
  Tensor activation;                 // [n, f/t]
  Tensor grad_qkv;                   // empty / [n, (q + 2k)/t]
  Tensor grad_output;                // empty / [n, h] gradient of the layer's output
};

// Returns the output [r, h], accounted as `output_category`. `input` is kept.
absl::StatusOr<Tensor> BlockForward(const StageContext& context, const BlockParameters& parameters, Tensor input,
                                    MemoryCategory output_category, SavedBlock& saved);

// Takes the gradient of the output [r, h] and returns that with respect to the input. Adds the gradients of the norms'
// weights, whose operands are at hand here and would otherwise have to be kept; their sums are in micro-batch
// order, because backwards are.
absl::StatusOr<Tensor> BlockBackwardInput(const StageContext& context, const BlockParameters& parameters,
                                          Tensor grad_output, SavedBlock& saved);

// Adds the gradients of the seven products' weights, or where nothing is there yet (`adds` is false) writes them, adds
// those of their biases, and frees the kept tensors.
absl::Status BlockBackwardWeight(const StageContext& context, const BlockParameters& parameters, SavedBlock saved,
                                 bool adds);

}  // namespace geopipe
