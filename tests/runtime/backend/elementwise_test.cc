#include <array>
#include <numeric>

#include "tests/runtime/backend/kernel_test.h"

namespace geopipe {
namespace {

TEST_CASE("SwiGLU and its gradients agree with fp64 loops, in place too") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  const int64_t rows = 3;
  const int64_t columns = GENERATE(1, 8, 21, 64);
  std::vector<float> gate = test.Normal(rows * columns, 4);
  std::vector<float> up = test.Normal(rows * columns);
  std::vector<float> grad_out = test.Normal(rows * columns);
  std::vector<float> out(gate.size());
  std::vector<float> grad_gate(gate.size());
  std::vector<float> grad_up(gate.size());
  const auto view = [&](std::vector<float>& values) { return View(values, rows, columns); };
  REQUIRE(test.backend().SwiGlu(view(gate), view(up), view(out)).ok());
  REQUIRE(test.backend().SwiGluGrad(view(gate), view(up), view(grad_out), view(grad_gate), view(grad_up)).ok());
  std::vector<double> expected_out(gate.size());
  std::vector<double> expected_gate(gate.size());
  std::vector<double> expected_up(gate.size());
  for (size_t i = 0; i < gate.size(); ++i) {
    const double g = gate[i];
    const double sigmoid = 1 / (1 + std::exp(-g));
    expected_out[i] = g * sigmoid * up[i];
    expected_up[i] = grad_out[i] * g * sigmoid;
    expected_gate[i] = static_cast<double>(grad_out[i]) * up[i] * sigmoid * (1 + g * (1 - sigmoid));
  }
  CHECK(RelativeError(out, expected_out) < 1e-6);
  CHECK(RelativeError(grad_gate, expected_gate) < 1e-6);
  CHECK(RelativeError(grad_up, expected_up) < 1e-6);
  REQUIRE(test.backend().SwiGluGrad(view(gate), view(up), view(grad_out), view(gate), view(up)).ok());
  CHECK(gate == grad_gate);
  CHECK(up == grad_up);
}

TEST_CASE("SwiGLU of extreme gates stays finite") {
  KernelTest test;
  std::vector<float> gate{-1e30F, -200, -89, 0, 89, 200, 1e30F, -0.0F};
  std::vector<float> up(8, 1.0F);
  std::vector<float> out(8);
  REQUIRE(test.backend().SwiGlu(View(gate, 1, 8), View(up, 1, 8), View(out, 1, 8)).ok());
  CHECK(std::abs(out[0]) < 1e-6F);
  CHECK(std::abs(out[1]) < 1e-6F);
  CHECK(out[3] == 0.0F);
  CHECK(out[5] == 200.0F);
  CHECK(out[6] == 1e30F);
}

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
  const MatrixView view = View(logits, rows, classes);
  double loss = 0;
  REQUIRE(test.backend().CrossEntropy(view, targets, {&loss, 1}).ok());
  CHECK(loss == Approx(expected_loss).epsilon(1e-6).margin(1e-6));
  REQUIRE(test.backend().CrossEntropyGrad(view, targets, scale).ok());
  CHECK((classes == 1 || RelativeError(logits, expected_grad) < 2e-6));
}

TEST_CASE("an embedding gathers rows, and its gradient adds repeated tokens in order") {
  KernelTest test;
  const int64_t width = 70;
  std::vector<float> table = test.Normal(5 * width);
  const std::vector<int32_t> tokens{3, 0, 3, 4};
  std::vector<float> out(4 * width);
  REQUIRE(test.backend().Embedding(tokens, View(table, 5, width), View(out, 4, width)).ok());
  for (size_t i = 0; i < tokens.size(); ++i) {
    CHECK(std::equal(out.begin() + i * width, out.begin() + (i + 1) * width, table.begin() + tokens[i] * width));
  }
  std::vector<float> grad_out = test.Normal(4 * width);
  std::vector<float> grad_table(5 * width, 0.5F);
  REQUIRE(test.backend().EmbeddingGrad(tokens, View(grad_out, 4, width), View(grad_table, 5, width)).ok());
  for (int64_t j = 0; j < width; ++j) {
    CHECK(grad_table[3 * width + j] == (0.5F + grad_out[j]) + grad_out[2 * width + j]);
    CHECK(grad_table[0 * width + j] == 0.5F + grad_out[width + j]);
    CHECK(grad_table[1 * width + j] == 0.5F);
  }
}

TEST_CASE("axpy, sums of squares and zero") {
  KernelTest test;
  const int64_t count = GENERATE(1, 7, 4096, 10'000);
  std::vector<float> x = test.Normal(count);
  std::vector<float> y = test.Normal(count);
  std::vector<double> expected(count);
  double squares = 0;
  for (int64_t i = 0; i < count; ++i) {
    expected[i] = y[i] + 0.75 * x[i];
    squares += static_cast<double>(x[i]) * x[i];
  }
  REQUIRE(test.backend().Axpy(0.75, x, y).ok());
  CHECK(RelativeError(y, expected) < 1e-6);
  double sum = 0;
  REQUIRE(test.backend().SumOfSquares(x, {&sum, 1}).ok());
  CHECK(sum == Approx(squares).epsilon(1e-13));
  REQUIRE(test.backend().Zero(y).ok());
  CHECK(y == std::vector<float>(count, 0.0F));
}

// Debian's libgomp is not instrumented: ThreadSanitizer sees neither its fork nor its join.
#ifndef __SANITIZE_THREAD__
TEST_CASE("results do not depend on the number of threads") {
  KernelTest test;
  Allocator allocator(int64_t{1} << 28);
  const auto two = CpuBackend::Create(2, allocator);
  REQUIRE(two.ok());
  std::vector<float> x = test.Normal(50'000);
  std::array<double, 2> sums{};
  REQUIRE((*two)->SumOfSquares(x, {&sums[0], 1}).ok());
  REQUIRE(test.backend().SumOfSquares(x, {&sums[1], 1}).ok());
  CHECK(sums[0] == sums[1]);
  std::vector<float> gradient = test.Normal(100 * 500);
  std::vector<float> one_sum(500);
  std::vector<float> two_sum(500);
  std::vector<float> rms(100, 1.0F);
  REQUIRE(test.backend().RmsNormWeightGrad(View(x, 100, 500), rms, View(gradient, 100, 500), one_sum).ok());
  REQUIRE((*two)->RmsNormWeightGrad(View(x, 100, 500), rms, View(gradient, 100, 500), two_sum).ok());
  CHECK(one_sum == two_sum);
}
#endif

}  // namespace
}  // namespace geopipe
