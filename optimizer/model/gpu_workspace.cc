#include "optimizer/model/gpu_workspace.h"

#include <algorithm>

#include "optimizer/model/memory_model.h"
#include "optimizer/model/transformer.h"

namespace geopipe {
namespace {

constexpr int64_t kMaxFp32ResultBytes = int64_t{64} << 20;
constexpr int64_t kRowAlignment = 8;  // elements: rows of scores begin at multiples of 16 bytes
constexpr int64_t kFp64Bytes = 8;

int64_t RoundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

int64_t NormGradBytes(int64_t lines, int64_t width) { return std::min(lines, kGpuNormGradParts) * width * kFp32Bytes; }

// fp32 results of bf16 products to which a bias is added.
int64_t BiasBytes(int64_t rows, int64_t columns) { return GpuFp32ResultRows(rows, columns) * columns * kFp32Bytes; }

int64_t LayerBytes(const ModelSpec& model, const ExecutionConfig& config) {
  const int64_t n = config.tokens();
  const int64_t heads = model.num_attention_heads / config.tensor;
  const int64_t kv_width = model.key_value_width_per_rank(config.tensor);
  const int64_t d = model.head_dim();
  const int64_t kv_heads = kv_width / d;
  int64_t bytes = std::max(
      GpuAttentionStepsOf(config.sequence_length, heads, kv_heads, d, ElementBytes(config.precision)).backward_bytes(),
      NormGradBytes(n / config.norm_region_split(), model.hidden_size));
  if (model.has_head_norms()) {
    bytes = std::max(bytes, NormGradBytes(n * heads, d));
  }
  if (model.has_qkv_bias() && config.precision == Precision::kBf16) {
    bytes = std::max(bytes, BiasBytes(n, heads * d + 2 * kv_width));
  }
  if (model.has_output_bias() && config.precision == Precision::kBf16) {
    bytes = std::max(bytes, BiasBytes(n / config.norm_region_split(), model.hidden_size));
  }
  return bytes;
}

// Losses of rows, and the gradient of the final norm.
int64_t HeadBytes(const ModelSpec& model, const ExecutionConfig& config) {
  const int64_t n = config.tokens();
  const int64_t rows = config.precision == Precision::kFp32 ? n : std::min(kLossRows, n);
  return std::max(rows * kFp64Bytes, NormGradBytes(n / config.norm_region_split(), model.hidden_size));
}

// Sums of squares of a bucket's gradients, of which none is larger than a layer and both ends together.
int64_t SquaresBytes(const ModelSpec& model, LayerRange range, const ExecutionConfig& config) {
  range = {
      .first = 0, .last = range.count() > 0 ? 0 : -1, .has_embedding = range.has_embedding, .has_head = range.has_head};
  const int64_t runs = std::ssize(ParameterTensors(model, range));
  return (ParameterCountPerRank(model, range, config.tensor) / kGpuSquaresChunk + runs) * kFp64Bytes;
}

}  // namespace

GpuAttentionSteps GpuAttentionStepsOf(int64_t sequence, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                      int64_t element_bytes) {
  GpuAttentionSteps steps;
  steps.score_stride = RoundUp(sequence, kRowAlignment);
  steps.score_bytes = sequence * steps.score_stride * kFp32Bytes;
  const bool rounds = element_bytes != kFp32Bytes;
  steps.rounded_bytes = rounds ? sequence * steps.score_stride * element_bytes : 0;
  // A gradient that several query heads add to is rounded once, behind the last of them.
  const int64_t sums = rounds && heads > kv_heads ? sequence * head_dim * kFp32Bytes : 0;
  const int64_t of_head = 2 * (steps.score_bytes + steps.rounded_bytes + sums);
  steps.heads =
      std::clamp(kMaxGpuAttentionBytes / std::max<int64_t>(of_head, 1), int64_t{1}, std::max<int64_t>(kv_heads, 1));
  steps.sums_bytes = RoundUp(steps.heads * sums, kRowAlignment * kFp32Bytes);
  return steps;
}

int64_t GpuFp32ResultRows(int64_t rows, int64_t columns) {
  return std::clamp(kMaxFp32ResultBytes / (columns * kFp32Bytes), int64_t{1}, rows);
}

int64_t GpuWorkspaceBytes(const ModelSpec& model, const LayerRange& range, const ExecutionConfig& config) {
  return kGpuProductWorkspaceBytes +
         std::max({range.count() > 0 ? LayerBytes(model, config) : 0, range.has_head ? HeadBytes(model, config) : 0,
                   SquaresBytes(model, range, config)});
}

}  // namespace geopipe
