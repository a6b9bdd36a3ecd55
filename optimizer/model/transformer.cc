#include "optimizer/model/transformer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/model/memory_model.h"

namespace geopipe {
namespace {

// Work of [n, in] x [in, out].
PartWork ProductWork(int64_t n, int64_t in, int64_t out, const ExecutionConfig& config) {
  const int64_t e = ElementBytes(config.precision);
  const int64_t g = kGradientBytes;
  const int64_t flops = 2 * n * in * out;
  const int64_t bytes = e * (n * in + in * out + n * out);
  return {.forward = {.flops = flops, .bytes = bytes},
          .input_grad = {.flops = flops, .bytes = bytes},
          .weight_grad = {.flops = flops, .bytes = e * (n * in + n * out) + 2 * g * in * out}};
}

// The same where F adds to `residual` elements and, with sequence parallelism, multiplies each rank's rows apart.
PartWork AddedProductWork(int64_t n, int64_t in, int64_t out, int64_t residual, const ExecutionConfig& config) {
  PartWork work = ProductWork(n, in, out, config);
  work.forward.bytes += ElementBytes(config.precision) * ((config.norm_region_split() - 1) * in * out + residual);
  return work;
}

enum class Residual : bool { kNone, kAdded };

// An RMSNorm of `elements` with `weights` weights; its I makes both gradients, and adds the residual's to its input's.
PartWork NormWork(int64_t elements, int64_t weights, Residual residual, const ExecutionConfig& config) {
  const int64_t e = ElementBytes(config.precision);
  const int64_t passes = residual == Residual::kAdded ? 4 : 3;
  return {.forward = Work::Streamed(2 * e * elements),
          .input_grad = Work::Streamed(passes * e * elements + 2 * kGradientBytes * weights),
          .weight_grad = {}};
}

// The bias of a product whose outputs are `width` wide; F adds it as it multiplies.
PartWork BiasWork(int64_t n, int64_t width, const ExecutionConfig& config) {
  const int64_t e = ElementBytes(config.precision);
  return {.forward = {}, .input_grad = {}, .weight_grad = Work::Streamed(e * n * width + 2 * kGradientBytes * width)};
}

Work OfAttention(int64_t flops, int64_t bytes) {
  return {.flops = flops, .bytes = bytes, .attention_flops = flops, .attention_bytes = bytes};
}

PartWork AttentionCoreWork(const ModelSpec& model, const ExecutionConfig& config) {
  const int64_t t = config.tensor;
  const int64_t n = config.tokens();
  const int64_t e = ElementBytes(config.precision);
  const int64_t probabilities = n * config.sequence_length * model.num_attention_heads / t;
  const int64_t widths = n * (model.query_width() / t + model.key_value_width_per_rank(t));
  const int64_t product_flops = 2 * n * config.sequence_length * model.query_width() / t;
  if (config.attention == Attention::kBlocked) {
    const int64_t rows = kFp32Bytes * n * model.num_attention_heads / t;
    const int64_t sum = 2 * kFp32Bytes * n * model.query_width() / t;  // dQ, added up in fp32
    return {.forward = OfAttention(product_flops, 2 * e * widths + rows),
            .input_grad = OfAttention(5 * product_flops / 2, 4 * e * widths + 2 * rows + sum),
            .weight_grad = {}};
  }
  return {.forward = OfAttention(2 * product_flops, e * (4 * probabilities + 2 * widths)),
          .input_grad = OfAttention(4 * product_flops, e * (7 * probabilities + 4 * widths)),
          .weight_grad = {}};
}

int64_t PartsOf(int32_t split_axis, int64_t max_parts, int64_t tensor) {
  if (split_axis < 0) {
    return 1;
  }
  return max_parts == 0 ? tensor : std::min(tensor, max_parts);
}

// A ParameterTensor without a vector or a name of its own.
struct TensorOf {
  std::string_view name;  // of a layer: after its prefix
  int64_t rows = 0;
  int64_t columns = 0;  // 0: it has one axis
  int32_t split_axis = -1;
  int64_t max_parts = 0;

  int64_t CountPerRank(int64_t tensor) const {
    return rows * std::max<int64_t>(1, columns) / PartsOf(split_axis, max_parts, tensor);
  }
};

TensorOf Embedding(const ModelSpec& model) {
  return {"model.embed_tokens.weight", model.vocab_rows(), model.hidden_size, 0};
}

// Some tensors, without memory of their own.
class TensorList {
 public:
  void Add(TensorOf tensor) { tensors_.at(size_++) = tensor; }
  const TensorOf* begin() const { return tensors_.data(); }
  const TensorOf* end() const { return tensors_.data() + size_; }

 private:
  std::array<TensorOf, 15> tensors_;
  size_t size_ = 0;
};

TensorList LayerTensors(const ModelSpec& model) {
  const int64_t h = model.hidden_size;
  const int64_t f = model.intermediate_size;
  const int64_t q = model.query_width();
  const int64_t k = model.key_value_width();
  const int64_t kv_heads = model.num_key_value_heads;
  TensorList list;
  list.Add({"input_layernorm.weight", h});
  list.Add({"self_attn.q_proj.weight", q, h, 0});
  list.Add({"self_attn.k_proj.weight", k, h, 0, kv_heads});
  list.Add({"self_attn.v_proj.weight", k, h, 0, kv_heads});
  list.Add({"self_attn.o_proj.weight", h, q, 1});
  if (model.has_qkv_bias()) {
    list.Add({"self_attn.q_proj.bias", q, 0, 0});
    list.Add({"self_attn.k_proj.bias", k, 0, 0, kv_heads});
    list.Add({"self_attn.v_proj.bias", k, 0, 0, kv_heads});
  }
  if (model.has_output_bias()) {
    list.Add({"self_attn.o_proj.bias", h});
  }
  if (model.has_head_norms()) {
    list.Add({"self_attn.q_norm.weight", model.head_dim()});
    list.Add({"self_attn.k_norm.weight", model.head_dim()});
  }
  list.Add({"post_attention_layernorm.weight", h});
  list.Add({"mlp.gate_proj.weight", f, h, 0});
  list.Add({"mlp.up_proj.weight", f, h, 0});
  list.Add({"mlp.down_proj.weight", h, f, 1});
  return list;
}

TensorOf HeadNorm(const ModelSpec& model) { return {"model.norm.weight", model.hidden_size}; }

// The head's product; nullopt where the embedding that it is tied to is on the same stage.
std::optional<TensorOf> HeadProduct(const ModelSpec& model, const LayerRange& range) {
  if (!model.tie_word_embeddings) {
    return TensorOf{"lm_head.weight", model.vocab_rows(), model.hidden_size, 0};
  }
  return range.has_embedding ? std::nullopt : std::optional(Embedding(model));
}

}  // namespace

int64_t ParameterTensor::count() const {
  int64_t elements = 1;
  for (const int64_t extent : shape) {
    elements *= extent;
  }
  return elements;
}

int64_t ParameterTensor::parts(int64_t tensor) const { return PartsOf(split_axis, max_parts, tensor); }

std::vector<int64_t> ParameterTensor::shape_per_rank(int64_t tensor) const {
  std::vector<int64_t> part = shape;
  if (split_axis >= 0) {
    part[split_axis] /= parts(tensor);
  }
  return part;
}

std::vector<ParameterTensor> ParameterTensors(const ModelSpec& model, const LayerRange& range) {
  std::vector<ParameterTensor> tensors;
  const auto add = [&](const std::string& prefix, const TensorOf& tensor) {
    std::vector<int64_t> shape{tensor.rows};
    if (tensor.columns > 0) {
      shape.push_back(tensor.columns);
    }
    tensors.push_back(
        {fmt::format("{}{}", prefix, tensor.name), std::move(shape), tensor.split_axis, tensor.max_parts});
  };
  if (range.has_embedding) {
    add("", Embedding(model));
  }
  for (int64_t layer = range.first; layer <= range.last; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    for (const TensorOf& tensor : LayerTensors(model)) {
      add(prefix, tensor);
    }
  }
  if (range.has_head) {
    add("", HeadNorm(model));
    if (const std::optional<TensorOf> product = HeadProduct(model, range)) {
      add("", *product);
    }
  }
  return tensors;
}

int64_t LayerVectorElements(const ModelSpec& model, int64_t tensor) {
  int64_t elements = 0;
  for (const TensorOf& each : LayerTensors(model)) {
    elements += each.columns == 0 ? each.CountPerRank(tensor) : 0;
  }
  return elements;
}

int64_t ParameterCount(const ModelSpec& model, const LayerRange& range) {
  return ParameterCountPerRank(model, range, /*tensor=*/1);
}

int64_t ParameterCountPerRank(const ModelSpec& model, const LayerRange& range, int64_t tensor) {
  // Every layer has the same tensors, so one stands for all.
  int64_t per_layer = 0;
  for (const TensorOf& each : LayerTensors(model)) {
    per_layer += each.CountPerRank(tensor);
  }
  int64_t elements = range.count() * per_layer;
  elements += range.has_embedding ? Embedding(model).CountPerRank(tensor) : 0;
  if (range.has_head) {
    const std::optional<TensorOf> product = HeadProduct(model, range);
    elements += HeadNorm(model).CountPerRank(tensor) + (product.has_value() ? product->CountPerRank(tensor) : 0);
  }
  return elements;
}

int64_t ParameterCount(const ModelSpec& model) {
  return ParameterCount(model,
                        {.first = 0, .last = model.num_hidden_layers - 1, .has_embedding = true, .has_head = true});
}

std::vector<LayerRange> SplitLayers(const ModelSpec& model, int64_t stages) {
  GP_CHECK(stages >= 1 && stages <= model.num_hidden_layers, "{} stages for {} layers", stages,
           model.num_hidden_layers);
  const int64_t even = model.num_hidden_layers / stages;
  const int64_t remainder = model.num_hidden_layers % stages;
  const int64_t first_larger = (stages - remainder + 1) / 2;
  std::vector<LayerRange> ranges;
  ranges.reserve(stages);
  int64_t next = 0;
  for (int64_t stage = 0; stage < stages; ++stage) {
    const bool larger = stage >= first_larger && stage < first_larger + remainder;
    const int64_t count = even + (larger ? 1 : 0);
    ranges.push_back(
        {.first = next, .last = next + count - 1, .has_embedding = stage == 0, .has_head = stage == stages - 1});
    next += count;
  }
  return ranges;
}

PartWork BlockWork(const ModelSpec& model, const ExecutionConfig& config) {
  const int64_t t = config.tensor;
  const int64_t n = config.tokens();
  const int64_t h = model.hidden_size;
  const int64_t f = model.intermediate_size;
  const int64_t q = model.query_width() / t;
  const int64_t k = model.key_value_width_per_rank(t);
  const int64_t e = ElementBytes(config.precision);
  const int64_t region = n * h / config.norm_region_split();
  const int64_t rope_bytes = 2 * e * n * (q + k);

  PartWork work;
  const PartWork norm = NormWork(region, h, Residual::kAdded, config);
  work += norm;
  work += ProductWork(n, h, q + 2 * k, config);
  if (model.has_qkv_bias()) {
    work += BiasWork(n, q + 2 * k, config);
  }
  if (model.has_head_norms()) {
    work += NormWork(n * (q + k), 2 * model.head_dim(), Residual::kNone, config);
  }
  work += {.forward = Work::Streamed(rope_bytes), .input_grad = Work::Streamed(rope_bytes), .weight_grad = {}};
  const PartWork core = AttentionCoreWork(model, config);
  work += core;
  work += AddedProductWork(n, q, h, region, config);  // o
  if (model.has_output_bias()) {
    work += BiasWork(n, h, config);
  }
  work += norm;
  work += ProductWork(n, h, 2 * f / t, config);  // gate and up
  const Work swiglu = Work::Streamed(3 * e * n * f / t);
  work += {.forward = swiglu, .input_grad = Work::Streamed(5 * e * n * f / t), .weight_grad = {}};
  const Work to_activation = work.forward;
  work += AddedProductWork(n, f / t, h, region, config);  // down

  switch (config.recompute) {
    case Recompute::kNone:
      break;
    case Recompute::kSelective:
      if (config.attention == Attention::kDense) {
        work.input_grad += core.forward;
      } else {  // which makes the scores again in any case: normalised inputs, and that of the down projection
        work.input_grad += norm.forward;
        work.input_grad += norm.forward;
        work.input_grad += swiglu;
      }
      break;
    case Recompute::kFull:
      work.input_grad += to_activation;
      break;
  }
  return work;
}

PartWork EmbeddingWork(const ModelSpec& model, const ExecutionConfig& config) {
  const int64_t e = ElementBytes(config.precision);
  const int64_t g = kGradientBytes;
  const int64_t written = config.tokens() * model.hidden_size;
  const int64_t served = written / config.tensor;
  return {.forward = Work::Streamed(e * (served + written)),
          .input_grad = {},
          .weight_grad = Work::Streamed((e + 2 * g) * served)};
}

PartWork HeadWork(const ModelSpec& model, const ExecutionConfig& config) {
  const int64_t e = ElementBytes(config.precision);
  const int64_t n = config.tokens();
  const int64_t h = model.hidden_size;
  const int64_t classes = model.vocab_rows() / config.tensor;
  const bool in_chunks = config.precision != Precision::kFp32;
  const int64_t chunks = in_chunks ? (n + kLossRows - 1) / kLossRows : 1;
  // Passes over the fp32 logits: one over all classes reads them; of several, the first reads, the second reads and
  // writes, and the third reads.
  const int64_t passes = config.tensor == 1 ? 1 : 4;
  PartWork work = NormWork(n * h / config.norm_region_split(), h, Residual::kNone, config);
  work += ProductWork(n, h, classes, config);
  work.forward.bytes += e * (chunks - 1) * h * classes + (kFp32Bytes - e) * n * classes;
  work.forward += Work::Streamed((passes * kFp32Bytes + e) * n * classes);
  return work;
}

}  // namespace geopipe
