// Checks that whatever any grid of ranks has written, any other can read, each its own pieces; and that each byte is
// written once.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "runtime/backend/cpu_backend.h"
#include "runtime/checkpoint/checkpoint_folders.h"
#include "runtime/checkpoint/export/hf_export.h"
#include "runtime/checkpoint/state/checkpoint_sources.h"
#include "runtime/checkpoint/state/state_snapshot.h"
#include "runtime/checkpoint/verify.h"
#include "runtime/model/parameters.h"
#include "runtime/weights/hf_directory.h"
#include "tests/runtime/checkpoint/state/taken_snapshot.h"
#include "tests/runtime/checkpoint/written_checkpoint.h"
#include "tests/runtime/weights/written_hf_directory.h"
#include "tests/support/sanitized.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;

// Fits tensor degrees up to 4.
ModelSpec ModelWith(int64_t kv_heads, bool tied) {
  return {.hidden_size = 8,
          .intermediate_size = 12,
          .num_hidden_layers = 2,
          .num_attention_heads = 4,
          .num_key_value_heads = kv_heads,
          .vocab_size = 20,
          .max_position_embeddings = 16,
          .tie_word_embeddings = tied};
}

// Weights and moments that follow from the names alone.
class NamedState final : public WeightSource {
 public:
  absl::Status Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) override {
    std::ranges::copy(StateValues(1, name, WholeTensor(name, shape).count), values.begin());
    return absl::OkStatus();
  }
  absl::StatusOr<bool> ReadMoments(std::string_view name, const std::vector<int64_t>& shape, std::span<float> first,
                                   std::span<float> second) override {
    GP_RETURN_IF_ERROR(Read(FirstMomentName(name), shape, first));
    GP_RETURN_IF_ERROR(Read(SecondMomentName(name), shape, second));
    return true;
  }
};

std::vector<ParameterSharding> RanksOf(int64_t tensor, int64_t data, int32_t zero_stage) {
  std::vector<ParameterSharding> ranks;
  for (int64_t t = 0; t < tensor; ++t) {
    for (int64_t d = 0; d < data; ++d) {
      ranks.push_back({.tensor = tensor, .tensor_rank = t, .data = data, .data_rank = d, .zero_stage = zero_stage});
    }
  }
  return ranks;
}

std::vector<std::vector<ParameterSharding>> AllGrids() {
  std::vector<std::vector<ParameterSharding>> grids;
  for (const int64_t tensor : {1, 2, 4}) {
    grids.push_back(RanksOf(tensor, 1, 0));
    for (const int32_t zero_stage : {0, 1, 2, 3}) {
      grids.push_back(RanksOf(tensor, 2, zero_stage));
    }
  }
  grids.push_back(RanksOf(2, 3, 1));  // shares that are not equal
  return grids;
}

std::string NameOf(const ParameterSharding& rank) {
  return fmt::format("tp {} dp {} zero {}", rank.tensor, rank.data, rank.zero_stage);
}

// One rank's stage, with memory of its own.
struct RankStage {
  Allocator allocator{int64_t{1} << 24};
  std::unique_ptr<Backend> backend = *CpuBackend::Create(1, allocator);
  SharedRooms rooms{allocator};
  std::optional<ParameterSet> set;

  absl::Status Fill(const ModelSpec& model, const LayerRange& layers, const ParameterSharding& rank,
                    WeightSource& source) {
    GP_ASSIGN_OR_RETURN(
        set, ParameterSet::Create(ParameterBuckets(model, layers), rank, source, allocator, *backend, &rooms));
    return absl::OkStatus();
  }
};

// Makes all ranks of all stages write the state that they have read of `source`.
std::string WrittenFrom(WeightSource& source, const std::string& root, const ModelSpec& model, int64_t stages,
                        const std::vector<ParameterSharding>& ranks) {
  const std::string folder = *BeginCheckpoint(root, 1);
  CheckpointManifest manifest = ManifestOf(model, 1);
  for (const LayerRange& layers : SplitLayers(model, stages)) {
    for (const ParameterSharding& rank : ranks) {
      RankStage stage;
      REQUIRE(stage.Fill(model, layers, rank, source).ok());
      StateSnapshot snapshot;
      REQUIRE(TakeSnapshot(snapshot, model, layers, stage.set->all(), rank).ok());
      const absl::Status status = snapshot.Write(folder, "1-1", manifest.files);
      INFO(status);
      REQUIRE(status.ok());
    }
  }
  const absl::Status status = WriteCheckpointManifest(folder, manifest);
  INFO(status);
  REQUIRE(status.ok());
  return folder;
}

std::string Written(const std::string& root, const ModelSpec& model, int64_t stages,
                    const std::vector<ParameterSharding>& ranks) {
  NamedState state;
  return WrittenFrom(state, root, model, stages, ranks);
}

bool SameBytes(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && std::memcmp(a.data(), b.data(), static_cast<size_t>(a.bytes())) == 0;
}

void CheckReads(const Checkpoint& checkpoint, const ModelSpec& model, int64_t stages,
                const std::vector<ParameterSharding>& ranks) {
  NamedState named;
  CheckpointState state(*Checkpoint::Open(checkpoint.folder()));
  for (const LayerRange& layers : SplitLayers(model, stages)) {
    for (const ParameterSharding& rank : ranks) {
      INFO("read by " << NameOf(rank) << ", tensor rank " << rank.tensor_rank << ", replica " << rank.data_rank);
      RankStage expected;
      RankStage found;
      REQUIRE(expected.Fill(model, layers, rank, named).ok());
      const absl::Status status = found.Fill(model, layers, rank, state);
      INFO(status);
      REQUIRE(status.ok());
      for (size_t i = 0; i < found.set->all().size(); ++i) {
        const Parameter& is = found.set->all()[i];
        const Parameter& must_be = expected.set->all()[i];
        INFO(is.spec.name);
        REQUIRE(is.master.empty() == (is.piece.count == 0));
        if (is.piece.count > 0) {
          REQUIRE(SameBytes(is.master, must_be.master));
          REQUIRE(SameBytes(is.first_moment, must_be.first_moment));
          REQUIRE(SameBytes(is.second_moment, must_be.second_moment));
        }
      }
    }
  }
}

// Ranges of a unit's tensors have each element once; and the bytes of all units are those of the whole tensors.
void CheckWrittenOnce(const Checkpoint& checkpoint, const ModelSpec& model) {
  std::map<std::string, int64_t> elements;  // by unit and tensor
  int64_t bytes = 0;
  for (const FileEntry& file : checkpoint.manifest().files) {
    bytes += file.bytes - file.header_bytes;
    for (const TensorEntry& tensor : file.tensors) {
      elements[file.name.substr(0, file.name.find('.')) + " " + tensor.range.name] += tensor.range.elements;
    }
  }
  int64_t expected_bytes = 0;
  for (const CheckpointUnit& unit : UnitsOf(model)) {
    for (const TensorRange& tensor : UnitTensors(model, unit)) {
      CHECK(elements[unit.name() + " " + tensor.name] == tensor.elements);
      expected_bytes += 4 * tensor.elements;
    }
  }
  CHECK(bytes == expected_bytes);
}

// All pieces, and each byte was written once.
void CheckThatAnyGridReadsAnyOther(const ModelSpec& model) {
  if (kThreadSanitized) {
    return;
  }
  const std::vector<std::vector<ParameterSharding>> grids = AllGrids();
  for (size_t i = 0; i < grids.size(); ++i) {
    INFO((model.tie_word_embeddings ? "tied" : "not tied") << ", written by " << NameOf(grids[i].front()));
    const TempDir root;
    const std::string folder = Written(root.path(), model, /*stages=*/1 + static_cast<int64_t>(i % 2), grids[i]);
    const Checkpoint checkpoint = *Checkpoint::Open(folder);
    CHECK(VerifyCheckpoint(folder)->empty());
    CHECK(checkpoint.CheckSameModel(model).ok());
    CheckWrittenOnce(checkpoint, model);
    for (size_t j = 0; j < grids.size(); ++j) {
      CheckReads(checkpoint, model, /*stages=*/1 + static_cast<int64_t>(j / 2 % 2), grids[j]);
    }
  }
}

TEST_CASE("any grid reads what any other has written: biases, norms of heads, one key-value head that ranks share") {
  ModelSpec model = ModelWith(/*kv_heads=*/1, /*tied=*/GENERATE(false, true));
  model.family = ModelFamily::kQwen3;
  model.attention_bias = true;
  CheckThatAnyGridReadsAnyOther(model);
}

TEST_CASE("any grid reads what any other has written: grouped-query heads") {
  CheckThatAnyGridReadsAnyOther(ModelWith(/*kv_heads=*/2, /*tied=*/GENERATE(false, true)));
}

TEST_CASE("any grid reads what any other has written: biases, as many key-value heads as heads, a padded vocabulary") {
  ModelSpec model = ModelWith(/*kv_heads=*/4, /*tied=*/GENERATE(false, true));
  model.family = ModelFamily::kQwen2;
  model.padded_vocab_size = 24;
  CheckThatAnyGridReadsAnyOther(model);
}

TEST_CASE("one tensor rank whose states are not divided writes whole tensors, replicas in turns") {
  const TempDir alone;
  const TempDir replicated;
  const ModelSpec model = ModelWith(2, false);
  const std::string one = Written(alone.path(), model, 1, RanksOf(1, 1, 0));
  const std::string two = Written(replicated.path(), model, 1, RanksOf(1, 2, 0));
  CHECK(Names(one) == Names(two));
  for (const std::string& name : Names(one)) {
    if (name != kManifestName) {
      CHECK(Content(one + "/" + name) == Content(two + "/" + name));
    }
  }
  // Replica 0 comes first in the manifest: it has the embedding and the second layer.
  const Checkpoint checkpoint = *Checkpoint::Open(two);
  std::vector<std::string> order;
  for (const FileEntry& file : checkpoint.manifest().files) {
    order.push_back(file.name.substr(0, file.name.find(".1-1")));
  }
  CHECK(order == std::vector<std::string>{"embedding.weights", "embedding.moments", "layer-00001.weights",
                                          "layer-00001.moments", "layer-00000.weights", "layer-00000.moments",
                                          "head.weights", "head.moments"});
}

TEST_CASE("parts have files that name the rank, and a rank of the same grid reads its own alone") {
  const TempDir root;
  const ModelSpec model = ModelWith(1, false);
  const std::vector<ParameterSharding> ranks = RanksOf(2, 2, 1);
  const std::string folder = Written(root.path(), model, 1, ranks);
  const std::vector<std::string> names = Names(folder);
  CHECK(names.size() == 1 + ((4 * 4 + 3) * 2));  // of four units, three of which have norms
  CHECK(std::ranges::count(names, "layer-00001.moments.1-1.t1-d0.safetensors") == 1);
  const Checkpoint checkpoint = *Checkpoint::Open(folder);
  const ParameterSharding& last = ranks.back();
  std::set<std::string> needed;
  for (const ParameterBucket& bucket : ParameterBuckets(model, {.first = 1, .last = 1})) {
    for (const TensorPiece& piece : PiecesOf(bucket, last)) {
      for (const FileEntry* file : checkpoint.FilesOf(piece.tensor.name, piece)) {
        needed.insert(file->name);
      }
    }
  }
  // The run of the bucket that it shares with no rank, and the norms.
  CHECK(needed == std::set<std::string>{"layer-00001.weights.1-1.norms.safetensors",
                                        "layer-00001.weights.1-1.t1-d1.safetensors"});
  for (const std::string& name : names) {
    if (name.find(".weights.") != std::string::npos && !needed.contains(name)) {
      fs::remove(folder + "/" + name);
    }
  }
  CheckpointWeights weights(*Checkpoint::Open(folder));
  RankStage stage;
  const absl::Status status = stage.Fill(model, {.first = 1, .last = 1}, last, weights);
  INFO(status);
  CHECK(status.ok());
  RankStage other;
  const absl::Status missing = other.Fill(model, {.first = 1, .last = 1}, ranks[1], weights);
  CHECK(absl::IsNotFound(missing));
  CHECK_THAT(std::string(missing.message()), Catch::Contains("t0-d1.safetensors: is not on this node"));
}

TEST_CASE("a part that is damaged is found by whoever reads any of it") {
  const TempDir root;
  const ModelSpec model = ModelWith(2, false);
  const std::string folder = Written(root.path(), model, 1, RanksOf(2, 1, 0));
  const std::string name = "layer-00000.weights.1-1.t1-d0.safetensors";
  const std::string content = Content(folder + "/" + name);
  Poke(folder + "/" + name, content.size() - 1, static_cast<char>(content.back() ^ 1));  // of mlp.down_proj, by columns
  const std::vector<CheckpointProblem> problems = *VerifyCheckpoint(folder);
  REQUIRE(problems.size() == 1);
  CHECK(problems[0].tensor == "model.layers.0.mlp.down_proj.weight");
  CheckpointState state(*Checkpoint::Open(folder));
  for (const ParameterSharding& rank : RanksOf(4, 1, 0)) {
    CAPTURE(rank.tensor_rank);
    RankStage stage;
    const absl::Status status = stage.Fill(model, {.first = 0, .last = 0}, rank, state);
    CHECK((rank.tensor_rank >= 2 ? absl::IsDataLoss(status) : status.ok()));
    if (!status.ok()) {
      CHECK_THAT(std::string(status.message()),
                 Catch::Contains(name + ": tensor model.layers.0.mlp.down_proj.weight is damaged"));
    }
  }
}

TEST_CASE("without the files of a rank the elements that are nowhere are named") {
  const TempDir root;
  const ModelSpec model = ModelWith(2, false);
  const std::string folder = Written(root.path(), model, 1, RanksOf(2, 2, 3));
  CheckpointManifest manifest = Checkpoint::Open(folder)->manifest();
  std::erase_if(manifest.files, [](const FileEntry& file) { return file.name.find(".t1-d0.") != std::string::npos; });
  REQUIRE(WriteCheckpointManifest(folder, manifest).ok());
  const std::vector<CheckpointProblem> problems = *VerifyCheckpoint(folder);
  REQUIRE(problems.size() == 1);
  CHECK(problems[0].kind == CheckpointProblem::Kind::kIncomplete);
  CHECK(problems[0].message ==
        folder +
            "/manifest.json: elements 80 to 143 of the 160 of tensor model.embed_tokens.weight are in no file of the "
            "checkpoint; choose another checkpoint");
  CHECK(absl::IsFailedPrecondition(Checkpoint::Open(folder)->CheckSameModel(model)));
}

TEST_CASE("an export has the bytes that it would have of one rank") {
  const bool tied = GENERATE(false, true);
  const ModelSpec model = ModelWith(1, tied);
  const auto exported = [&](const std::vector<ParameterSharding>& ranks, int64_t stages) {
    const TempDir root;
    const std::string folder = Written(root.path(), model, stages, ranks);
    const std::string output = root.path() + "/out";
    const auto summary = ExportHf(*Checkpoint::Open(folder), output, {.max_shard_bytes = 4'000});
    INFO(summary.status());
    REQUIRE(summary.ok());
    std::map<std::string, std::string> files;
    for (const std::string& name : Names(output)) {
      files[name] = Content(output + "/" + name);
    }
    return files;
  };
  const std::map<std::string, std::string> expected = exported(RanksOf(1, 1, 0), 1);
  CHECK(expected.size() > 2);
  CHECK(exported(RanksOf(4, 2, 1), 2) == expected);
  CHECK(exported(RanksOf(2, 3, 3), 1) == expected);
  CHECK(exported(RanksOf(4, 1, 0), 2) == expected);
}

class DirectoryWeights final : public WeightSource {
 public:
  explicit DirectoryWeights(const std::string& path) : directory_(*HfDirectory::Open(path)) {}

  absl::Status Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) override {
    return directory_.Read(name, shape, values);
  }

 private:
  HfDirectory directory_;
};

// All finite numbers that bf16 has, in turns.
class AllBf16 {
 public:
  std::vector<float> operator()(const ParameterTensor& tensor) {
    std::vector<float> values(static_cast<size_t>(WholeTensor(tensor.name, tensor.shape).count));
    for (float& value : values) {
      do {
        value = Bf16ToFp32(static_cast<uint16_t>(++count_ * 40'503));  // odd, so that each comes once
      } while (!std::isfinite(value));
    }
    return values;
  }

 private:
  uint32_t count_ = 0;
};

// A model of each family, and what else a Llama may have.
std::vector<ModelSpec> Families() {
  ModelSpec llama = ModelWith(/*kv_heads=*/2, /*tied=*/false);
  ModelSpec mistral = ModelWith(4, false);  // heads wider than hidden_size / num_attention_heads
  mistral.family = ModelFamily::kMistral;
  mistral.given_head_dim = 6;
  ModelSpec qwen2 = ModelWith(1, true);
  qwen2.family = ModelFamily::kQwen2;
  ModelSpec qwen3 = ModelWith(2, true);
  qwen3.family = ModelFamily::kQwen3;
  ModelSpec llama31 = ModelWith(1, false);
  llama31.attention_bias = true;
  llama31.rope_scaling = {.type = RopeScaling::Type::kLlama3, .factor = 8};
  return kSanitized ? std::vector{qwen3, llama31} : std::vector{llama, mistral, qwen2, qwen3, llama31};
}

TEST_CASE("a sharded bf16 directory of each family comes out of every grid of up to 8 ranks byte for byte") {
  ModelSpec model = GENERATE(from_range(Families()));
  const Precision precision = model.tie_word_embeddings ? Precision::kFp32 : Precision::kBf16;
  model.num_hidden_layers = 5;
  const TempDir root;
  const std::string imported = root.path() + "/imported";
  fs::create_directory(imported);
  WriteShardedBf16(imported, model, AllBf16());
  const std::map<std::string, TensorContent> expected = TensorsIn(imported);
  DirectoryWeights directory(imported);
  int32_t grids = 0;
  for (std::vector<ParameterSharding> ranks : AllGrids()) {
    for (int64_t stages = 1; stages * std::ssize(ranks) <= 8 && stages <= 3; ++stages) {
      INFO(ModelFamilyName(model.family) << (precision == Precision::kBf16 ? ", bf16, " : ", fp32, ")
                                         << NameOf(ranks.front()) << ", pp " << stages);
      std::ranges::for_each(ranks, [&](ParameterSharding& rank) { rank.precision = precision; });
      const std::string checkpoints = fmt::format("{}/{}", root.path(), ++grids);
      const std::string folder = WrittenFrom(directory, checkpoints, model, stages, ranks);
      const auto summary = ExportHf(*Checkpoint::Open(folder), checkpoints + "/exported",
                                    {.format = FloatFormat::kBf16, .max_shard_bytes = 3'000});
      INFO(summary.status());
      REQUIRE(summary.ok());
      CHECK(summary->files > 1);
      CHECK(Differing(TensorsIn(checkpoints + "/exported"), expected).empty());
    }
  }
  CHECK(grids == 33);
}

}  // namespace
}  // namespace geopipe
