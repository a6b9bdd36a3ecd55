#include "optimizer/model/transformer.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/support/tiny_model.h"

namespace geopipe {
namespace {

ModelSpec Small(bool tied) {
  ModelSpec model = TinyModel();
  model.intermediate_size = 160;
  model.num_attention_heads = 8;
  model.num_key_value_heads = 4;
  model.vocab_size = 256;
  model.tie_word_embeddings = tied;
  return model;
}

TEST_CASE("parameter counts of Llama-2 are the published ones") {
  CHECK(ParameterCount(*ModelPreset("llama-2-7b")) == 6'738'415'616);
  CHECK(ParameterCount(*ModelPreset("llama-2-13b")) == 13'015'864'320);
  CHECK(ParameterCount(*ModelPreset("llama-2-70b")) == 68'976'648'192);
}

TEST_CASE("stages together hold every tensor once, whatever the split") {
  for (const char* name : {"llama-2-7b", "llama-2-13b", "llama-2-70b"}) {
    const ModelSpec model = *ModelPreset(name);
    for (const int64_t stages : {1, 2, 3, 6, 7, 8, 32}) {
      int64_t total = 0;
      for (const LayerRange& range : SplitLayers(model, stages)) {
        total += ParameterCount(model, range);
      }
      CHECK(total == ParameterCount(model));
    }
  }
}

TEST_CASE("tied embeddings: one tensor on one stage, a copy at each end of several") {
  const ModelSpec tied = Small(true);
  const int64_t embedding = tied.vocab_size * tied.hidden_size;
  CHECK(ParameterCount(Small(false)) - ParameterCount(tied) == embedding);
  const std::vector<LayerRange> ranges = SplitLayers(tied, 2);
  CHECK(ParameterCount(tied, ranges[0]) + ParameterCount(tied, ranges[1]) == ParameterCount(tied) + embedding);
  CHECK(ParameterTensors(tied, ranges[1]).back().name == "model.embed_tokens.weight");
}

TEST_CASE("counts are those of the tensors, whole or divided over tensor-parallel ranks") {
  for (const bool is_tied : {false, true}) {
    for (const LayerRange& range :
         std::vector<LayerRange>{{.first = 0, .last = 2, .has_embedding = true},
                                 {.first = 2, .last = 3},
                                 {.first = 3, .last = 3, .has_head = true},
                                 {.first = 0, .last = 3, .has_embedding = true, .has_head = true},
                                 {.first = 4, .last = 3, .has_head = true}}) {
      for (const int64_t tensor : {1, 2, 4}) {
        int64_t elements = 0;
        for (const ParameterTensor& parameter : ParameterTensors(Small(is_tied), range)) {
          elements += parameter.count_per_rank(tensor);
        }
        CHECK(ParameterCountPerRank(Small(is_tied), range, tensor) == elements);
      }
    }
  }
}

TEST_CASE("tensors carry their Hugging Face names and shapes") {
  const std::vector<ParameterTensor> tensors =
      ParameterTensors(Small(false), {.first = 5, .last = 5, .has_embedding = false, .has_head = true});
  const std::vector<ParameterTensor> expected{
      {"model.layers.5.input_layernorm.weight", {64}},
      {"model.layers.5.self_attn.q_proj.weight", {64, 64}, 0},
      {"model.layers.5.self_attn.k_proj.weight", {32, 64}, 0, 4},
      {"model.layers.5.self_attn.v_proj.weight", {32, 64}, 0, 4},
      {"model.layers.5.self_attn.o_proj.weight", {64, 64}, 1},
      {"model.layers.5.post_attention_layernorm.weight", {64}},
      {"model.layers.5.mlp.gate_proj.weight", {160, 64}, 0},
      {"model.layers.5.mlp.up_proj.weight", {160, 64}, 0},
      {"model.layers.5.mlp.down_proj.weight", {64, 160}, 1},
      {"model.norm.weight", {64}},
      {"lm_head.weight", {256, 64}, 0},
  };
  CHECK(tensors == expected);
  // Four key-value heads: eight ranks have four parts of them, and each of these two sharers.
  const ParameterTensor& keys = tensors[2];
  CHECK(keys.parts(8) == 4);
  CHECK(keys.shape_per_rank(8) == std::vector<int64_t>{8, 64});
  CHECK(tensors[4].shape_per_rank(8) == std::vector<int64_t>{64, 8});
  CHECK(tensors[0].shape_per_rank(8) == std::vector<int64_t>{64});
}

std::vector<int64_t> Counts(int64_t layers, int64_t stages) {
  ModelSpec model = Small(false);
  model.num_hidden_layers = layers;
  std::vector<int64_t> counts;
  int64_t next = 0;
  for (const LayerRange& range : SplitLayers(model, stages)) {
    CHECK(range.first == next);
    next = range.last + 1;
    counts.push_back(range.count());
  }
  CHECK(next == layers);
  return counts;
}

TEST_CASE("layers that don't divide go to the middle stages") {
  CHECK(Counts(6, 3) == std::vector<int64_t>{2, 2, 2});
  CHECK(Counts(10, 4) == std::vector<int64_t>{2, 3, 3, 2});
  CHECK(Counts(7, 3) == std::vector<int64_t>{2, 3, 2});
  CHECK(Counts(8, 3) == std::vector<int64_t>{2, 3, 3});
  CHECK(Counts(5, 4) == std::vector<int64_t>{1, 1, 2, 1});
  CHECK(Counts(80, 6) == std::vector<int64_t>{13, 13, 14, 14, 13, 13});
  CHECK(Counts(6, 1) == std::vector<int64_t>{6});
}

ExecutionConfig Config(int64_t tensor, Recompute recompute) {
  return {.micro_batch_size = 2,
          .sequence_length = 128,
          .tensor = tensor,
          .data = 1,
          .sequence_parallel = tensor > 1,
          .zero_stage = 1,
          .recompute = recompute,
          .precision = Precision::kBf16,
          .attention = Attention::kDense};
}

TEST_CASE("FLOPs: six per parameter of a product and token, plus attention") {
  const ModelSpec model = Small(false);
  const ExecutionConfig config = Config(1, Recompute::kNone);
  const int64_t n = config.tokens();
  const int64_t product_parameters = ParameterCount(model, {.first = 0, .last = 0}) - 2 * model.hidden_size;
  const PartWork block = BlockWork(model, config);
  const int64_t attention = 4 * n * config.sequence_length * model.hidden_size;
  CHECK(block.forward.flops == 2 * n * product_parameters + attention);
  CHECK(block.input_grad.flops == 2 * n * product_parameters + 2 * attention);
  CHECK(block.weight_grad.flops == 2 * n * product_parameters);
  CHECK(EmbeddingWork(model, config).forward.flops == 0);
  CHECK(HeadWork(model, config).weight_grad.flops == 2 * n * model.vocab_size * model.hidden_size);
}

TEST_CASE("blocked attention is causal: half of two products in F and of five in I, and no s x s is moved") {
  const ModelSpec model = Small(false);
  for (const int64_t tensor : {1, 4}) {
    ExecutionConfig config = Config(tensor, Recompute::kNone);
    const PartWork dense = BlockWork(model, config);
    config.attention = Attention::kBlocked;
    const PartWork blocked = BlockWork(model, config);
    const int64_t product = 2 * config.tokens() * config.sequence_length * model.hidden_size / tensor;
    CHECK(dense.forward.flops - blocked.forward.flops == 2 * product - product);
    CHECK(dense.input_grad.flops - blocked.input_grad.flops == 4 * product - 5 * product / 2);
    CHECK(blocked.weight_grad == dense.weight_grad);
    ExecutionConfig longer = config;
    longer.sequence_length *= 2;
    longer.micro_batch_size /= 2;
    REQUIRE(longer.tokens() == config.tokens());
    CHECK(BlockWork(model, longer).forward.bytes == blocked.forward.bytes);
    config.recompute = Recompute::kSelective;
    const PartWork selective = BlockWork(model, config);
    CHECK(selective.forward == blocked.forward);
    CHECK(selective.weight_grad == blocked.weight_grad);
    CHECK(selective.input_grad.flops == blocked.input_grad.flops);
    // Two normalised inputs, read and written; gate and up read, their product written.
    const int64_t elements = config.tokens() * (2 * 2 * model.hidden_size / config.norm_region_split() +
                                                3 * model.intermediate_size / tensor);
    CHECK(selective.input_grad.bytes == blocked.input_grad.bytes + ElementBytes(config.precision) * elements);
    config.recompute = Recompute::kFull;
    const int64_t down = 2 * config.tokens() * model.intermediate_size * model.hidden_size / tensor;
    CHECK(BlockWork(model, config).input_grad.flops == blocked.input_grad.flops + blocked.forward.flops - down);
  }
}

TEST_CASE("tensor parallelism divides FLOPs exactly") {
  const ModelSpec model = Small(false);
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    const PartWork whole = BlockWork(model, Config(1, recompute));
    const PartWork quarter = BlockWork(model, Config(4, recompute));
    CHECK(4 * quarter.forward.flops == whole.forward.flops);
    CHECK(4 * quarter.input_grad.flops == whole.input_grad.flops);
    CHECK(4 * quarter.weight_grad.flops == whole.weight_grad.flops);
    CHECK(4 * quarter.forward.bytes >= whole.forward.bytes);  // inputs of split products are read by every rank
  }
}

TEST_CASE("recomputation repeats the attention core, or the forward up to the down projection, in I") {
  const ModelSpec model = Small(false);
  const PartWork none = BlockWork(model, Config(2, Recompute::kNone));
  const PartWork selective = BlockWork(model, Config(2, Recompute::kSelective));
  const PartWork full = BlockWork(model, Config(2, Recompute::kFull));
  const int64_t n = Config(2, Recompute::kNone).tokens();
  CHECK(selective.input_grad.flops - none.input_grad.flops == 4 * n * 128 * model.hidden_size / 2);
  const int64_t in = model.intermediate_size / 2;
  CHECK(full.input_grad.flops - none.input_grad.flops == none.forward.flops - 2 * n * in * model.hidden_size);
  // Its operands, the weight once for each rank's rows, and the rank's rows of the residual.
  const int64_t down = n * in + 2 * in * model.hidden_size + n * model.hidden_size + n * model.hidden_size / 2;
  CHECK(full.input_grad.bytes - none.input_grad.bytes == none.forward.bytes - 2 * down);
  CHECK(selective.forward == none.forward);
  CHECK(full.weight_grad == none.weight_grad);
}

TEST_CASE("operands that one product takes are read once, and a norm's gradients are one pass") {
  const ModelSpec model = Small(false);
  const ExecutionConfig config = Config(1, Recompute::kNone);
  const int64_t n = config.tokens();
  const int64_t h = model.hidden_size;
  const int64_t q = model.query_width();
  const int64_t k = model.key_value_width();
  const int64_t f = model.intermediate_size;
  const auto product = [&](int64_t in, int64_t out) { return n * in + in * out + n * out; };
  const int64_t products = product(h, q + 2 * k) + product(q, h) + product(h, 2 * f) + product(f, h);
  const int64_t p = n * config.sequence_length * model.num_attention_heads;
  const PartWork work = BlockWork(model, config);
  // Two norms, two residuals that products read, RoPE, dense attention, SwiGLU.
  CHECK(work.forward.bytes ==
        2 * (products + 2 * 2 * n * h + 2 * n * h + 2 * n * (q + k) + 4 * p + 2 * n * (q + k) + 3 * n * f));
  CHECK(work.input_grad.bytes ==
        2 * (products + 2 * 4 * n * h + 2 * n * (q + k) + 7 * p + 4 * n * (q + k) + 5 * n * f) + 2 * 2 * 4 * h);
  const int64_t operands = n * (h + q + 2 * k + q + h + h + 2 * f + f + h);
  const int64_t weights = h * (q + 2 * k) + q * h + 3 * h * f;
  CHECK(work.weight_grad.bytes == 2 * operands + 2 * 4 * weights);
}

TEST_CASE("the loss leaves the gradient of the logits in F, and I writes nothing of that size") {
  const ModelSpec model = Small(false);
  ExecutionConfig config = Config(1, Recompute::kNone);
  config.micro_batch_size = 9;  // 1,152 rows: three pieces of bf16
  const int64_t n = config.tokens();
  const int64_t h = model.hidden_size;
  const int64_t v = model.vocab_size;
  const PartWork bf16 = HeadWork(model, config);
  CHECK(bf16.forward.bytes == 2 * 2 * n * h + 2 * (n * h + 3 * h * v) + 4 * n * v + (4 + 2) * n * v);
  CHECK(bf16.input_grad.bytes == 2 * (n * v + h * v + n * h) + 2 * 3 * n * h + 2 * 4 * h);
  CHECK(bf16.weight_grad.bytes == 2 * (n * h + n * v) + 2 * 4 * h * v);
  config.precision = Precision::kFp32;  // logits become their gradient in place, all rows at once
  const PartWork fp32 = HeadWork(model, config);
  CHECK(fp32.forward.bytes == 4 * 2 * n * h + 4 * (n * h + h * v + n * v) + 2 * 4 * n * v);
  config.tensor = 2;  // three passes around two reductions
  CHECK(HeadWork(model, config).forward.streamed_bytes == 4 * 2 * n * h + (16 + 4) * n * v / 2);
}

}  // namespace
}  // namespace geopipe
