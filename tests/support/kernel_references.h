// Results of the kernels of runtime/backend/backend.h in fp64, by the row, and how far from them others may be.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/backend/backend.h"

namespace geopipe {

// An element of a result, and the sum of the absolute values of what was added up for it.
struct Expected {
  double value = 0;
  double terms = 0;

  Expected& operator+=(double term) {
    value += term;
    terms += std::abs(term);
    return *this;
  }
  // Adds a sum that was multiplied by `factor`.
  Expected& Add(const Expected& sum, double factor) {
    value += factor * sum.value;
    terms += std::abs(factor) * sum.terms;
    return *this;
  }
};

// Error that a result of a type may have: a part of its terms, which explains the order of a sum and one rounding of
// each. Where the sum alone is rounded, that is a part of its value; attention rounds its terms and then the sum.
inline double AllowedError(DType dtype, const Expected& expected) {
  return (dtype == DType::kBf16 ? 0x1p-8 : 1e-5) * expected.terms + 1e-5;
}
inline double AllowedErrorOfRoundedSum(DType dtype, const Expected& expected) {
  const double of_rounding = dtype == DType::kBf16 ? 0x1p-8 * std::abs(expected.value) : 0;
  return of_rounding + AllowedError(DType::kFp32, expected);
}
inline double AllowedErrorOfAttention(DType dtype, const Expected& expected) {
  return AllowedErrorOfRoundedSum(dtype, expected) + AllowedError(dtype, expected);
}

// The error that is the greatest part of what is allowed.
struct WorstError {
  double error = 0;
  double allowed = 1;

  // NaN is beyond every bound.
  void Note(double actual, double expected, double allowed_here);
  void Note(const WorstError& other) { *this = other.share() > share() ? other : *this; }
  double share() const { return error / allowed; }
};

using Floats = std::span<const float>;

// sum over i of a[i * a_stride] * b[i * b_stride].
Expected DotOf(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t count);

// A line of RMSNorm, which has a weight for each column; lines add up to the gradient of the weight.
struct NormLine {
  double inverse_rms = 0;
  std::vector<Expected> y;
  std::vector<Expected> grad_x;  // without a residual
  std::vector<Expected> grad_weight;
};
NormLine NormLineOf(Floats x, Floats weight, Floats grad_y, double eps);

// A row of the cross-entropy.
struct LossRow {
  double loss = 0;
  std::vector<Expected> gradient;
};
LossRow LossRowOf(Floats logits, int32_t target, double grad_scale);

// A row of a causal softmax, which sees the columns from `start` to `position`; all others are 0.
struct SoftmaxRow {
  double statistic = 0;                 // log(sum of exp(scale * score))
  Expected mean;                        // of the probabilities' gradients
  std::vector<Expected> probabilities;  // of each column
  std::vector<Expected> grad_scores;
};
SoftmaxRow SoftmaxRowOf(std::span<const double> scores, std::span<const Expected> grad_probabilities, int64_t start,
                        int64_t position, double scale);

Expected SwiGluOf(float gate, float up);
struct SwiGluGrads {
  Expected gate;
  Expected up;
};
SwiGluGrads SwiGluGradsOf(float gate, float up, float grad_out);

// Element j of a head that is turned; `cosine` and `sine` [head / 2] are those of its position.
Expected RopeOf(Floats head, int64_t j, Floats cosine, Floats sine, RopeDirection direction);

// A parameter after a step, whose views are not read.
Expected AdamWOf(const AdamWStep& step, float parameter, float gradient, float first_moment, float second_moment);

// Attention, by the query or by the key. Operands are dense in the host's memory, as are `shape`'s starts.
class ReferenceAttention {
 public:
  ReferenceAttention(const AttentionShape& shape, Floats query, Floats key, Floats value, Floats grad_out);

  // Results of a query of a head.
  struct Query {
    std::vector<Expected> out;  // [head_dim], as all others
    std::vector<Expected> grad_query;
  };
  Query QueryOf(int64_t sample, int64_t head, int64_t position) const;
  // Results of a key and a value of a kv head, added up over the queries that see them.
  struct Key {
    std::vector<Expected> grad_key;
    std::vector<Expected> grad_value;
  };
  Key KeyOf(int64_t sample, int64_t kv_head, int64_t position) const;

 private:
  struct Line {  // of scores
    double statistic = 0;
    Expected mean;
  };
  int64_t StartOf(int64_t sample, int64_t position) const;
  const float* At(Floats matrix, int64_t heads, int64_t sample, int64_t position, int64_t head) const;
  SoftmaxRow RowOf(int64_t sample, int64_t head, int64_t position) const;

  AttentionShape shape_;
  double scale_;
  Floats query_;
  Floats key_;
  Floats value_;
  Floats grad_out_;
  std::vector<Line> lines_;  // [batch, heads, sequence]
};

}  // namespace geopipe
