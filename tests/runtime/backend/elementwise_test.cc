#include <tuple>

#include "tests/runtime/backend/kernel_test.h"

namespace geopipe {
namespace {

TEST_CASE("SwiGLU and its gradients agree with fp64 loops, in place too") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  const auto type = GENERATE(DType::kFp32, DType::kBf16);
  const int64_t rows = 3;
  const int64_t columns = GENERATE(1, 8, 21, 64);
  const int64_t apart = GENERATE(0, 3);
  const std::vector<float> gate = test.Normal(type, rows * columns, 4);
  const std::vector<float> up = test.Normal(type, rows * columns);
  const std::vector<float> grad_out = test.Normal(type, rows * columns);
  const auto matrix = [&](const std::vector<float>& values) { return Matrix(type, rows, columns, values, apart); };
  const Matrix g_matrix = matrix(gate);
  const Matrix u_matrix = matrix(up);
  const Matrix d_matrix = matrix(grad_out);
  const Matrix out = matrix({});
  const Matrix grad_gate = matrix({});
  const Matrix grad_up = matrix({});
  Backend& backend = test.backend();
  REQUIRE(backend.SwiGlu(g_matrix.view(), u_matrix.view(), out.view()).ok());
  const auto backward = [&](const Matrix& to_gate, const Matrix& to_up) {
    return backend.SwiGluGrad(g_matrix.view(), u_matrix.view(), d_matrix.view(), to_gate.view(), to_up.view());
  };
  REQUIRE(backward(grad_gate, grad_up).ok());
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
  CHECK(RelativeError(out.values(), expected_out) < Tolerance(type, 1e-6));
  CHECK(RelativeError(grad_gate.values(), expected_gate) < Tolerance(type, 1e-6));
  CHECK(RelativeError(grad_up.values(), expected_up) < Tolerance(type, 1e-6));
  CHECK((out.IntactBetweenRows() && grad_gate.IntactBetweenRows() && grad_up.IntactBetweenRows()));
  REQUIRE(backward(g_matrix, u_matrix).ok());
  CHECK(g_matrix.values() == grad_gate.values());
  CHECK(u_matrix.values() == grad_up.values());
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
  REQUIRE(test.backend().SumOfSquares(View(x, 1, count), {&sum, 1}).ok());
  CHECK(sum == Approx(squares).epsilon(1e-13));
  const Matrix bf16(DType::kBf16, 1, count, x);
  squares = 0;
  for (const float value : bf16.values()) {
    squares += static_cast<double>(value) * value;
  }
  REQUIRE(test.backend().SumOfSquares(bf16.view(), {&sum, 1}).ok());
  CHECK(sum == Approx(squares).epsilon(1e-13));
  const std::vector<Backend::Run> runs{{0, count / 2}, {3, 3}, {count / 2, count}};
  std::vector<double> of_runs(3, -1);
  REQUIRE(test.backend().SumsOfSquares(x, runs, of_runs).ok());
  for (size_t i = 0; i < runs.size(); ++i) {
    double expected_sum = 0;
    for (int64_t j = runs[i].first; j < runs[i].second; ++j) {
      expected_sum += static_cast<double>(x[j]) * x[j];
    }
    CHECK(of_runs[i] == Approx(expected_sum).epsilon(1e-13));
  }
  REQUIRE(test.backend().Zero(y).ok());
  CHECK(y == std::vector<float>(count, 0.0F));
}

// Debian's libgomp is not instrumented: ThreadSanitizer sees neither its fork nor its join.
#ifndef __SANITIZE_THREAD__
TEST_CASE("results do not depend on the number of threads, nor on where the matrices lie") {
  KernelTest test;
  const auto type = GENERATE(DType::kFp32, DType::kBf16);
  const std::vector<float> x = test.Normal(100 * 500);
  const std::vector<float> y = test.Normal(100 * 500);
  const std::vector<float> weight = test.Normal(500);
  const std::vector<float> angles = test.Normal(50 * 25);
  const std::vector<int32_t> tokens(100);
  const auto results = [&](int threads, int64_t shift) {
    Allocator allocator(int64_t{1} << 28);
    const auto backend = CpuBackend::Create(threads, allocator);
    REQUIRE(backend.ok());
    const auto matrix = [&](const std::vector<float>& values) { return Matrix(type, 100, 500, values, 0, shift); };
    const Matrix a = matrix(x);
    const Matrix b = matrix(y);
    const Matrix c = matrix({});
    const Matrix d = matrix({});
    std::vector<float> all;
    const auto keep = [&](const absl::Status& status, const std::vector<float>& values) {
      REQUIRE(status.ok());
      all.insert(all.end(), values.begin(), values.end());
    };
    std::vector<float> rms(100);
    std::vector<float> sums(500);
    keep((*backend)->RmsNorm(a.view(), weight, 1e-5, c.view(), rms), c.values());
    keep((*backend)->RmsNormGrad(a.view(), weight, rms, b.view(), c.view(), d.view(), sums), d.values());
    keep(absl::OkStatus(), sums);
    std::vector<float> max(100);
    std::vector<float> row_sums(200);
    double loss = 0;
    const Matrix logits(DType::kFp32, 100, 500, x, 0, shift);
    keep((*backend)->CrossEntropyMax(logits.view(), max), max);
    keep((*backend)->CrossEntropySums(logits.view(), max, tokens, 0, row_sums), row_sums);
    keep((*backend)->CrossEntropyGrad(logits.view(), max, row_sums, tokens, 0, 0.125, d.view(), {&loss, 1}),
         d.values());
    keep((*backend)->EmbeddingGrad(tokens, b.view(), 0, View(sums, 1, 500)), sums);
    keep((*backend)->SwiGlu(a.view(), b.view(), c.view()), c.values());
    keep((*backend)->SwiGluGrad(a.view(), b.view(), c.view(), c.view(), d.view()), d.values());
    keep((*backend)->Convert(b.view(), c.view()), c.values());
    keep((*backend)->Rope(b.view(), {angles, angles}, 50, 50, RopeDirection::kForward), b.values());
    double sum = 0;
    keep((*backend)->SumOfSquares(a.view(), {&sum, 1}), {});
    return std::tuple(all, sum, loss);
  };
  const auto first = results(1, 0);
  CHECK(results(2, 0) == first);
  CHECK(results(1, 3) == first);
}
#endif

}  // namespace
}  // namespace geopipe
