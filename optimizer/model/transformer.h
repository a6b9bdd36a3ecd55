// Shape arithmetic of the Llama decoder: parameters, FLOPs and bytes moved, exact integers.
//
// Letters used below: n = b * s tokens of a micro-batch, h = hidden_size, f = intermediate_size, a = attention heads,
// q = heads * head size (width of queries), k = key-value heads * head size (width of keys and values), V = rows of the
// vocabulary, t = tensor-parallel degree, e = bytes of an element, g = bytes of a gradient element. Everything is per
// tensor-parallel rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optimizer/model/execution_config.h"
#include "optimizer/model/model_spec.h"

namespace geopipe {

// One parameter tensor under its Hugging Face name.
struct ParameterTensor {
  std::string name;            // "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  // [out, in] for products, [rows, hidden] for embedding and head, one axis for vectors
  int32_t split_axis = -1;     // axis divided over tensor-parallel ranks (Megatron, arXiv 1909.08053); -1: replicated
  int64_t max_parts = 0;       // keys and values: their heads; more tensor ranks than that share a part. 0: any number

  // True for norms and biases: fp32 whatever the precision, never divided over replicas, without weight decay.
  bool is_vector() const { return shape.size() == 1; }
  int64_t count() const;
  // Number of different parts that `tensor` ranks have of it; rank r has part r * parts / tensor.
  int64_t parts(int64_t tensor) const;
  int64_t count_per_rank(int64_t tensor) const { return count() / parts(tensor); }
  std::vector<int64_t> shape_per_rank(int64_t tensor) const;

  friend bool operator==(const ParameterTensor&, const ParameterTensor&) = default;
};

// The tensors that a stage with `range` holds, in model order. With tied embeddings a stage that has the head but not
// the embedding holds a copy of "model.embed_tokens.weight"; a stage with both holds it once.
std::vector<ParameterTensor> ParameterTensors(const ModelSpec& model, const LayerRange& range);

// Elements of the vectors of one layer, on one tensor rank: norms, and where the family has them biases.
int64_t LayerVectorElements(const ModelSpec& model, int64_t tensor);

// Elements of ParameterTensors(model, range), of the whole tensors and of one rank's shards.
int64_t ParameterCount(const ModelSpec& model, const LayerRange& range);
int64_t ParameterCountPerRank(const ModelSpec& model, const LayerRange& range, int64_t tensor);

// Distinct parameters of the whole model (a tied embedding counts once).
int64_t ParameterCount(const ModelSpec& model);

// Layers 0 .. num_hidden_layers - 1 over `stages` stages, as even as possible; when they don't divide, the middle
// stages take one more each (of 10 layers on 4 stages: 2, 3, 3, 2), and among equally central ones the later, because
// earlier stages hold more activations. REQUIRES: 1 <= stages <= num_hidden_layers.
std::vector<LayerRange> SplitLayers(const ModelSpec& model, int64_t stages);

// Arithmetic and traffic of one operation or a sum of them.
struct Work {
  int64_t flops = 0;  // of matrix products, a multiply-add counted as two; element-wise work counts by its bytes alone
  int64_t bytes = 0;  // every operation reads its operands from and writes its results to device memory
  // Parts of these: of the attention core, and the bytes of operations without products outside of it.
  int64_t attention_flops = 0;
  int64_t attention_bytes = 0;
  int64_t streamed_bytes = 0;

  // An operation on elements.
  static Work Streamed(int64_t bytes) { return {.flops = 0, .bytes = bytes, .streamed_bytes = bytes}; }

  Work& operator+=(const Work& other) {
    flops += other.flops;
    bytes += other.bytes;
    attention_flops += other.attention_flops;
    attention_bytes += other.attention_bytes;
    streamed_bytes += other.streamed_bytes;
    return *this;
  }
  friend bool operator==(const Work&, const Work&) = default;
};

// Work of one part of the model for one micro-batch; the fields are the actions F, I and W.
struct PartWork {
  Work forward;
  Work input_grad;  // with recomputation: also the part of the forward that is done again
  Work weight_grad;

  PartWork& operator+=(const PartWork& other) {
    forward += other.forward;
    input_grad += other.input_grad;
    weight_grad += other.weight_grad;
    return *this;
  }
  friend bool operator==(const PartWork&, const PartWork&) = default;
};

// One decoder layer, as runtime/model computes it. Products (q, k and v as one, o, gate and up as one, down), each
// FLOPs 2 * n * in * out / t for F, I and W alike. Dense attention is dense over s (the causal mask saves nothing):
// scores and context take 2 * n * s * q / t FLOPs each in F and twice that in I; they have no weights. Bytes per
// operation, with r = t with sequence parallelism and 1 without:
//   product  F: e(n*in + in*out + n*out)   I: the same   W: e(n*in + n*out) + 2g*in*out (accumulates)
//            o and down read in F also the residual, e*nh/r, and in*out r times (each rank's rows are a product)
//   RMSNorm  F: 2enh/r   I: 4enh/r + 2gh   (twice per layer; I makes the weight's gradient in the same pass, and adds
//   the
//                                           residual's gradient)
//   RoPE     F: 2e(nq + nk)/t   I: the same
//   norms of heads  F: 2e(nq + nk)/t   I: 3e(nq + nk)/t + 2g * 2 head sizes
//   bias     W: en*out/t + 2g*out/t (in F the product adds it)
//   SwiGLU   F: 3enf/t   I: 5enf/t
//   attention core, with p = n*s*a elements of probabilities:
//            F: e(4p + 2nq + 2nk)/t                      (scores, softmax, context)
//            I: e(7p + 4nq + 4nk)/t                      (dP, dV, softmax, dQ, dK)
// Blocked attention is causal, so half of each product is left: n * s * q / t FLOPs, two of them in F, five in I (the
// scores again, dP, dV, dQ, dK); and
//            F: (e(2nq + 2nk) + 4na)/t                   (q, k, v, context; a number for each row)
//            I: (e(4nq + 4nk) + 8na + 8nq)/t             (the same, their gradients, dQ in fp32)
// Recomputation adds to I: selective, the attention core's F (blocked: that of the norms and of SwiGLU); full, F but
// for the down projection.
PartWork BlockWork(const ModelSpec& model, const ExecutionConfig& config);

// Token embedding: a gather in F, a scatter-add in W; no products. The vocabulary is split over the ranks: each has 1/t
// of the rows on average, and writes zeros in place of the others.
//   F: enh/t + enh   W: (e + 2g)nh/t
PartWork EmbeddingWork(const ModelSpec& model, const ExecutionConfig& config);

// Final norm (I: 3enh/r + 2gh), LM head and cross-entropy. The product is that of [n, h] x [h, V/t], with fp32 logits;
// in bf16 its F goes kLossRows rows at a time and reads the weight each time. The loss reads the logits and leaves
// their gradient in F: (4 + e)nV/t, where tensor ranks divide the vocabulary (16 + e)nV/t, in three passes.
PartWork HeadWork(const ModelSpec& model, const ExecutionConfig& config);

}  // namespace geopipe
