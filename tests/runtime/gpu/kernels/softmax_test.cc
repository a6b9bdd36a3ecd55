#include "tests/runtime/gpu/kernels/gpu_kernel_test.h"

namespace geopipe {
namespace {

struct SoftmaxShape {
  int64_t samples;
  int64_t heads;
  int64_t sequence;
  bool has_starts = false;
  int64_t apart = 0;
  int64_t shift = 0;

  int64_t matrices() const { return samples * heads; }
  int64_t rows() const { return matrices() * sequence; }
  int64_t size() const { return rows() * sequence; }
};

SoftmaxShape AnySoftmax() {
  return GENERATE(SoftmaxShape{1, 1, 1}, SoftmaxShape{2, 3, 7, true}, SoftmaxShape{1, 2, 33, true, 1},
                  SoftmaxShape{2, 2, 64, false, 4}, SoftmaxShape{1, 1, 130, true, 3, 1}, SoftmaxShape{1, 1, 517});
}

// Operands of both kernels, and their results in fp64.
struct Softmax {
  SoftmaxShape shape;
  DType type;
  float scale = 0.37F;
  std::vector<int32_t> starts;
  std::vector<float> scores;
  std::vector<float> gradients;
  std::vector<float> statistics;
  std::vector<Expected> probabilities;
  std::vector<Expected> grad_scores;

  Softmax(KernelTest& test, const SoftmaxShape& shape, DType type)
      : shape(shape),
        type(type),
        scores(test.Normal(shape.size(), 4)),
        gradients(test.Normal(shape.size())),
        statistics(shape.rows()),
        probabilities(shape.size()),
        grad_scores(shape.size()) {
    for (int64_t i = 0; shape.has_starts && i < shape.samples * shape.sequence; ++i) {
      const int64_t position = i % shape.sequence;
      starts.push_back(position == 0 ? 0 : static_cast<int32_t>(test.Integer(0, 5) == 0 ? position : starts.back()));
    }
    for (int64_t row = 0; row < shape.rows(); ++row) {
      AddRow(row);
    }
  }

  void AddRow(int64_t row) {
    const int64_t position = row % shape.sequence;
    const int64_t sample = row / shape.sequence / shape.heads;
    const int64_t start = starts.empty() ? 0 : starts[sample * shape.sequence + position];
    const int64_t first = row * shape.sequence;
    const std::vector<double> of_row(scores.begin() + first, scores.begin() + first + shape.sequence);
    std::vector<Expected> grads(shape.sequence);
    for (int64_t j = 0; j < shape.sequence; ++j) {
      grads[j] += gradients[first + j];
    }
    const SoftmaxRow expected = SoftmaxRowOf(of_row, grads, start, position, scale);
    statistics[row] = static_cast<float>(expected.statistic);
    std::ranges::copy(expected.probabilities, probabilities.begin() + first);
    std::ranges::copy(expected.grad_scores, grad_scores.begin() + first);
  }

  Matrix MatrixOf(DType of, const std::vector<float>& values) const {
    return Matrix(of, shape.rows(), shape.sequence, values, shape.apart, shape.shift);
  }
  const int32_t* StartsOrNull() const { return starts.empty() ? nullptr : starts.data(); }

  void Forward(const Matrix& from, const Matrix& to, std::vector<float>& statistic) const {
    const GpCausalSoftmax args = {.dtype = GpTypeOf(to.view().dtype),
                                  .matrices = shape.matrices(),
                                  .heads = shape.heads,
                                  .sequence = shape.sequence,
                                  .starts = StartsOrNull(),
                                  .scale = scale,
                                  .scores = reinterpret_cast<const float*>(from.view().data),
                                  .scores_stride = from.view().stride,
                                  .probabilities = to.view().data,
                                  .probabilities_stride = to.view().stride,
                                  .statistics = statistic.data()};
    REQUIRE(gpu::CausalSoftmax(&args, nullptr) == 0);
  }

  void Backward(const Matrix& from, const Matrix& from_gradient, const Matrix& p, const Matrix& to) const {
    const GpCausalSoftmaxGrad args = {.dtype = GpTypeOf(to.view().dtype),
                                      .matrices = shape.matrices(),
                                      .heads = shape.heads,
                                      .sequence = shape.sequence,
                                      .starts = StartsOrNull(),
                                      .scale = scale,
                                      .scores = reinterpret_cast<const float*>(from.view().data),
                                      .scores_stride = from.view().stride,
                                      .statistics = statistics.data(),
                                      .grad_probabilities = reinterpret_cast<const float*>(from_gradient.view().data),
                                      .grad_probabilities_stride = from_gradient.view().stride,
                                      .probabilities = p.view().data,
                                      .probabilities_stride = p.view().stride,
                                      .grad_scores = to.view().data,
                                      .grad_scores_stride = to.view().stride};
    REQUIRE(gpu::CausalSoftmaxGrad(&args, nullptr) == 0);
  }
};

// NaN where no row may look.
std::vector<float> WithUnseenPoisoned(const Softmax& softmax, std::vector<float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = softmax.probabilities[i].terms == 0 ? NAN : values[i];
  }
  return values;
}

TEST_CASE("causal softmax on a GPU sees what a row sees, and is within its bound of fp64") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  const SoftmaxShape shape = AnySoftmax();
  const auto type = GENERATE(DType::kFp32, DType::kBf16);
  CAPTURE(shape.samples, shape.heads, shape.sequence, shape.has_starts, shape.apart, shape.shift);
  const Softmax softmax(test, shape, type);
  const Matrix scores = softmax.MatrixOf(DType::kFp32, WithUnseenPoisoned(softmax, softmax.scores));
  const Matrix p = softmax.MatrixOf(type, Poison(shape.size()));
  std::vector<float> statistics = Poison(shape.rows());
  softmax.Forward(scores, p, statistics);
  CHECK(OutsideBound(type, p.values(), softmax.probabilities) == "");
  CHECK(p.IntactBetweenRows());
  const std::vector<Expected> terms(statistics.size(), {.terms = 10});
  CHECK(OutsideBound(DType::kFp32, statistics, softmax.statistics, terms) == "");

  CheckSameInAllOrders([&] {
    const Matrix again = softmax.MatrixOf(type, Poison(shape.size()));
    softmax.Forward(scores, again, statistics);
    return Results().Add(again).Add(statistics);
  });
  if (type == DType::kFp32) {
    softmax.Forward(scores, scores, statistics);
    CHECK(scores.values() == p.values());
  }
}

TEST_CASE("causal softmax's gradient on a GPU is within its bound of fp64") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  const SoftmaxShape shape = AnySoftmax();
  const auto type = GENERATE(DType::kFp32, DType::kBf16);
  CAPTURE(shape.samples, shape.heads, shape.sequence, shape.has_starts, shape.apart, shape.shift);
  const Softmax softmax(test, shape, type);
  const Matrix scores = softmax.MatrixOf(DType::kFp32, WithUnseenPoisoned(softmax, softmax.scores));
  const Matrix gradients = softmax.MatrixOf(DType::kFp32, WithUnseenPoisoned(softmax, softmax.gradients));
  const Matrix p = softmax.MatrixOf(type, Poison(shape.size()));
  const Matrix grad_scores = softmax.MatrixOf(type, Poison(shape.size()));
  softmax.Backward(scores, gradients, p, grad_scores);
  CHECK(OutsideBound(type, p.values(), softmax.probabilities) == "");
  CHECK(OutsideBound(type, grad_scores.values(), softmax.grad_scores) == "");
  CHECK((p.IntactBetweenRows() && grad_scores.IntactBetweenRows()));

  CheckSameInAllOrders([&] {
    const Matrix p_again = softmax.MatrixOf(type, Poison(shape.size()));
    const Matrix again = softmax.MatrixOf(type, Poison(shape.size()));
    softmax.Backward(scores, gradients, p_again, again);
    return Results().Add(p_again).Add(again);
  });
  if (type == DType::kFp32) {
    softmax.Backward(scores, gradients, scores, gradients);
    CHECK((scores.values() == p.values() && gradients.values() == grad_scores.values()));
  }
}

}  // namespace
}  // namespace geopipe
