// Device memory of one pipeline stage: model states, activations per in-flight micro-batch, workspace and transport
// buffers. Bytes per device (tensor-parallel rank). Letters as in transformer.h; p = b * s * s * a attention
// probabilities, r = t with sequence parallelism and 1 without.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "optimizer/model/execution_config.h"
#include "optimizer/model/model_spec.h"

namespace geopipe {

// --- Activations: the count the planner uses --------------------------------------------------------------------

// A tensor that a forward leaves behind for its backward.
struct KeptTensor {
  std::string_view name;
  int64_t bytes = 0;
  bool kept_for_weight_grad = false;  // still alive between I and W

  friend bool operator==(const KeptTensor&, const KeptTensor&) = default;
};

// Tensors that one decoder layer keeps of one micro-batch from F to I. Element size e, fp32 where said:
//   input             n*h/r   block input: RMSNorm's backward
//   input_rms         n       fp32, reciprocal root mean square of each row            (/r)
//   attention_input   n*h     normalised input of q, k, v                              W
//   qkv               n*(q+2k)/t  queries and keys after RoPE, values; with norms of heads before both, which then
//                     are in heads, n*(q+k)/t, beside query_rms and key_rms, fp32, a number of each head
//   probabilities     p/t     softmax of the scores, dense over s; blocked attention: row_sums, n*a/t, fp32
//   context           n*h/t   input of the output projection                           W
//   mlp_residual      n*h/r   input of the second RMSNorm
//   mlp_rms           n       fp32                                                     (/r)
//   mlp_input         n*h     normalised input of gate and up                          W
//   gate_up           n*2f/t
//   activation        n*f/t   silu(gate) * up: input of the down projection            W
// Selective recomputation drops `probabilities`; with blocked attention, which has none, the tensors that are cheap to
// make again: attention_input, mlp_input and activation. Full recomputation keeps `input` alone. With sequence
// parallelism attention_input and mlp_input are kept in slices of 1/t and gathered again where they are needed (arXiv
// 2205.05198, section 4.2.2).
std::vector<KeptTensor> BlockActivations(const ModelSpec& model, const ExecutionConfig& config);

// Besides, of a stage whose attention begins anew after each document: where each token's document begins, n of 4
// bytes.

// The embedding's: token ids, n of 4 bytes (W).
std::vector<KeptTensor> EmbeddingActivations(const ModelSpec& model, const ExecutionConfig& config);

// Rows of fp32 logits that the loss of a bf16 stage takes at once. (fp32 logits become their gradient in place.)
inline constexpr int64_t kLossRows = 512;

// The head's: its input n*h/r, fp32 reciprocal root mean squares n (/r), normalised input n*h/r (W), and the gradient
// of the logits n*V/t (W), which F leaves.
std::vector<KeptTensor> HeadActivations(const ModelSpec& model, const ExecutionConfig& config);

// Gradients of the products' outputs, made by I and consumed by W, of one decoder layer: qkv n*(q+2k)/t, o n*h, gate_up
// n*2f/t, down n*h (all element size e).
int64_t BlockOutputGradientBytes(const ModelSpec& model, const ExecutionConfig& config);

int64_t TotalBytes(const std::vector<KeptTensor>& tensors);
int64_t KeptForWeightGradBytes(const std::vector<KeptTensor>& tensors);

// --- A whole stage -----------------------------------------------------------------------------------------------

struct StageMemory {
  // Model states. bf16: 2 weights + 4 gradients (added up in fp32) + 12 (fp32 master, momentum, variance) bytes per
  // parameter; fp32: 4 + 4 + 8, and so have norms whatever the precision. ZeRO divides all but norms over data-parallel
  // ranks: stage 1 the optimizer state, 2 also gradients, 3 also weights (ShareOfBucket). Tied embeddings with both
  // uses on the stage keep a second gradient accumulator.
  int64_t weight_bytes = 0;
  int64_t gradient_bytes = 0;
  int64_t optimizer_bytes = 0;
  // Bytes in the host's memory, and not in static_bytes: optimizer states that are offloaded, all but those of norms,
  // and states that are kept for recovery where devices have memory of their own.
  int64_t host_bytes = 0;
  // Two copies of fp32 weights and moments, 24 bytes per parameter whose states the rank has: with keeps_states, where
  // they take the device's memory.
  int64_t recovery_bytes = 0;
  // Workspace held all the time: RoPE's tables s*d (d: head size); the backend's, which is the GPU's (gpu_workspace.h)
  // where devices have memory of their own, or else sums of attention's backward, blocked max(n*q/t, 2*s*d) + n*a/t,
  // dense 2*s*d + min(64, s)*s (all fp32); and where the memory is the host's, token ids n of 4 bytes on a stage with
  // one end of the model, and twice as many on one with none whose attention begins anew after each document. While a
  // pass runs: the target ids n of 4 bytes until F is over; bf16: fp32 logits of kLossRows rows; the gradient of one
  // product's input, the largest of n*f/t, n*h and n*q/t; a layer's attention gradients before their operands are
  // freed; with recomputation also the tensors that it makes again for one layer and those that this layer's W needs;
  // with tensor ranks that have all rows, those of a message that is cut or gathered, with ranks that share a key-value
  // head its gradients; with sequence parallelism the gathered gradients of a layer's two sums (n*h each, less the
  // rank's own rows), until W; with ZeRO 2 two whole buckets of gradients, and with ZeRO 3 three of gradients and
  // gathered weights, each as large as the largest of gradients; with offloaded states those of the run that is updated
  // (kOffloadedRunElements).
  int64_t workspace_bytes = 0;
  // The part of it that the stages of a device take turns in: all but RoPE's tables and token ids.
  int64_t shared_workspace_bytes = 0;
  // Slots of receives that are posted and sends that are not acknowledged (StageNeeds in plan_memory.h).
  int64_t transport_bytes = 0;
  int64_t activation_bytes = 0;   // per in-flight micro-batch
  int64_t weight_grad_bytes = 0;  // per micro-batch between I and W

  int64_t model_state_bytes() const { return weight_bytes + gradient_bytes + optimizer_bytes; }
  int64_t static_bytes() const { return model_state_bytes() + recovery_bytes + workspace_bytes + transport_bytes; }

  // Adds a stage on the same device, of whose actions one runs at a time.
  StageMemory& operator+=(const StageMemory& other);

  friend bool operator==(const StageMemory&, const StageMemory&) = default;
};

// The memory of a stage as the engine accounts it (runtime/tensor/allocator.h), without transport_bytes, which depends
// on the stage's neighbours and on the micro-batches in flight.
StageMemory MemoryOfStage(const ModelSpec& model, const LayerRange& range, const ExecutionConfig& config);

// The part of a stage's shared workspace that the engine accounts as workspace, and the parts that it accounts as
// activations besides those it has when the action begins: each at most, and not all at once.
struct PassMemory {
  int64_t workspace_bytes = 0;
  int64_t backward_bytes = 0;    // activations in B
  int64_t input_grad_bytes = 0;  // activations in I, until it is over
};
PassMemory MemoryOfPasses(const ModelSpec& model, const LayerRange& range, const ExecutionConfig& config);

// MemoryOfStage of any stage at one config without counting tensors again: from one layer on, all of it is linear in
// the layers.
class StageMemoryModel {
 public:
  StageMemoryModel(const ModelSpec& model, const ExecutionConfig& config);

  // Equals MemoryOfStage(model, range, config). REQUIRES: at least one layer.
  StageMemory Of(const LayerRange& range) const;
  int64_t Parameters(const LayerRange& range) const;  // per tensor-parallel rank

 private:
  struct Part {
    StageMemory memory;
    int64_t parameters = 0;
  };

  Part ends_[2][2];  // [has_embedding][has_head], of no layers
  Part layer_;       // of one more layer
};

}  // namespace geopipe
