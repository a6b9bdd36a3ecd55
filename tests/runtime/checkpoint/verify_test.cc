#include "runtime/checkpoint/verify.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "optimizer/base/splitmix64.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_folders.h"
#include "tests/runtime/checkpoint/written_checkpoint.h"
#include "tests/support/seed.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;
using Kind = CheckpointProblem::Kind;

std::vector<CheckpointProblem> Problems(const std::string& folder) {
  absl::StatusOr<std::vector<CheckpointProblem>> problems = VerifyCheckpoint(folder);
  INFO(problems.status());
  REQUIRE(problems.ok());
  return *std::move(problems);
}

// The tensor at a byte of a file; "" in the header.
std::string TensorAt(const FileEntry& file, int64_t byte) {
  int64_t end = file.header_bytes;
  if (byte < end) {
    return "";
  }
  for (const TensorEntry& tensor : file.tensors) {
    end += 4 * tensor.range.elements;
    if (byte < end) {
      return tensor.range.name;
    }
  }
  FAIL("byte " << byte << " is behind the end of " << file.name);
  return "";
}

TEST_CASE("an intact checkpoint has no problems") {
  const TempDir dir;
  CHECK(Problems(WrittenCheckpoint(dir.path(), SmallModel(3), 9)).empty());
}

TEST_CASE("a flipped bit anywhere is found, and the header or the tensor named") {
  const TempDir dir;
  const std::string folder = WrittenCheckpoint(dir.path(), SmallModel(1), 9);
  const Checkpoint checkpoint = *Checkpoint::Open(folder);
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  SplitMix64 random(seed);
  constexpr size_t kStride = 7;
  for (const FileEntry& file : checkpoint.manifest().files) {
    const std::string path = folder + "/" + file.name;
    const std::string content = Content(path);
    REQUIRE(static_cast<int64_t>(content.size()) == file.bytes);
    for (size_t byte = random.Next() % kStride; byte < content.size(); byte += kStride) {
      Poke(path, byte, static_cast<char>(content[byte] ^ (1 << (random.Next() % 8))));
      const std::vector<CheckpointProblem> problems = Problems(folder);
      INFO(file.name << ", byte " << byte);
      REQUIRE(problems.size() == 1);
      const std::string tensor = TensorAt(file, static_cast<int64_t>(byte));
      CHECK(problems[0].file == file.name);
      CHECK(problems[0].kind == (tensor.empty() ? Kind::kHeader : Kind::kTensor));
      CHECK(problems[0].tensor == tensor);
      const std::string part = tensor.empty() ? "the header" : "tensor " + tensor;
      CHECK_THAT(problems[0].message, Catch::StartsWith(path + ": " + part + " is damaged: its checksum is ") &&
                                          Catch::EndsWith("; copy the file again or choose another checkpoint"));
      Poke(path, byte, content[byte]);
    }
  }
  CHECK(Problems(folder).empty());
}

TEST_CASE("a flipped bit anywhere in the manifest is found") {
  const TempDir dir;
  const std::string folder = WrittenCheckpoint(dir.path(), SmallModel(1), 9);
  const std::string path = folder + "/manifest.json";
  const std::string content = Content(path);
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  SplitMix64 random(seed);
  constexpr size_t kStride = 3;
  for (size_t byte = random.Next() % kStride; byte < content.size(); byte += kStride) {
    Poke(path, byte, static_cast<char>(content[byte] ^ (1 << (random.Next() % 8))));
    const absl::Status status = VerifyCheckpoint(folder).status();
    INFO("byte " << byte << ": " << status);
    REQUIRE(absl::IsDataLoss(status));
    REQUIRE_THAT(std::string(status.message()), Catch::StartsWith(path + ": its "));
    Poke(path, byte, content[byte]);
  }
  CHECK(Problems(folder).empty());
}

TEST_CASE("a truncated file is found, and all that it lost is named") {
  const TempDir dir;
  const std::string folder = WrittenCheckpoint(dir.path(), SmallModel(1), 9);
  const Checkpoint checkpoint = *Checkpoint::Open(folder);
  for (const FileEntry& file : checkpoint.manifest().files) {
    const std::string path = folder + "/" + file.name;
    const std::string content = Content(path);
    for (size_t length = content.size() - 1; length > 12; length -= 13) {
      fs::resize_file(path, length);
      INFO(file.name << ", " << length << " bytes");
      const std::vector<CheckpointProblem> problems = Problems(folder);
      REQUIRE(problems.size() >= 2);
      CHECK(problems[0].kind == Kind::kSize);
      CHECK(problems[0].message == path + ": has " + std::to_string(length) + " bytes, the manifest says " +
                                       std::to_string(file.bytes) +
                                       "; copy the file again or choose another checkpoint");
      const std::string first_lost = TensorAt(file, static_cast<int64_t>(length));
      CHECK(problems[1].kind == (first_lost.empty() ? Kind::kHeader : Kind::kTensor));
      CHECK(problems[1].tensor == first_lost);
      CHECK_THAT(problems[1].message, Catch::Contains(": ends at byte " + std::to_string(length) + " where "));
      CHECK(problems.back().tensor == file.tensors.back().range.name);
    }
    Overwrite(path, content + "x");
    CHECK(Problems(folder).size() == 1);
    Overwrite(path, content);
  }
  const std::string manifest = Content(folder + "/manifest.json");
  for (size_t length = manifest.size() - 1; length > 10; length -= 11) {
    fs::resize_file(folder + "/manifest.json", length);
    INFO(length << " bytes of the manifest");
    CHECK(absl::IsDataLoss(VerifyCheckpoint(folder).status()));
  }
}

TEST_CASE("what no file of the manifest holds is found, and named in the order of the model") {
  const TempDir dir;
  const std::string folder = WrittenCheckpoint(dir.path(), SmallModel(2), 9);
  CheckpointManifest manifest = Checkpoint::Open(folder)->manifest();
  std::erase_if(manifest.files, [](const FileEntry& file) {
    return file.name.starts_with("head.") || file.name.starts_with("layer-00001.moments");
  });
  REQUIRE(WriteCheckpointManifest(folder, manifest).ok());
  const std::vector<CheckpointProblem> problems = Problems(folder);
  REQUIRE(problems.size() == 1);
  CHECK(problems[0].kind == Kind::kIncomplete);
  CHECK(problems[0].file == kManifestName);
  CHECK(problems[0].message ==
        folder +
            "/manifest.json: has no tensor model.layers.1.input_layernorm.weight.exp_avg, which the model needs; "
            "choose another checkpoint");
}

TEST_CASE("all problems are reported: missing, unreadable and damaged files, in the order of the manifest") {
  const TempDir dir;
  const std::string folder = WrittenCheckpoint(dir.path(), SmallModel(2), 9);
  fs::remove(folder + "/embedding.moments.1-3.safetensors");
  fs::remove(folder + "/layer-00000.weights.1-3.safetensors");
  fs::create_directory(folder + "/layer-00000.weights.1-3.safetensors");
  const std::string head = folder + "/head.weights.1-3.safetensors";
  std::string content = Content(head);
  content[9] = '?';
  content.back() = static_cast<char>(content.back() + 1);
  Overwrite(head, content + "more");
  const std::vector<CheckpointProblem> problems = Problems(folder);
  std::vector<std::string> found;
  for (const CheckpointProblem& problem : problems) {
    found.push_back(std::to_string(static_cast<int>(problem.kind)) + " " + problem.file + " " + problem.tensor);
  }
  CHECK(found == std::vector<std::string>{"0 embedding.moments.1-3.safetensors ",
                                          "1 layer-00000.weights.1-3.safetensors ", "2 head.weights.1-3.safetensors ",
                                          "3 head.weights.1-3.safetensors ",
                                          "4 head.weights.1-3.safetensors lm_head.weight"});
  CHECK(problems[0].message ==
        folder + "/embedding.moments.1-3.safetensors: is not on this node; copy the file from the node that wrote it");
}

}  // namespace
}  // namespace geopipe
