#include "runtime/checkpoint/checkpoint.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint_folders.h"
#include "runtime/checkpoint/state/checkpoint_sources.h"
#include "runtime/checkpoint/tensor_file_writer.h"
#include "runtime/weights/safetensors.h"
#include "tests/runtime/checkpoint/written_checkpoint.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;

Checkpoint Opened(const std::string& folder) {
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(folder);
  INFO(checkpoint.status());
  REQUIRE(checkpoint.ok());
  return *std::move(checkpoint);
}

absl::Status ReadStatus(const Checkpoint& checkpoint, const std::string& tensor, const std::vector<int64_t>& shape) {
  std::vector<float> values(static_cast<size_t>(CountElements(shape)));
  return checkpoint.Read(tensor, shape, values);
}

void CheckTensor(const Checkpoint& checkpoint, const TensorRange& tensor, int64_t iteration) {
  std::vector<float> values(static_cast<size_t>(tensor.elements));
  const absl::Status status = checkpoint.Read(tensor.name, tensor.shape, values);
  INFO(tensor.name << ": " << status);
  CHECK(status.ok());
  CHECK(SameBits(values, StateValues(iteration, tensor.name, tensor.elements)));
}

TEST_CASE("a checkpoint is read back with the same bits, NaNs and denormals too") {
  const TempDir dir;
  const ModelSpec model = SmallModel(3, GENERATE(false, true));
  const Checkpoint checkpoint = Opened(WrittenCheckpoint(dir.path(), model, 200));
  CheckpointManifest expected = ManifestOf(model, 200);
  expected.files = checkpoint.manifest().files;
  CHECK(checkpoint.manifest() == expected);
  CHECK(checkpoint.CheckSameModel(model).ok());
  for (const CheckpointUnit& unit : UnitsOf(model)) {
    for (const TensorRange& tensor : UnitTensors(model, unit)) {
      CheckTensor(checkpoint, tensor, 200);
    }
  }
}

TEST_CASE("a folder has a file of weights and one of moments for each unit, and the manifest") {
  const TempDir dir;
  const std::string folder = WrittenCheckpoint(dir.path(), SmallModel(2), 7);
  CHECK(folder == dir.path() + "/iteration-0000000007");
  CHECK(Names(folder) == std::vector<std::string>{"embedding.moments.1-3.safetensors",
                                                  "embedding.weights.1-3.safetensors", "head.moments.1-3.safetensors",
                                                  "head.weights.1-3.safetensors", "layer-00000.moments.1-3.safetensors",
                                                  "layer-00000.weights.1-3.safetensors",
                                                  "layer-00001.moments.1-3.safetensors",
                                                  "layer-00001.weights.1-3.safetensors", "manifest.json"});
  CHECK(CheckpointUnit{.kind = CheckpointUnit::Kind::kLayer, .layer = 123456}.name() == "layer-123456");
}

TEST_CASE("files are what safetensors asks for: a header of a multiple of eight bytes, offsets without gaps") {
  const TempDir dir;
  const ModelSpec model = SmallModel(1);
  const Checkpoint checkpoint = Opened(WrittenCheckpoint(dir.path(), model, 1));
  for (const FileEntry& entry : checkpoint.manifest().files) {
    CAPTURE(entry.name);
    const std::string content = Content(checkpoint.folder() + "/" + entry.name);
    uint64_t length = 0;
    std::memcpy(&length, content.data(), sizeof(length));
    CHECK(length % 8 == 0);
    CHECK(static_cast<int64_t>(length) + 8 == entry.header_bytes);
    CHECK(content[8] == '{');  // a header may not begin with blanks
    const std::string header = content.substr(8, length);
    CHECK((header.back() == ' ' || header.back() == '}'));
    const auto json = nlohmann::ordered_json::parse(header);
    uint64_t end = 0;
    for (const auto& [name, tensor] : json.items()) {
      if (name == "__metadata__") {
        CHECK(tensor == nlohmann::ordered_json{{"format", "pt"}});
        continue;
      }
      CHECK(tensor["dtype"] == "F32");
      CHECK(tensor["data_offsets"][0] == end);
      end = tensor["data_offsets"][1].get<uint64_t>();
    }
    CHECK(content.size() == 8 + length + end);
    const auto file = SafetensorsFile::Open(checkpoint.folder() + "/" + entry.name);
    REQUIRE(file.ok());
    CHECK(file->tensors().size() == entry.tensors.size());
    for (const TensorEntry& tensor : entry.tensors) {
      std::vector<float> values(static_cast<size_t>(tensor.range.elements));
      CHECK(file->Read(tensor.range.name, tensor.range.shape, values).ok());
      CHECK(SameBits(values, StateValues(1, tensor.range.name, tensor.range.elements)));
    }
  }
}

TEST_CASE("a node with the files of its stages reads those, under any plan, and is told which others are missing") {
  const TempDir dir;
  const ModelSpec model = SmallModel(6);
  const std::string folder = WrittenCheckpoint(dir.path(), model, 40);
  const auto stages = static_cast<int64_t>(GENERATE(1, 2, 3, 6));
  for (const LayerRange& range : SplitLayers(model, stages)) {
    const TempDir node;
    const std::string here = CheckpointFolder(node.path(), 40);
    fs::create_directory(here);
    fs::copy(folder + "/manifest.json", here);
    for (const CheckpointUnit& unit : UnitsOf(range)) {
      fs::copy(folder + "/" + unit.weights_file(kTag), here);
      fs::copy(folder + "/" + unit.moments_file(kTag), here);
    }
    const Checkpoint checkpoint = Opened(here);
    CHECK(checkpoint.CheckSameModel(model).ok());
    const std::vector<CheckpointUnit> held = UnitsOf(range);
    for (const CheckpointUnit& unit : UnitsOf(model)) {
      for (const TensorRange& tensor : UnitTensors(model, unit)) {
        if (std::ranges::find(held, unit) != held.end()) {
          CheckTensor(checkpoint, tensor, 40);
          continue;
        }
        const absl::Status status = ReadStatus(checkpoint, tensor.name, tensor.shape);
        CHECK(absl::IsNotFound(status));
        const bool is_moment = tensor.name.find(".exp_avg") != std::string::npos;
        CHECK(status.message() == "tensor " + tensor.name + ": " + here + "/" +
                                      (is_moment ? unit.moments_file(kTag) : unit.weights_file(kTag)) +
                                      ": is not on this node; copy the file from the node that wrote it");
      }
    }
  }
}

TEST_CASE("a tied model's embedding is read from the head's copy where that is what is here") {
  const TempDir dir;
  const ModelSpec model = SmallModel(2, /*tied=*/true);
  const std::string folder = WrittenCheckpoint(dir.path(), model, 5);
  const Checkpoint checkpoint = Opened(folder);
  const TensorRange embedding = UnitWeights(model, {.kind = CheckpointUnit::Kind::kEmbedding}).front();
  CHECK(UnitWeights(model, {.kind = CheckpointUnit::Kind::kHead}).back() == embedding);
  fs::remove(folder + "/embedding.weights.1-3.safetensors");
  CheckTensor(checkpoint, embedding, 5);
  fs::remove(folder + "/head.weights.1-3.safetensors");
  CHECK(ReadStatus(checkpoint, embedding.name, embedding.shape).message() ==
        "tensor " + embedding.name + ": " + folder +
            "/embedding.weights.1-3.safetensors: is not on this node; copy the file from the node that wrote it");
}

TEST_CASE("a checkpoint is a source of weights") {
  const TempDir dir;
  const ModelSpec model = SmallModel(1);
  CheckpointWeights weights(Opened(WrittenCheckpoint(dir.path(), model, 1)));
  CHECK(weights.checkpoint().manifest().next_iteration == 1);
  std::vector<float> values(8);
  REQUIRE(static_cast<WeightSource&>(weights).Read("model.norm.weight", {8}, values).ok());
  CHECK(SameBits(values, StateValues(1, "model.norm.weight", 8)));
}

TEST_CASE("what cannot be read is named, with the reason and what to do") {
  const TempDir dir;
  const std::string folder = WrittenCheckpoint(dir.path(), SmallModel(1), 1);
  const Checkpoint checkpoint = Opened(folder);
  const std::string manifest = folder + "/manifest.json";
  CHECK(ReadStatus(checkpoint, "model.layers.1.mlp.up_proj.weight", {1}).message() ==
        manifest + ": has no tensor model.layers.1.mlp.up_proj.weight; choose a checkpoint of this model");
  const absl::Status misshaped = ReadStatus(checkpoint, "lm_head.weight", {8, 20});
  CHECK(absl::IsInvalidArgument(misshaped));
  CHECK(misshaped.message() ==
        manifest +
            ": tensor lm_head.weight has shape [20, 8], the model needs [8, 20]; choose a checkpoint of this model");

  const std::string file = folder + "/head.weights.1-3.safetensors";
  const std::string intact = Content(file);
  std::string damaged = intact;
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  Overwrite(file, damaged);
  const absl::Status loss = ReadStatus(checkpoint, "lm_head.weight", {20, 8});
  CHECK(absl::IsDataLoss(loss));
  CHECK_THAT(std::string(loss.message()),
             Catch::StartsWith(file + ": tensor lm_head.weight is damaged: its checksum is ") &&
                 Catch::Contains(", the manifest says ") &&
                 Catch::EndsWith("; copy the file again or choose another checkpoint"));
  CHECK(ReadStatus(checkpoint, "model.norm.weight", {8}).ok());

  Overwrite(file, intact.substr(0, intact.size() - 1));
  CHECK(ReadStatus(checkpoint, "model.norm.weight", {8}).message() ==
        file + ": has " + std::to_string(intact.size() - 1) + " bytes, the manifest says " +
            std::to_string(intact.size()) +
            ", so tensor model.norm.weight cannot be trusted; copy the file again or choose another checkpoint");
  fs::remove(file);
  fs::create_directory(file);
  CHECK(ReadStatus(checkpoint, "model.norm.weight", {8}).message() ==
        "tensor model.norm.weight: " + file + ": is not a regular file; put the checkpoint's file in its place");
}

TEST_CASE("a folder without a readable manifest is no checkpoint") {
  const TempDir dir;
  const std::string folder = WrittenCheckpoint(dir.path(), SmallModel(1), 12);
  const std::string manifest = folder + "/manifest.json";
  fs::rename(folder, dir.path() + "/iteration-0000000013");
  const std::string moved = dir.path() + "/iteration-0000000013/manifest.json";
  CHECK(Checkpoint::Open(dir.path() + "/iteration-0000000013/").status().message() ==
        dir.path() +
            "/iteration-0000000013//manifest.json: is the state before iteration 12, not 13 as the folder's name says; "
            "give the folder its name back");
  fs::rename(dir.path() + "/iteration-0000000013", dir.path() + "/kept");
  CHECK(Checkpoint::Open(dir.path() + "/kept").ok());
  fs::rename(dir.path() + "/kept", folder);
  fs::remove(manifest);
  const absl::Status missing = Checkpoint::Open(folder).status();
  CHECK(absl::IsNotFound(missing));
  CHECK(missing.message() ==
        manifest + ": is missing, so its folder is no complete checkpoint; choose another checkpoint");
  CHECK(absl::IsNotFound(Checkpoint::Open(dir.path() + "/none").status()));
  Overwrite(manifest, "");
  fs::resize_file(manifest, CheckpointLimits::kMaxManifestBytes + 1);
  CHECK(Checkpoint::Open(folder).status().message() ==
        manifest + ": has 67108865 bytes, a manifest at most 67108864; choose another checkpoint");
}

TEST_CASE("a checkpoint of another model is refused with the first field or tensor that differs") {
  const TempDir dir;
  const ModelSpec model = SmallModel(2);
  const std::string folder = WrittenCheckpoint(dir.path(), model, 1);
  const std::string manifest = folder + "/manifest.json: ";
  const Checkpoint checkpoint = Opened(folder);
  ModelSpec other = model;
  other.intermediate_size = 16;
  other.num_hidden_layers = 3;
  CHECK(
      checkpoint.CheckSameModel(other).message() ==
      manifest +
          "is of a model with intermediate_size 12, the job's has 16 (the first tensor that differs is "
          "model.layers.0.mlp.gate_proj.weight: [12, 8], not [16, 8]); check spec.model or choose another checkpoint");
  other = model;
  other.rms_norm_eps = 1e-5;
  CHECK(
      checkpoint.CheckSameModel(other).message() ==
      manifest +
          "is of a model with rms_norm_eps 1e-06, the job's has 1e-05; check spec.model or choose another checkpoint");
  other = model;
  other.tie_word_embeddings = true;
  CHECK(checkpoint.CheckSameModel(other).message() ==
        manifest +
            "is of a model with tie_word_embeddings false, the job's has true; check spec.model or choose another "
            "checkpoint");

  const auto refused = [&](const CheckpointManifest& changed) {
    REQUIRE(WriteCheckpointManifest(folder, changed).ok());
    const absl::Status status = Opened(folder).CheckSameModel(model);
    CHECK(absl::IsFailedPrecondition(status));
    return std::string(status.message());
  };
  CheckpointManifest changed = checkpoint.manifest();
  changed.files.pop_back();  // the head's moments
  CHECK(refused(changed) ==
        manifest + "has no tensor model.norm.weight.exp_avg, which the model needs; choose another checkpoint");
  changed = checkpoint.manifest();
  changed.files[0].tensors[0].range.shape = {8, 20};
  CHECK(refused(changed) ==
        manifest +
            "tensor model.embed_tokens.weight has shape [8, 20], the model needs [20, 8]; choose another checkpoint");
  changed = checkpoint.manifest();
  changed.files[0].tensors.push_back({.range = {.name = "bias", .shape = {1}, .elements = 1}});
  changed.files[0].bytes += 4;
  CHECK(refused(changed) ==
        manifest + "tensor bias is not part of the job's model; check spec.model or choose another checkpoint");
}

TEST_CASE("a tensor is put together from ranges, and one that no file holds is named") {
  const TempDir dir;
  const std::string folder = *BeginCheckpoint(dir.path(), 3);
  const std::vector<float> whole = StateValues(3, "w", 12);
  CheckpointManifest manifest = ManifestOf(SmallModel(1), 3);
  const auto write = [&](const std::string& name, int64_t offset, int64_t elements) {
    auto writer = TensorFileWriter::Create(folder, name,
                                           {{.name = "w", .shape = {3, 4}, .offset = offset, .elements = elements}});
    REQUIRE(writer.ok());
    REQUIRE(writer->Append("w", {3, 4}, std::span(whole).subspan(offset, elements)).ok());
    manifest.files.push_back(*writer->Finish());
  };
  write("b.safetensors", 7, 5);
  write("a.safetensors", 0, 3);
  write("copy.safetensors", 7, 5);
  write("m.safetensors", 3, 4);
  CHECK(SafetensorsFile::Open(folder + "/a.safetensors")->tensors().at("w").shape == std::vector<int64_t>{3});
  REQUIRE(WriteCheckpointManifest(folder, manifest).ok());
  std::vector<float> values(12);
  REQUIRE(Opened(folder).Read("w", {3, 4}, values).ok());
  CHECK(SameBits(values, whole));
  fs::remove(folder + "/b.safetensors");
  std::ranges::fill(values, 0.0F);
  REQUIRE(Opened(folder).Read("w", {3, 4}, values).ok());
  CHECK(SameBits(values, whole));
  fs::remove(folder + "/a.safetensors");
  CHECK_THAT(std::string(ReadStatus(Opened(folder), "w", {3, 4}).message()),
             Catch::StartsWith("tensor w: " + folder + "/a.safetensors: is not on this node"));

  const auto missing = [&](size_t file) {
    CheckpointManifest less = manifest;
    less.files.erase(less.files.begin() + static_cast<ptrdiff_t>(file));
    REQUIRE(WriteCheckpointManifest(folder, less).ok());
    const absl::Status status = ReadStatus(Opened(folder), "w", {3, 4});
    CHECK(absl::IsFailedPrecondition(status));
    return std::string(status.message());
  };
  const std::string where = folder + "/manifest.json: elements ";
  const std::string rest = " of the 12 of tensor w are in no file of the checkpoint; choose another checkpoint";
  CHECK(missing(1) == where + "0 to 2" + rest);
  CHECK(missing(3) == where + "3 to 6" + rest);
  manifest.files.erase(manifest.files.begin());
  CHECK(missing(1) == where + "7 to 11" + rest);
}

}  // namespace
}  // namespace geopipe
