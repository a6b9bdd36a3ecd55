#include "tests/device/speed_shapes.h"

#include <fmt/format.h>

#include <algorithm>

#include "optimizer/base/check.h"
#include "optimizer/model/memory_model.h"
#include "runtime/gpu/gpu_attention.h"

namespace geopipe {
namespace {

constexpr int64_t kBf16Bytes = ElementBytes(Precision::kBf16);

SpeedShape ShapeOf(std::string name, int64_t hidden, int64_t intermediate, int64_t heads, int64_t kv_heads,
                   int64_t vocabulary, int64_t tokens) {
  return {.name = std::move(name),
          .model = {.hidden_size = hidden,
                    .intermediate_size = intermediate,
                    .num_hidden_layers = 8,
                    .num_attention_heads = heads,
                    .num_key_value_heads = kv_heads,
                    .vocab_size = vocabulary,
                    .max_position_embeddings = tokens},
          .tokens = tokens};
}

const Work& PassOf(const PartWork& work, Pass pass) {
  switch (pass) {
    case Pass::kForward:
      return work.forward;
    case Pass::kInputGrad:
      return work.input_grad;
    case Pass::kWeightGrad:
      return work.weight_grad;
  }
  GP_CHECK(false, "no pass {}", static_cast<int>(pass));
}

// The three products of a weight [out, in]; F adds the residual stream where it is told to.
void AddLinear(std::string_view name, int64_t tokens, int64_t in, int64_t out, bool adds_residual,
               std::vector<ProductShape>* products) {
  using Adds = ProductShape::Adds;
  products->push_back({.name = fmt::format("{} F", name),
                       .pass = Pass::kForward,
                       .product = Product::kNT,
                       .m = tokens,
                       .n = out,
                       .k = in,
                       .adds = adds_residual ? Adds::kElsewhere : Adds::kNothing});
  products->push_back({.name = fmt::format("{} I", name),
                       .pass = Pass::kInputGrad,
                       .product = Product::kNN,
                       .m = tokens,
                       .n = in,
                       .k = out});
  products->push_back({.name = fmt::format("{} W", name),
                       .pass = Pass::kWeightGrad,
                       .product = Product::kTN,
                       .m = out,
                       .n = in,
                       .k = tokens,
                       .result = DType::kFp32,
                       .adds = Adds::kItself});
}

}  // namespace

std::string_view PassName(Pass pass) {
  constexpr std::array<std::string_view, 3> kNames = {"F", "I", "W"};
  return kNames.at(static_cast<size_t>(pass));
}

ExecutionConfig SpeedShape::execution() const {
  return {.micro_batch_size = 1,
          .sequence_length = tokens,
          .precision = Precision::kBf16,
          .attention = Attention::kBlocked};
}

AttentionShape SpeedShape::attention() const {
  return {.batch = 1,
          .sequence = tokens,
          .heads = model.num_attention_heads,
          .kv_heads = model.num_key_value_heads,
          .head_dim = model.head_dim()};
}

std::vector<SpeedShape> SpeedShapes(bool small) {
  if (small) {
    return {ShapeOf("small-7B", 64, 172, 4, 4, 250, 32), ShapeOf("small-13B", 80, 216, 5, 5, 250, 32),
            ShapeOf("small-70B", 128, 448, 8, 1, 250, 32)};
  }
  return {ShapeOf("7B", 4096, 11008, 32, 32, 32000, 4096), ShapeOf("13B", 5120, 13824, 40, 40, 32000, 4096),
          ShapeOf("70B", 8192, 28672, 64, 8, 32000, 4096)};
}

Work LayerWork(const SpeedShape& shape, Pass pass) { return PassOf(BlockWork(shape.model, shape.execution()), pass); }

int64_t LayerModelFlops(const SpeedShape& shape, Pass pass) {
  const Work work = LayerWork(shape, pass);
  return work.flops - (pass == Pass::kInputGrad ? work.attention_flops / 5 : 0);
}

int64_t MicroBatchModelFlops(const SpeedShape& shape, int64_t layers) {
  const PartWork head = HeadWork(shape.model, shape.execution());
  int64_t flops = 0;
  for (const Pass pass : kPasses) {
    flops += layers * LayerModelFlops(shape, pass) + PassOf(head, pass).flops;
  }
  return flops;
}

int64_t ProductShape::bytes() const {
  const int64_t results = adds == Adds::kNothing ? 1 : 2;
  return kBf16Bytes * (m * k + k * n) + results * ByteSize(result) * m * n;
}

std::vector<ProductShape> LayerProducts(const SpeedShape& shape) {
  const ModelSpec& model = shape.model;
  std::vector<ProductShape> products;
  AddLinear("qkv", shape.tokens, model.hidden_size, shape.qkv_width(), /*adds_residual=*/false, &products);
  AddLinear("o", shape.tokens, model.query_width(), model.hidden_size, /*adds_residual=*/true, &products);
  AddLinear("gate_up", shape.tokens, model.hidden_size, 2 * model.intermediate_size, /*adds_residual=*/false,
            &products);
  AddLinear("down", shape.tokens, model.intermediate_size, model.hidden_size, /*adds_residual=*/true, &products);
  return products;
}

std::vector<ProductShape> HeadProducts(const SpeedShape& shape) {
  std::vector<ProductShape> products;
  AddLinear("head", shape.tokens, shape.model.hidden_size, shape.model.vocab_size, /*adds_residual=*/false, &products);
  ProductShape& forward = products.front();
  forward.m = LossRows(shape);
  forward.result = DType::kFp32;
  return products;
}

int64_t SoftmaxMatrices(const SpeedShape& shape) { return StepsOf(shape.attention(), DType::kBf16).heads; }

int64_t LossRows(const SpeedShape& shape) { return std::min(shape.tokens, kLossRows); }

int64_t LayerParameters(const SpeedShape& shape) {
  return ParameterCount(shape.model, {.first = 0, .last = 0, .has_embedding = false, .has_head = false});
}

KernelBytes BytesOfKernels(const SpeedShape& shape) {
  const ModelSpec& model = shape.model;
  const int64_t e = kBf16Bytes;
  const int64_t g = kGradientBytes;
  const int64_t n = shape.tokens;
  const int64_t h = model.hidden_size;
  const int64_t f = model.intermediate_size;
  const int64_t logits = LossRows(shape) * model.vocab_size;
  // Scores that a row sees are read; probabilities, and the gradients of scores, are written as a whole.
  const int64_t seen = SoftmaxMatrices(shape) * n * (n + 1) / 2;
  const int64_t whole = SoftmaxMatrices(shape) * n * n;
  return {.rms_norm = 2 * e * n * h,
          .rms_norm_grad = 4 * e * n * h + 2 * g * h,
          .rope = 2 * e * n * (model.query_width() + model.key_value_width()),
          .causal_softmax = kFp32Bytes * seen + e * whole,
          .causal_softmax_grad = 2 * (kFp32Bytes * seen + e * whole),
          .swiglu = 3 * e * n * f,
          .swiglu_grad = 5 * e * n * f,
          .cross_entropy = (kFp32Bytes + e) * logits,
          .cross_entropy_max = kFp32Bytes * logits,
          .cross_entropy_sums = 2 * kFp32Bytes * logits,
          .cross_entropy_grad = (kFp32Bytes + e) * logits,
          .embedding = 2 * e * n * h,
          .embedding_grad = (e + 2 * g) * n * h,
          .axpy = 3 * g * model.vocab_size * h,
          .convert = (kFp32Bytes + e) * n * h,
          .sum_rows = e * n * shape.qkv_width() + 2 * g * shape.qkv_width(),
          .sums_of_squares = g * LayerParameters(shape),
          .adamw = 30 * LayerParameters(shape)};  // reads four vectors, writes three and the bf16 weights
}

}  // namespace geopipe
