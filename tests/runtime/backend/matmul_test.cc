#include <algorithm>
#include <tuple>

#include "runtime/backend/cpu_matmul.h"
#include "tests/runtime/backend/kernel_test.h"
#include "tests/support/kernel_references.h"

namespace geopipe {
namespace {

struct Shape {
  int64_t m;
  int64_t n;
  int64_t k;
};

struct Types {
  DType a;
  DType b;
  DType c;
};

// c = a * b in fp64, or c + a * b.
std::vector<double> SumsOf(Product product, const Shape& shape, const std::vector<float>& a,
                           const std::vector<float>& b, const std::vector<float>& c, bool accumulate) {
  const auto [m, n, k] = shape;
  const bool a_lies_down = product == Product::kTN;
  const bool b_lies_down = product == Product::kNT;
  std::vector<double> sums(c.size());
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      sums[i * n + j] = DotOf(a.data() + (a_lies_down ? i : i * k), a_lies_down ? m : 1,
                              b.data() + (b_lies_down ? j * k : j), b_lies_down ? 1 : n, k)
                            .value +
                        (accumulate ? c[i * n + j] : 0);
    }
  }
  return sums;
}

// Summands that make c = a * b + c, or c = a * b.
Addend Onto(const MatrixView& c, bool accumulate) { return accumulate ? Addend{.matrix = c} : Addend::None(); }

// The product's operands and result, rows `apart` further apart than they are long.
struct Operands {
  Matrix a;
  Matrix b;
  Matrix c;

  Operands(Product product, const Shape& shape, const Types& types, const std::vector<float>& a_values,
           const std::vector<float>& b_values, const std::vector<float>& c_values, int64_t apart = 0, int64_t shift = 0)
      : a(types.a, product == Product::kTN ? shape.k : shape.m, product == Product::kTN ? shape.m : shape.k, a_values,
          apart, shift),
        b(types.b, product == Product::kNT ? shape.n : shape.k, product == Product::kNT ? shape.k : shape.n, b_values,
          apart, shift),
        c(types.c, shape.m, shape.n, c_values, apart, shift) {}
};

// Whole numbers of at most this size, whose products and sums are exact.
std::vector<float> Integers(KernelTest& test, int64_t count, int64_t limit) {
  std::vector<float> values(count);
  std::ranges::generate(values, [&] { return static_cast<float>(test.Integer(-limit, limit)); });
  return values;
}

TEST_CASE("products agree with fp64 loops, accumulating or not, with rows apart or together") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  const auto product = GENERATE(Product::kNN, Product::kNT, Product::kTN);
  const auto shape = GENERATE(Shape{1, 1, 1}, Shape{5, 7, 3}, Shape{64, 48, 16}, Shape{33, 1, 20}, Shape{1, 40, 9},
                              Shape{100, 130, 65});
  const auto type = GENERATE(DType::kFp32, DType::kBf16);
  const bool accumulate = GENERATE(false, true);
  const std::vector<float> a = test.Normal(type, shape.m * shape.k);
  const std::vector<float> b = test.Normal(type, shape.n * shape.k);
  const std::vector<float> c = test.Normal(type, shape.m * shape.n);
  const Operands operands(product, shape, {type, type, type}, a, b, c, GENERATE(0, 5));
  REQUIRE(
      test.backend()
          .MatMul(product, operands.a.view(), operands.b.view(), Onto(operands.c.view(), accumulate), operands.c.view())
          .ok());
  const std::vector<double> expected = SumsOf(product, shape, a, b, c, accumulate);
  const std::vector<float> actual = operands.c.values();
  double worst = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    worst = std::max(worst, std::abs(actual[i] - expected[i]) - Tolerance(type, 0) * std::abs(expected[i]));
  }
  CHECK(worst < 2e-5);
  CHECK(operands.c.IntactBetweenRows());
}

TEST_CASE("sums of products are added in fp32 and rounded once, whatever the types") {
  // Sums of integers are exact as long as nothing is rounded on the way.
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  const auto kind = GENERATE(cpu::Bf16Products::kNative, cpu::Bf16Products::kConverted);
  if (kind == cpu::Bf16Products::kNative && cpu::BestBf16Products() != kind) {
    return;  // not on this processor
  }
  const auto products = cpu::MatMulCache::Create(/*threads=*/1, kind);
  REQUIRE(products.ok());
  const auto product = GENERATE(Product::kNN, Product::kNT, Product::kTN);
  // The last three are of more than one tile.
  const auto shape = GENERATE(Shape{1, 1, 1}, Shape{7, 63, 65}, Shape{65, 7, 63}, Shape{515, 7, 3}, Shape{3, 515, 5},
                              Shape{5, 3, 1030});
  const auto types =
      GENERATE(Types{DType::kBf16, DType::kBf16, DType::kBf16}, Types{DType::kBf16, DType::kBf16, DType::kFp32});
  const bool accumulate = GENERATE(false, true);
  const auto integers = [&](int64_t count, int64_t limit) { return Integers(test, count, limit); };
  const std::vector<float> a = integers(shape.m * shape.k, 50);
  const std::vector<float> b = integers(shape.n * shape.k, 50);
  const std::vector<float> c = integers(shape.m * shape.n, 256);
  const Operands operands(product, shape, types, a, b, c, GENERATE(0, 3));
  REQUIRE(
      (*products)
          ->Run(product, operands.a.view(), operands.b.view(), Onto(operands.c.view(), accumulate), operands.c.view())
          .ok());
  const std::vector<double> sums = SumsOf(product, shape, a, b, c, accumulate);
  CHECK(operands.c.values() == Held(types.c, std::vector<float>(sums.begin(), sums.end())));
  CHECK(operands.c.IntactBetweenRows());
}

TEST_CASE("a product adds another matrix and a row before it rounds") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  const auto kind = GENERATE(cpu::Bf16Products::kConverted, cpu::BestBf16Products());
  const auto products = cpu::MatMulCache::Create(/*threads=*/1, kind);
  REQUIRE(products.ok());
  const auto shape = GENERATE(Shape{1, 1, 1}, Shape{65, 7, 63}, Shape{515, 33, 40}, Shape{3, 515, 530});
  const auto types =
      GENERATE(Types{DType::kFp32, DType::kFp32, DType::kFp32}, Types{DType::kBf16, DType::kBf16, DType::kBf16},
               Types{DType::kBf16, DType::kBf16, DType::kFp32});
  const bool adds_matrix = GENERATE(false, true);
  const int64_t apart = GENERATE(0, 3);  // of the addend alone, or as the result's
  const auto integers = [&](int64_t count, int64_t limit) { return Integers(test, count, limit); };
  const std::vector<float> a = integers(shape.m * shape.k, 50);
  const std::vector<float> b = integers(shape.n * shape.k, 50);
  const std::vector<float> added = integers(shape.m * shape.n, 200);
  const std::vector<float> row = integers(shape.n, 9);
  const Operands operands(Product::kNT, shape, types, a, b, {});
  const Matrix matrix(types.c, shape.m, shape.n, added, apart);
  Addend addend{.row = row};
  addend.matrix = adds_matrix ? ConstMatrixView(matrix.view()) : ConstMatrixView();
  REQUIRE((*products)->Run(Product::kNT, operands.a.view(), operands.b.view(), addend, operands.c.view()).ok());
  std::vector<double> sums = SumsOf(Product::kNT, shape, a, b, added, adds_matrix);
  for (size_t i = 0; i < sums.size(); ++i) {
    sums[i] += row[i % static_cast<size_t>(shape.n)];
  }
  CHECK(operands.c.values() == Held(types.c, std::vector<float>(sums.begin(), sums.end())));
  CHECK(matrix.values() == Held(types.c, added));
}

TEST_CASE("what is not a number in an operand is not one in the product") {
  const auto kind = GENERATE(cpu::Bf16Products::kConverted, cpu::BestBf16Products());
  const auto products = cpu::MatMulCache::Create(/*threads=*/1, kind);
  REQUIRE(products.ok());
  const auto type = GENERATE(DType::kFp32, DType::kBf16);
  const Shape shape{2, 2, 2};
  const Operands operands(Product::kNN, shape, {type, type, type}, {NAN, 1, INFINITY, 2}, {1, 2, 3, 4}, {});
  REQUIRE((*products)->Run(Product::kNN, operands.a.view(), operands.b.view(), Addend::None(), operands.c.view()).ok());
  const std::vector<float> c = operands.c.values();
  CHECK((std::isnan(c[0]) && std::isnan(c[1])));
  CHECK((c[2] == INFINITY && c[3] == INFINITY));
}

TEST_CASE("a product is the same bits wherever its operands lie and whatever ran before") {
  KernelTest test;
  const auto types =
      GENERATE(Types{DType::kFp32, DType::kFp32, DType::kFp32}, Types{DType::kBf16, DType::kBf16, DType::kBf16},
               Types{DType::kBf16, DType::kBf16, DType::kFp32});
  const auto product = GENERATE(Product::kNN, Product::kNT, Product::kTN);
  const Shape shape{37, 50, 77};
  const std::vector<float> a = test.Normal(shape.m * shape.k);
  const std::vector<float> b = test.Normal(shape.n * shape.k);
  std::vector<float> first;
  for (const int64_t shift : {0, 1, 3, 8}) {
    const Operands operands(product, shape, types, a, b, {}, /*apart=*/0, shift);
    const auto [a_view, b_view, c_view] = std::tuple(operands.a.view(), operands.b.view(), operands.c.view());
    REQUIRE(test.backend().MatMul(product, a_view, b_view, Addend::None(), c_view).ok());
    if (shift == 0) {
      first = operands.c.values();
    }
    CHECK(operands.c.values() == first);
    std::vector<float> other(a_view.rows * a_view.rows);  // another product in between
    const MatrixView between = View(other, a_view.rows, a_view.rows);
    REQUIRE(test.backend().MatMul(Product::kNT, a_view, a_view, {.matrix = between}, between).ok());
  }
}

TEST_CASE("a product takes nothing of the device's memory, however little that is") {
  Allocator allocator(16);
  const auto backend = CpuBackend::Create(1, allocator);
  REQUIRE(backend.ok());
  const auto type = GENERATE(DType::kFp32, DType::kBf16);
  const Matrix a(type, 64, 64);
  const Matrix b(type, 64, 64);
  const Matrix c(type, 64, 64);
  CHECK((*backend)->MatMul(Product::kTN, a.view(), b.view(), Addend::None(), c.view()).ok());
  CHECK(allocator.total().peak_bytes == 0);
}

// Debian's libgomp is not instrumented: ThreadSanitizer sees neither its fork nor its join.
#ifndef __SANITIZE_THREAD__
TEST_CASE("bf16 products are the same bits for one thread and two") {
  KernelTest test;
  const auto kind = GENERATE(cpu::Bf16Products::kConverted, cpu::BestBf16Products());
  const auto product = GENERATE(Product::kNN, Product::kNT, Product::kTN);
  const Shape shape{130, 600, 65};
  const std::vector<float> a = test.Normal(shape.m * shape.k);
  const std::vector<float> b = test.Normal(shape.n * shape.k);
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2}) {
    const auto products = cpu::MatMulCache::Create(threads, kind);
    REQUIRE(products.ok());
    const Operands operands(product, shape, {DType::kBf16, DType::kBf16, DType::kFp32}, a, b, {});
    REQUIRE((*products)->Run(product, operands.a.view(), operands.b.view(), Addend::None(), operands.c.view()).ok());
    results.push_back(operands.c.values());
  }
  CHECK(results[0] == results[1]);
}
#endif

}  // namespace
}  // namespace geopipe
