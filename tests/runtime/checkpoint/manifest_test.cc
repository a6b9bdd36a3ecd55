#include "runtime/checkpoint/manifest.h"

#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <vector>

#include "optimizer/base/splitmix64.h"
#include "runtime/base/utf8.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_folders.h"
#include "tests/runtime/checkpoint/written_checkpoint.h"
#include "tests/support/seed.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

constexpr std::string_view kRemedy = "; copy the file from another node of the run or choose another checkpoint";

// One file with one tensor of two elements.
CheckpointManifest Tiny() {
  CheckpointManifest manifest = ManifestOf(SmallModel(1), 10);
  manifest.files = {{.name = "a.safetensors",
                     .bytes = 80,
                     .header_bytes = 72,
                     .header_crc32c = 0x0000abcd,
                     .tensors = {{.range = {.name = "w", .shape = {1, 2}, .elements = 2}, .crc32c = 0xffffffff}}}};
  return manifest;
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

std::string ErrorOf(const std::string& text) {
  const auto manifest = ParseCheckpointManifest(text, "/c/manifest.json");
  CHECK_FALSE(manifest.ok());
  return std::string(manifest.status().message());
}

TEST_CASE("a manifest's text is read back as it was written, and has its checksum first") {
  const CheckpointManifest manifest = Tiny();
  const std::string text = CheckpointManifestText(manifest);
  CHECK_THAT(text, Catch::StartsWith("{\"crc32c\":\"") && Catch::EndsWith("\n}\n"));
  CHECK(Resealed(text) == text);
  const auto back = ParseCheckpointManifest(text, "/c/manifest.json");
  INFO(back.status());
  REQUIRE(back.ok());
  CHECK(*back == manifest);
}

TEST_CASE("where columns are in parts, the manifest says so and has another version") {
  CheckpointManifest manifest = Tiny();
  CHECK_THAT(CheckpointManifestText(manifest), Catch::Contains("\"version\": 1,") && !Catch::Contains("column_parts"));
  manifest.files[0].tensors[0].range.column_parts = 2;
  const std::string text = CheckpointManifestText(manifest);
  CHECK_THAT(text, Catch::Contains("\"version\": 2,") && Catch::Contains("\"column_parts\": 2,"));
  const auto back = ParseCheckpointManifest(text, "/c/manifest.json");
  INFO(back.status());
  REQUIRE(back.ok());
  CHECK(*back == manifest);
}

TEST_CASE("a damaged or edited manifest is refused, whatever it says") {
  const std::string text = CheckpointManifestText(Tiny());
  const std::string begin = "/c/manifest.json: its ";
  CHECK(ErrorOf("") == begin + "0 bytes do not begin as a manifest does" + std::string(kRemedy));
  CHECK(ErrorOf("{\"format\": \"geopipe-checkpoint\"}") ==
        begin + "32 bytes do not begin as a manifest does" + std::string(kRemedy));
  CHECK(ErrorOf(Replaced(text, "\"epoch\": 3", "\"epoch\": 4")) ==
        begin + "checksum does not fit its content: it was damaged or edited" + std::string(kRemedy));
  CHECK(ErrorOf(text + " ") ==
        begin + "checksum does not fit its content: it was damaged or edited" + std::string(kRemedy));
  CHECK(ErrorOf(Resealed(text + "}")) == "/c/manifest.json: it is not a JSON object" + std::string(kRemedy));
}

TEST_CASE("a manifest of another version is refused as such") {
  const std::string text = CheckpointManifestText(Tiny());
  const auto other = ParseCheckpointManifest(Resealed(Replaced(text, "\"version\": 1", "\"version\": 4")), "m");
  CHECK(absl::IsUnimplemented(other.status()));
  CHECK(other.status().message() ==
        "m: version 4 of the format is not known, only 1 to 3; use the GeoPipe that wrote the checkpoint");
  CHECK(ErrorOf(Resealed(Replaced(text, "F32", "F64"))) ==
        "/c/manifest.json: tensor w of file a.safetensors has dtype F64; this version reads F32; use the GeoPipe that "
        "wrote "
        "the checkpoint");
}

TEST_CASE("a value that is missing or of another kind is named") {
  const auto [from, to, message] = GENERATE(table<std::string, std::string, std::string>({
      {"geopipe-checkpoint", "tar", "the manifest has no valid \"format\""},
      {"\"version\": 1", "\"version\": \"1\"", "the manifest has no valid \"version\""},
      {"\"job\": \"mini\"", "\"job\": 1", "the manifest has no valid \"job\""},
      {"\"job\": \"mini\"", "\"job\": \"\"", "the job's name has 0 bytes or is not UTF-8; 1 to 255 bytes are allowed"},
      {"\"epoch\": 3", "\"epoch\": -3", "the manifest has no valid \"epoch\""},
      {"\"epoch\": 3", "\"epoch\": 3.0", "the manifest has no valid \"epoch\""},
      {"\"incarnation\": 1795574968339194340", "\"incarnation\": 9223372036854775808",
       "the manifest has no valid \"incarnation\""},
      {"\"seed\": 18446744073709551615", "\"seed\": 18446744073709551616", "the manifest has no valid \"seed\""},
      {"\"next_iteration\": 10", "\"next_iteration\": 10000000000",
       "next_iteration is 10000000000; 0 to 9999999999 are allowed"},
      {"\"model\"", "\"mode\"", "the manifest has no valid \"model\""},
      {"\"rope_theta\": 10000.5", "\"rope_theta\": \"10000.5\"", "the model has no valid \"rope_theta\""},
      {"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": 0",
       "the model has no valid \"tie_word_embeddings\""},
      {"\"hidden_size\": 8", "\"hidden_size\": null", "the model has no valid \"hidden_size\""},
      {"\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": -1e-06", "the model has rms_norm_eps -1e-06"},
      {"\"files\"", "\"file\"", "the manifest has no valid \"files\""},
      {"\"a.safetensors\"", "\"../a.safetensors\"", "'../a.safetensors' is not the plain name of a .safetensors file"},
      {"\"a.safetensors\"", "\"a\"", "'a' is not the plain name of a .safetensors file"},
      {"\"bytes\": 80", "\"bytes\": 81", "file a.safetensors has 81 bytes, but its header and tensors make 80"},
      {"\"header_bytes\": 72", "\"header_bytes\": 7",
       "file a.safetensors has a header of 7 bytes; 8 to 100000008 are "
       "allowed"},
      {"\"0000abcd\"", "\"abcd\"", "file a.safetensors has no valid \"header_crc32c\""},
      {"\"ffffffff\"", "\"FFFFFFFF\"", "tensor w of file a.safetensors has no valid \"crc32c\""},
      {"\"ffffffff\"", "4294967295", "tensor w of file a.safetensors has no valid \"crc32c\""},
      {"\"name\": \"w\"", "\"name\": []", "a tensor of file a.safetensors has no valid \"name\""},
      {"\"elements\": 2", "\"elements\": 3",
       "file a.safetensors: tensor w of 2 elements cannot have 3 elements from 0 on"},
      {"\"elements\": 2", "\"elements\": 0",
       "file a.safetensors: tensor w of 2 elements cannot have 0 elements from 0 on"},
      {"\"offset\": 0", "\"offset\": 9223372036854775807",
       "file a.safetensors: tensor w of 2 elements cannot have 2 elements from 9223372036854775807 on"},
  }));
  CAPTURE(from, to);
  const std::string text = Resealed(Replaced(CheckpointManifestText(Tiny()), from, to));
  CHECK(ErrorOf(text) == "/c/manifest.json: " + message + std::string(kRemedy));
}

TEST_CASE("what no manifest may say is neither written nor read") {
  struct Case {
    std::function<void(CheckpointManifest&)> change;
    std::string message;
  };
  const std::vector<Case> cases = {
      {[](auto& m) { m.files.clear(); }, "there are 0 files; 1 to 100000 are allowed"},
      {[](auto& m) { m.files.push_back(m.files[0]); }, "file a.safetensors is named twice"},
      {[](auto& m) { m.files[0].tensors.clear(); }, "file a.safetensors has 0 tensors; 1 to 100000 are allowed"},
      {[](auto& m) { m.files[0].tensors.push_back(m.files[0].tensors[0]); }, "file a.safetensors has tensor w twice"},
      {[](auto& m) {
         m.files[0].tensors[0].range.shape = {0, 2};
       },
       "file a.safetensors: tensor w has shape [0, 2]; 1 to 8 positive extents of at most 1125899906842624 bytes are "
       "allowed"},
      {[](auto& m) {
         m.files[0].tensors[0].range.shape = {int64_t{1} << 40, int64_t{1} << 40};
       },
       "file a.safetensors: tensor w has shape [1099511627776, 1099511627776]; 1 to 8 positive extents of at most "
       "1125899906842624 bytes are allowed"},
      {[](auto& m) {
         m.files.push_back(m.files[0]);
         m.files[1].name = "b.safetensors";
         m.files[1].tensors[0].crc32c = 1;
       },
       "two copies of tensor w differ: their checksums are ffffffff and 00000001"},
      {[](auto& m) {
         m.files.push_back(m.files[0]);
         m.files[1].name = "b.safetensors";
         m.files[1].tensors[0].range.shape = {2, 1};
       },
       "tensor w has shape [1, 2] in one file and [2, 1] in another"},
      {[](auto& m) {
         m.files.push_back(m.files[0]);
         m.files[1].name = "b.safetensors";
         m.files[1].tensors[0].range.offset = 1;
         m.files[1].tensors[0].range.elements = 1;
         m.files[1].bytes -= 4;
       },
       "tensor w: its ranges of 2 elements from 0 and of 1 elements from 1 overlap"},
      {[](auto& m) {
         m.files[0].tensors[0].range.column_parts = 2;
         m.files.push_back(m.files[0]);
         m.files[1].name = "b.safetensors";
         m.files[1].tensors[0].range.column_parts = 1;
       },
       "tensor w has its columns in 2 parts in one file and in 1 in another"},
      {[](auto& m) { m.files[0].tensors[0].range.column_parts = 3; },
       "file a.safetensors: tensor w of shape [1, 2] cannot have its columns in 3 parts"},
      {[](auto& m) { m.files[0].tensors[0].range.column_parts = 0; },
       "file a.safetensors: tensor w of shape [1, 2] cannot have its columns in 0 parts"},
      {[](auto& m) { m.plan = "\xff"; }, "the plan has 1 bytes or is not UTF-8; at most 16777216 bytes are allowed"},
      {[](auto& m) { m.tokens_per_iteration = -1; },
       "incarnation 1795574968339194340, epoch 3 and tokens_per_iteration -1 cannot be negative"},
      {[](auto& m) { m.files[0].tensors[0].range.name = std::string(256, 'w'); },
       "file a.safetensors: a tensor's name has 256 bytes or is not UTF-8; 1 to 255 bytes are allowed"},
  };
  const TempDir dir;
  for (const Case& each : cases) {
    CheckpointManifest manifest = Tiny();
    each.change(manifest);
    CHECK(ValidateCheckpointManifest(manifest).message() == each.message);
    CHECK(WriteCheckpointManifest(dir.path(), manifest).message() ==
          dir.path() + "/manifest.json: cannot be written: " + each.message);
    CHECK(Names(dir.path()).empty());
  }
}

TEST_CASE("counts and sizes are bounded") {
  CheckpointManifest manifest = Tiny();
  manifest.plan = std::string(CheckpointLimits::kMaxPlanBytes, 'p');
  CHECK(ValidateCheckpointManifest(manifest).ok());
  manifest.plan += 'p';
  CHECK_FALSE(ValidateCheckpointManifest(manifest).ok());
  manifest = Tiny();
  const FileEntry file = manifest.files[0];
  manifest.files.clear();
  for (size_t i = 0; i <= CheckpointLimits::kMaxFiles; ++i) {
    manifest.files.push_back(file);
    manifest.files.back().name = std::to_string(i) + ".safetensors";
  }
  CHECK(ValidateCheckpointManifest(manifest).message() == "there are 100001 files; 1 to 100000 are allowed");
  std::string deep = CheckpointManifestText(Tiny());
  deep = Replaced(deep, "\"epoch\": 3", "\"epoch\": " + std::string(1'000'000, '[') + std::string(1'000'000, ']'));
  CHECK(ErrorOf(Resealed(deep)) == "/c/manifest.json: the manifest has no valid \"epoch\"" + std::string(kRemedy));
  const std::string long_name(100'000, '\n');
  const std::string named = ErrorOf(
      Resealed(Replaced(CheckpointManifestText(Tiny()), "a.safetensors", std::string(100'000, 'n') + ".safetensors")));
  CHECK(named.size() < 1000);
}

// A random edit, as a disk or an enemy might make it.
void Edit(std::string& text, SplitMix64& random) {
  const auto any = [&](size_t end) { return static_cast<size_t>(random.Next() % (end + 1)); };
  const size_t at = any(text.size() - 1);
  const size_t length = std::min(any(30), text.size() - at);
  static const std::vector<std::string> kWords = {
      "-1",   "0",   "1e400", "18446744073709551615", "null", "[[[[",  "]",         "{",
      "}",    "\"",  ",",     "9223372036854775807",  ":",    "\\u00", "\"shape\"", "\xc3",
      "true", "1.5", "",      "9007199254740993"};
  switch (random.Next() % 6) {
    case 0:
      text[at] = static_cast<char>(random.Next());
      break;
    case 1:
      text.erase(at, length);
      break;
    case 2:
      text.insert(any(text.size()), text.substr(at, length));
      break;
    case 3:
      text.replace(at, any(3), kWords[random.Next() % kWords.size()]);
      break;
    case 4: {  // another number in place of one
      const size_t digit = text.find_first_of("0123456789", at);
      if (digit != std::string::npos) {
        const size_t end = std::min(text.find_first_not_of("0123456789", digit), text.size());
        text.replace(digit, end - digit, kWords[random.Next() % kWords.size()]);
      }
      break;
    }
    default:
      text.resize(at + 1);
  }
}

TEST_CASE("random edits of a manifest, with a checksum that fits or not, never crash the reader") {
  const TempDir dir;
  const ModelSpec model = SmallModel(1);
  const std::string folder = WrittenCheckpoint(dir.path(), model, 10);
  const std::string intact = Content(folder + "/manifest.json");
  const CheckpointManifest manifest = Checkpoint::Open(folder)->manifest();
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  SplitMix64 random(seed);
  int read = 0;
  constexpr int kRounds = 4000;
  for (int round = 0; round < kRounds; ++round) {
    std::string text = intact;
    for (uint64_t edits = 1 + random.Next() % 3; edits > 0 && !text.empty(); --edits) {
      Edit(text, random);
    }
    const auto plain = ParseCheckpointManifest(text, "m");
    REQUIRE((text == intact ? plain.ok() : !plain.ok()));
    const std::string sealed = Resealed(text);
    const auto parsed = ParseCheckpointManifest(sealed, "m");
    if (!parsed.ok()) {
      REQUIRE(IsUtf8(std::string(parsed.status().message())));
      continue;
    }
    ++read;
    REQUIRE(ValidateCheckpointManifest(*parsed).ok());
    REQUIRE(ParseCheckpointManifest(CheckpointManifestText(*parsed), "m").value() == *parsed);
    Overwrite(folder + "/manifest.json", sealed);
    const auto checkpoint = Checkpoint::Open(folder);
    if (checkpoint.ok()) {
      (void)checkpoint->CheckSameModel(model);
      std::vector<float> values(8);
      (void)checkpoint->Read("model.norm.weight", {8}, values);
    }
  }
  CHECK(read > kRounds / 100);  // some edits are harmless: the reader's inside was reached
  CHECK(manifest == ParseCheckpointManifest(intact, "m").value());
}

}  // namespace
}  // namespace geopipe
