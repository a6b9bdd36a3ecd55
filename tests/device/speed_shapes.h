// Shapes that the speed phase measures, and the work that they are. No device is needed here: the numbers are those of
// the planner's model (optimizer/model/transformer.h).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/model_spec.h"
#include "optimizer/model/transformer.h"
#include "runtime/backend/backend.h"

namespace geopipe {

// Actions of a stage.
enum class Pass : uint8_t { kForward, kInputGrad, kWeightGrad };
inline constexpr std::array kPasses = {Pass::kForward, Pass::kInputGrad, Pass::kWeightGrad};
// "F", "I", "W".
std::string_view PassName(Pass pass);

// A model in bf16 whose micro-batches are one sample, on one rank.
struct SpeedShape {
  std::string name;  // "7B"
  ModelSpec model;
  int64_t tokens = 0;  // of a sample

  ExecutionConfig execution() const;
  int64_t qkv_width() const { return model.query_width() + 2 * model.key_value_width(); }
  AttentionShape attention() const;
};

// 7B, 13B and 70B of 4,096 tokens; `small`: as many that an emulated GPU computes in a second.
std::vector<SpeedShape> SpeedShapes(bool small);

// A pass of one layer, as the planner counts it.
Work LayerWork(const SpeedShape& shape, Pass pass);
// FLOPs that the model asks for: without the scores that I makes again, which the planner counts.
int64_t LayerModelFlops(const SpeedShape& shape, Pass pass);
// The same of a micro-batch of a model with `layers` layers and both ends.
int64_t MicroBatchModelFlops(const SpeedShape& shape, int64_t layers);

// A product of bf16 matrices: C [m, n], sums over k.
struct ProductShape {
  std::string name;  // "qkv F"
  Pass pass = Pass::kForward;
  Product product = Product::kNT;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  DType result = DType::kBf16;
  // kElsewhere: a matrix like C is added; kItself: C is.
  enum class Adds : uint8_t { kNothing, kElsewhere, kItself } adds = Adds::kNothing;

  int64_t flops() const { return 2 * m * n * k; }
  // Every matrix is read or written once.
  int64_t bytes() const;
};

// The twelve products of a layer: qkv, o, gate and up, down.
std::vector<ProductShape> LayerProducts(const SpeedShape& shape);
// The three of the head, of which F is done kLossRows rows at a time.
std::vector<ProductShape> HeadProducts(const SpeedShape& shape);

// Bytes that a call of a kernel has to move, by its field in GpKernels.
struct KernelBytes {
  int64_t rms_norm = 0;
  int64_t rms_norm_grad = 0;  // with a residual
  int64_t rope = 0;
  int64_t causal_softmax = 0;  // of the matrices that attention works on at a time
  int64_t causal_softmax_grad = 0;
  int64_t swiglu = 0;
  int64_t swiglu_grad = 0;
  int64_t cross_entropy = 0;  // of kLossRows rows, as the three of a slice
  int64_t cross_entropy_max = 0;
  int64_t cross_entropy_sums = 0;
  int64_t cross_entropy_grad = 0;
  int64_t embedding = 0;
  int64_t embedding_grad = 0;
  int64_t axpy = 0;             // of the embedding's gradient
  int64_t convert = 0;          // fp32 to bf16, of the residual stream
  int64_t sum_rows = 0;         // of the gradients of queries, keys and values
  int64_t sums_of_squares = 0;  // of a layer's gradients
  int64_t adamw = 0;            // of a layer
};
KernelBytes BytesOfKernels(const SpeedShape& shape);

// Matrices of scores that attention works on at a time, and rows of a loss.
int64_t SoftmaxMatrices(const SpeedShape& shape);
int64_t LossRows(const SpeedShape& shape);
// Parameters of a layer, and what the host fills for each: fp32 weight and moments.
inline constexpr int64_t kFilledBytesOfParameter = 3 * kFp32Bytes;
int64_t LayerParameters(const SpeedShape& shape);

}  // namespace geopipe
