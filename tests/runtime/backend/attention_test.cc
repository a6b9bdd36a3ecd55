#include <algorithm>
#include <iterator>

#include "tests/runtime/backend/kernel_test.h"
#include "tests/support/kernel_references.h"

namespace geopipe {
namespace {

// Results in fp64, of all heads.
struct AttentionResults {
  std::vector<double> out;
  std::vector<double> grad_q;
  std::vector<double> grad_k;
  std::vector<double> grad_v;

  AttentionResults(const AttentionShape& s, const ReferenceAttention& reference) {
    const auto append = [](const std::vector<Expected>& head, std::vector<double>& all) {
      std::ranges::transform(head, std::back_inserter(all), &Expected::value);
    };
    for (int64_t row = 0; row < s.batch * s.sequence; ++row) {
      for (int64_t head = 0; head < s.heads; ++head) {
        const ReferenceAttention::Query query = reference.QueryOf(row / s.sequence, head, row % s.sequence);
        append(query.out, out);
        append(query.grad_query, grad_q);
      }
      for (int64_t head = 0; head < s.kv_heads; ++head) {
        const ReferenceAttention::Key key = reference.KeyOf(row / s.sequence, head, row % s.sequence);
        append(key.grad_key, grad_k);
        append(key.grad_value, grad_v);
      }
    }
  }
};

// Places where each position's document begins: long documents and short ones, so that whole blocks of keys are out of
// sight.
std::vector<int32_t> Documents(KernelTest& test, const AttentionShape& shape) {
  std::vector<int32_t> starts;
  for (int64_t b = 0; b < shape.batch; ++b) {
    int64_t start = 0;
    int64_t end = test.Integer(1, shape.sequence);
    for (int64_t i = 0; i < shape.sequence; ++i) {
      if (i == end) {
        start = i;
        end = i + test.Integer(1, test.Integer(1, 4) == 1 ? 600 : 40);
      }
      starts.push_back(static_cast<int32_t>(start));
    }
  }
  return starts;
}

TEST_CASE("causal grouped-query attention and its gradients agree with fp64 loops") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  auto shape =
      GENERATE(AttentionShape{1, 1, 1, 1, 2}, AttentionShape{2, 7, 4, 2, 6}, AttentionShape{2, 64, 2, 2, 8},
               AttentionShape{1, 65, 3, 1, 16}, AttentionShape{1, 200, 4, 2, 10}, AttentionShape{1, 1100, 2, 1, 8},
               AttentionShape{1, 1, 1, 1, 32}, AttentionShape{2, 33, 4, 2, 32}, AttentionShape{1, 300, 2, 2, 96},
               AttentionShape{1, 576, 2, 1, 64}, AttentionShape{1, 1061, 1, 1, 128});
  const auto type = GENERATE(DType::kFp32, DType::kBf16);
  const bool has_documents = GENERATE(false, true);
  const std::vector<int32_t> starts = has_documents ? Documents(test, shape) : std::vector<int32_t>();
  shape.starts = starts;
  const int64_t tokens = shape.batch * shape.sequence;
  const int64_t width = shape.heads * shape.head_dim;
  const int64_t kv_width = shape.kv_heads * shape.head_dim;
  const std::vector<float> q = test.Normal(type, tokens * width);
  const std::vector<float> k = test.Normal(type, tokens * kv_width);
  const std::vector<float> v = test.Normal(type, tokens * kv_width);
  const std::vector<float> grad_out = test.Normal(type, tokens * width);
  const AttentionResults expected(shape, ReferenceAttention(shape, q, k, v, grad_out));

  Backend& backend = test.backend();
  // Queries, keys and values lie side by side, as their gradients do.
  const auto side_by_side = [&](std::vector<float> all, const std::vector<float>& of, int64_t first, int64_t columns) {
    for (int64_t i = 0; i < tokens; ++i) {
      std::copy_n(of.begin() + i * columns, columns, all.begin() + i * (width + 2 * kv_width) + first);
    }
    return all;
  };
  std::vector<float> qkv = side_by_side(std::vector<float>(q.size() + 2 * k.size()), q, 0, width);
  qkv = side_by_side(side_by_side(qkv, k, width, kv_width), v, width + kv_width, kv_width);
  const Matrix operands(type, tokens, width + 2 * kv_width, qkv);
  const Matrix gradients(type, tokens, width + 2 * kv_width);
  const Matrix out(type, tokens, width, {}, 3);
  const Matrix dout(type, tokens, width, grad_out, 1);
  std::vector<float> statistics(tokens * shape.heads);
  const auto query_of = [&](const Matrix& all) { return ColumnsOf(all.view(), 0, width); };
  const auto key_of = [&](const Matrix& all) { return ColumnsOf(all.view(), width, kv_width); };
  const auto value_of = [&](const Matrix& all) { return ColumnsOf(all.view(), width + kv_width, kv_width); };
  REQUIRE(
      backend.Attention(shape, query_of(operands), key_of(operands), value_of(operands), out.view(), statistics).ok());
  // The probabilities and then the sum are rounded in bf16; for the gradients, their inputs as well.
  CHECK(RelativeError(out.values(), expected.out) < 2 * Tolerance(type, 2.5e-6));
  CHECK(out.IntactBetweenRows());

  REQUIRE(backend
              .AttentionGrad(shape, query_of(operands), key_of(operands), value_of(operands), out.view(), statistics,
                             dout.view(), query_of(gradients), key_of(gradients), value_of(gradients))
              .ok());
  const std::vector<float> all = gradients.values();
  const auto part = [&](int64_t first, int64_t columns) {
    std::vector<float> values;
    for (int64_t i = 0; i < tokens; ++i) {
      const auto row = all.begin() + i * (width + 2 * kv_width) + first;
      values.insert(values.end(), row, row + columns);
    }
    return values;
  };
  const double tolerance = 3 * Tolerance(type, 3e-6);
  CHECK((shape.sequence == 1 || RelativeError(part(0, width), expected.grad_q) < tolerance));
  CHECK((shape.sequence == 1 || RelativeError(part(width, kv_width), expected.grad_k) < tolerance));
  CHECK(RelativeError(part(width + kv_width, kv_width), expected.grad_v) < tolerance);
  CHECK(operands.values() == Held(type, qkv));
}

TEST_CASE("attention's results are the same bits wherever the matrices lie") {
  KernelTest test;
  const auto type = GENERATE(DType::kFp32, DType::kBf16);
  const AttentionShape shape{2, 70, 4, 2, 8};
  const std::vector<float> q = test.Normal(140 * 32);
  const std::vector<float> k = test.Normal(140 * 16);
  const std::vector<float> v = test.Normal(140 * 16);
  const std::vector<float> grad_out = test.Normal(140 * 32);
  std::vector<std::vector<float>> first;
  for (const int64_t shift : {0, 1, 3}) {
    const auto matrix = [&](int64_t columns, const std::vector<float>& values) {
      return Matrix(type, 140, columns, values, 0, shift);
    };
    const Matrix q_matrix = matrix(32, q);
    const Matrix k_matrix = matrix(16, k);
    const Matrix v_matrix = matrix(16, v);
    const Matrix dout = matrix(32, grad_out);
    const Matrix out = matrix(32, {});
    const Matrix dq = matrix(32, {});
    const Matrix dk = matrix(16, {});
    const Matrix dv = matrix(16, {});
    std::vector<float> statistics(140 * 4);
    Backend& backend = test.backend();
    REQUIRE(backend.Attention(shape, q_matrix.view(), k_matrix.view(), v_matrix.view(), out.view(), statistics).ok());
    REQUIRE(backend
                .AttentionGrad(shape, q_matrix.view(), k_matrix.view(), v_matrix.view(), out.view(), statistics,
                               dout.view(), dq.view(), dk.view(), dv.view())
                .ok());
    const std::vector<std::vector<float>> results{out.values(), statistics, dq.values(), dk.values(), dv.values()};
    if (shift == 0) {
      first = results;
    }
    CHECK(results == first);
  }
}

TEST_CASE("attention keeps no block of scores that grows with the sequence") {
  Allocator allocator(int64_t{1} << 30);
  const auto backend = CpuBackend::Create(1, allocator);
  REQUIRE(backend.ok());
  const AttentionShape shape{1, 2000, 1, 1, 4};
  const Matrix x(DType::kFp32, 2000, 4, std::vector<float>(8000, 0.5F));
  const Matrix y(DType::kFp32, 2000, 4);
  std::vector<float> statistics(2000);
  REQUIRE((*backend)->Attention(shape, x.view(), x.view(), x.view(), y.view(), statistics).ok());
  CHECK(allocator.total().peak_bytes == 0);
  const Matrix dx(DType::kFp32, 2000, 4);
  REQUIRE((*backend)
              ->AttentionGrad(shape, x.view(), x.view(), x.view(), y.view(), statistics, x.view(), dx.view(), dx.view(),
                              dx.view())
              .ok());
  CHECK(allocator.total().peak_bytes == 4 * (2 * 2000 * 4 + 2000));
}

TEST_CASE("attention with huge scores neither overflows nor underflows to NaN") {
  KernelTest test;
  const AttentionShape shape{1, 20, 1, 1, 8};
  std::vector<float> q = test.Normal(20 * 8, 1e3F);
  std::vector<float> k = test.Normal(20 * 8, 1e3F);
  std::vector<float> v = test.Normal(20 * 8);
  std::vector<float> out(20 * 8);
  std::vector<float> statistics(20);
  REQUIRE(test.backend()
              .Attention(shape, View(q, 20, 8), View(k, 20, 8), View(v, 20, 8), View(out, 20, 8), statistics)
              .ok());
  for (const float value : out) {
    CHECK(std::isfinite(value));
  }
}

TEST_CASE("RoPE turns pairs half a head apart, and turning back undoes it") {
  KernelTest test;
  const auto type = GENERATE(DType::kFp32, DType::kBf16);
  const int64_t sequence = 5;
  const int64_t head_dim = GENERATE(2, 6, 16);
  const int64_t heads = 3;
  const int64_t rows = 2 * sequence;
  const int64_t half = head_dim / 2;
  const std::vector<float> before = test.Normal(type, rows * heads * head_dim);
  std::vector<float> cosine(sequence * half);
  std::vector<float> sine(sequence * half);
  for (int64_t i = 0; i < sequence * half; ++i) {
    cosine[i] = std::cos(0.3F * static_cast<float>(i));
    sine[i] = std::sin(0.3F * static_cast<float>(i));
  }
  const Matrix x(type, rows, heads * head_dim, before, 3);
  REQUIRE(test.backend().Rope(x.view(), {cosine, sine}, sequence, head_dim, RopeDirection::kForward).ok());
  std::vector<double> expected(before.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t j = 0; j < half; ++j) {
        const int64_t at = (i * heads + head) * head_dim + j;
        const double angle_cosine = cosine[i % sequence * half + j];
        const double angle_sine = sine[i % sequence * half + j];
        expected[at] = before[at] * angle_cosine - before[at + half] * angle_sine;
        expected[at + half] = before[at + half] * angle_cosine + before[at] * angle_sine;
      }
    }
  }
  CHECK(RelativeError(x.values(), expected) < Tolerance(type, 1e-6));
  CHECK(x.IntactBetweenRows());
  REQUIRE(test.backend().Rope(x.view(), {cosine, sine}, sequence, head_dim, RopeDirection::kBackward).ok());
  CHECK(RelativeError(x.values(), std::vector<double>(before.begin(), before.end())) < 2 * Tolerance(type, 5e-7));
}

}  // namespace
}  // namespace geopipe
