// The kernels of the port (gpu_port.h): a struct of arguments for each, and the table of their launchers. Plain C.
//
// Rules for all launchers:
// - They enqueue on a stream of the current device and return 0, or a CUDA error's number (`launch_result` of the port
//   makes a sentence of it). The struct is read before they return. They may be called on any thread.
// - Pointers name device memory that stays until the work is done; others are said to be of the host. A pointer is
//   aligned to its element. Where rows begin at multiples of 16 bytes, kernels are fastest.
// - Matrices are row-major. `x_stride` is the distance between x's rows, in elements, and at least its columns. What
//   lies between rows is neither read nor written. Extents may be 0.
// - `dtype` is kGpFp32 or kGpBf16, of all matrices that no other field or C type describes. Kernels compute in fp32
//   unless they say otherwise, and round a result once, to the nearest, ties to even.
// - A result shares memory with an operand only where that is said.
// - Results are a function of the shape and the values. Sums have a fixed order; neither alignment, strides, the device
//   nor its number of SMs change bits. Multiplications and additions are not fused.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t GpDType;
enum {
  kGpFp32 = 0,
  kGpBf16 = 1,
  kGpInt32 = 2,
  kGpFp64 = 3,
};

// y = x * r * weight, r = 1 / sqrt(mean(x^2) + eps) of each group of `width` columns (arXiv 1910.07467).
typedef struct GpRmsNorm {
  GpDType dtype;  // of x and y
  int64_t rows;
  int64_t groups;  // of a row
  int64_t width;   // columns of a group
  const void* x;   // [rows, groups * width]
  int64_t x_stride;
  const float* weight;  // [width]
  float eps;
  void* y;  // [rows, groups * width]; may be x
  int64_t y_stride;
  float* inverse_rms;  // [rows, groups]: r
} GpRmsNorm;

// grad_x = residual + r * weight * grad_y - x * r^3 / width * sum(weight * grad_y * x), and grad_weight += sum over
// rows and groups of grad_y * x * r, with the r of the forward pass.
typedef struct GpRmsNormGrad {
  GpDType dtype;  // of x, grad_y, residual and grad_x
  int64_t rows;
  int64_t groups;
  int64_t width;
  const void* x;  // [rows, groups * width]
  int64_t x_stride;
  const float* weight;       // [width]
  const float* inverse_rms;  // [rows, groups]
  const void* grad_y;        // [rows, groups * width]
  int64_t grad_y_stride;
  const void* residual;  // [rows, groups * width], or NULL: zero
  int64_t residual_stride;
  void* grad_x;  // [rows, groups * width]; may be x, grad_y or residual
  int64_t grad_x_stride;
  float* grad_weight;  // [width]
  float* workspace;    // GpRmsNormGradWorkspaceBytes
} GpRmsNormGrad;

// Lines (groups of all rows) are divided into at most so many parts, whose sums are added in a fixed order.
enum { kGpRmsNormGradParts = 256 };
static inline int64_t GpRmsNormGradWorkspaceBytes(int64_t rows, int64_t groups, int64_t width) {
  const int64_t lines = rows * groups;
  const int64_t parts = kGpRmsNormGradParts;
  return (lines < parts ? lines : parts) * width * (int64_t)sizeof(float);
}

// Rotates the pairs (j, j + head_dim / 2) of each head of x in place (arXiv 2104.09864, Hugging Face's layout). Row i
// stands at position i mod sequence.
typedef struct GpRope {
  GpDType dtype;
  int64_t rows;  // a multiple of sequence
  int64_t sequence;
  int64_t heads;
  int64_t head_dim;  // even
  void* x;           // [rows, heads * head_dim]
  int64_t x_stride;
  const float* cosine;  // [sequence, head_dim / 2]
  const float* sine;    // [sequence, head_dim / 2]
  int32_t backward;     // 1: rotates back, which is the gradient
} GpRope;

// Causal softmax of rows of scores: row i of a matrix sees the columns from its start to i alone. probabilities =
// exp(scale * score - statistic), zero in columns that the row does not see, with statistic = log(sum of exp(scale *
// score)).
typedef struct GpCausalSoftmax {
  GpDType dtype;          // of the probabilities
  int64_t matrices;       // one for each head of a sample
  int64_t heads;          // matrices of a sample; divides `matrices`
  int64_t sequence;       // rows and columns of a matrix
  const int32_t* starts;  // [matrices / heads, sequence], 0 <= starts[i] <= i; NULL: zeros
  float scale;            // positive
  const float* scores;    // [matrices, sequence, sequence]; columns that no row sees may hold anything
  int64_t scores_stride;  // between rows; matrices lie sequence rows apart
  void* probabilities;    // [matrices, sequence, sequence]; may be scores, if fp32 and of the same stride
  int64_t probabilities_stride;
  float* statistics;  // [matrices, sequence]
} GpCausalSoftmax;

// The gradient of the scores from that of the probabilities: scale * p * (grad - sum(p * grad)), zero where the row
// does not see the column; and the probabilities p again.
typedef struct GpCausalSoftmaxGrad {
  GpDType dtype;  // of the probabilities and the gradient of the scores
  int64_t matrices;
  int64_t heads;
  int64_t sequence;
  const int32_t* starts;  // as of the forward pass
  float scale;
  const float* scores;  // [matrices, sequence, sequence], as of the forward pass
  int64_t scores_stride;
  const float* statistics;          // [matrices, sequence], of the forward pass
  const float* grad_probabilities;  // [matrices, sequence, sequence]
  int64_t grad_probabilities_stride;
  void* probabilities;  // [matrices, sequence, sequence]; may be scores, if fp32 and of the same stride
  int64_t probabilities_stride;
  void* grad_scores;  // [matrices, sequence, sequence]; may be grad_probabilities, if fp32 and of the same stride
  int64_t grad_scores_stride;
} GpCausalSoftmaxGrad;

// out = silu(gate) * up (arXiv 2002.05202).
typedef struct GpSwiGlu {
  GpDType dtype;
  int64_t rows;
  int64_t columns;
  const void* gate;  // [rows, columns], as up and out
  int64_t gate_stride;
  const void* up;
  int64_t up_stride;
  void* out;  // may be gate or up
  int64_t out_stride;
} GpSwiGlu;

typedef struct GpSwiGluGrad {
  GpDType dtype;
  int64_t rows;
  int64_t columns;
  const void* gate;  // [rows, columns], as all others
  int64_t gate_stride;
  const void* up;
  int64_t up_stride;
  const void* grad_out;
  int64_t grad_out_stride;
  void* grad_gate;  // may be gate
  int64_t grad_gate_stride;
  void* grad_up;  // may be up
  int64_t grad_up_stride;
} GpSwiGluGrad;

// Softmax cross-entropy: adds the sum over rows of -log softmax(logits)[target] to `loss`, row after row in fp64, and
// sets `gradient` to grad_scale times the sum's gradient.
typedef struct GpCrossEntropy {
  GpDType gradient_type;
  int64_t rows;
  int64_t classes;
  float* logits;  // [rows, classes], undefined afterwards
  int64_t logits_stride;
  const int32_t* targets;  // [rows], 0 <= target < classes
  float grad_scale;
  void* gradient;  // [rows, classes]; may be logits, where each row then begins at the same byte; NULL: none is wanted
  int64_t gradient_stride;
  double* loss;       // [1]
  double* workspace;  // [rows]
} GpCrossEntropy;

// The same of a slice of the classes that begins at first_class, in three parts (arXiv 1909.08053) between which the
// slices' results are reduced. With one slice, loss and gradient have GpCrossEntropy's bits.
// 1. max = the row's greatest logit. Then: the maximum over the slices.
typedef struct GpCrossEntropyMax {
  int64_t rows;
  int64_t classes;
  const float* logits;  // [rows, classes]
  int64_t logits_stride;
  float* max;  // [rows]
} GpCrossEntropyMax;

// 2. logits become exp(logit - max); sums = their sum and the target's logit, which is 0 where the target is in another
// slice. Then: the sums over the slices.
typedef struct GpCrossEntropySums {
  int64_t rows;
  int64_t classes;
  float* logits;  // [rows, classes]
  int64_t logits_stride;
  const float* max;        // [rows]
  const int32_t* targets;  // [rows]
  int64_t first_class;
  float* sums;  // [2, rows]
} GpCrossEntropySums;

// 3. The loss, on every slice, and the slice's gradient.
typedef struct GpCrossEntropyGrad {
  GpDType gradient_type;
  int64_t rows;
  int64_t classes;
  const float* exponentials;  // [rows, classes]
  int64_t exponentials_stride;
  const float* max;        // [rows]
  const float* sums;       // [2, rows]
  const int32_t* targets;  // [rows]
  int64_t first_class;
  float grad_scale;
  void* gradient;  // [rows, classes]; may be exponentials, as above; NULL: none is wanted
  int64_t gradient_stride;
  double* loss;       // [1]
  double* workspace;  // [rows]
} GpCrossEntropyGrad;

// out[i] = table[tokens[i] - first_row], or zero where the table has no such row.
typedef struct GpEmbedding {
  GpDType dtype;
  int64_t rows;           // tokens
  const int32_t* tokens;  // [rows]
  int64_t columns;
  const void* table;  // [table_rows, columns]: rows from first_row on of the vocabulary's
  int64_t table_rows;
  int64_t table_stride;
  int64_t first_row;
  void* out;  // [rows, columns]
  int64_t out_stride;
} GpEmbedding;

// grad_table[tokens[i] - first_row] += grad_out[i], in order of i, of the tokens that have such a row.
typedef struct GpEmbeddingGrad {
  GpDType dtype;          // of grad_out
  int64_t rows;           // tokens
  const int32_t* tokens;  // [rows]
  int64_t columns;
  const void* grad_out;  // [rows, columns]
  int64_t grad_out_stride;
  float* grad_table;  // [table_rows, columns]
  int64_t table_rows;
  int64_t grad_table_stride;
  int64_t first_row;
} GpEmbeddingGrad;

// y += alpha * x.
typedef struct GpAxpy {
  int64_t size;
  float alpha;
  const float* x;  // [size]
  float* y;        // [size]
} GpAxpy;

// to = from, each fp32 or bf16.
typedef struct GpConvert {
  GpDType from_type;
  GpDType to_type;
  int64_t rows;
  int64_t columns;
  const void* from;  // [rows, columns]
  int64_t from_stride;
  void* to;  // [rows, columns]
  int64_t to_stride;
} GpConvert;

// sum += values' rows, one after the other in fp32.
typedef struct GpSumRows {
  GpDType dtype;  // of the values
  int64_t rows;
  int64_t columns;
  const void* values;  // [rows, columns]
  int64_t values_stride;
  float* sum;  // [columns]
} GpSumRows;

// The elements [begin, end) of a vector.
typedef struct GpRun {
  int64_t begin;
  int64_t end;
} GpRun;

// sums[i] = sum of value^2 over run i, in fp64; 0 of an empty one.
typedef struct GpSumsOfSquares {
  GpDType dtype;       // of the values
  const void* values;  // a vector that holds all runs
  int64_t run_count;
  const GpRun* runs;  // [run_count], of the host, begin <= end
  double* sums;       // [run_count]
  double* workspace;  // GpSumsOfSquaresWorkspaceBytes
} GpSumsOfSquares;

// A run is added up in chunks, and then these.
enum { kGpSquaresChunk = 65536 };
static inline int64_t GpSumsOfSquaresChunks(GpRun run) {
  return (run.end - run.begin + kGpSquaresChunk - 1) / kGpSquaresChunk;
}
static inline int64_t GpSumsOfSquaresWorkspaceBytes(const GpRun* runs, int64_t run_count) {
  int64_t chunks = 0;
  for (int64_t i = 0; i < run_count; ++i) {
    chunks += GpSumsOfSquaresChunks(runs[i]);
  }
  return chunks * (int64_t)sizeof(double);
}

// One AdamW update (arXiv 1711.05101), every operation rounded by itself, in this order:
//   g = grad_scale * gradient;  m = beta1 * m + one_minus_beta1 * g;  v = beta2 * v + one_minus_beta2 * (g * g);
//   p = decay * p - step_size * (m / (sqrt(v) / sqrt_bias_correction2 + eps))
// Coefficients are made in fp64 and rounded once; step counts from 1.
typedef struct GpAdamW {
  int64_t size;
  float grad_scale;
  float decay;  // 1 - learning rate * weight decay
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float sqrt_bias_correction2;  // sqrt(1 - beta2^step)
  float eps;
  float step_size;        // learning rate / (1 - beta1^step)
  const float* gradient;  // [size], as all others
  float* parameter;       // p
  float* first_moment;    // m
  float* second_moment;   // v
  void* compute_weight;   // of bf16: becomes p, rounded; NULL: none is wanted
} GpAdamW;

typedef struct GpKernels {
  int32_t (*rms_norm)(const GpRmsNorm* args, void* stream);
  int32_t (*rms_norm_grad)(const GpRmsNormGrad* args, void* stream);
  int32_t (*rope)(const GpRope* args, void* stream);
  int32_t (*causal_softmax)(const GpCausalSoftmax* args, void* stream);
  int32_t (*causal_softmax_grad)(const GpCausalSoftmaxGrad* args, void* stream);
  int32_t (*swiglu)(const GpSwiGlu* args, void* stream);
  int32_t (*swiglu_grad)(const GpSwiGluGrad* args, void* stream);
  int32_t (*cross_entropy)(const GpCrossEntropy* args, void* stream);
  int32_t (*cross_entropy_max)(const GpCrossEntropyMax* args, void* stream);
  int32_t (*cross_entropy_sums)(const GpCrossEntropySums* args, void* stream);
  int32_t (*cross_entropy_grad)(const GpCrossEntropyGrad* args, void* stream);
  int32_t (*embedding)(const GpEmbedding* args, void* stream);
  int32_t (*embedding_grad)(const GpEmbeddingGrad* args, void* stream);
  int32_t (*axpy)(const GpAxpy* args, void* stream);
  int32_t (*convert)(const GpConvert* args, void* stream);
  int32_t (*sum_rows)(const GpSumRows* args, void* stream);
  int32_t (*sums_of_squares)(const GpSumsOfSquares* args, void* stream);
  int32_t (*adamw)(const GpAdamW* args, void* stream);
} GpKernels;

#ifdef __cplusplus
}  // extern "C"
#endif
