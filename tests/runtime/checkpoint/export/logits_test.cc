// The directories in tests/golden/export were written by `geopipectl export-hf` from checkpoints of trained models, and
// an independent implementation computed logits from them (make_golden.py: PyTorch in fp64). The engine, started from
// the same directories, has to agree, and the exporter has to write them again.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/model/transformer.h"
#include "runtime/checkpoint/checkpoint_folders.h"
#include "runtime/checkpoint/export/hf_export.h"
#include "runtime/checkpoint/state/state_snapshot.h"
#include "runtime/manifest/hf_config.h"
#include "runtime/weights/hf_directory.h"
#include "tests/runtime/checkpoint/export/checkpoint_of.h"
#include "tests/runtime/checkpoint/state/taken_snapshot.h"
#include "tests/runtime/checkpoint/written_checkpoint.h"
#include "tests/runtime/model/pipeline_driver.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

constexpr double kTolerance = 1e-4;

class DirectoryWeights final : public WeightSource {
 public:
  explicit DirectoryWeights(const std::string& path) : directory_(*HfDirectory::Open(path)) {}

  absl::Status Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) override {
    return directory_.Read(name, shape, values);
  }

 private:
  HfDirectory directory_;
};

// One micro-batch of given tokens.
class FixedTokens final : public TokenSource {
 public:
  FixedTokens(std::vector<int32_t> inputs, std::vector<int32_t> targets)
      : inputs_(std::move(inputs)), targets_(std::move(targets)) {}

  absl::Status Read(int64_t /*iteration*/, int64_t first_sample, int64_t /*samples*/, std::span<int32_t> inputs,
                    std::span<int32_t> targets) override {
    REQUIRE(first_sample == 0);
    REQUIRE(inputs.size() == inputs_.size());
    std::ranges::copy(inputs_, inputs.begin());
    std::ranges::copy(targets_, targets.begin());
    return absl::OkStatus();
  }

 private:
  std::vector<int32_t> inputs_;
  std::vector<int32_t> targets_;
};

struct Golden {
  std::string folder;
  nlohmann::json expected;
  TransformerStageOptions options;
  std::unique_ptr<FixedTokens> tokens;
};

Golden ReadGolden(const std::string& name) {
  Golden golden;
  golden.folder = std::string(GEOPIPE_SOURCE_DIR) + "/tests/golden/export/" + name;
  golden.expected = nlohmann::json::parse(std::ifstream(golden.folder + "/expected.json"));
  golden.options.model = *ReadHfConfig(golden.folder);
  golden.options.micro_batch_size = golden.expected["sequences"];
  golden.options.sequence_length = golden.expected["sequence_length"];
  golden.options.micro_batches = 1;
  golden.options.training.tokens_per_iteration = golden.options.micro_batch_size * golden.options.sequence_length;
  golden.tokens = std::make_unique<FixedTokens>(golden.expected["inputs"].get<std::vector<int32_t>>(),
                                                golden.expected["targets"].get<std::vector<int32_t>>());
  return golden;
}

Tensor WeightOf(WeightSource& weights, const std::string& name, std::vector<int64_t> shape, Allocator& memory) {
  Tensor tensor = *Tensor::Create(memory, MemoryCategory::kWeights, DType::kFp32, shape);
  REQUIRE(weights.Read(name, shape, tensor.fp32()).ok());
  return tensor;
}

// The engine has no way to ask a stage for its logits: a stage of all layers makes the activation, and the kernels that
// a stage with a head calls make logits of it.
std::vector<float> Logits(Golden& golden, WeightSource& weights) {
  const ModelSpec& model = golden.options.model;
  golden.options.layers = {.first = 0, .last = model.num_hidden_layers - 1, .has_embedding = true};
  Allocator memory(int64_t{1} << 28);
  const std::unique_ptr<Backend> backend = *CpuBackend::Create(/*threads=*/1, memory);
  const auto stage = *TransformerStage::Create(golden.options, memory, *backend, golden.tokens.get(), weights);
  REQUIRE(stage->BeginIteration(0).ok());
  const absl::StatusOr<Timed<Tensor>> activation = stage->Forward(0, {});
  REQUIRE(activation.ok());
  const int64_t n = golden.options.training.tokens_per_iteration;
  const Tensor norm = WeightOf(weights, "model.norm.weight", {model.hidden_size}, memory);
  const Tensor head = WeightOf(weights, model.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight",
                               {model.vocab_size, model.hidden_size}, memory);
  const Tensor normed = *Tensor::Create(memory, MemoryCategory::kWorkspace, DType::kFp32, {n, model.hidden_size});
  const Tensor rms = *Tensor::Create(memory, MemoryCategory::kWorkspace, DType::kFp32, {n});
  const Tensor logits = *Tensor::Create(memory, MemoryCategory::kWorkspace, DType::kFp32, {n, model.vocab_size});
  REQUIRE(backend->RmsNorm(ViewOf(activation->value), norm, model.rms_norm_eps, ViewOf(normed), rms).ok());
  REQUIRE(backend->MatMul(Product::kNT, ViewOf(normed), ViewOf(head), Addend::None(), ViewOf(logits)).ok());
  return {logits.fp32().begin(), logits.fp32().end()};
}

TEST_CASE("an exported model has the logits and the loss that PyTorch computes from the same directory") {
  const std::string name = GENERATE("tied", "untied", "qwen2", "qwen3", "llama31");
  CAPTURE(name);
  Golden golden = ReadGolden(name);
  DirectoryWeights weights(golden.folder);
  const std::vector<float> logits = Logits(golden, weights);
  const auto expected = golden.expected["logits"].get<std::vector<double>>();
  REQUIRE(logits.size() == expected.size());
  double worst = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    worst = std::max(worst, std::abs(logits[i] - expected[i]));
  }
  CHECK(worst < kTolerance);
  const auto [low, high] = std::ranges::minmax(expected);
  CHECK(high - low > 1);  // else the tolerance would say little

  PipelineDriver pipeline(golden.options, Split(golden.options.model, 2), *golden.tokens, weights);
  pipeline.Accumulate(0, DriveOrder::kGpipe);
  CHECK(pipeline.Loss() == Approx(golden.expected["loss"].get<double>()).epsilon(0).margin(kTolerance));
}

TEST_CASE("the exporter writes the directories again that PyTorch has read") {
  const std::string name = GENERATE("tied", "untied", "qwen2", "qwen3", "llama31");
  CAPTURE(name);
  const Golden golden = ReadGolden(name);
  DirectoryWeights weights(golden.folder);
  const TempDir dir;
  const std::string folder =
      CheckpointOf(dir.path(), golden.options.model, [&](std::string_view tensor, const std::vector<int64_t>& shape) {
        std::vector<float> values(static_cast<size_t>(CountElements(shape)));
        REQUIRE(weights.Read(tensor, shape, values).ok());
        return values;
      });
  const std::string output = dir.path() + "/out";
  const absl::StatusOr<HfExportSummary> summary =
      ExportHf(*Checkpoint::Open(folder), output, {.max_shard_bytes = golden.expected["max_shard_bytes"]});
  REQUIRE(summary.ok());
  std::vector<std::string> names = Names(golden.folder);
  std::erase(names, "expected.json");
  REQUIRE(Names(output) == names);
  for (const std::string& file : names) {
    INFO(file);
    CHECK(Content(output + "/" + file) == Content(golden.folder + "/" + file));
  }
}

// Trains on `stages` stages and writes a checkpoint of the result.
std::string Trained(const TransformerStageOptions& options, int64_t stages, const std::string& root,
                    std::map<std::string, std::vector<float>>* values = nullptr) {
  RandomTokens tokens(options.model.vocab_size, options.sequence_length);
  LargeRandomWeights fresh(/*seed=*/3);
  const std::vector<LayerRange> split = Split(options.model, stages);
  PipelineDriver pipeline(options, split, tokens, fresh);
  for (int64_t i = 0; i < options.training.iterations; ++i) {
    pipeline.Iterate(i, DriveOrder::k1F1B);
  }
  CheckpointManifest manifest = ManifestOf(options.model, options.training.iterations);
  const std::string folder = *BeginCheckpoint(root, options.training.iterations);
  for (size_t i = 0; i < split.size(); ++i) {
    StateSnapshot snapshot;
    REQUIRE(TakeSnapshot(snapshot, options.model, split[i], pipeline.stage(i).parameters().all()).ok());
    REQUIRE(snapshot.Write(folder, "1-1", manifest.files).ok());
    for (const Parameter& parameter : pipeline.stage(i).parameters().all()) {
      if (values != nullptr) {
        (*values)[parameter.spec.name] = pipeline.Value(parameter.spec.name);
      }
    }
  }
  REQUIRE(WriteCheckpointManifest(folder, manifest).ok());
  return folder;
}

TEST_CASE("what training has come to is exported, and a job that starts from it has the same bits") {
  const bool tied = GENERATE(false, true);
  const int variant = GENERATE(range(0, kFamilyVariants));
  CAPTURE(tied, variant);
  TransformerStageOptions options = SmallOptions(tied);
  SetFamily(variant, options.model);
  options.training.iterations = 2;
  const TempDir dir;
  std::map<std::string, std::vector<float>> values;
  const std::string output = dir.path() + "/out";
  const std::string folder = Trained(options, /*stages=*/3, dir.path(), &values);
  // A padded vocabulary's rows are all there.
  REQUIRE(ExportHf(*Checkpoint::Open(folder), output, {.max_shard_bytes = 20'000, .keeps_padding = true}).ok());
  DirectoryWeights weights(output);
  RandomTokens tokens(options.model.vocab_size, options.sequence_length);
  PipelineDriver started(options, Split(options.model, 2), tokens, weights);
  REQUIRE(values.size() ==
          ParameterTensors(options.model, {.first = 0, .last = 5, .has_embedding = true, .has_head = true}).size());
  for (const auto& [name, trained] : values) {
    INFO(name);
    CHECK(SameBits(started.Value(name), trained));
  }
}

// Not a test: writes the checkpoints of which tests/golden/export is made, below $GEOPIPE_GOLDEN_CHECKPOINTS.
TEST_CASE("make the checkpoints of the golden exports", "[.make]") {
  const char* root = std::getenv("GEOPIPE_GOLDEN_CHECKPOINTS");
  REQUIRE(root != nullptr);
  struct Case {
    std::string name;
    bool tied = false;
    int variant = 0;
  };
  for (const Case& each : {Case{"tied", true, 0}, Case{"untied", false, 0}, Case{"qwen2", true, 1},
                           Case{"qwen3", false, 2}, Case{"llama31", true, 3}}) {
    TransformerStageOptions options = SmallOptions(each.tied);
    SetFamily(each.variant, options.model);
    WARN(Trained(options, /*stages=*/3, std::string(root) + "/" + each.name));
  }
}

}  // namespace
}  // namespace geopipe
