// One stage of Llama-2 13B against numbers worked out by hand (tests/golden/plan/llama_2_13b_stage.md).
#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "optimizer/model/memory_model.h"
#include "optimizer/model/plan/plan_memory.h"
#include "optimizer/model/transformer.h"

namespace geopipe {
namespace {

// Sum over the parts of a stage.
PartWork StageWork(const ModelSpec& model, const LayerRange& range, const ExecutionConfig& config) {
  PartWork work;
  const PartWork block = BlockWork(model, config);
  for (int64_t layer = range.first; layer <= range.last; ++layer) {
    work += block;
  }
  if (range.has_embedding) {
    work += EmbeddingWork(model, config);
  }
  if (range.has_head) {
    work += HeadWork(model, config);
  }
  return work;
}

TEST_CASE("parameters, FLOPs, bytes and memory of one 13B stage are those worked out by hand") {
  std::ifstream file(GEOPIPE_SOURCE_DIR "/tests/golden/plan/llama_2_13b_stage.json");
  REQUIRE(file.good());
  const nlohmann::json golden = nlohmann::json::parse(file);
  const auto expect = [&](const char* key) { return golden.at(key).get<int64_t>(); };

  const ModelSpec model = *ModelPreset("llama-2-13b");
  const LayerRange stage = SplitLayers(model, 8).front();
  REQUIRE(stage == LayerRange{.first = 0, .last = 4, .has_embedding = true, .has_head = false});
  const ExecutionConfig config{.micro_batch_size = 1,
                               .sequence_length = 4096,
                               .tensor = 8,
                               .data = 1,
                               .sequence_parallel = true,
                               .zero_stage = 1,
                               .recompute = Recompute::kNone,
                               .precision = Precision::kBf16};

  CHECK(ParameterCount(model) == expect("model_parameters"));
  CHECK(ParameterCount(model, stage) == expect("parameters"));
  CHECK(ParameterCountPerRank(model, stage, 8) == expect("parameters_per_rank"));

  const PartWork work = StageWork(model, stage, config);
  CHECK(work.forward.flops == expect("forward_flops"));
  CHECK(work.input_grad.flops == expect("input_grad_flops"));
  CHECK(work.weight_grad.flops == expect("weight_grad_flops"));
  CHECK(work.forward.bytes == expect("forward_bytes"));
  CHECK(work.input_grad.bytes == expect("input_grad_bytes"));
  CHECK(work.weight_grad.bytes == expect("weight_grad_bytes"));

  const PartWork head = HeadWork(model, config);
  CHECK(head.forward.flops == expect("head_flops"));
  CHECK(head.input_grad.flops == expect("head_flops"));
  CHECK(head.weight_grad.flops == expect("head_flops"));
  CHECK(head.forward.bytes == expect("head_forward_bytes"));
  CHECK(head.input_grad.bytes == expect("head_input_grad_bytes"));

  const StageMemory memory = MemoryOfStage(model, stage, config);
  CHECK(memory.weight_bytes == expect("weight_memory"));
  CHECK(memory.gradient_bytes == expect("gradient_memory"));
  CHECK(memory.optimizer_bytes == expect("optimizer_memory"));
  CHECK(memory.activation_bytes == expect("activation_memory"));
  CHECK(memory.workspace_bytes == expect("workspace_memory"));
  CHECK(BoundaryMessageBytes(model, config) == expect("message_bytes"));
  const StageNeeds needs{.alone = memory, .above = true, .message_bytes = BoundaryMessageBytes(model, config) / 8};
  CHECK(needs.TransportBytes({.before = 0, .here = 8 + 2}) == expect("transport_memory"));
}

}  // namespace
}  // namespace geopipe
