#include <fmt/format.h>

#include <memory>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "tests/device/speed.h"

namespace geopipe {
namespace {

using Against = SpeedRow::Against;

Trial TrialOf(Backend& backend, const SpeedShape& shape, const ProductShape& product) {
  using Adds = ProductShape::Adds;
  const auto matrix = [](int64_t rows, int64_t columns) { return Operand{.shape = {rows, columns}}; };
  Trial trial = {.row = {.name = fmt::format("product {}", product.name),
                         .shape = fmt::format("{} {}x{}x{}", shape.name, product.m, product.n, product.k),
                         .type = product.result == DType::kFp32 ? "bf16 into fp32" : "bf16",
                         .flops = product.flops(),
                         .bytes = product.bytes(),
                         .against = Against::kProducts}};
  trial.operands = {product.product == Product::kTN ? matrix(product.k, product.m) : matrix(product.m, product.k),
                    product.product == Product::kNT ? matrix(product.n, product.k) : matrix(product.k, product.n),
                    {.dtype = product.result, .shape = {product.m, product.n}}};
  if (product.adds == Adds::kElsewhere) {
    trial.operands.push_back(trial.operands.back());
  }
  trial.row.note = product.adds == Adds::kNothing ? "" : product.adds == Adds::kItself ? "adds to it" : "adds a matrix";
  trial.enqueue = [&backend, product](std::span<const Tensor> operands) {
    const MatrixView result = ViewOf(operands[2]);
    const Addend addend = product.adds == Adds::kNothing  ? Addend::None()
                          : product.adds == Adds::kItself ? Addend{.matrix = result}
                                                          : Addend{.matrix = ViewOf(operands[3])};
    return backend.MatMul(product.product, ViewOf(operands[0]), ViewOf(operands[1]), addend, result);
  };
  return trial;
}

// Queries, keys and values side by side, as the layer has them, or their gradients.
struct SideBySide {
  MatrixView query;
  MatrixView key;
  MatrixView value;
};
SideBySide PartsOf(const SpeedShape& shape, const Tensor& qkv) {
  const int64_t q = shape.model.query_width();
  const int64_t k = shape.model.key_value_width();
  const MatrixView all = ViewOf(qkv);
  return {ColumnsOf(all, 0, q), ColumnsOf(all, q, k), ColumnsOf(all, q + k, k)};
}

Trial AttentionTrial(Backend& backend, const SpeedShape& shape, Pass pass) {
  const Work work = LayerWork(shape, pass);
  const AttentionShape attention = shape.attention();
  const std::vector<int64_t> wide = {shape.tokens, shape.qkv_width()};
  const std::vector<int64_t> narrow = {shape.tokens, shape.model.query_width()};
  Trial trial = {
      .row = {.name = fmt::format("attention {}", PassName(pass)),
              .shape = fmt::format("{} s={} heads={}/{} d={}", shape.name, attention.sequence, attention.heads,
                                   attention.kv_heads, attention.head_dim),
              .type = "bf16",
              .flops = work.attention_flops,
              .bytes = work.attention_bytes,
              .against = Against::kProducts,
              .note = "FLOPs of the half that the mask leaves"},
      .operands = {
          {.shape = wide}, {.shape = narrow}, {.dtype = DType::kFp32, .shape = {shape.tokens * attention.heads}}}};
  if (pass == Pass::kForward) {
    trial.enqueue = [&backend, shape](std::span<const Tensor> operands) {
      const SideBySide in = PartsOf(shape, operands[0]);
      return backend.Attention(shape.attention(), in.query, in.key, in.value, ViewOf(operands[1]), operands[2]);
    };
    return trial;
  }
  trial.operands.push_back({.shape = narrow});  // the context's gradient
  trial.operands.push_back({.shape = wide});
  trial.enqueue = [&backend, shape](std::span<const Tensor> operands) {
    const SideBySide in = PartsOf(shape, operands[0]);
    const SideBySide out = PartsOf(shape, operands[4]);
    return backend.AttentionGrad(shape.attention(), in.query, in.key, in.value, ViewOf(operands[1]), operands[2],
                                 ViewOf(operands[3]), out.query, out.key, out.value);
  };
  return trial;
}

}  // namespace

absl::Status MeasureProducts(SpeedRun& run, const SpeedShape& shape) {
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<SpeedEngine> engine, SpeedEngine::Open(run));
  std::map<Pass, double> sums_us;
  for (const ProductShape& product : LayerProducts(shape)) {
    GP_ASSIGN_OR_RETURN(const Figure figure, run.Measure(engine->allocator, TrialOf(*engine->backend, shape, product)));
    sums_us[product.pass] += figure.median_us;
  }
  for (const auto& [pass, us] : sums_us) {
    run.parts[{shape.name, pass}].products_us = us;
  }
  return absl::OkStatus();
}

absl::Status MeasureAttention(SpeedRun& run, const SpeedShape& shape) {
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<SpeedEngine> engine, SpeedEngine::Open(run));
  for (const Pass pass : {Pass::kForward, Pass::kInputGrad}) {
    GP_ASSIGN_OR_RETURN(const Figure figure,
                        run.Measure(engine->allocator, AttentionTrial(*engine->backend, shape, pass)));
    run.parts[{shape.name, pass}].attention_us = figure.median_us;
  }
  return absl::OkStatus();
}

absl::Status MeasureHead(SpeedRun& run, const SpeedShape& shape) {
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<SpeedEngine> engine, SpeedEngine::Open(run));
  for (const ProductShape& product : HeadProducts(shape)) {
    GP_RETURN_IF_ERROR(run.Measure(engine->allocator, TrialOf(*engine->backend, shape, product)).status());
  }
  return absl::OkStatus();
}

}  // namespace geopipe
