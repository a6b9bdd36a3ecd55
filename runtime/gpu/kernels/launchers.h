// The launchers of the kernels: gpu_kernels.h says what each does.
#pragma once

#include "runtime/gpu/port/gpu_kernels.h"

namespace geopipe::gpu {

int32_t RmsNorm(const GpRmsNorm* args, void* stream);
int32_t RmsNormGrad(const GpRmsNormGrad* args, void* stream);
int32_t Rope(const GpRope* args, void* stream);
int32_t CausalSoftmax(const GpCausalSoftmax* args, void* stream);
int32_t CausalSoftmaxGrad(const GpCausalSoftmaxGrad* args, void* stream);
int32_t SwiGlu(const GpSwiGlu* args, void* stream);
int32_t SwiGluGrad(const GpSwiGluGrad* args, void* stream);
int32_t CrossEntropy(const GpCrossEntropy* args, void* stream);
int32_t CrossEntropyMax(const GpCrossEntropyMax* args, void* stream);
int32_t CrossEntropySums(const GpCrossEntropySums* args, void* stream);
int32_t CrossEntropyGrad(const GpCrossEntropyGrad* args, void* stream);
int32_t Embedding(const GpEmbedding* args, void* stream);
int32_t EmbeddingGrad(const GpEmbeddingGrad* args, void* stream);
int32_t Axpy(const GpAxpy* args, void* stream);
int32_t Convert(const GpConvert* args, void* stream);
int32_t SumRows(const GpSumRows* args, void* stream);
int32_t SumsOfSquares(const GpSumsOfSquares* args, void* stream);
int32_t AdamW(const GpAdamW* args, void* stream);

inline constexpr GpKernels kKernels = {.rms_norm = RmsNorm,
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

}  // namespace geopipe::gpu
