// geopipectl checkpoint and export-hf, on checkpoints that a test wrote.
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_folders.h"
#include "runtime/weights/safetensors.h"
#include "tests/runtime/checkpoint/written_checkpoint.h"
#include "tests/support/command.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct Result {
  int exit_code = 0;
  std::string out;
  std::string err;
};

Result Run(std::vector<std::string> args) {
  CommandResult result = RunCommand("geopipectl", std::move(args));
  CHECK(result.exit_status.signal == 0);
  return {result.exit_status.exit_code, result.out, result.err};
}

TEST_CASE("export-hf writes a directory and says what was written") {
  const TempDir dir;
  const std::string folder = WrittenCheckpoint(dir.path(), SmallModel(1), 9);
  const std::string output = dir.path() + "/out";
  Result result = Run({"export-hf", "--checkpoint", folder, "--output", output});
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
  CHECK(result.out == "wrote 12 tensors, 3.22 KiB in 1 file to " + output +
                          "; load it with transformers' AutoModelForCausalLM.from_pretrained\n");
  CHECK(Names(output) == std::vector<std::string>{"config.json", "model.safetensors"});
  result = Run({"export-hf", "--checkpoint", folder, "--output", output});
  CHECK(result.exit_code == 2);
  CHECK(result.out.empty());
  CHECK(result.err == "error: " + output + ": is not empty; remove it or choose another folder\n");
  result =
      Run({"export-hf", "--checkpoint", folder, "--output", output + "2", "--max-shard-size", "1kB", "-o", "json"});
  CHECK(result.exit_code == 0);
  CHECK(Json::parse(result.out) == Json{{"output", output + "2"},
                                        {"dtype", "fp32"},
                                        {"tensors", 12},
                                        {"bytes", 3296},
                                        {"files", 4},
                                        {"model_files", Json::array()}});
}

TEST_CASE("export-hf carries the tokenizer of the folder that the job's weights came from") {
  const TempDir dir;
  const std::string first = WrittenCheckpoint(dir.path() + "/first", SmallModel(1), 9);
  const std::string second = WrittenCheckpoint(dir.path() + "/second", SmallModel(1), 9);
  const auto begin_from = [](const std::string& folder, const std::string& source) {
    CheckpointManifest manifest = Checkpoint::Open(folder)->manifest();
    manifest.init_from = source;
    REQUIRE(WriteCheckpointManifest(folder, manifest).ok());
    CHECK(Checkpoint::Open(folder)->manifest() == manifest);
  };
  const std::string model = dir.path() + "/model";
  begin_from(first, model);
  begin_from(second, first);  // and this one from the other's checkpoint
  int exports = 0;
  const auto run = [&](const std::string& folder, std::vector<std::string> more) {
    const std::string output = dir.path() + "/out" + std::to_string(++exports);
    std::vector<std::string> args{"export-hf", "--checkpoint", folder, "--output", output};
    args.insert(args.end(), more.begin(), more.end());
    return std::pair(Run(args), output);
  };
  auto [result, output] = run(second, {});
  CHECK(result.exit_code == 0);
  CHECK(result.err == "note: no tokenizer is written: the job's weights came from " + model +
                          ", which is not on this node; name its folder with --tokenizer DIR\n");
  CHECK(Names(output) == std::vector<std::string>{"config.json", "model.safetensors"});
  dir.Write("model/config.json", "{}");
  std::tie(result, output) = run(second, {});
  CHECK(result.err ==
        "note: no tokenizer is written: " + model + " has none; name another folder with --tokenizer DIR\n");
  const std::vector<std::string> carried{"added_tokens.json",
                                         "chat_template.jinja",
                                         "chat_template_tool.jinja",
                                         "generation_config.json",
                                         "merges.txt",
                                         "special_tokens_map.json",
                                         "tokenizer.json",
                                         "tokenizer.model",
                                         "tokenizer_config.json",
                                         "vocab.json"};
  for (const std::string& name : carried) {
    dir.Write("model/" + name, "content of " + name);
  }
  dir.Write("model/model.safetensors", "not carried");
  dir.Write("model/README.md", "not carried");
  std::tie(result, output) = run(second, {});
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
  CHECK_THAT(result.out, Catch::Contains(" in 1 file, and 10 files of tokenizer and generation to " + output + ";"));
  std::vector<std::string> names = carried;
  names.insert(names.end(), {"config.json", "model.safetensors"});
  std::ranges::sort(names);
  CHECK(Names(output) == names);
  for (const std::string& name : carried) {
    CHECK(Content(output + "/" + name) == "content of " + name);
  }
  CHECK(Content(output + "/config.json") != "{}");
  std::tie(result, output) = run(second, {"--tokenizer", "none"});
  CHECK(result.err.empty());
  CHECK(Names(output) == std::vector<std::string>{"config.json", "model.safetensors"});
  dir.Write("other/tokenizer.json", "another");
  std::tie(result, output) = run(second, {"--tokenizer", dir.path() + "/other", "-o", "json"});
  CHECK(Json::parse(result.out)["model_files"] == Json{"tokenizer.json"});
  CHECK(Content(output + "/tokenizer.json") == "another");
  std::tie(result, output) = run(second, {"--tokenizer", dir.path() + "/none"});
  CHECK(result.exit_code == 2);
  CHECK(result.err == "error: --tokenizer " + dir.path() + "/none is no folder; name the folder of a model\n");
  CHECK(!fs::exists(output));
  std::tie(result, output) = run(second, {"--tokenizer", dir.path() + "/first"});
  CHECK(result.exit_code == 2);
  CHECK(result.err ==
        "error: --tokenizer " + dir.path() + "/first has no files of a tokenizer; name the folder of a model\n");
}

TEST_CASE("export-hf names what it was given that is wrong") {
  const TempDir dir;
  const std::string folder = WrittenCheckpoint(dir.path(), SmallModel(1), 9);
  const auto refused = [&](std::vector<std::string> args, int exit_code, const std::string& message) {
    args.insert(args.begin(), "export-hf");
    const Result result = Run(args);
    INFO(message);
    CHECK(result.exit_code == exit_code);
    CHECK_THAT(result.err, Catch::StartsWith("error: ") && Catch::Contains(message));
    CHECK(result.out.empty());
  };
  const TempDir elsewhere;
  const std::string x = elsewhere.path() + "/x";
  refused({"--output", x}, 2, "no checkpoint: name its folder with --checkpoint DIR");
  refused({"--checkpoint", folder}, 2, "no output: name a new folder with --output DIR");
  refused({"--checkpoint", dir.path(), "--output", x}, 2, "is missing, so its folder is no complete checkpoint");
  refused({"--checkpoint", folder, "--output", x, "--dtype", "int8"}, 2, "'int8' is not one of fp32|bf16|fp16");
  refused({"--checkpoint", folder, "--output", x, "--max-shard-size", "0"}, 2, "a file cannot have 0 bytes");
  refused({"--checkpoint", folder, "--output", x, "--dtype", "fp16"}, 2, "which fp16 cannot hold");
  refused({"--checkpoint", folder, "--output", "/proc/x"}, 1, "/proc/x: cannot be made: ");
  fs::remove(folder + "/head.weights.1-3.safetensors");
  refused({"--checkpoint", folder, "--output", x}, 1, "head.weights.1-3.safetensors: is not on this node");
  CHECK_FALSE(fs::exists(x));
}

TEST_CASE("checkpoint verify tells what is damaged, with its exit code") {
  const TempDir dir;
  const std::string folder = WrittenCheckpoint(dir.path(), SmallModel(1), 9);
  const std::string other = WrittenCheckpoint(dir.path(), SmallModel(1), 20);
  Result result = Run({"checkpoint", "verify", "--path", folder});
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
  CHECK(result.out == folder + ": 36 tensors in 6 files are intact\n");
  const std::string unfinished = *BeginCheckpoint(dir.path(), 30);
  const std::string incomplete = "incomplete: " + unfinished +
                                 "/manifest.json: is missing, so its folder is no complete checkpoint; choose another "
                                 "checkpoint\n";
  result = Run({"checkpoint", "verify", "--path", dir.path()});
  CHECK(result.exit_code == 0);
  CHECK(result.out ==
        folder + ": 36 tensors in 6 files are intact\n" + other + ": 36 tensors in 6 files are intact\n" + incomplete);
  CHECK(Run({"checkpoint", "verify", "--path", unfinished}).exit_code == 1);

  const std::string head = folder + "/head.weights.1-3.safetensors";
  const std::string content = Content(head);
  Poke(head, content.size() - 1, static_cast<char>(content.back() ^ 1));
  fs::remove(folder + "/embedding.moments.1-3.safetensors");
  result = Run({"checkpoint", "verify", "--path", dir.path()});
  CHECK(result.exit_code == 1);
  CHECK(result.err.empty());
  CHECK_THAT(result.out,
             Catch::StartsWith(folder + "/embedding.moments.1-3.safetensors: is not on this node; ") &&
                 Catch::Contains("\n" + head + ": tensor lm_head.weight is damaged: ") &&
                 Catch::Contains("\n" + folder + ": 2 problems in 2 of 6 files\n" + other + ": 36 tensors"));
  result = Run({"checkpoint", "verify", "--path", dir.path(), "-o", "json"});
  CHECK(result.exit_code == 1);
  const Json json = Json::parse(result.out);
  CHECK(json["intact"] == false);
  REQUIRE(json["complete"].size() == 2);
  CHECK(json["complete"][0]["iteration"] == 9);
  CHECK(json["complete"][0]["problems"].size() == 2);
  CHECK(json["complete"][0]["problems"][0]["kind"] == "missing");
  CHECK(json["complete"][0]["problems"][0]["tensor"].is_null());
  CHECK(json["complete"][0]["problems"][1]["file"] == "head.weights.1-3.safetensors");
  CHECK(json["complete"][0]["problems"][1]["tensor"] == "lm_head.weight");
  CHECK(json["complete"][1]["problems"].empty());
  CHECK(json["incomplete"][0]["folder"] == unfinished);
}

TEST_CASE("checkpoint verify tells what no file holds") {
  const TempDir dir;
  const std::string folder = WrittenCheckpoint(dir.path(), SmallModel(1), 9);
  CheckpointManifest manifest = Checkpoint::Open(folder)->manifest();
  std::erase_if(manifest.files, [](const FileEntry& file) { return file.name.starts_with("head."); });
  REQUIRE(WriteCheckpointManifest(folder, manifest).ok());
  Result result = Run({"checkpoint", "verify", "--path", folder});
  CHECK(result.exit_code == 1);
  CHECK_THAT(result.out, Catch::StartsWith(folder + "/manifest.json: has no tensor model.norm.weight, which the model "
                                                    "needs; choose another checkpoint\n"));
  result = Run({"checkpoint", "verify", "--path", folder, "-o", "json"});
  const std::string kind = R"("kind": "incomplete")";
  CHECK(result.out.find(kind) != std::string::npos);
}

TEST_CASE("a checkpoint with a damaged manifest is no intact one, whatever lies beside it") {
  const TempDir dir;
  WrittenCheckpoint(dir.path(), SmallModel(1), 9);
  const std::string damaged = WrittenCheckpoint(dir.path(), SmallModel(1), 20);
  Poke(damaged + "/manifest.json", 100, '?');
  const Result result = Run({"checkpoint", "verify", "--path", dir.path()});
  CHECK(result.exit_code == 1);
  CHECK_THAT(result.out, Catch::Contains("incomplete: " + damaged + "/manifest.json: "));
}

TEST_CASE("checkpoint list shows complete checkpoints, and incomplete ones with the reason") {
  const TempDir dir;
  WrittenCheckpoint(dir.path(), SmallModel(1), 9);
  const std::string newer = WrittenCheckpoint(dir.path(), SmallModel(3), 20);
  fs::remove(newer + "/layer-00001.weights.1-3.safetensors");
  const std::string unfinished = *BeginCheckpoint(dir.path(), 30);
  Result result = Run({"checkpoint", "list", "--path", dir.path()});
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
  CHECK_THAT(result.out, Catch::StartsWith("ITERATION  JOB   EPOCH") && Catch::Contains("\n        9  mini      3 ") &&
                             Catch::Contains("\n       20  mini      3  9 of 10 ") && Catch::Contains(newer + "\n") &&
                             Catch::EndsWith("\nincomplete: " + unfinished +
                                             "/manifest.json: is missing, so its folder is no complete checkpoint; "
                                             "choose another checkpoint\n"));
  result = Run({"checkpoint", "list", "--path", dir.path(), "-o", "json"});
  const Json json = Json::parse(result.out);
  REQUIRE(json["complete"].size() == 2);
  const Json& second = json["complete"][1];
  CHECK(second["iteration"] == 20);
  CHECK(second["folder"] == newer);
  CHECK(second["job"] == "mini");
  CHECK(second["epoch"] == 3);
  CHECK(second["files"] == 10);
  CHECK(second["files_here"] == 9);
  CHECK(second["bytes"].get<int64_t>() > 0);
  CHECK(second["written_unix_time_ns"].get<int64_t>() > 1'000'000'000'000'000'000);
  REQUIRE(json["incomplete"].size() == 1);
  CHECK(json["incomplete"][0]["iteration"] == 30);
  CHECK_THAT(json["incomplete"][0]["reason"].get<std::string>(), Catch::Contains("is missing"));
  fs::remove_all(dir.path() + "/iteration-0000000009");
  fs::remove_all(newer);
  CHECK_THAT(Run({"checkpoint", "list", "--path", dir.path()}).out,
             Catch::StartsWith("no complete checkpoints\nincomplete: "));
}

TEST_CASE("checkpoint names what it was given that is wrong") {
  const TempDir dir;
  const std::string verb = GENERATE("list", "verify");
  Result result = Run({"checkpoint", verb, "--path", dir.path()});
  CHECK(result.exit_code == 2);
  CHECK(result.err ==
        "error: " + dir.path() + ": holds no checkpoints; name the folder with those of one job (iteration-…)\n");
  result = Run({"checkpoint", verb, "--path", dir.path() + "/none"});
  CHECK(result.exit_code == 2);
  CHECK_THAT(result.err, Catch::Contains("/none: there is no such folder; "));
  result = Run({"checkpoint", verb});
  CHECK(result.exit_code == 2);
  CHECK_THAT(result.err, Catch::StartsWith("error: no folder: "));
  result = Run({"checkpoint", "lits"});
  CHECK(result.exit_code == 2);
  CHECK_THAT(result.err, Catch::Contains("unknown verb 'checkpoint lits'"));
  CHECK(Run({"checkpoint", "--help"}).exit_code == 0);
  CHECK(Run({"help", "checkpoint"}).out == Run({"checkpoint", "--help"}).out);
}

}  // namespace
}  // namespace geopipe
