#include "runtime/backend/backend.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>

#include "optimizer/base/check.h"

namespace geopipe {

MatrixView ViewOf(const Tensor& tensor) {
  GP_CHECK(!tensor.shape().empty(), "a view of an empty tensor");
  const int64_t columns = tensor.shape().back();
  return {.data = tensor.address(),
          .rows = tensor.elements() / columns,
          .columns = columns,
          .stride = columns,
          .dtype = tensor.dtype()};
}

void CheckSameShape(const ConstMatrixView& a, const ConstMatrixView& b) {
  GP_CHECK(a.rows == b.rows && a.columns == b.columns, "[{}, {}] against [{}, {}]", a.rows, a.columns, b.rows,
           b.columns);
}

void CheckGroups(const ConstMatrixView& x, int64_t width, int64_t statistics) {
  GP_CHECK(x.columns % width == 0 && statistics == x.rows * (x.columns / width), "[{}, {}] in groups of {}", x.rows,
           x.columns, width);
}

void CheckAttention(const AttentionShape& shape, const ConstMatrixView& query, const ConstMatrixView& key,
                    const ConstMatrixView& value, const ConstMatrixView& out, int64_t statistics) {
  const int64_t tokens = shape.batch * shape.sequence;
  GP_CHECK(shape.heads % shape.kv_heads == 0);
  GP_CHECK(query.rows == tokens && query.columns == shape.heads * shape.head_dim);
  GP_CHECK(key.rows == tokens && key.columns == shape.kv_heads * shape.head_dim);
  CheckSameShape(key, value);
  CheckSameShape(query, out);
  GP_CHECK(shape.starts.size == 0 || shape.starts.size == tokens, "{} starts of {} tokens", shape.starts.size, tokens);
  GP_CHECK(statistics == tokens * shape.heads, "{} statistics of {} rows", statistics, tokens * shape.heads);
  for (const DType dtype : {key.dtype, value.dtype, out.dtype}) {
    GP_CHECK(dtype == query.dtype, "attention of {} with {}", DTypeName(query.dtype), DTypeName(dtype));
  }
}

absl::StatusOr<int> ThreadsFromEnvironment() {
  const char* variable = std::getenv("OMP_NUM_THREADS");
  if (variable == nullptr) {
    return 1;
  }
  constexpr int kMaxThreads = 1024;
  const std::string_view text = variable;
  int threads = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), threads);
  if (error != std::errc() || end != text.data() + text.size() || threads < 1 || threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        fmt::format("OMP_NUM_THREADS is '{}'; it must be a number from 1 to {}", text, kMaxThreads));
  }
  return threads;
}

}  // namespace geopipe
