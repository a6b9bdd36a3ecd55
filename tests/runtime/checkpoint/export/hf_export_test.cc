#include "runtime/checkpoint/export/hf_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "optimizer/model/transformer.h"
#include "runtime/checkpoint/checkpoint_folders.h"
#include "runtime/manifest/hf_config.h"
#include "runtime/weights/hf_directory.h"
#include "tests/runtime/checkpoint/export/checkpoint_of.h"
#include "tests/runtime/checkpoint/written_checkpoint.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

std::vector<ParameterTensor> AllTensors(const ModelSpec& model) {
  return ParameterTensors(model,
                          {.first = 0, .last = model.num_hidden_layers - 1, .has_embedding = true, .has_head = true});
}

HfExportSummary Exported(const std::string& folder, const std::string& output, const HfExportOptions& options = {}) {
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(folder);
  INFO(checkpoint.status());
  REQUIRE(checkpoint.ok());
  const absl::StatusOr<HfExportSummary> summary = ExportHf(*checkpoint, output, options);
  INFO(summary.status());
  REQUIRE(summary.ok());
  return *summary;
}

// The status of an export that has to fail.
absl::Status Refused(const std::string& folder, const std::string& output, const HfExportOptions& options = {}) {
  const absl::StatusOr<HfExportSummary> summary = ExportHf(*Checkpoint::Open(folder), output, options);
  REQUIRE_FALSE(summary.ok());
  return summary.status();
}

// Reads the tensor as a job that starts from the directory does.
std::vector<float> Imported(const std::string& output, const ParameterTensor& tensor) {
  const absl::StatusOr<HfDirectory> directory = HfDirectory::Open(output);
  INFO(directory.status());
  REQUIRE(directory.ok());
  std::vector<float> values(static_cast<size_t>(tensor.count()));
  const absl::Status status = directory->Read(tensor.name, tensor.shape, values);
  INFO(status);
  REQUIRE(status.ok());
  return values;
}

// The same in every tensor, and other in each element.
WeightValues Values(float scale) {
  return [scale](std::string_view /*name*/, const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (const int64_t extent : shape) {
      count *= extent;
    }
    std::vector<float> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = scale * (1.0F + static_cast<float>(i) / 4096.0F);
    }
    return values;
  };
}

TEST_CASE("of two exports to one folder at once one wins, and the other is told") {
  const TempDir dir;
  const std::string folder = WrittenCheckpoint(dir.path(), SmallModel(2), 9);
  const std::string output = dir.path() + "/out";
  for (const bool is_there : {false, true}) {
    fs::remove_all(output);
    if (is_there) {
      fs::create_directory(output);
    }
    int refused = 0;
    HfExportOptions options;
    options.progress = [&](int64_t, int64_t) {
      const absl::Status status = Refused(folder, output);
      CHECK(absl::IsAlreadyExists(status));
      CHECK(status.message() == output + ": another export writes there; wait for it or choose another folder");
      ++refused;
      return absl::OkStatus();
    };
    const HfExportSummary summary = Exported(folder, output, options);
    CHECK(refused > 0);
    CHECK(summary.files == 1);
    CHECK(Names(output) == Strings{"config.json", "model.safetensors"});
  }
}

TEST_CASE("an export in fp32 has the checkpoint's bits, and a job reads the same model") {
  const bool tied = GENERATE(false, true);
  CAPTURE(tied);
  const TempDir dir;
  const ModelSpec model = SmallModel(2, tied);
  const std::string output = dir.path() + "/out/of/way";
  const HfExportSummary summary = Exported(WrittenCheckpoint(dir.path(), model, 9), output);
  const std::vector<ParameterTensor> tensors = AllTensors(model);
  const int64_t bytes = 4 * ParameterCount(model);
  CHECK(summary == HfExportSummary{.tensors = std::ssize(tensors), .bytes = bytes, .files = 1});
  CHECK(Names(output) == Strings{"config.json", "model.safetensors"});
  CHECK(ReadHfConfig(output).value() == model);
  CHECK(HfDirectory::Open(output)->CheckHoldsOnly(model).ok());
  for (const ParameterTensor& tensor : tensors) {
    INFO(tensor.name);
    CHECK(SameBits(Imported(output, tensor), StateValues(9, tensor.name, tensor.count())));
  }
  const auto file = SafetensorsFile::Open(output + "/model.safetensors");
  REQUIRE(file.ok());
  CHECK(file->tensors().size() == tensors.size());
  CHECK(file->tensors().contains("lm_head.weight") == !tied);
  CHECK(Content(output + "/model.safetensors").substr(8, 36) == R"({"__metadata__":{"format":"pt"},"mod)");
  CHECK_THAT(Content(output + "/config.json"), Catch::Contains(R"("architectures": ["LlamaForCausalLM"])") &&
                                                   Catch::Contains(R"("model_type": "llama")") &&
                                                   Catch::Contains(R"("torch_dtype": "float32")") &&
                                                   Catch::Contains(R"("rope_theta": 10000.5,)"));
}

TEST_CASE("rows of a padded vocabulary are cut, or kept as tokens") {
  const TempDir dir;
  ModelSpec model = SmallModel(2, /*tied=*/false);
  model.padded_vocab_size = model.vocab_size + 6;
  const std::string folder = CheckpointOf(dir.path() + "/checkpoints", model, Values(1));
  ModelSpec cut = model;
  cut.padded_vocab_size = 0;
  ModelSpec kept = cut;
  kept.vocab_size = model.padded_vocab_size;
  Exported(folder, dir.path() + "/cut");
  Exported(folder, dir.path() + "/kept", {.keeps_padding = true});
  CHECK(ReadHfConfig(dir.path() + "/cut").value() == cut);
  CHECK(ReadHfConfig(dir.path() + "/kept").value() == kept);
  const std::vector<float> rows = Imported(dir.path() + "/kept", AllTensors(kept).front());
  std::vector<float> first = rows;
  first.resize(static_cast<size_t>(cut.vocab_size * cut.hidden_size));
  CHECK(Imported(dir.path() + "/cut", AllTensors(cut).front()) == first);
  CHECK(HfDirectory::Open(dir.path() + "/cut")->CheckHoldsAll(model).ok());  // a job may pad it again
}

TEST_CASE("an export in 16 bits rounds each weight to the nearest") {
  const TempDir dir;
  const ModelSpec model = SmallModel(1);
  const std::string folder = CheckpointOf(dir.path(), model, Values(-0.3F));
  for (const FloatFormat format : {FloatFormat::kBf16, FloatFormat::kFp16}) {
    const std::string name(RowOf(format).name);
    CAPTURE(name);
    const std::string output = dir.path() + "/" + name;
    const HfExportSummary summary = Exported(folder, output, {.format = format});
    CHECK(summary.bytes == 2 * ParameterCount(model));
    CHECK_THAT(Content(output + "/config.json"),
               Catch::Contains("\"torch_dtype\": \"" + std::string(RowOf(format).torch) + "\""));
    const auto file = SafetensorsFile::Open(output + "/model.safetensors");
    REQUIRE(file.ok());
    for (const ParameterTensor& tensor : AllTensors(model)) {
      CHECK(file->tensors().at(tensor.name).dtype == RowOf(format).safetensors);
      std::vector<float> expected = Values(-0.3F)(tensor.name, tensor.shape);
      for (float& value : expected) {
        value = format == FloatFormat::kBf16 ? Bf16ToFp32(Fp32ToBf16(value)) : Fp16ToFp32(Fp32ToFp16(value));
      }
      CHECK(SameBits(Imported(output, tensor), expected));
    }
  }
}

TEST_CASE("a weight that a format cannot hold is refused by name") {
  const TempDir dir;
  const std::string folder = CheckpointOf(dir.path(), SmallModel(1), Values(65510.0F));
  const std::string output = dir.path() + "/out";
  const absl::Status status = Refused(folder, output, {.format = FloatFormat::kFp16});
  CHECK(absl::IsInvalidArgument(status));
  CHECK(status.message() == folder +
                                ": tensor model.embed_tokens.weight has an element 65525.992, which fp16 cannot hold; "
                                "export in another format");
  CHECK_FALSE(fs::exists(output));
  CHECK(Exported(folder, output, {.format = FloatFormat::kBf16}).files == 1);
}

TEST_CASE("a model that does not fit one file is cut into shards with an index") {
  const TempDir dir;
  const ModelSpec model = SmallModel(2);
  const std::string folder = WrittenCheckpoint(dir.path(), model, 9);
  const auto [max_bytes, files] = GENERATE(table<int64_t, int64_t>({{1, 21}, {700, 10}, {2000, 3}}));
  const std::string output = dir.path() + "/out";
  const HfExportSummary summary = Exported(folder, output, {.max_shard_bytes = max_bytes});
  CHECK(summary.files == files);
  CHECK(std::ssize(Names(output)) == files + 2);

  const auto index = nlohmann::json::parse(Content(output + "/model.safetensors.index.json"));
  CHECK(index["metadata"]["total_size"] == summary.bytes);
  CHECK(index["weight_map"].size() == static_cast<size_t>(summary.tensors));
  std::map<std::string, Strings> shards;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    shards[file].push_back(tensor);
  }
  REQUIRE(std::ssize(shards) == files);
  int64_t number = 0;
  for (const auto& [name, tensors] : shards) {
    CHECK(name == fmt::format("model-{:05}-of-{:05}.safetensors", ++number, files));
    const auto file = SafetensorsFile::Open(output + "/" + name);
    REQUIRE(file.ok());
    CHECK(file->tensors().size() == tensors.size());
    size_t bytes = 0;
    for (const auto& [tensor, stored] : file->tensors()) {
      bytes += stored.bytes.size();
    }
    CHECK((tensors.size() == 1 || bytes <= static_cast<size_t>(max_bytes)));
  }
  for (const ParameterTensor& tensor : AllTensors(model)) {
    CHECK(SameBits(Imported(output, tensor), StateValues(9, tensor.name, tensor.count())));
  }
}

TEST_CASE("a model that just fits one file gets one") {
  const TempDir dir;
  const ModelSpec model = SmallModel(1);
  const std::string folder = WrittenCheckpoint(dir.path(), model, 9);
  const int64_t bytes = 4 * ParameterCount(model);
  CHECK(Exported(folder, dir.path() + "/fits", {.max_shard_bytes = bytes}).files == 1);
  CHECK(Exported(folder, dir.path() + "/not", {.max_shard_bytes = bytes - 1}).files == 2);
}

TEST_CASE("only a folder that is new or empty is written into") {
  const TempDir dir;
  const std::string folder = WrittenCheckpoint(dir.path(), SmallModel(1), 9);
  const std::string note = dir.Write("full/note", "mine");
  absl::Status status = Refused(folder, dir.path() + "/full");
  CHECK(absl::IsAlreadyExists(status));
  CHECK(status.message() == dir.path() + "/full: is not empty; remove it or choose another folder");
  CHECK(Names(dir.path() + "/full") == Strings{"note"});
  status = Refused(folder, note);
  CHECK(absl::IsAlreadyExists(status));
  CHECK(status.message() == note + ": is no folder; remove it or choose another folder");
  CHECK_THAT(std::string(Refused(folder, note + "/below").message()),
             Catch::StartsWith(note + "/below: cannot be made: Not a directory; "));
  fs::create_directory(dir.path() + "/empty");
  Exported(folder, dir.path() + "/empty");
  CHECK(Names(dir.path() + "/empty") == Strings{"config.json", "model.safetensors"});
}

TEST_CASE("an export that fails leaves nothing") {
  const TempDir dir;
  const std::string folder = WrittenCheckpoint(dir.path(), SmallModel(2), 9);
  const std::string output = dir.path() + "/out";
  const HfExportOptions shards{.max_shard_bytes = 700};
  const std::string layer = folder + "/layer-00001.weights.1-3.safetensors";
  const std::string content = Content(layer);
  Poke(layer, content.size() - 1, static_cast<char>(content.back() ^ 1));
  absl::Status status = Refused(folder, output, shards);
  CHECK(absl::IsDataLoss(status));
  CHECK_THAT(std::string(status.message()),
             Catch::StartsWith(layer + ": tensor model.layers.1.mlp.down_proj.weight is damaged"));
  CHECK_FALSE(fs::exists(output));
  fs::create_directory(output);
  fs::remove(layer);
  status = Refused(folder, output, shards);
  CHECK(absl::IsNotFound(status));
  CHECK_THAT(std::string(status.message()), Catch::Contains(layer + ": is not on this node"));
  CHECK(Names(output).empty());
  Overwrite(layer, content);

  HfExportOptions stopped = shards;
  std::vector<int64_t> seen;
  stopped.progress = [&](int64_t written, int64_t total) {
    CHECK(total == 4 * ParameterCount(SmallModel(2)));
    seen.push_back(written);
    return seen.size() < 12 ? absl::OkStatus() : absl::CancelledError("enough");
  };
  CHECK(Refused(folder, output, stopped) == absl::CancelledError("enough"));
  CHECK(Names(output).empty());
  CHECK(seen.front() == 0);
  CHECK(std::ranges::is_sorted(seen));
  CHECK(seen.back() > 0);
  Exported(folder, output, shards);
}

TEST_CASE("a checkpoint whose manifest describes no model that can be computed, or lacks a weight, is refused") {
  const TempDir dir;
  const std::string output = dir.path() + "/out";
  const auto refused = [&](const ModelSpec& described) {
    const ModelSpec model = SmallModel(1);
    const std::string folder = WrittenCheckpoint(dir.path(), model, 9);
    CheckpointManifest manifest = Checkpoint::Open(folder)->manifest();
    manifest.model = described;
    REQUIRE(WriteCheckpointManifest(folder, manifest).ok());
    absl::Status status = Refused(folder, output);
    CHECK_FALSE(fs::exists(output));
    CHECK_THAT(std::string(status.message()), Catch::StartsWith(folder + "/manifest.json: "));
    return status;
  };
  ModelSpec model = SmallModel(1);
  model.num_attention_heads = 0;
  CHECK(absl::IsInvalidArgument(refused(model)));
  model = SmallModel(1);
  model.num_hidden_layers = int64_t{1} << 60;
  CHECK(absl::IsInvalidArgument(refused(model)));
  const absl::Status lacks = refused(SmallModel(2));
  CHECK(absl::IsFailedPrecondition(lacks));
  CHECK_THAT(std::string(lacks.message()), Catch::Contains("has no tensor model.layers.1."));
}

}  // namespace
}  // namespace geopipe
