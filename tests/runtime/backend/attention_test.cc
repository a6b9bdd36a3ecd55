#include "tests/runtime/backend/kernel_test.h"

namespace geopipe {
namespace {

// Everything in fp64, one query at a time.
struct ReferenceAttention {
  AttentionShape shape;
  std::vector<double> out;
  std::vector<double> grad_q;
  std::vector<double> grad_k;
  std::vector<double> grad_v;

  ReferenceAttention(const AttentionShape& s, const std::vector<float>& q, const std::vector<float>& k,
                     const std::vector<float>& v, const std::vector<float>& grad_out)
      : shape(s), out(q.size()), grad_q(q.size()), grad_k(k.size()), grad_v(v.size()) {
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t h = 0; h < s.heads; ++h) {
        for (int64_t i = 0; i < s.sequence; ++i) {
          Query(b, h, i, q, k, v, grad_out);
        }
      }
    }
  }

  int64_t QueryAt(int64_t b, int64_t h, int64_t i) const {
    return ((b * shape.sequence + i) * shape.heads + h) * shape.head_dim;
  }
  int64_t KeyAt(int64_t b, int64_t h, int64_t i) const {
    const int64_t kv_head = h / (shape.heads / shape.kv_heads);
    return ((b * shape.sequence + i) * shape.kv_heads + kv_head) * shape.head_dim;
  }

  void Query(int64_t b, int64_t h, int64_t i, const std::vector<float>& q, const std::vector<float>& k,
             const std::vector<float>& v, const std::vector<float>& grad_out) {
    const double scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
    const int64_t at = QueryAt(b, h, i);
    std::vector<double> p(i + 1);
    double total = 0;
    for (int64_t j = 0; j <= i; ++j) {
      for (int64_t d = 0; d < shape.head_dim; ++d) {
        p[j] += static_cast<double>(q[at + d]) * k[KeyAt(b, h, j) + d];
      }
      p[j] = std::exp(p[j] * scale);
      total += p[j];
    }
    std::vector<double> grad_p(i + 1);
    double mean = 0;
    for (int64_t j = 0; j <= i; ++j) {
      p[j] /= total;
      for (int64_t d = 0; d < shape.head_dim; ++d) {
        const int64_t value = KeyAt(b, h, j) + d;
        out[at + d] += p[j] * v[value];
        grad_v[value] += p[j] * grad_out[at + d];
        grad_p[j] += static_cast<double>(grad_out[at + d]) * v[value];
      }
      mean += p[j] * grad_p[j];
    }
    for (int64_t j = 0; j <= i; ++j) {
      const double grad_score = scale * p[j] * (grad_p[j] - mean);
      for (int64_t d = 0; d < shape.head_dim; ++d) {
        grad_q[at + d] += grad_score * k[KeyAt(b, h, j) + d];
        grad_k[KeyAt(b, h, j) + d] += grad_score * q[at + d];
      }
    }
  }
};

TEST_CASE("causal grouped-query attention and its gradients agree with fp64 loops") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  const auto shape =
      GENERATE(AttentionShape{1, 1, 1, 1, 2}, AttentionShape{2, 7, 4, 2, 6}, AttentionShape{2, 64, 2, 2, 8},
               AttentionShape{1, 65, 3, 1, 16}, AttentionShape{1, 200, 4, 2, 10});
  const int64_t tokens = shape.batch * shape.sequence;
  const int64_t width = shape.heads * shape.head_dim;
  const int64_t kv_width = shape.kv_heads * shape.head_dim;
  std::vector<float> q = test.Normal(tokens * width);
  std::vector<float> k = test.Normal(tokens * kv_width);
  std::vector<float> v = test.Normal(tokens * kv_width);
  std::vector<float> grad_out = test.Normal(tokens * width);
  const ReferenceAttention expected(shape, q, k, v, grad_out);

  Backend& backend = test.backend();
  std::vector<float> out(tokens * width);
  const MatrixView out_view = View(out, tokens, width);
  auto state =
      backend.Attention(shape, test.TensorOf(q, tokens), test.TensorOf(k, tokens), test.TensorOf(v, tokens), out_view);
  REQUIRE(state.ok());
  CHECK(RelativeError(out, expected.out) < 5e-6);

  const auto gradients = backend.AttentionGrad(shape, *std::move(state), out_view, test.TensorOf(grad_out, tokens));
  REQUIRE(gradients.ok());
  CHECK((shape.sequence == 1 || RelativeError(gradients->query.fp32(), expected.grad_q) < 1e-5));
  CHECK((shape.sequence == 1 || RelativeError(gradients->key.fp32(), expected.grad_k) < 1e-5));
  CHECK(RelativeError(gradients->value.fp32(), expected.grad_v) < 1e-5);
}

TEST_CASE("attention's gradients are the same bits in place and apart") {
  KernelTest test;
  const AttentionShape shape{2, 70, 4, 2, 8};
  std::vector<float> q = test.Normal(140 * 32);
  std::vector<float> k = test.Normal(140 * 16);
  std::vector<float> v = test.Normal(140 * 16);
  std::vector<float> grad_out = test.Normal(140 * 32);
  std::vector<float> p(140 * 4 * 70, NAN);
  std::vector<float> out(140 * 32);
  std::vector<float> grad_q(q.size());
  std::vector<float> grad_k(k.size());
  std::vector<float> grad_v(v.size());
  const MatrixView q_view = View(q, 140, 32);
  const MatrixView k_view = View(k, 140, 16);
  const MatrixView v_view = View(v, 140, 16);
  const MatrixView p_view = View(p, 140 * 4, 70);
  const MatrixView grad_out_view = View(grad_out, 140, 32);
  CpuBackend& cpu = test.backend();
  REQUIRE(cpu.AttentionForward(shape, q_view, k_view, v_view, p_view, View(out, 140, 32)).ok());
  const auto backward = [&](const MatrixView& to_q, const MatrixView& to_k, const MatrixView& to_v) {
    REQUIRE(cpu.AttentionBackward(shape, q_view, k_view, v_view, p_view, grad_out_view, to_q, to_k, to_v).ok());
  };
  backward(View(grad_q, 140, 32), View(grad_k, 140, 16), View(grad_v, 140, 16));
  backward(grad_out_view, k_view, v_view);
  CHECK(grad_out == grad_q);
  CHECK(k == grad_k);
  CHECK(v == grad_v);
}

TEST_CASE("attention with huge scores neither overflows nor underflows to NaN") {
  KernelTest test;
  const AttentionShape shape{1, 20, 1, 1, 8};
  std::vector<float> q = test.Normal(20 * 8, 1e3F);
  std::vector<float> k = test.Normal(20 * 8, 1e3F);
  std::vector<float> v = test.Normal(20 * 8);
  std::vector<float> out(20 * 8);
  REQUIRE(test.backend()
              .Attention(shape, test.TensorOf(q, 20), test.TensorOf(k, 20), test.TensorOf(v, 20), View(out, 20, 8))
              .ok());
  for (const float value : out) {
    CHECK(std::isfinite(value));
  }
}

TEST_CASE("RoPE turns pairs half a head apart, and turning back undoes it") {
  KernelTest test;
  const int64_t sequence = 5;
  const int64_t head_dim = GENERATE(2, 6, 16);
  const int64_t heads = 3;
  const int64_t rows = 2 * sequence;
  const int64_t half = head_dim / 2;
  std::vector<float> x = test.Normal(rows * heads * head_dim);
  std::vector<float> cosine(sequence * half);
  std::vector<float> sine(sequence * half);
  for (int64_t i = 0; i < sequence * half; ++i) {
    cosine[i] = std::cos(0.3F * static_cast<float>(i));
    sine[i] = std::sin(0.3F * static_cast<float>(i));
  }
  const std::vector<float> before = x;
  const MatrixView view = View(x, rows, heads * head_dim);
  REQUIRE(test.backend().Rope(view, {cosine, sine}, sequence, head_dim, RopeDirection::kForward).ok());
  std::vector<double> expected(x.size());
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
  CHECK(RelativeError(x, expected) < 1e-6);
  REQUIRE(test.backend().Rope(view, {cosine, sine}, sequence, head_dim, RopeDirection::kBackward).ok());
  CHECK(RelativeError(x, std::vector<double>(before.begin(), before.end())) < 1e-6);
}

}  // namespace
}  // namespace geopipe
