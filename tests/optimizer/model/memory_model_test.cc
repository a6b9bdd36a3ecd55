#include "optimizer/model/memory_model.h"

#include <catch2/catch.hpp>
#include <functional>
#include <string>

#include "optimizer/model/gpu_workspace.h"
#include "optimizer/model/transformer.h"

namespace geopipe {
namespace {

ModelSpec Llama13b() { return *ModelPreset("llama-2-13b"); }

ExecutionConfig Base() {
  return {.micro_batch_size = 2,
          .sequence_length = 2048,
          .tensor = 4,
          .data = 2,
          .sequence_parallel = false,
          .zero_stage = 0,
          .recompute = Recompute::kNone,
          .precision = Precision::kBf16,
          .attention = Attention::kDense};
}

constexpr LayerRange kStage{.first = 0, .last = 9, .has_embedding = true, .has_head = false};

// Activation bytes per layer and micro-batch in 16-bit training of a GPT block (Korthikanti et al., arXiv 2205.05198,
// table 2): none sbh(34 + 5as/h), TP sbh(10 + 24/t + 5as/(ht)), TP + SP sbh(34/t + 5as/(ht)), selective recomputation
// the same without the 5as/h terms, full 2sbh (/t with SP). config.precision is not used.
double KorthikantiLayerBytes(const ModelSpec& model, const ExecutionConfig& config) {
  const auto t = static_cast<double>(config.tensor);
  const double sbh = static_cast<double>(config.tokens()) * static_cast<double>(model.hidden_size);
  if (config.recompute == Recompute::kFull) {
    return 2 * sbh / (config.sequence_parallel ? t : 1);
  }
  const double linear = config.sequence_parallel ? 34 / t : 10 + 24 / t;
  const double attention = 5.0 * static_cast<double>(model.num_attention_heads) *
                           static_cast<double>(config.sequence_length) / (static_cast<double>(model.hidden_size) * t);
  return sbh * (linear + (config.recompute == Recompute::kNone ? attention : 0));
}

TEST_CASE("Korthikanti's formulas, row by row") {
  // s = 2048, b = 2, h = 5120, a = 40, t = 4: sbh = 20,971,520 and 5as/h = 80.
  const double sbh = 20'971'520;
  struct Row {
    int64_t tensor;
    bool sequence_parallel;
    Recompute recompute;
    double factor;
  };
  const Row rows[] = {
      {1, false, Recompute::kNone, 34 + 80}, {4, false, Recompute::kNone, 10 + 6 + 20},
      {4, true, Recompute::kNone, 8.5 + 20}, {4, false, Recompute::kSelective, 10 + 6},
      {4, true, Recompute::kSelective, 8.5}, {4, false, Recompute::kFull, 2},
      {4, true, Recompute::kFull, 0.5},
  };
  for (const Row& row : rows) {
    ExecutionConfig config = Base();
    config.tensor = row.tensor;
    config.sequence_parallel = row.sequence_parallel;
    config.recompute = row.recompute;
    CHECK(KorthikantiLayerBytes(Llama13b(), config) == Approx(sbh * row.factor).epsilon(1e-12));
  }
}

TEST_CASE("the planner's count is of the published formula's order") {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    for (const int64_t tensor : {1, 2, 8}) {
      ExecutionConfig config = Base();
      config.recompute = recompute;
      config.tensor = tensor;
      config.sequence_parallel = tensor > 1;
      const auto count = static_cast<double>(TotalBytes(BlockActivations(Llama13b(), config)));
      const double ratio = count / KorthikantiLayerBytes(Llama13b(), config);
      INFO("recompute " << static_cast<int>(recompute) << " tensor " << tensor);
      CHECK(ratio > 0.4);
      CHECK(ratio < 1.5);
    }
  }
}

TEST_CASE("blocked attention keeps a number for each row in place of the probabilities") {
  const ModelSpec model = Llama13b();
  ExecutionConfig config = Base();
  const int64_t n = config.tokens();
  const int64_t probabilities = 2 * n * 2048 * 40 / 4;
  const int64_t rows = 4 * n * 40 / 4;
  const int64_t dense = TotalBytes(BlockActivations(model, config));
  config.attention = Attention::kBlocked;
  const int64_t blocked = TotalBytes(BlockActivations(model, config));
  CHECK(dense - blocked == probabilities - rows);
  // 4 bytes of the sum of dQ for each element of a query.
  const StageMemory none = MemoryOfStage(model, kStage, config);
  CHECK(none.workspace_bytes > 4 * n * 5120 / 4);
  CHECK(none.workspace_bytes < 2 * 4 * n * 5120);
  config.recompute = Recompute::kSelective;
  const StageMemory selective = MemoryOfStage(model, kStage, config);
  const int64_t split = config.norm_region_split();
  CHECK(none.activation_bytes - selective.activation_bytes ==
        kStage.count() * (2 * 2 * n * 5120 / split + 2 * n * model.intermediate_size / 4));
  CHECK(selective.weight_grad_bytes == none.weight_grad_bytes);
  // The workspace has what one layer makes again, and what W needs of the others beyond what they kept.
  CHECK(selective.workspace_bytes >= none.workspace_bytes + 2 * n * model.intermediate_size / 4);
  config.recompute = Recompute::kFull;
  CHECK(MemoryOfStage(model, kStage, config).activation_bytes < none.activation_bytes / 4);
}

TEST_CASE("model states per parameter, divided by ZeRO stage") {
  // Norms are whole on every rank, and fp32: 4 + 4 + 8.
  const int64_t norms = 2 * kStage.count() * 5120;
  const int64_t divided = ParameterCountPerRank(Llama13b(), kStage, 4) - norms;
  struct Row {
    Precision precision;
    int32_t zero_stage;
    double weights, gradients, states;
  };
  const Row rows[] = {
      {Precision::kBf16, 0, 2, 4, 12}, {Precision::kBf16, 1, 2, 4, 6}, {Precision::kBf16, 2, 2, 2, 6},
      {Precision::kBf16, 3, 1, 2, 6},  {Precision::kFp32, 0, 4, 4, 8}, {Precision::kFp32, 3, 2, 2, 4},
  };
  for (const Row& row : rows) {
    ExecutionConfig config = Base();
    config.precision = row.precision;
    config.zero_stage = row.zero_stage;
    const StageMemory memory = MemoryOfStage(Llama13b(), kStage, config);
    const auto count = static_cast<double>(divided);
    CHECK(static_cast<double>(memory.weight_bytes - 4 * norms) == row.weights * count);
    CHECK(static_cast<double>(memory.gradient_bytes - 4 * norms) == row.gradients * count);
    CHECK(static_cast<double>(memory.optimizer_bytes - 8 * norms) == row.states * count);
  }
}

TEST_CASE("the host keeps offloaded states of all but norms, and the device has room for a run of them") {
  ExecutionConfig config = Base();
  config.precision = Precision::kBf16;
  config.zero_stage = 1;
  const StageMemory plain = MemoryOfStage(Llama13b(), kStage, config);
  config.offloads_optimizer = true;
  const StageMemory offloaded = MemoryOfStage(Llama13b(), kStage, config);
  const int64_t norms = 2 * 4 * 2 * kStage.count() * 5120;
  CHECK(plain.host_bytes == 0);
  CHECK(offloaded.optimizer_bytes == norms);
  CHECK(offloaded.host_bytes == plain.optimizer_bytes - norms);
  CHECK(offloaded.workspace_bytes - plain.workspace_bytes == int64_t{48} << 20);
  CHECK(offloaded.static_bytes() == plain.static_bytes() - offloaded.host_bytes + (int64_t{48} << 20));
}

TEST_CASE("the stages of a device take its workspace in turns, and keep their own tables") {
  const ModelSpec model = Llama13b();
  for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
    ExecutionConfig config = Base();
    config.recompute = recompute;
    const StageMemory larger = MemoryOfStage(model, kStage, config);
    const StageMemory smaller = MemoryOfStage(model, {.first = kStage.last + 1, .last = kStage.last + 1}, config);
    StageMemory both = smaller;
    both += larger;
    const int64_t tables = 4 * config.sequence_length * model.head_dim();
    CHECK(larger.workspace_bytes - larger.shared_workspace_bytes == tables + 4 * config.tokens());  // and token ids
    CHECK(both.workspace_bytes == larger.workspace_bytes + tables);
    CHECK(both.activation_bytes == larger.activation_bytes + smaller.activation_bytes);
    CHECK(both.model_state_bytes() == larger.model_state_bytes() + smaller.model_state_bytes());
  }
}

TEST_CASE("ZeRO 2 has room for the gradients of two layers, or of a larger end, and ZeRO 3 for a third one") {
  const auto extra = [](const ModelSpec& model, const LayerRange& range, int32_t zero_stage) {
    ExecutionConfig config = Base();
    config.zero_stage = 1;
    const int64_t plain = MemoryOfStage(model, range, config).workspace_bytes;
    config.zero_stage = zero_stage;
    return MemoryOfStage(model, range, config).workspace_bytes - plain;
  };
  ModelSpec model = Llama13b();
  const int64_t layer = ParameterCountPerRank(model, {.first = 0, .last = 0}, 4) - 2 * model.hidden_size;
  CHECK(extra(model, kStage, 2) == 2 * 4 * layer);
  CHECK(extra(model, kStage, 3) == 3 * 4 * layer);
  const LayerRange first{.first = 0, .last = 0, .has_embedding = true};
  CHECK(extra(model, first, 2) == 2 * 4 * layer);
  model.vocab_size *= 16;
  CHECK(extra(model, first, 2) == 2 * 4 * model.vocab_size * model.hidden_size / 4);
}

TEST_CASE("two states that are kept for recovery take 24 bytes per parameter, whatever the precision") {
  for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
    ExecutionConfig config = Base();
    config.precision = precision;
    const StageMemory without = MemoryOfStage(Llama13b(), kStage, config);
    config.keeps_states = true;
    const StageMemory with = MemoryOfStage(Llama13b(), kStage, config);
    CHECK(without.recovery_bytes == 0);
    CHECK(with.recovery_bytes == 24 * ParameterCountPerRank(Llama13b(), kStage, config.tensor));
    CHECK(with.static_bytes() == without.static_bytes() + with.recovery_bytes);

    config.own_memory = true;
    const StageMemory beside = MemoryOfStage(Llama13b(), kStage, config);
    config.keeps_states = false;
    CHECK(beside.recovery_bytes == 0);
    CHECK(beside.host_bytes == without.host_bytes + with.recovery_bytes);
    CHECK(beside.static_bytes() == MemoryOfStage(Llama13b(), kStage, config).static_bytes());
  }
}

TEST_CASE("kept states lie beside offloaded ones in the host's memory") {
  ExecutionConfig config = Base();
  config.offloads_optimizer = config.own_memory = true;
  const StageMemory offloaded = MemoryOfStage(Llama13b(), kStage, config);
  config.keeps_states = true;
  const StageMemory both = MemoryOfStage(Llama13b(), kStage, config);
  CHECK(both.host_bytes == offloaded.host_bytes + 24 * ParameterCountPerRank(Llama13b(), kStage, config.tensor));
  CHECK(both.static_bytes() == offloaded.static_bytes());
}

TEST_CASE("a device with a memory of its own has the GPU's workspace, and no ids that only the host reads") {
  for (const bool dense : {false, true}) {
    ExecutionConfig config = Base();
    config.attention = dense ? Attention::kDense : Attention::kBlocked;
    const StageMemory processor = MemoryOfStage(Llama13b(), kStage, config);
    config.own_memory = true;
    const StageMemory gpu = MemoryOfStage(Llama13b(), kStage, config);
    const int64_t ids = 4 * config.tokens();
    // fp32: sums of queries' gradients, and a number of each row and head.
    const int64_t of_processor = 4 * config.tokens() * (Llama13b().hidden_size + Llama13b().num_attention_heads) / 4;
    const int64_t of_gpu = GpuWorkspaceBytes(Llama13b(), kStage, config);
    CHECK(processor.workspace_bytes - gpu.workspace_bytes == ids + (dense ? 0 : of_processor - of_gpu));
    StageMemory expected = processor;
    expected.workspace_bytes = gpu.workspace_bytes;
    expected.shared_workspace_bytes = gpu.shared_workspace_bytes;
    CHECK(gpu == expected);
  }
}

TEST_CASE("tied embeddings on one stage keep a second gradient accumulator") {
  ModelSpec model = *ModelPreset("llama-2-7b");
  model.tie_word_embeddings = true;
  const ExecutionConfig config{};
  const LayerRange all{.first = 0, .last = 31, .has_embedding = true, .has_head = true};
  const StageMemory memory = MemoryOfStage(model, all, config);
  CHECK(memory.gradient_bytes - memory.weight_bytes == 4 * model.vocab_size * model.hidden_size);
}

TEST_CASE("more work never needs less memory, more sharing never more") {
  using Change = std::function<void(ExecutionConfig&, LayerRange&)>;
  const Change more[] = {
      [](ExecutionConfig& c, LayerRange&) { c.micro_batch_size *= 2; },
      [](ExecutionConfig& c, LayerRange&) { c.sequence_length *= 2; },
      [](ExecutionConfig&, LayerRange& r) { ++r.last; },
      [](ExecutionConfig&, LayerRange& r) { r.has_head = true; },
      [](ExecutionConfig& c, LayerRange&) { c.tensor /= 2; },
  };
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    for (const Change& change : more) {
      ExecutionConfig config = Base();
      config.recompute = recompute;
      LayerRange range = kStage;
      const StageMemory before = MemoryOfStage(Llama13b(), range, config);
      change(config, range);
      const StageMemory after = MemoryOfStage(Llama13b(), range, config);
      CHECK(after.activation_bytes >= before.activation_bytes);
      CHECK(after.weight_grad_bytes >= before.weight_grad_bytes);
      CHECK(after.static_bytes() >= before.static_bytes());
    }
  }
  ExecutionConfig config = Base();
  int64_t previous = TotalBytes(BlockActivations(Llama13b(), config));
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    config.recompute = recompute;
    const int64_t bytes = TotalBytes(BlockActivations(Llama13b(), config));
    CHECK(bytes < previous);
    previous = bytes;
  }
  ExecutionConfig split = Base();
  split.sequence_parallel = true;
  CHECK(TotalBytes(BlockActivations(Llama13b(), split)) < TotalBytes(BlockActivations(Llama13b(), Base())));
}

TEST_CASE("what W needs is part of what F keeps") {
  const std::vector<KeptTensor> block = BlockActivations(Llama13b(), Base());
  CHECK(KeptForWeightGradBytes(block) > 0);
  CHECK(KeptForWeightGradBytes(block) < TotalBytes(block));
}

TEST_CASE("workspace: one temporary without recomputation, a layer's worth with it") {
  ExecutionConfig config = Base();
  config.tensor = 1;
  const int64_t tokens = 2 * 2048;
  const int64_t head_dim = 128;
  const int64_t standing = 4 * (2048 * head_dim + 2 * 2048 * head_dim + 64 * 2048) + 4 * tokens;
  const auto workspace = [&](Recompute recompute, const LayerRange& range) {
    config.recompute = recompute;
    return MemoryOfStage(Llama13b(), range, config).workspace_bytes;
  };
  const int64_t gate = 2 * tokens * 13'824;
  const int64_t probabilities = int64_t{2} * 2 * 40 * 2048 * 2048;
  // Gradients of queries, keys, values and of their context, which are larger than that of gate times up.
  const int64_t hidden = 2 * tokens * 5120;
  CHECK(workspace(Recompute::kNone, kStage) == standing + 4 * hidden);
  CHECK(workspace(Recompute::kSelective, kStage) == standing + probabilities + 4 * hidden);
  // A layer that is done again: all but its input.
  const int64_t again = 7 * hidden + 3 * gate + probabilities + 2 * 4 * tokens;
  CHECK(workspace(Recompute::kFull, kStage) == standing + again + 4 * hidden);
  const LayerRange embedding{.first = 0, .last = -1, .has_embedding = true, .has_head = false};
  CHECK(workspace(Recompute::kNone, embedding) == 4 * 2048 * head_dim + 4 * tokens);
  const LayerRange whole{.first = 0, .last = 39, .has_embedding = true, .has_head = true};
  CHECK(workspace(Recompute::kNone, whole) == standing - 4 * tokens + 4 * hidden);
  const LayerRange head{.first = 0, .last = -1, .has_embedding = false, .has_head = true};
  CHECK(workspace(Recompute::kNone, head) == 4 * 2048 * head_dim + 4 * tokens + 4 * tokens + 4 * 512 * 32'000);
}

TEST_CASE("the memory model of a config counts every stage as MemoryOfStage does") {
  ModelSpec model = *ModelPreset("llama-2-7b");
  for (const bool tied : {false, true}) {
    model.tie_word_embeddings = tied;
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      for (const int32_t zero_stage : {0, 1, 2, 3}) {
        const ExecutionConfig config{.micro_batch_size = 3,
                                     .sequence_length = 512,
                                     .tensor = zero_stage % 2 == 0 ? 1 : 4,
                                     .data = 3,
                                     .sequence_parallel = zero_stage > 1,
                                     .zero_stage = zero_stage,
                                     .recompute = recompute,
                                     .precision = tied ? Precision::kBf16 : Precision::kFp32,
                                     .offloads_optimizer = tied,
                                     .keeps_states = tied};
        const StageMemoryModel memory(model, config);
        for (const int64_t layers : {1, 2, 7, 32}) {
          for (const int ends : {0, 1, 2, 3}) {
            const LayerRange range{
                .first = 0, .last = layers - 1, .has_embedding = ends % 2 == 1, .has_head = ends > 1};
            CHECK(memory.Of(range) == MemoryOfStage(model, range, config));
            CHECK(memory.Parameters(range) == ParameterCountPerRank(model, range, config.tensor));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace geopipe
