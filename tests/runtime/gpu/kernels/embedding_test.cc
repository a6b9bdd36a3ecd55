#include "tests/runtime/gpu/kernels/gpu_kernel_test.h"

namespace geopipe {
namespace {

struct EmbeddingShape {
  int64_t tokens;
  int64_t columns;
  int64_t table_rows;
  int64_t first_row;
  int64_t vocabulary;
  int64_t apart = 0;
  int64_t shift = 0;
};

EmbeddingShape AnyEmbedding() {
  return GENERATE(EmbeddingShape{1, 1, 3, 0, 3}, EmbeddingShape{20, 13, 5, 0, 5, 3, 1},
                  EmbeddingShape{300, 40, 9, 0, 9}, EmbeddingShape{150, 1030, 4, 2, 8, 2},
                  EmbeddingShape{40, 64, 10, 5, 30, 8});
}

std::vector<int32_t> Tokens(KernelTest& test, const EmbeddingShape& shape) {
  std::vector<int32_t> tokens(shape.tokens);
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(test.Integer(0, shape.vocabulary - 1));
  }
  return tokens;
}

TEST_CASE("the embedding on a GPU has the processor's bits") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  const EmbeddingShape shape = AnyEmbedding();
  const auto type = GENERATE(DType::kFp32, DType::kBf16);
  CAPTURE(shape.tokens, shape.columns, shape.first_row, shape.apart, shape.shift);
  const std::vector<int32_t> tokens = Tokens(test, shape);
  const std::vector<float> values = test.Normal(type, shape.table_rows * shape.columns);
  const Matrix table(type, shape.table_rows, shape.columns, values, shape.apart, shape.shift);
  const auto run = [&](const Matrix& out) {
    const GpEmbedding args = {.dtype = GpTypeOf(type),
                              .rows = shape.tokens,
                              .tokens = tokens.data(),
                              .columns = shape.columns,
                              .table = table.view().data,
                              .table_rows = shape.table_rows,
                              .table_stride = table.view().stride,
                              .first_row = shape.first_row,
                              .out = out.view().data,
                              .out_stride = out.view().stride};
    REQUIRE(gpu::Embedding(&args, nullptr) == 0);
  };
  const auto poisoned = [&] {
    return Matrix(type, shape.tokens, shape.columns, Poison(shape.tokens * shape.columns), shape.apart, shape.shift);
  };
  const Matrix out = poisoned();
  run(out);
  std::vector<float> expected;
  for (const int32_t token : tokens) {
    const int64_t row = token - shape.first_row;
    for (int64_t j = 0; j < shape.columns; ++j) {
      expected.push_back(row >= 0 && row < shape.table_rows ? values[row * shape.columns + j] : 0.0F);
    }
  }
  CHECK(out.values() == expected);
  CHECK(out.IntactBetweenRows());
  const Matrix of_cpu = poisoned();
  REQUIRE(test.backend().Embedding(tokens, table.view(), shape.first_row, of_cpu.view()).ok());
  CHECK(out.values() == of_cpu.values());
  CheckSameInAllOrders([&] {
    const Matrix again = poisoned();
    run(again);
    return Results().Add(again);
  });
}

TEST_CASE("the embedding's gradient on a GPU is added in the tokens' order, to the bit") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  const EmbeddingShape shape = AnyEmbedding();
  const auto type = GENERATE(DType::kFp32, DType::kBf16);
  CAPTURE(shape.tokens, shape.columns, shape.first_row, shape.apart, shape.shift);
  const std::vector<int32_t> tokens = Tokens(test, shape);
  const std::vector<float> gradients = test.Normal(type, shape.tokens * shape.columns);
  const std::vector<float> before = test.Normal(shape.table_rows * shape.columns);
  const Matrix grad_out(type, shape.tokens, shape.columns, gradients, shape.apart, shape.shift);
  const auto run = [&](const Matrix& table) {
    const GpEmbeddingGrad args = {.dtype = GpTypeOf(type),
                                  .rows = shape.tokens,
                                  .tokens = tokens.data(),
                                  .columns = shape.columns,
                                  .grad_out = grad_out.view().data,
                                  .grad_out_stride = grad_out.view().stride,
                                  .grad_table = reinterpret_cast<float*>(table.view().data),
                                  .table_rows = shape.table_rows,
                                  .grad_table_stride = table.view().stride,
                                  .first_row = shape.first_row};
    REQUIRE(gpu::EmbeddingGrad(&args, nullptr) == 0);
  };
  const auto table_before = [&] {
    return Matrix(DType::kFp32, shape.table_rows, shape.columns, before, shape.apart, shape.shift);
  };
  const Matrix table = table_before();
  run(table);
  std::vector<float> expected = before;
  for (int64_t i = 0; i < shape.tokens; ++i) {
    const int64_t row = tokens[i] - shape.first_row;
    for (int64_t j = 0; row >= 0 && row < shape.table_rows && j < shape.columns; ++j) {
      expected[row * shape.columns + j] += gradients[i * shape.columns + j];
    }
  }
  CHECK(table.values() == expected);
  CHECK(table.IntactBetweenRows());
  const Matrix of_cpu = table_before();
  REQUIRE(test.backend().EmbeddingGrad(tokens, grad_out.view(), shape.first_row, of_cpu.view()).ok());
  CHECK(table.values() == of_cpu.values());
  CheckSameInAllOrders([&] {
    const Matrix again = table_before();
    run(again);
    return Results().Add(again);
  });
}

}  // namespace
}  // namespace geopipe
