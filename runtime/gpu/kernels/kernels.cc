#include "runtime/gpu/kernels/launchers.h"

namespace geopipe::gpu {

GpKernels Kernels() {
  return {.rms_norm = RmsNorm,
          .rms_norm_grad = RmsNormGrad,
          .rope = Rope,
          .causal_softmax = CausalSoftmax,
          .causal_softmax_grad = CausalSoftmaxGrad,
          .swiglu = SwiGlu,
          .swiglu_grad = SwiGluGrad,
          .cross_entropy = CrossEntropy,
          .cross_entropy_max = CrossEntropyMax,
          .cross_entropy_sums = CrossEntropySums,
          .cross_entropy_grad = CrossEntropyGrad,
          .embedding = Embedding,
          .embedding_grad = EmbeddingGrad,
          .axpy = Axpy,
          .convert = Convert,
          .sum_rows = SumRows,
          .sums_of_squares = SumsOfSquares,
          .adamw = AdamW};
}

}  // namespace geopipe::gpu
