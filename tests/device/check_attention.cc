#include <cmath>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/gpu/gpu_attention.h"
#include "tests/device/kernel_checks.h"

namespace geopipe {
namespace {

using Place = GpuTrial::Place;

// Operands of the two kernels on scores, which the backend's attention calls.
struct Scores {
  int64_t samples = 0;
  int64_t heads = 0;
  int64_t sequence = 0;
  float scale = 0.37F;
  VectorView<int32_t> starts;
  MatrixView scores;  // [samples * heads * sequence, sequence], as all matrices
  MatrixView grads;
  MatrixView probabilities;
  MatrixView again;
  MatrixView grad_scores;
  VectorView<float> statistics;

  GpCausalSoftmax Forward(const Place& at) const {
    return {.dtype = PortTypeOf(probabilities.dtype),
            .matrices = samples * heads,
            .heads = heads,
            .sequence = sequence,
            .starts = at(starts).data,
            .scale = scale,
            .scores = reinterpret_cast<const float*>(at(scores).data),
            .scores_stride = scores.stride,
            .probabilities = at(probabilities).data,
            .probabilities_stride = probabilities.stride,
            .statistics = at(statistics).data};
  }
  GpCausalSoftmaxGrad Backward(const Place& at) const {
    return {.dtype = PortTypeOf(probabilities.dtype),
            .matrices = samples * heads,
            .heads = heads,
            .sequence = sequence,
            .starts = at(starts).data,
            .scale = scale,
            .scores = reinterpret_cast<const float*>(at(scores).data),
            .scores_stride = scores.stride,
            .statistics = at(statistics).data,
            .grad_probabilities = reinterpret_cast<const float*>(at(grads).data),
            .grad_probabilities_stride = grads.stride,
            .probabilities = at(again).data,
            .probabilities_stride = again.stride,
            .grad_scores = at(grad_scores).data,
            .grad_scores_stride = grad_scores.stride};
  }
};

}  // namespace

absl::Status CheckSoftmax(KernelChecks& checks, DType dtype) {
  Scores s = {.samples = checks.Extent(2, 2, 1),
              .heads = checks.Extent(3, 5, 2),
              .sequence = checks.Extent(60, 900, 4096),
              .starts = {},
              .scores = {},
              .grads = {},
              .probabilities = {},
              .again = {},
              .grad_scores = {},
              .statistics = {}};
  const int64_t rows = s.samples * s.heads * s.sequence;
  checks.Begin(fmt::format("softmax {}, {} x {} x {}", NameOf(dtype), s.samples, s.heads, s.sequence));
  s.starts = checks.Starts(s.samples, s.sequence);
  s.scores = checks.Normal(DType::kFp32, rows, s.sequence, 4);
  s.grads = checks.Normal(DType::kFp32, rows, s.sequence);
  s.probabilities = checks.Empty(dtype, rows, s.sequence);
  s.again = checks.Empty(dtype, rows, s.sequence);
  s.grad_scores = checks.Empty(dtype, rows, s.sequence);
  s.statistics = checks.trial().EmptyFloats(rows);
  const std::vector<float> scores = GpuTrial::ValuesOf(s.scores);
  const std::vector<float> grads = GpuTrial::ValuesOf(s.grads);
  GpuDevice& device = checks.trial().device();
  GP_RETURN_IF_ERROR(checks.Run([&](Backend& /*backend*/, const Place& at) {
    GP_RETURN_IF_ERROR(device.Launch(device.port().kernels.causal_softmax, s.Forward(at), Queue::kCompute));
    return device.Launch(device.port().kernels.causal_softmax_grad, s.Backward(at), Queue::kCompute);
  }));
  const auto row = [&](int64_t i) {
    const auto begin = scores.begin() + i * s.sequence;
    const std::vector<double> of_row(begin, begin + s.sequence);
    std::vector<Expected> grads_of_row(of_row.size());
    for (size_t j = 0; j < of_row.size(); ++j) {
      grads_of_row[j] += grads[static_cast<size_t>(i * s.sequence) + j];
    }
    const int64_t position = i % s.sequence;
    const int64_t start =
        s.starts.data == nullptr ? 0 : s.starts.data[i / s.sequence / s.heads * s.sequence + position];
    return SoftmaxRowOf(of_row, grads_of_row, start, position, static_cast<double>(s.scale));
  };
  checks.CompareRows("probabilities", s.probabilities, [&](int64_t i) { return row(i).probabilities; });
  checks.CompareRows("probabilities again", s.again, [&](int64_t i) { return row(i).probabilities; });
  checks.CompareRows("gradient of the scores", s.grad_scores, [&](int64_t i) { return row(i).grad_scores; });
  checks.CompareElements(
      "statistics", {.data = reinterpret_cast<std::byte*>(s.statistics.data), .rows = rows, .columns = 1, .stride = 1},
      [&](int64_t i, int64_t) { return Expected{.value = row(i).statistic, .terms = 10}; });
  checks.End();
  return absl::OkStatus();
}

namespace {

absl::Status CheckAttentionOf(KernelChecks& checks, DType dtype, AttentionShape shape) {
  checks.Begin(fmt::format("attention {}, {} x {} x {} heads ({} of keys) of {}", NameOf(dtype), shape.batch,
                           shape.sequence, shape.heads, shape.kv_heads, shape.head_dim));
  const int64_t tokens = shape.batch * shape.sequence;
  const VectorView<int32_t> starts = checks.Starts(shape.batch, shape.sequence);
  shape.starts = starts;
  const int64_t q = shape.heads * shape.head_dim;
  const int64_t kv = shape.kv_heads * shape.head_dim;
  const MatrixView qkv = checks.Normal(dtype, tokens, q + 2 * kv);
  const MatrixView grad_qkv = checks.Empty(dtype, tokens, q + 2 * kv);
  const MatrixView out = checks.Empty(dtype, tokens, q);
  const MatrixView grad_out = checks.Normal(dtype, tokens, q);
  const VectorView<float> statistics = checks.trial().EmptyFloats(tokens * shape.heads);
  const auto query = [&](const MatrixView& all) { return ColumnsOf(all, 0, q); };
  const auto key = [&](const MatrixView& all) { return ColumnsOf(all, q, kv); };
  const auto value = [&](const MatrixView& all) { return ColumnsOf(all, q + kv, kv); };
  GP_RETURN_IF_ERROR(checks.Run([&](Backend& backend, const Place& at) {
    AttentionShape there = shape;
    there.starts = at(starts);
    GP_RETURN_IF_ERROR(backend.Attention(there, at(query(qkv)), at(key(qkv)), at(value(qkv)), at(out), at(statistics)));
    return backend.AttentionGrad(there, at(query(qkv)), at(key(qkv)), at(value(qkv)), at(out), at(statistics),
                                 at(grad_out), at(query(grad_qkv)), at(key(grad_qkv)), at(value(grad_qkv)));
  }));
  const std::vector<float> queries = GpuTrial::ValuesOf(query(qkv));
  const std::vector<float> keys = GpuTrial::ValuesOf(key(qkv));
  const std::vector<float> values = GpuTrial::ValuesOf(value(qkv));
  const std::vector<float> grad_outs = GpuTrial::ValuesOf(grad_out);
  const ReferenceAttention reference(shape, queries, keys, values, grad_outs);
  // A row of all heads: what `of_head` has of each.
  const auto row = [&](int64_t heads, const auto& of_head) {
    std::vector<Expected> all;
    for (int64_t head = 0; head < heads; ++head) {
      const std::vector<Expected> one = of_head(head);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  };
  const auto of_query = [&](std::vector<Expected> ReferenceAttention::Query::*part) {
    return [&, part](int64_t i) {
      return row(shape.heads,
                 [&](int64_t head) { return reference.QueryOf(i / shape.sequence, head, i % shape.sequence).*part; });
    };
  };
  const auto of_key = [&](std::vector<Expected> ReferenceAttention::Key::*part) {
    return [&, part](int64_t i) {
      return row(shape.kv_heads,
                 [&](int64_t head) { return reference.KeyOf(i / shape.sequence, head, i % shape.sequence).*part; });
    };
  };
  // Probabilities are rounded before products, and the gradients of scores.
  checks.CompareRows("result", out, of_query(&ReferenceAttention::Query::out), AllowedErrorOfAttention);
  checks.CompareRows("gradient of queries", query(grad_qkv), of_query(&ReferenceAttention::Query::grad_query),
                     AllowedErrorOfAttention);
  checks.CompareRows("gradient of keys", key(grad_qkv), of_key(&ReferenceAttention::Key::grad_key),
                     AllowedErrorOfAttention);
  checks.CompareRows("gradient of values", value(grad_qkv), of_key(&ReferenceAttention::Key::grad_value),
                     AllowedErrorOfAttention);
  checks.trial().Changed(GpuTrial::ViewOf(statistics));
  checks.End();
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckAttention(KernelChecks& checks, DType dtype) {
  AttentionShape shape = {.batch = checks.Extent(2, 2, 1), .sequence = checks.Extent(48, 500, 4096)};
  shape.kv_heads = checks.Extent(3, 4, 2);  // of real size, more than are worked on at once
  shape.heads = shape.kv_heads * checks.Extent(3, 4, 4);
  shape.head_dim = 2 * checks.Extent(8, 64, 64);
  return CheckAttentionOf(checks, dtype, shape);
}

absl::Status CheckAttentionInTurns(KernelChecks& checks) {
  const AttentionShape shape = {.batch = 1, .sequence = 2400, .heads = 8, .kv_heads = 4, .head_dim = 2};
  const int64_t at_once = StepsOf(shape, DType::kBf16).heads;
  GP_CHECK(at_once == 3, "{} heads at once", at_once);
  return CheckAttentionOf(checks, DType::kBf16, shape);
}

}  // namespace geopipe
