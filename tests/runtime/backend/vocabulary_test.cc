// The two ends of the model, whole and divided along the vocabulary.
#include <functional>
#include <limits>

#include "tests/runtime/backend/kernel_test.h"

namespace geopipe {
namespace {

TEST_CASE("cross-entropy is the sum over rows, and its gradient softmax minus one-hot, scaled") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  const int64_t rows = 7;
  const int64_t classes = GENERATE(1, 5, 16, 258);
  std::vector<float> logits = test.Normal(rows * classes, 5);
  std::vector<int32_t> targets(rows);
  for (int32_t& target : targets) {
    target = static_cast<int32_t>(test.Integer(0, classes - 1));
  }
  const double scale = 0.125;
  double expected_loss = 0;
  std::vector<double> expected_grad(logits.size());
  for (int64_t i = 0; i < rows; ++i) {
    double total = 0;
    for (int64_t j = 0; j < classes; ++j) {
      total += std::exp(static_cast<double>(logits[i * classes + j]));
    }
    expected_loss += std::log(total) - logits[i * classes + targets[i]];
    for (int64_t j = 0; j < classes; ++j) {
      const double softmax = std::exp(static_cast<double>(logits[i * classes + j])) / total;
      expected_grad[i * classes + j] = scale * (softmax - (j == targets[i] ? 1 : 0));
    }
  }
  const auto type = GENERATE(DType::kFp32, DType::kBf16);
  const bool in_place = GENERATE(false, true);
  if (in_place && type != DType::kFp32) {
    return;
  }
  const Matrix operand(DType::kFp32, rows, classes, logits, 2);
  const Matrix apart(type, rows, classes, {}, 3);
  const Matrix& gradient = in_place ? operand : apart;
  double loss = 1;  // is added to
  REQUIRE(test.backend().CrossEntropy(operand.view(), targets, scale, gradient.view(), {&loss, 1}).ok());
  CHECK(loss == Approx(1 + expected_loss).epsilon(1e-6).margin(1e-6));
  CHECK((classes == 1 || RelativeError(gradient.values(), expected_grad) < Tolerance(type, 2e-6)));
  CHECK(gradient.IntactBetweenRows());
}

TEST_CASE("cross-entropy without a gradient has the same loss, whole and in slices") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  Backend& backend = test.backend();
  constexpr int64_t kRows = 5;
  constexpr int64_t kClasses = 37;
  const std::vector<float> logits = test.Normal(kRows * kClasses, 2.0F);
  const std::vector<int32_t> targets{0, 36, 7, 7, 20};
  const auto loss_with = [&](bool wants_gradient) {
    const Matrix operand(DType::kFp32, kRows, kClasses, logits, 2);
    const Matrix gradient(DType::kBf16, kRows, kClasses);
    const MatrixView where = wants_gradient ? gradient.view() : MatrixView();
    double loss = 0.5;
    REQUIRE(backend.CrossEntropy(operand.view(), targets, 1, where, {&loss, 1}).ok());
    const Matrix slice(DType::kFp32, kRows, kClasses, logits, 2);
    std::vector<float> max(kRows);
    std::vector<float> sums(2 * kRows);
    double of_slice = 0.5;
    REQUIRE(backend.CrossEntropyMax(slice.view(), max).ok());
    REQUIRE(backend.CrossEntropySums(slice.view(), max, targets, 0, sums).ok());
    REQUIRE(backend.CrossEntropyGrad(slice.view(), max, sums, targets, 0, 1, where, {&of_slice, 1}).ok());
    CHECK(of_slice == loss);
    return loss;
  };
  CHECK(loss_with(false) == loss_with(true));
}

TEST_CASE("an embedding gathers rows, and its gradient adds repeated tokens in order") {
  KernelTest test;
  const auto type = GENERATE(DType::kFp32, DType::kBf16);
  const int64_t width = GENERATE(1, 63, 70);
  const std::vector<float> table = test.Normal(type, 5 * width);
  const std::vector<int32_t> tokens{3, 0, 3, 4};
  const Matrix table_matrix(type, 5, width, table, 1);
  const Matrix out(type, 4, width, {}, 2);
  REQUIRE(test.backend().Embedding(tokens, table_matrix.view(), 0, out.view()).ok());
  const std::vector<float> rows = out.values();
  for (size_t i = 0; i < tokens.size(); ++i) {
    CHECK(std::equal(rows.begin() + i * width, rows.begin() + (i + 1) * width, table.begin() + tokens[i] * width));
  }
  CHECK(out.IntactBetweenRows());
  const std::vector<float> grad_out = test.Normal(type, 4 * width);
  const Matrix grad_matrix(type, 4, width, grad_out, 3);
  std::vector<float> grad_table(5 * width, 0.5F);
  REQUIRE(test.backend().EmbeddingGrad(tokens, grad_matrix.view(), 0, View(grad_table, 5, width)).ok());
  for (int64_t j = 0; j < width; ++j) {
    CHECK(grad_table[3 * width + j] == (0.5F + grad_out[j]) + grad_out[2 * width + j]);
    CHECK(grad_table[0 * width + j] == 0.5F + grad_out[width + j]);
    CHECK(grad_table[1 * width + j] == 0.5F);
  }
}

// Beginnings of `slices` slices, whose sizes differ by one at most.
std::vector<int64_t> Slices(int64_t size, int64_t slices) {
  std::vector<int64_t> begins;
  for (int64_t i = 0; i <= slices; ++i) {
    begins.push_back(size * i / slices);
  }
  return begins;
}

TEST_CASE("cross-entropy of slices is that of the whole") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  Backend& backend = test.backend();
  const int64_t rows = 9;
  const int64_t classes = GENERATE(4, 21, 258);
  const int64_t slices = GENERATE(1, 2, 4);
  const float deviation = GENERATE(1.0F, 60.0F);  // 60: most slices have nothing but zeros after exp
  const double scale = 0.125;
  const std::vector<float> logits = test.Normal(rows * classes, deviation);
  std::vector<int32_t> targets(rows);
  for (int32_t& target : targets) {
    target = static_cast<int32_t>(test.Integer(0, classes - 1));
  }
  const Matrix whole(DType::kFp32, rows, classes, logits);
  double expected = 0;
  const auto type = GENERATE(DType::kFp32, DType::kBf16);
  const Matrix whole_grad(type, rows, classes);
  REQUIRE(backend.CrossEntropy(whole.view(), targets, scale, whole_grad.view(), {&expected, 1}).ok());
  const std::vector<float> grad = whole_grad.values();

  const Matrix divided(DType::kFp32, rows, classes, logits, 3);
  const Matrix divided_grad(type, rows, classes, {}, 2);
  const std::vector<int64_t> begins = Slices(classes, slices);
  const auto slice = [&](int64_t i, const Matrix& matrix) {
    return ColumnsOf(matrix.view(), begins[i], begins[i + 1] - begins[i]);
  };
  std::vector<float> max(rows, -std::numeric_limits<float>::infinity());
  std::vector<float> sums(2 * rows);
  for (int64_t i = 0; i < slices; ++i) {
    std::vector<float> of_slice(rows);
    REQUIRE(backend.CrossEntropyMax(slice(i, divided), of_slice).ok());
    std::ranges::transform(max, of_slice, max.begin(), [](float a, float b) { return std::max(a, b); });
  }
  for (int64_t i = 0; i < slices; ++i) {
    std::vector<float> of_slice(2 * rows);
    REQUIRE(backend.CrossEntropySums(slice(i, divided), max, targets, begins[i], of_slice).ok());
    std::ranges::transform(sums, of_slice, sums.begin(), std::plus<>());
  }
  for (int64_t i = 0; i < slices; ++i) {
    double loss = 0;
    REQUIRE(backend
                .CrossEntropyGrad(slice(i, divided), max, sums, targets, begins[i], scale, slice(i, divided_grad),
                                  {&loss, 1})
                .ok());
    CHECK(loss == Approx(expected).epsilon(1e-6).margin(1e-6));
    CHECK((slices > 1 || loss == expected));
  }
  CHECK(RelativeError(divided_grad.values(), std::vector<double>(grad.begin(), grad.end())) < Tolerance(type, 1e-6));
  CHECK((slices > 1 || divided_grad.values() == grad));
  CHECK((divided.IntactBetweenRows() && divided_grad.IntactBetweenRows()));
}

TEST_CASE("embeddings of slices add up to that of the whole, and gradients are its rows, bit by bit") {
  KernelTest test;
  Backend& backend = test.backend();
  const auto type = GENERATE(DType::kFp32, DType::kBf16);
  const int64_t slices = GENERATE(1, 2, 4);
  const int64_t width = GENERATE(7, 64);
  const int64_t vocabulary = 13;
  const int64_t count = 40;
  const std::vector<float> table = test.Normal(type, vocabulary * width);
  const std::vector<float> grad_out = test.Normal(type, count * width);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(test.Integer(0, vocabulary - 1));
  }
  const Matrix table_matrix(type, vocabulary, width, table);
  const Matrix grad_matrix(type, count, width, grad_out);
  const Matrix whole(type, count, width);
  std::vector<float> whole_grad(vocabulary * width, 0.5F);
  REQUIRE(backend.Embedding(tokens, table_matrix.view(), 0, whole.view()).ok());
  REQUIRE(backend.EmbeddingGrad(tokens, grad_matrix.view(), 0, View(whole_grad, vocabulary, width)).ok());

  const std::vector<int64_t> begins = Slices(vocabulary, slices);
  const auto slice = [&](MatrixView view, int64_t i) {
    view.data += begins[i] * view.stride * ByteSize(view.dtype);
    view.rows = begins[i + 1] - begins[i];
    return view;
  };
  std::vector<float> sum(count * width);
  std::vector<float> grad(vocabulary * width, 0.5F);
  for (int64_t i = 0; i < slices; ++i) {
    const Matrix out(type, count, width, std::vector<float>(count * width, NAN), 2);
    REQUIRE(backend.Embedding(tokens, slice(table_matrix.view(), i), begins[i], out.view()).ok());
    std::ranges::transform(sum, out.values(), sum.begin(), std::plus<>());
    CHECK(out.IntactBetweenRows());
    REQUIRE(backend.EmbeddingGrad(tokens, grad_matrix.view(), begins[i], slice(View(grad, vocabulary, width), i)).ok());
  }
  CHECK(sum == whole.values());
  CHECK(grad == whole_grad);
}

}  // namespace
}  // namespace geopipe
