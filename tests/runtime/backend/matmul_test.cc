#include <algorithm>

#include "tests/runtime/backend/kernel_test.h"

namespace geopipe {
namespace {

struct Shape {
  int64_t m;
  int64_t n;
  int64_t k;
};

double A(Product product, const std::vector<float>& a, int64_t stride, int64_t i, int64_t l) {
  return product == Product::kTN ? a[l * stride + i] : a[i * stride + l];
}

double B(Product product, const std::vector<float>& b, int64_t stride, int64_t l, int64_t j) {
  return product == Product::kNT ? b[j * stride + l] : b[l * stride + j];
}

TEST_CASE("products agree with fp64 loops, accumulating or not, with rows apart or together") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  const auto product = GENERATE(Product::kNN, Product::kNT, Product::kTN);
  const auto shape = GENERATE(Shape{1, 1, 1}, Shape{5, 7, 3}, Shape{64, 48, 16}, Shape{33, 1, 20}, Shape{1, 40, 9},
                              Shape{100, 130, 65});
  const bool accumulate = GENERATE(false, true);
  const int64_t apart = GENERATE(0, 5);
  const auto [m, n, k] = shape;
  const bool transposed_a = product == Product::kTN;
  const bool transposed_b = product == Product::kNT;
  const int64_t a_stride = (transposed_a ? m : k) + apart;
  const int64_t b_stride = (transposed_b ? k : n) + apart;
  const int64_t c_stride = n + apart;
  std::vector<float> a = test.Normal((transposed_a ? k : m) * a_stride);
  std::vector<float> b = test.Normal((transposed_b ? n : k) * b_stride);
  std::vector<float> c = test.Normal(m * c_stride);
  const std::vector<float> before = c;
  REQUIRE(test.backend()
              .MatMul(product, View(a, transposed_a ? k : m, transposed_a ? m : k, a_stride),
                      View(b, transposed_b ? n : k, transposed_b ? k : n, b_stride), View(c, m, n, c_stride),
                      accumulate)
              .ok());
  double worst = 0;
  bool outside_untouched = true;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < c_stride; ++j) {
      const int64_t at = i * c_stride + j;
      if (j >= n) {
        outside_untouched &= c[at] == before[at];
        continue;
      }
      double sum = accumulate ? before[at] : 0;
      for (int64_t l = 0; l < k; ++l) {
        sum += A(product, a, a_stride, i, l) * B(product, b, b_stride, l, j);
      }
      worst = std::max(worst, std::abs(c[at] - sum));
    }
  }
  CHECK(worst < 2e-5);
  CHECK(outside_untouched);
}

TEST_CASE("a product is the same bits wherever its operands lie and whatever ran before") {
  KernelTest test;
  const int64_t m = 37;
  const int64_t n = 50;
  const int64_t k = 77;
  const std::vector<float> a = test.Normal(m * k);
  const std::vector<float> b = test.Normal(n * k);
  std::vector<float> first(m * n);
  for (const int64_t shift : {0, 1, 3, 8}) {
    std::vector<float> shifted_a(a.size() + shift);
    std::vector<float> shifted_b(b.size() + shift);
    std::ranges::copy(a, shifted_a.begin() + shift);
    std::ranges::copy(b, shifted_b.begin() + shift);
    MatrixView a_view = View(shifted_a, m, k);
    MatrixView b_view = View(shifted_b, n, k);
    a_view.data += shift * sizeof(float);
    b_view.data += shift * sizeof(float);
    std::vector<float> c(m * n);
    REQUIRE(test.backend().MatMul(Product::kNT, a_view, b_view, View(c, m, n), false).ok());
    if (shift == 0) {
      first = c;
    }
    CHECK(c == first);
    std::vector<float> other(m * m);  // another product in between
    REQUIRE(test.backend().MatMul(Product::kNT, a_view, a_view, View(other, m, m), true).ok());
  }
}

TEST_CASE("a product takes nothing of the device's memory, however little that is") {
  Allocator allocator(16);
  const auto backend = CpuBackend::Create(1, allocator);
  REQUIRE(backend.ok());
  std::vector<float> a(64 * 64);
  std::vector<float> c(64 * 64);
  CHECK((*backend)->MatMul(Product::kTN, View(a, 64, 64), View(a, 64, 64), View(c, 64, 64), false).ok());
  CHECK(allocator.total().peak_bytes == 0);
}

TEST_CASE("what the backend does not compute in is refused") {
  KernelTest test;
  std::vector<float> a(4);
  MatrixView bf16 = View(a, 2, 2);
  bf16.dtype = DType::kBf16;
  const absl::Status status = test.backend().MatMul(Product::kNN, bf16, View(a, 2, 2), View(a, 2, 2), false);
  CHECK(status.code() == absl::StatusCode::kUnimplemented);
  CHECK_THAT(std::string(status.message()), Catch::Matchers::Contains("bf16"));
}

}  // namespace
}  // namespace geopipe
