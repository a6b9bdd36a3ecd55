#include "optimizer/model/gpu_workspace.h"

#include <catch2/catch.hpp>

namespace geopipe {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr LayerRange kMiddle{.first = 4, .last = 7};
constexpr LayerRange kHead{.has_head = true};

// The workspace without the products' 32 MiB.
int64_t Bytes(const ModelSpec& model, const ExecutionConfig& config, const LayerRange& range = kMiddle) {
  return GpuWorkspaceBytes(model, range, config) - 32 * kMiB;
}

ExecutionConfig Workload(int64_t sequence, int64_t tensor = 1, Precision precision = Precision::kBf16) {
  return {.micro_batch_size = 2, .sequence_length = sequence, .tensor = tensor, .precision = precision};
}

TEST_CASE("attention takes what its heads at once take, and one head may take more than 256 MiB") {
  const ModelSpec model = *ModelPreset("llama-2-7b");
  // Twice fp32 scores and rounded ones of each head.
  CHECK(Bytes(model, Workload(4096)) == 2 * (4 + 2) * 4096 * 4096);
  CHECK(Bytes(model, Workload(2048)) == 5 * 2 * (4 + 2) * 2048 * 2048);
  CHECK(Bytes(model, Workload(32768)) == int64_t{2} * (4 + 2) * 32768 * 32768);
  CHECK(Bytes(model, Workload(4096, 1, Precision::kFp32)) == 2 * 2 * 4 * 4096 * 4096);
  CHECK(Bytes(model, Workload(256)) == 32 * 2 * (4 + 2) * 256 * 256);
}

TEST_CASE("query heads that share keys and values add up their gradients in fp32") {
  const ModelSpec model = *ModelPreset("llama-2-70b");
  CHECK(Bytes(model, Workload(4096, 8)) == 2 * ((4 + 2) * 4096 * 4096 + 4 * 4096 * 128));
  CHECK(Bytes(model, Workload(4096, 16)) == Bytes(model, Workload(4096, 8)));  // the same head of keys and values
  CHECK(Bytes(model, Workload(1024, 2)) == 4 * 2 * ((4 + 2) * 1024 * 1024 + 4 * 1024 * 128));
}

TEST_CASE("where attention takes little, partial sums of kernels are the most") {
  ModelSpec model = *ModelPreset("llama-2-7b");
  const ExecutionConfig config = Workload(16);
  CHECK(Bytes(model, config) == 2 * 16 * 4 * model.hidden_size);  // a norm's gradient of its weight, by rows
  CHECK(Bytes(model, Workload(4096), kHead) == 256 * 4 * model.hidden_size);
  model.family = ModelFamily::kQwen3;
  CHECK(Bytes(model, config) == 2 * 16 * 4 * model.hidden_size);  // those of a head are as many, at most
  model.attention_bias = true;
  CHECK(Bytes(model, config) == 2 * 16 * 4 * 3 * model.hidden_size);  // fp32 results of queries, keys and values
  CHECK(Bytes(model, Workload(16, 1, Precision::kFp32)) == 2 * 16 * 4 * model.hidden_size);
  const ExecutionConfig long_one = Workload(4096);
  CHECK(Bytes(model, long_one) == 2 * (4 + 2) * 4096 * 4096);
  CHECK(GpuFp32ResultRows(8192, 3 * model.hidden_size) == 64 * kMiB / (3 * 4 * model.hidden_size));
  CHECK(GpuFp32ResultRows(2, 64 * kMiB) == 1);
}

TEST_CASE("the head takes a loss of each row, of fp32, and the sums of squares of a large vocabulary") {
  ModelSpec model = *ModelPreset("llama-2-7b");
  model.hidden_size = 2;
  ExecutionConfig config = Workload(4096, 1, Precision::kFp32);
  CHECK(Bytes(model, config, kHead) == 8 * config.tokens());
  config.precision = Precision::kBf16;
  CHECK(Bytes(model, config, kHead) == 8 * 512);
  model.vocab_size = int64_t{1} << 30;
  CHECK(Bytes(model, config, kHead) >= 8 * 2 * (model.vocab_size >> 16));
  CHECK(Bytes(model, config, kHead) <= 8 * (2 * (model.vocab_size >> 16) + 2));
}

}  // namespace
}  // namespace geopipe
